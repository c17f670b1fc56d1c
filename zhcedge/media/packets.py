"""A stream's newest compressed packets: what came before an event is cut from here, without decoding."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import TypeVar

from zhcedge.core.packets import EncodedPacket

T = TypeVar("T")

DEFAULT_RING_BYTES = 16 * 1024 * 1024
"""16 s of a camera at 8 Mbit/s."""

DEFAULT_RING_S = 30.0
MAX_PACKETS = 10_000
"""A scene in which nothing moves makes packets of some bytes; this bounds the index, which costs more than they do."""

_MAX_STEP_NS = 10_000_000_000
"""A larger step between two timestamps of one stream is a cut in its clock, not a pause."""

_USUAL_STEP_NS = 40_000_000
_REORDERED = 128  # so far back the packet of a picture lies that is just handed over, at most


@dataclass(slots=True)
class KeptPacket:
    """What the ring knows of a packet.

    Attributes:
        number: packets are counted from 0; a gap in the numbers is one in the stream.
        start, size: where its bytes lie in the ring's buffer.
        pts, dts, duration, time_base, is_keyframe: see EncodedPacket.
        place_ns, show_ns: its times of decoding and of presentation on the ring's own clock, which only grows, however
            the stream's timestamps jump; it runs on through the gap between two connections.
        captured_ns: wall clock when the picture was taken, 0 if unknown.
        form: of its stream; the same object for all packets of one connection.
    """

    number: int
    start: int
    size: int
    pts: int | None
    dts: int | None
    duration: int
    time_base: Fraction
    is_keyframe: bool
    place_ns: int
    show_ns: int
    captured_ns: int
    form: object


class PacketRing:
    """The newest packets of one source, bounded by bytes and by time. Implements core.packets.PacketKeeper.

    `begin`, `append`, `shown` and `clear` belong to the reader thread, all else to any thread. The bytes lie in one
    buffer, made by the first `begin`: keeping a packet is one copy into it and no allocation. Nobody waits for longer
    than it takes to copy one packet.

    What is older than `max_s` goes, but for what is needed to decode the rest; more than `max_bytes` never stays.
    Packets of a group of pictures that has lost its key frame stay for whoever is reading along; nothing begins there.
    """

    def __init__(self, max_bytes: int = DEFAULT_RING_BYTES, max_s: float = DEFAULT_RING_S) -> None:
        if max_bytes < 1 or max_s < 0:
            raise ValueError("max_bytes must be positive and max_s must not be negative")
        self._max_bytes, self._max_ns = max_bytes, round(max_s * 1e9)
        self._store = memoryview(b"")
        self._form: object = None
        self._end = 0  # where the next byte goes
        self._number = 0  # of the next packet
        self._kept: deque[KeptPacket] = deque()
        self._keys: deque[KeptPacket] = deque()
        self._place_ns = 0
        self._step_ns = _USUAL_STEP_NS
        self._ticks: int | None = None
        self._media_time_s = 0.0
        self._lock = threading.Lock()

    @property
    def form(self) -> object:
        """Of the stream that comes at present; None before the first one."""
        return self._form

    @property
    def next_number(self) -> int:
        """Of the packet that comes next."""
        return self._number

    @property
    def total_bytes(self) -> int:
        """Payload bytes held now."""
        with self._lock:
            return sum(kept.size for kept in self._kept)

    # -- the reader thread's side ------------------------------------------------------------------------------
    def begin(self, form: object) -> None:
        """See PacketKeeper."""
        if not self._store:
            self._store = memoryview(bytearray(self._max_bytes))
        self._form, self._ticks = form, None

    def append(self, packet: EncodedPacket) -> None:
        """See PacketKeeper. A packet larger than the ring is a gap in it."""
        payload = packet.payload
        size = payload.nbytes
        if not size:
            return
        with self._lock:
            self._advance(packet)
            if size > len(self._store):
                self._forget()
                return
            start = self._room_for(size)
            self._store[start : start + size] = payload
            self._end = start + size
            kept = self._indexed(packet, start, size)
            self._number += 1
            self._kept.append(kept)
            if kept.is_keyframe:
                self._keys.append(kept)
            self._drop_old()

    def shown(self, pts: int | None, captured_ns: int) -> None:
        """See PacketKeeper. Where pictures have no presentation times it is the newest packet's."""
        with self._lock:
            for kept in islice(reversed(self._kept), _REORDERED):
                if pts is None or kept.pts == pts:
                    kept.captured_ns = captured_ns
                    return

    def clear(self) -> None:
        """See PacketKeeper. The ring's clock goes on."""
        with self._lock:
            self._forget()

    # -- whoever records ---------------------------------------------------------------------------------------
    def read(self, number: int, copy: Callable[[memoryview], T]) -> tuple[KeptPacket, T] | None:
        """The packet with this number and what `copy` makes of its bytes, which may be used during the call only.

        None when it has not come yet. Raises LookupError when it is held no more; see `start_at` for how to go on.
        """
        with self._lock:
            if number >= self._number:
                return None
            index = number - self._kept[0].number if self._kept else -1
            if index < 0:
                raise LookupError(f"packet {number} is held no more")
            kept = self._kept[index]
            return kept, copy(self._store[kept.start : kept.start + kept.size])

    def start_at(self, place_ns: int, from_number: int = 0) -> KeptPacket | None:
        """Where to begin in order to show `place_ns`: the last key frame at or before it, else the first one held.

        None while there is no key frame at all.

        Args:
            from_number: only key frames from this packet on count.
        """
        with self._lock:
            keys = [key for key in self._keys if key.number >= from_number]
        return next((key for key in reversed(keys) if key.show_ns <= place_ns), keys[0] if keys else None)

    def place_of(self, captured_ns: int) -> int | None:
        """When the picture that was taken at `captured_ns` of the wall clock is shown, on the ring's clock.

        It is the nearest picture that is held; a time beyond all of them is reckoned from there. So a step of the wall
        clock spoils nothing where the picture itself is held. None when no picture's wall clock is known.
        """
        with self._lock:
            known = [kept for kept in self._kept if kept.captured_ns]
        if not known:
            return None
        near = min(reversed(known), key=lambda kept: abs(kept.captured_ns - captured_ns))
        is_beyond = captured_ns > near.captured_ns if near is known[-1] else near is known[0]
        return near.show_ns + (captured_ns - near.captured_ns if is_beyond else 0)

    def wall_of(self, place_ns: int) -> int | None:
        """The wall clock at a time of the ring's clock, reckoned from the nearest picture whose wall clock is known."""
        with self._lock:
            known = [kept for kept in self._kept if kept.captured_ns]
        if not known:
            return None
        near = min(known, key=lambda kept: abs(kept.show_ns - place_ns))
        return near.captured_ns + place_ns - near.show_ns

    # -- inside; the caller holds the lock ---------------------------------------------------------------------
    def _advance(self, packet: EncodedPacket) -> None:
        """Set the ring's clock to the packet's time of decoding."""
        ticks = packet.pts if packet.dts is None else packet.dts
        if ticks is not None and self._ticks is not None:
            step_ns = _ns(ticks - self._ticks, packet.time_base)
            if 0 < step_ns <= _MAX_STEP_NS:
                self._step_ns = step_ns
            else:  # the stream's clock was set, or a file begins again
                step_ns = self._step_ns
        else:  # of a new stream the feed's timeline knows how long the gap was
            gap_ns = round((packet.media_time_s - self._media_time_s) * 1e9) if self._ticks is None else 0
            step_ns = max(gap_ns, self._step_ns)
        self._place_ns += step_ns
        self._ticks, self._media_time_s = ticks, packet.media_time_s

    def _indexed(self, packet: EncodedPacket, start: int, size: int) -> KeptPacket:
        pts, dts = packet.pts, packet.dts
        reordered_ns = 0 if pts is None or dts is None else _ns(pts - dts, packet.time_base)
        return KeptPacket(
            self._number,
            start,
            size,
            pts,
            dts,
            packet.duration,
            packet.time_base,
            packet.is_keyframe,
            self._place_ns,
            self._place_ns + reordered_ns,
            packet.captured_ns,
            self._form,
        )

    def _room_for(self, size: int) -> int:
        """Where a packet can lie in one piece; what lay there is dropped. Packets lie one behind the other, in order,
        so what is in the way is the oldest."""
        start, kept = self._end, self._kept
        if start + size > len(self._store):
            while kept and kept[0].start >= start:
                self._drop_oldest()
            start = 0
        while kept and start <= kept[0].start < start + size:
            self._drop_oldest()
        return start

    def _drop_old(self) -> None:
        limit_ns = self._place_ns - self._max_ns
        while len(self._keys) > 1 and self._keys[1].show_ns <= limit_ns:
            while self._kept[0] is not self._keys[1]:
                self._kept.popleft()
            self._keys.popleft()
        while len(self._kept) > MAX_PACKETS:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        if self._kept.popleft().is_keyframe:
            self._keys.popleft()

    def _forget(self) -> None:
        self._kept.clear()
        self._keys.clear()
        self._end = 0
        self._number += 1  # whoever reads along sees the gap


def _ns(ticks: int, time_base: Fraction) -> int:
    return ticks * time_base.numerator * 1_000_000_000 // time_base.denominator

"""Compressed packets kept for later: clips of what came before an event are cut from here without decoding."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from fractions import Fraction

DEFAULT_RING_BYTES = 8 * 1024 * 1024
"""16 s of a camera at 4 Mbit/s."""


@dataclass(frozen=True)
class EncodedPacket:
    """One compressed picture as it lies in the stream.

    Attributes:
        payload: read-only view of the bytes in host memory; keeps them alive, and nothing else of the stream.
        pts, dts: presentation and decoding time in units of `time_base`, None where the stream has none.
        duration: in units of `time_base`, 0 if unknown.
        is_keyframe: decoding can start here.
        media_time_s: place on the source's timeline, seconds; it keeps growing when a file is looped.
    """

    payload: memoryview
    pts: int | None
    dts: int | None
    duration: int
    time_base: Fraction
    is_keyframe: bool
    media_time_s: float


class PacketRing:
    """The newest packets of one stream, bounded by bytes. Any thread.

    It is empty or begins with a key frame, so that all of it can be decoded; it never holds more than its limit.
    A group of pictures larger than the limit is given up until the next key frame.
    """

    def __init__(self, limit_bytes: int = DEFAULT_RING_BYTES) -> None:
        if limit_bytes < 0:
            raise ValueError("limit_bytes must not be negative")
        self._limit_bytes = limit_bytes
        self._packets: deque[EncodedPacket] = deque()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def limit_bytes(self) -> int:
        return self._limit_bytes

    @property
    def total_bytes(self) -> int:
        """Payload bytes held now."""
        with self._lock:
            return self._bytes

    def append(self, packet: EncodedPacket) -> None:
        """Keep a packet, in decoding order; the oldest groups of pictures make room for it."""
        with self._lock:
            if not self._packets and not packet.is_keyframe:
                return
            self._packets.append(packet)
            self._bytes += packet.payload.nbytes
            while self._bytes > self._limit_bytes:
                self._drop_oldest_group()

    def window(self, start_s: float, end_s: float) -> tuple[EncodedPacket, ...]:
        """The packets that are needed to show [start_s, end_s] of the timeline, from the key frame before it on.

        Packets come in decoding order. Where the start is no longer held, what is left of the span; empty when
        nothing of it is held.
        """
        with self._lock:
            packets = tuple(self._packets)
        inside = [index for index, packet in enumerate(packets) if start_s <= packet.media_time_s <= end_s]
        if not inside:
            return ()
        keyframes = [i for i, packet in enumerate(packets) if packet.is_keyframe and packet.media_time_s <= start_s]
        return packets[keyframes[-1] if keyframes else 0 : inside[-1] + 1]

    def clear(self) -> None:
        with self._lock:
            self._packets.clear()
            self._bytes = 0

    def _drop_oldest_group(self) -> None:
        """Drop the leading key frame and all that depends on it. Caller holds the lock."""
        self._bytes -= self._packets.popleft().payload.nbytes
        while self._packets and not self._packets[0].is_keyframe:
            self._bytes -= self._packets.popleft().payload.nbytes

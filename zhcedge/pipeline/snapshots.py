"""Single pictures of a running channel, encoded while everything else goes on.

Nobody pays for it while nobody asks: the collector looks at one attribute of the channel. The thread that asks waits
for the next frame, holds its slot while it is encoded, and gives it back. One picture at a time in the whole process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

from zhcedge.core.errors import NotNowError, PipelineError
from zhcedge.core.ports import Arena, Clock, FrameSlot, JpegEncoder
from zhcedge.core.types import B, FrameInfo
from zhcedge.pipeline.channel import Channel
from zhcedge.pipeline.crops import around
from zhcedge.pipeline.guard import Guard
from zhcedge.pipeline.tiles import Rectangle

INTERVAL_S = 1.0
"""Least time between two snapshots of one channel."""

MAX_BYTES = 2_000_000
"""A larger picture is refused: it has to go through a pipe and a broker."""

MAX_CROPS = 8
"""Of one picture. Together they are no larger than MAX_BYTES; what comes after that is left out."""

Area = tuple[float, float, float, float]
"""Left, top, right, bottom as shares of the picture, 0..1."""

_FRAME_S = 5.0  # longest wait for the next frame
_POLL_S = 0.1  # how often a wait looks whether the channel has ended
_LEAVE_S = 30.0  # longest wait for the picture that is being encoded, when its channel is closed

GiveBack = Callable[[FrameSlot[B]], None]


@dataclass(frozen=True)
class Crop:
    """A part of a picture.

    Attributes:
        jpeg: the bitstream.
        rectangle: what it shows of the whole picture.
    """

    jpeg: bytes
    rectangle: Rectangle


@dataclass(frozen=True)
class Snapshot:
    """A picture as the channel's sinks see it: masks blackened, boxes drawn.

    Attributes:
        jpeg: the bitstream.
        info: of the frame that it shows.
        crops: one for each that was asked for, in that order; None for one that was left out, because they are too
            large together.
    """

    jpeg: bytes
    info: FrameInfo
    crops: tuple[Crop | None, ...] = ()


class FrameOrder(Generic[B]):
    """Somebody's wish for one frame. `deliver` belongs to the collector, the rest to the thread that wishes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrived = threading.Event()
        self._is_cancelled = False
        self._frame: tuple[FrameSlot[B], GiveBack[B]] | None = None

    def deliver(self, slot: FrameSlot[B], give_back: GiveBack[B]) -> None:
        """Here is the frame; it is given back at once when nobody waits for it any more. Once only."""
        with self._lock:
            is_wanted = not self._is_cancelled
            if is_wanted:
                self._frame = slot, give_back
        if is_wanted:
            self._arrived.set()
        else:
            give_back(slot)

    def wait(self, timeout_s: float) -> FrameSlot[B] | None:
        """The frame, None when it did not come in time."""
        self._arrived.wait(timeout_s)
        return self._frame[0] if self._frame is not None else None

    def close(self) -> None:
        """Give the frame back, or wish for none any more."""
        with self._lock:
            self._is_cancelled = True
            frame, self._frame = self._frame, None
        if frame is not None:
            slot, give_back = frame
            give_back(slot)


class SnapshotDesk(Generic[B]):
    """Takes snapshots, one at a time: a second request meanwhile is refused and counted. Any thread.

    What the encoder needs it gets with the first picture of a format, under a re-warm lease.

    Args:
        make_encoder: called with the first request.
        interval_s: least time between two pictures of a channel.

    Attributes:
        taken, refused: so many so far.
    """

    def __init__(
        self,
        make_encoder: Callable[[], JpegEncoder[B]],
        guard: Guard,
        arena: Arena[B],
        clock: Clock,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._make_encoder, self._guard, self._arena, self._clock = make_encoder, guard, arena, clock
        self._interval_ns = round(interval_s * 1e9)
        self._encoder: JpegEncoder[B] | None = None
        self._current: Channel[B] | None = None
        self._changed = threading.Condition()
        self._is_closed = False
        self.taken = self.refused = 0

    def take(self, channel: Channel[B], is_over: Callable[[], bool], areas: Sequence[Area] = ()) -> Snapshot:
        """The channel's next frame. Blocks for some seconds at most; not the collector's or the runner's thread.

        The frame is drawn by the lanes, or the drawer has been made before.

        Args:
            is_over: whether no more frames of the channel come.
            areas: of the same frame, as pictures of their own; at most MAX_CROPS. The crops show at least these.

        Raises NotNowError while another one is taken, too soon after the last one, when no frame comes, or the picture
        is too large; and what the encoder raises.
        """
        self._begin(channel)
        order: FrameOrder[B] = FrameOrder()
        try:
            self._guard.watch_thread()
            channel.order = order
            slot = self._next_frame(channel, order, is_over)
            encoder = self._prepared(channel, slot)
            picture = bytes(encoder.encode(slot.surface))
            if len(picture) > MAX_BYTES:
                raise NotNowError(f"the picture has {len(picture)} bytes, over {MAX_BYTES}", where=channel.name)
            snapshot = Snapshot(picture, slot.info, self._crops(encoder, slot, areas))
            self.taken += 1
            return snapshot
        except NotNowError:
            self.refused += 1
            raise
        finally:
            channel.order = None
            order.close()
            self._end()

    def _begin(self, channel: Channel[B]) -> None:
        now_ns = self._clock.monotonic_ns()
        with self._changed:
            reason = ""
            if self._is_closed:
                reason = "the run is about to end"
            elif self._current is not None:
                reason = "busy: a snapshot is being taken"
            elif channel.snapshot_ns and now_ns - channel.snapshot_ns < self._interval_ns:
                reason = f"busy: one snapshot in {self._interval_ns / 1e9:g} s of a channel"
            if reason:
                self.refused += 1
                raise NotNowError(reason, where=channel.name, fix="try again later")
            channel.snapshot_ns = now_ns
            self._current = channel

    def _end(self) -> None:
        with self._changed:
            self._current = None
            self._changed.notify_all()

    def _next_frame(self, channel: Channel[B], order: FrameOrder[B], is_over: Callable[[], bool]) -> FrameSlot[B]:
        for _ in range(round(_FRAME_S / _POLL_S)):
            slot = order.wait(_POLL_S)
            if slot is not None:
                slot.holder = "snapshot"
                return slot
            if is_over():
                break
        what = f"no frame came within {_FRAME_S:g} s"
        if channel.is_starved:
            what = f"busy: its slots are held by {channel.pool.holders()}"
        raise NotNowError(what, where=channel.name, fix="try again when frames come")

    def _prepared(self, channel: Channel[B], slot: FrameSlot[B]) -> JpegEncoder[B]:
        """The encoder, ready for the slot's pictures and their parts."""
        with self._guard.rewarm(f"snapshot of {channel.name}"), self._arena.lease():
            if self._encoder is None:
                self._encoder = self._make_encoder()
            self._encoder.prepare(slot.surface.format)
        return self._encoder

    def _crops(self, encoder: JpegEncoder[B], slot: FrameSlot[B], areas: Sequence[Area]) -> tuple[Crop | None, ...]:
        crops: list[Crop | None] = []
        left_bytes = MAX_BYTES
        for area in areas:
            image = slot.surface.format
            part = around(area, image.width_px, image.height_px)
            view = self._arena.view(slot.surface, part.left_px, part.top_px, part.width_px, part.height_px)
            picture = encoder.encode(view)
            is_small = len(picture) <= left_bytes
            crops.append(Crop(bytes(picture), part) if is_small else None)
            left_bytes -= len(picture) if is_small else 0
        return tuple(crops)

    # -- closing -----------------------------------------------------------------------------------------------
    def leave(self, channel: Channel[B]) -> None:
        """The channel's memory is about to be given away: wait until no snapshot reads it any more.

        Raises PipelineError when that does not happen.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._current is not channel, _LEAVE_S):
                raise PipelineError(f"a snapshot is not done after {_LEAVE_S:.0f} s", where=channel.name)

    def close(self) -> None:
        """Take no more and free the encoder; one that hangs in a driver is left to the end of the process."""
        with self._changed:
            self._is_closed = True
            is_idle = self._changed.wait_for(lambda: self._current is None, _LEAVE_S)
            encoder, self._encoder = self._encoder, None
        if encoder is not None and is_idle:
            encoder.close()

"""A channel's reader: source -> slot -> the channel's ready queue."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Generic

from zhcedge.core.errors import MediaError, SourceMissingError
from zhcedge.core.message_ids import tagged
from zhcedge.core.ports import Clock, Device, EndOfStream, FrameSlot, Idle, Lease, Ranges
from zhcedge.core.types import B
from zhcedge.pipeline.channel import Channel, ChannelListener, ChannelNews, ChannelState, about
from zhcedge.pipeline.dropping import DropWatch
from zhcedge.pipeline.spans import Spans

log = logging.getLogger(__name__)

POLL_S = 0.2  # how often a blocked thread looks whether it should stop


class Reader(Generic[B]):
    """Reads one channel until its source ends, the channel or the pass stops, or the source breaks for good.

    Args:
        stopping: of the whole pass.
        wake_runner: called after each frame and at the end.
        frame_limit: frames to read, those that are dropped not counted; 0 for all.
        deadline_ns: monotonic time after which no more is read, 0 for none.

    `run` belongs to one thread. A broken source ends its channel and nothing else: the error is in `channel.error`.
    """

    def __init__(
        self,
        channel: Channel[B],
        device: Device[B],
        clock: Clock,
        spans: Spans,
        ranges: Ranges,
        stopping: threading.Event,
        wake_runner: Callable[[None], None],
        listener: ChannelListener,
        *,
        frame_limit: int = 0,
        deadline_ns: int = 0,
    ) -> None:
        self._channel, self._device, self._clock = channel, device, clock
        self._spans, self._ranges = spans, ranges
        self._stopping, self._wake_runner, self._listener = stopping, wake_runner, listener
        self._frame_limit, self._deadline_ns = frame_limit, deadline_ns
        self._state, self._reason = ChannelState.UP, ""
        self._drops = DropWatch(channel)

    def run(self) -> None:
        """Until the end. Raises PipelineError when the device fails; then the whole pass can't go on."""
        channel = self._channel
        try:
            self._read_all()
        except (MediaError, SourceMissingError) as error:
            channel.error = error
            log.error("channel %s: %s", channel.name, about(channel.name, error), extra=tagged(camera=channel.name))
        finally:
            channel.ready.append(None)
            self._wake_runner(None)
        if channel.error is not None:
            self._tell(ChannelState.FAILED, about(channel.name, channel.error))
        elif self._has_more():  # nobody asked it to end: the source did
            self._tell(ChannelState.ENDED)

    def _read_all(self) -> None:
        channel, source = self._channel, self._channel.source
        slot: FrameSlot[B] | None = None
        try:
            while self._has_more():
                slot = slot or self._next_slot()
                if slot is None and not channel.facts.is_live:
                    continue
                started_ns = self._clock.monotonic_ns()
                self._ranges.push("read")
                item = source.read(POLL_S)
                self._ranges.pop()
                self._drops.look(started_ns)
                if isinstance(item, EndOfStream):
                    return
                if isinstance(item, Idle):
                    self._note_status()
                    continue
                if self._state is not ChannelState.UP and not channel.is_paused:
                    self._tell(ChannelState.UP)
                if self._is_too_many(item):
                    item.release()
                    continue
                slot = slot or self._slot_in_need()
                channel.frames += 1
                self._spans.read(item.info, started_ns)
                if slot is None:
                    channel.dropped += not channel.is_paused
                    item.release()
                    continue
                self._ingest(item, slot)
                slot = None
        finally:
            if slot is not None:
                channel.pool.release(slot)

    def _has_more(self) -> bool:
        channel = self._channel
        if self._stopping.is_set() or channel.stopping.is_set():
            return False
        if self._deadline_ns and self._clock.monotonic_ns() > self._deadline_ns:
            return False
        return not (self._frame_limit and channel.frames - channel.dropped >= self._frame_limit)

    def _is_too_many(self, lease: Lease[B]) -> bool:
        """The frame is beyond the channel's wanted rate."""
        pace, info = self._channel.pace, lease.info
        if pace is None:
            return False
        return not pace.keeps(info.media_time_s if info.media_time_s >= 0 else info.read_time_ns / 1e9)

    def _ingest(self, lease: Lease[B], slot: FrameSlot[B]) -> None:
        channel = self._channel
        self._ranges.push("ingest")
        lease.release(after=self._device.ingest(lease.surface, slot, lease.ready))
        if channel.meter is not None:
            channel.meter.measure(slot)
        if channel.picture is not None:
            channel.picture.look(slot, lease.info)
        self._ranges.pop()
        self._spans.ingest(lease.info, self._clock.monotonic_ns())
        slot.info, slot.holder = lease.info, "ready queue"
        channel.ready.append(slot)
        self._wake_runner(None)

    # -- slots -------------------------------------------------------------------------------------------------
    def _next_slot(self) -> FrameSlot[B] | None:
        """A free slot to read into. A file waits for one."""
        channel = self._channel
        if channel.is_paused:
            self._tell(ChannelState.PAUSED)
            if not channel.facts.is_live:
                self._stopping.wait(POLL_S)
            return None
        slot = channel.pool.acquire("reader", 0.0) if channel.credits is None else self._slot_of_file(channel.credits)
        if slot is not None:
            channel.note_fed()
        return slot

    def _slot_in_need(self) -> FrameSlot[B] | None:
        """For a frame of a live channel that had no slot: one that came free, or that of the oldest waiting frame."""
        channel = self._channel
        if channel.is_paused:
            return None
        slot = channel.pool.acquire("reader", 0.0)
        if slot is None:
            try:
                slot = channel.ready.popleft()
            except IndexError:
                channel.note_starved(self._clock.monotonic_ns())
                return None
            channel.dropped += 1
        if slot is not None:  # the end's mark is this thread's own, and comes last
            slot.holder = "reader"
            channel.note_fed()
        return slot

    def _slot_of_file(self, credits: queue.SimpleQueue[None]) -> FrameSlot[B] | None:
        channel = self._channel
        try:
            credits.get(timeout=POLL_S)
        except queue.Empty:
            return None
        slot = channel.pool.acquire("reader", POLL_S)
        if slot is None:
            credits.put(None)
            channel.note_starved(self._clock.monotonic_ns())
        return slot

    # -- what others should know -------------------------------------------------------------------------------
    def _note_status(self) -> None:
        status = self._channel.source.status
        if not status.is_up:
            self._tell(ChannelState.DOWN, status.reason)

    def _tell(self, state: ChannelState, reason: str = "") -> None:
        if (state, reason) != (self._state, self._reason):
            self._state, self._reason = state, reason
            self._listener(ChannelNews(self._channel.index, self._channel.name, state, reason))

"""The collector: waits for launches, puts results into the ring, draws what lanes don't, hands frames to sinks."""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Callable
from typing import Generic

import numpy as np

from zhcedge.core.errors import PipelineError
from zhcedge.core.ports import Clock, Fence, FrameSlot, Ranges
from zhcedge.core.types import DETECTION_DTYPE, RESULT_DTYPE, B, DetectionArray, FrameInfo
from zhcedge.pipeline.channel import Channel, SlotOrder
from zhcedge.pipeline.drawing import Drawer
from zhcedge.pipeline.guard import Guard
from zhcedge.pipeline.handing import SinkFeeder
from zhcedge.pipeline.launching import ChannelEnd, Launch, Skipped, Stopped
from zhcedge.pipeline.reader import POLL_S
from zhcedge.pipeline.ring import DetectionRing, RingRecord
from zhcedge.pipeline.spans import Spans

log = logging.getLogger(__name__)

_STALL_S = 30.0  # a launch that takes longer is a hang, not a slow stage

# Where a result's parts lie in RESULT_DTYPE: read as bytes, because numpy's records cost microseconds a frame.
_COUNT = struct.Struct("<i")
_DETECTIONS_AT = int(RESULT_DTYPE.fields["detections"][1]) if RESULT_DTYPE.fields else 0
_DETECTION_BYTES = DETECTION_DTYPE.itemsize


class Collector(Generic[B]):
    """Works on what the lane runner emits, in that order. All of it belongs to one thread.

    Args:
        ring: where results go; None keeps frames from sinks too, as in warm-up.
        inspect: called with every finished frame, before sinks.
        heartbeat: called with the total of finished frames after each launch.
        feeder: takes finished frames to the sinks.
        drawer: draws frames whose results the lanes' programs don't draw; asked for when the first one comes.

    Attributes:
        frames: finished so far, skipped ones included.
    """

    def __init__(
        self,
        guard: Guard,
        clock: Clock,
        spans: Spans,
        ranges: Ranges,
        broken: threading.Event,
        ring: DetectionRing | None,
        inspect: Callable[[FrameSlot[B]], None],
        heartbeat: Callable[[int], None],
        drawer: Callable[[], Drawer[B]],
        feeder: SinkFeeder[B],
    ) -> None:
        self._guard, self._clock, self._spans, self._ranges, self._broken = guard, clock, spans, ranges, broken
        self._ring, self._inspect, self._heartbeat = ring, inspect, heartbeat
        self._drawer, self._feeder = drawer, feeder
        self._channels: dict[int, Channel[B]] = {}
        self._views: dict[int, list[memoryview]] = {}  # of the slots' results, by channel
        self._last: dict[int, FrameInfo] = {}
        self._launches = 0
        self.frames = 0

    def add(self, channel: Channel[B]) -> None:
        """Before the channel's first frame. Any thread: a new key in a dictionary disturbs nobody."""
        self._views[channel.index] = [slot.results.view(np.uint8).data for slot in channel.pool.slots]
        self._channels[channel.index] = channel

    def launch(self, launch: Launch[B], has_ended: Callable[[], None]) -> None:
        """Wait for a launch and see to its frames. `has_ended` is called at once when it is done: its lane must not
        wait for what follows. Raises PipelineError when it failed or hangs, Stopped when another thread failed.
        """
        self._wait(launch.fence, f"lane {launch.launcher.lane.index}")
        self._ranges.push("collect")
        done_ns = self._clock.monotonic_ns()
        times = launch.program.stage_times()
        has_ended()
        self._spans.stages(launch.launcher.lane.index, launch.slots[0].info, times, launch.started_ns, done_ns)
        for slot in launch.slots:
            channel = self._channels[slot.channel]
            if slot.part < 0:
                self._finish(channel, slot, done_ns, is_drawn=channel.is_drawn_by_lanes)
            elif channel.tiled[slot.index].part_done():
                self._finish(channel, channel.tiled[slot.index].slot, done_ns, is_drawn=False)
        self._wake_reader()
        self._ranges.pop()
        self._launches += 1
        if self._launches % self._guard.check_interval == 0:
            self._guard.check()

    def skipped(self, item: Skipped[B]) -> None:
        """A frame without detection: it goes to the sinks with the last results, and its tracks go on.

        Of an unseen one nothing is known: it has no results, nor have those that follow, and its tracks end.
        """
        channel, slot = item.channel, item.slot
        now_ns = self._clock.monotonic_ns()
        if item.is_unseen:
            channel.last["count"] = 0
        slot.results[:] = channel.last
        slot.holder = "collector"
        self._inspect(slot)
        if item.is_unseen or channel.meter is not None:
            self._publish(channel, slot, 0, is_still=not item.is_unseen, is_unseen=item.is_unseen)
        self._hand_on(channel, slot, is_drawn=False)
        self.frames += 1
        self._spans.collect(slot.info, now_ns, self._clock.monotonic_ns())
        self._wake_reader()

    def channel_end(self, item: ChannelEnd[B]) -> None:
        """The channel has no more frames."""
        channel = item.channel
        if self._ring is not None:
            self._publish_end(self._ring, channel)
        del self._channels[channel.index], self._views[channel.index]
        self._last.pop(channel.index, None)
        self._feeder.end(channel)

    def _wake_reader(self) -> None:
        if self._ring is not None:
            self._ring.wake()
        self._heartbeat(self.frames)

    # -- one frame ---------------------------------------------------------------------------------------------
    def _finish(self, channel: Channel[B], slot: FrameSlot[B], done_ns: int, *, is_drawn: bool) -> None:
        slot.holder = "collector"
        if channel.gate is not None:
            channel.last[:] = slot.results
        self._inspect(slot)
        view = self._views[channel.index][slot.index]
        self._publish(channel, slot, _COUNT.unpack_from(view)[0])
        self._spans.collect(slot.info, done_ns, self._clock.monotonic_ns())
        self._hand_on(channel, slot, is_drawn=is_drawn)
        self.frames += 1

    def _publish(
        self, channel: Channel[B], slot: FrameSlot[B], count: int, *, is_still: bool = False, is_unseen: bool = False
    ) -> None:
        if self._ring is None:
            return
        view, image = self._views[channel.index][slot.index], slot.surface.format
        detections = view[_DETECTIONS_AT : _DETECTIONS_AT + count * _DETECTION_BYTES]
        self._last[channel.index] = slot.info
        now_ns = self._clock.monotonic_ns()
        width_px, height_px = image.width_px, image.height_px
        self._ring.write(
            slot.info, width_px, height_px, now_ns, count, detections, is_still=is_still, is_unseen=is_unseen
        )

    def _publish_end(self, ring: DetectionRing, channel: Channel[B]) -> None:
        nothing = FrameInfo(channel.index, -1, self._clock.wall_ns(), self._clock.monotonic_ns())
        info, image = self._last.get(channel.index, nothing), channel.facts.format
        empty: DetectionArray = channel.pool.slots[0].results[0]["detections"][:0]
        ring.publish(RingRecord(info, image.width_px, image.height_px, self._clock.monotonic_ns(), empty, is_end=True))
        ring.wake()

    def _wait(self, fence: Fence, where: str) -> None:
        deadline_ns = self._clock.monotonic_ns() + int(_STALL_S * 1e9)
        while not fence.wait(POLL_S):
            if self._broken.is_set():
                raise Stopped
            if self._clock.monotonic_ns() > deadline_ns:
                raise PipelineError(f"no result for {_STALL_S:.0f} s", where=where)

    # -- sinks and snapshots -----------------------------------------------------------------------------------
    def _hand_on(self, channel: Channel[B], slot: FrameSlot[B], *, is_drawn: bool) -> None:
        """To the sinks, and to who has ordered a frame; drawn in any case, because that burns in the masks."""
        sinks = channel.sinks if self._ring is not None else ()  # warm-up frames are nobody's output
        order = self._take_order(channel) if channel.order is not None else None
        if not is_drawn and (channel.sinks or order is not None):
            self._wait(self._drawer().draw(slot), f"channel {channel.name}, drawing")
            slot.is_drawn = channel.is_drawn_by_lanes
        if not sinks and order is None:
            channel.pool.release(slot)
            return
        shared = channel.shared[slot.index]
        shared.begin(len(sinks) + (order is not None))
        if order is not None:
            order.deliver(slot, shared.give_back)
        if sinks:
            self._feeder.hand(channel, slot)

    def _take_order(self, channel: Channel[B]) -> SlotOrder[B] | None:
        """Who wants this frame. None while the channel has no slot to spare: sinks hold them, and come first."""
        if channel.is_starved:
            return None
        order, channel.order = channel.order, None
        return order

"""The frame path in motion: a reader per channel, one lane runner, one collector.

Each thread has one owner and one blocking call. Nothing is shared but bounded queues made at initialisation: slots
are the only currency, so every queue is bounded by the pools. A slot travels

    pool -> reader (read, ingest) -> channel's ready queue -> runner (launch) -> collector (results) -> sinks -> pool

The same pass serves warm-up (a few frames, no sinks) and the active phase.
"""

from __future__ import annotations

import collections
import logging
import queue
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

import numpy as np

from zhcedge.core.errors import OutputError, PipelineError, ZhcEdgeError
from zhcedge.core.ports import (
    Clock,
    Device,
    EndOfStream,
    Fence,
    FrameSlot,
    Idle,
    Program,
    Sink,
)
from zhcedge.core.types import DETECTION_DTYPE, RESULT_DTYPE, B, DetectionArray, FrameInfo
from zhcedge.pipeline.channel import Channel, Launcher, read_ahead
from zhcedge.pipeline.guard import Guard
from zhcedge.pipeline.pools import SharedSlot
from zhcedge.pipeline.recorder import Recorder
from zhcedge.pipeline.ring import DetectionRing, RingRecord
from zhcedge.pipeline.spans import Spans

log = logging.getLogger(__name__)

_POLL_S = 0.2  # how often a blocked thread looks whether it should stop
_STALL_S = 30.0  # a launch that takes longer is a hang, not a slow stage
_SINK_RETRY_S = 0.0005  # less than a fast encoder takes for what waits in its queue, so that it never runs dry
_LAUNCH_ENDED = -1  # among the tokens: no channel's, but news for the runner

# Where a result's parts lie in RESULT_DTYPE: read as bytes, because numpy's records cost microseconds a frame.
_COUNT = struct.Struct("<i")
_DETECTIONS_AT = int(RESULT_DTYPE.fields["detections"][1]) if RESULT_DTYPE.fields else 0
_DETECTION_BYTES = DETECTION_DTYPE.itemsize


@dataclass(frozen=True)
class _Launch(Generic[B]):
    launcher: Launcher[B]
    program: Program[B]
    fence: Fence
    slots: Sequence[FrameSlot[B]]
    started_ns: int


@dataclass(frozen=True)
class _ChannelEnd:
    channel: int


class FramePass(Generic[B]):
    """One pass of frames from the sources to the ring: warm-up makes short ones, the active phase one.

    Args:
        frame_limit: frames to read from each channel, 0 for all there are.
        ring: where results go; None in warm-up.
        inspect: called by the collector with every finished slot, before sinks.
        heartbeat: called by the collector with the total of finished frames after each launch.

    `run` blocks its caller until every channel has ended or `stop` was called, and raises what a thread raised.
    """

    def __init__(
        self,
        device: Device[B],
        channels: Sequence[Channel[B]],
        launchers: Sequence[Launcher[B]],
        guard: Guard,
        recorder: Recorder,
        clock: Clock,
        *,
        frame_limit: int = 0,
        ring: DetectionRing | None = None,
        inspect: Callable[[FrameSlot[B]], None] = lambda slot: None,
        heartbeat: Callable[[int], None] = lambda frames: None,
    ) -> None:
        self._device, self._channels, self._guard, self._clock = device, tuple(channels), guard, clock
        self.frame_limit, self._ring, self._inspect, self._heartbeat = frame_limit, ring, inspect, heartbeat
        self._spans = Spans(
            recorder,
            [channel.name for channel in self._channels],
            {launcher.lane.index for launcher in launchers},
        )
        sizes = sorted(launchers[0].programs)
        # Waiting frames -> how many of them to launch: the largest program that they fill.
        self._batch_for = [max(size for size in (0, *sizes) if size <= count) for count in range(sizes[-1] + 1)]
        self._tokens: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._credits: dict[int, queue.SimpleQueue[None]] = {}  # of channels that read files
        for channel in self._channels:
            if not channel.facts.is_live:
                self._credits[channel.index] = queue.SimpleQueue()
                for _ in range(read_ahead(len(self._channels), sizes[-1])):
                    self._credits[channel.index].put(None)
        self._free: queue.SimpleQueue[Launcher[B]] = queue.SimpleQueue()
        for launcher in launchers:
            self._free.put(launcher)
        self._inflight: queue.SimpleQueue[_Launch[B] | _ChannelEnd | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._broken = threading.Event()
        self._error: ZhcEdgeError | None = None
        self._last: dict[int, FrameInfo] = {}
        self._views = [[slot.results.view(np.uint8).data for slot in channel.pool.slots] for channel in self._channels]
        self._lanes = len({launcher.lane.index for launcher in launchers})
        self._launched = self._collected = 0  # by the runner, by the collector
        self.frames = 0

    def run(self) -> None:
        """Run to the end. Raises the first error of any thread, as an error of our tree."""
        threads = [self._thread(f"reader {channel.name}", self._read, channel) for channel in self._channels]
        threads += [self._thread("runner", self._launch_all), self._thread("collector", self._collect_all)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Read no more frames; what is in flight is finished. Any thread, any time."""
        self._stopping.set()

    # -- reader ------------------------------------------------------------------------------------------------
    def _read(self, channel: Channel[B]) -> None:
        slot: FrameSlot[B] | None = None
        try:
            while not self._stopping.is_set() and not (self.frame_limit and channel.frames >= self.frame_limit):
                slot = slot or self._slot_for(channel)
                if slot is None and not channel.facts.is_live:
                    continue
                started_ns = self._clock.monotonic_ns()
                item = channel.source.read(_POLL_S)
                if isinstance(item, EndOfStream):
                    break
                if isinstance(item, Idle):
                    continue
                channel.frames += 1
                self._spans.read(item.info, started_ns)
                if slot is None:
                    channel.dropped += 1
                    item.release()
                    continue
                item.release(after=self._device.ingest(item.surface, slot, item.ready))
                self._spans.ingest(item.info, self._clock.monotonic_ns())
                slot.info, slot.holder = item.info, "ready queue"
                channel.ready.append(slot)
                slot = None
                self._tokens.put(channel.index)
        finally:
            if slot is not None:
                channel.pool.release(slot)
            channel.ready.append(None)
            self._tokens.put(channel.index)

    def _slot_for(self, channel: Channel[B]) -> FrameSlot[B] | None:
        """A slot to read into. A file waits for one; a live channel takes back its own oldest waiting frame."""
        credits = self._credits.get(channel.index)
        if credits is None:
            slot = channel.pool.acquire("reader", 0.0) or self._take_back(channel)
            if slot is None:
                channel.note_starved(self._clock.monotonic_ns())
            else:
                channel.note_fed()
            return slot
        try:
            credits.get(timeout=_POLL_S)
        except queue.Empty:
            return None
        slot = channel.pool.acquire("reader", _POLL_S)
        if slot is None:
            credits.put(None)
            channel.note_starved(self._clock.monotonic_ns())
        else:
            channel.note_fed()
        return slot

    def _take_back(self, channel: Channel[B]) -> FrameSlot[B] | None:
        try:
            slot = channel.ready.popleft()
        except IndexError:
            return None
        if slot is not None:
            channel.dropped += 1
            slot.holder = "reader"
        return slot

    # -- runner ------------------------------------------------------------------------------------------------
    def _launch_all(self) -> None:
        open_channels = len(self._channels)
        carried: collections.deque[FrameSlot[B]] = collections.deque()
        try:
            while open_channels or carried:
                # A free lane comes first: until then a live reader can still replace what is waiting by newer frames.
                launcher: Launcher[B] | None = self._free_launcher()
                ended = self._gather(carried)
                launcher = self._launch(launcher, carried)
                for channel in ended:
                    # An end goes after the channel's frames, and a batch may have left some behind.
                    while any(slot.channel == channel for slot in carried):
                        launcher = self._launch(launcher or self._free_launcher(), carried)
                    open_channels -= 1
                    self._inflight.put(_ChannelEnd(channel))
                if launcher is not None:
                    self._free.put(launcher)
        finally:
            self._inflight.put(None)
            for slot in carried:
                self._channels[slot.channel].pool.release(slot)

    def _gather(self, carried: collections.deque[FrameSlot[B]]) -> list[int]:
        """Add waiting slots to `carried`; blocks for the first. Returns channels that ended.

        While every lane has work a launch would only queue up behind it: then this waits for a full batch, until a
        launch ends. Lanes take turns, so as many launches in flight as there are lanes means one on each.
        """
        ended: list[int] = []
        while len(carried) < len(self._batch_for) - 1 and not ended:
            is_hurried = bool(carried) and self._launched - self._collected < self._lanes
            try:
                token = self._tokens.get_nowait() if is_hurried else self._tokens.get(timeout=_POLL_S)
            except queue.Empty:
                if self._broken.is_set():
                    raise _Stopped from None
                if is_hurried or not carried:
                    return ended
                continue
            if token == _LAUNCH_ENDED:
                continue
            try:
                slot = self._channels[token].ready.popleft()
            except IndexError:  # a live reader took it back
                continue
            if slot is None:
                ended.append(token)
                continue
            carried.append(slot)
            if token in self._credits:
                self._credits[token].put(None)
        return ended

    def _launch(self, launcher: Launcher[B] | None, carried: collections.deque[FrameSlot[B]]) -> Launcher[B] | None:
        """Launch as many of `carried` as fill a program. Returns the launcher when there was nothing to launch."""
        if launcher is None or not carried:
            return launcher
        batch = self._batch_for[min(len(carried), len(self._batch_for) - 1)]
        slots = tuple(carried.popleft() for _ in range(batch))
        for slot in slots:
            slot.holder = "lane"
        program = launcher.programs[batch]
        started_ns = self._clock.monotonic_ns()
        self._inflight.put(_Launch(launcher, program, program.launch(slots), slots, started_ns))
        self._launched += 1
        return None

    def _free_launcher(self) -> Launcher[B]:
        while True:
            try:
                return self._free.get(timeout=_POLL_S)
            except queue.Empty:
                if self._broken.is_set():
                    raise _Stopped from None

    # -- collector ---------------------------------------------------------------------------------------------
    def _collect_all(self) -> None:
        while True:
            item = self._inflight.get()
            if item is None:
                self._guard.check()
                return
            if isinstance(item, _ChannelEnd):
                self._publish_end(item.channel)
            else:
                self._collect(item)

    def _collect(self, launch: _Launch[B]) -> None:
        self._wait(launch)
        done_ns = self._clock.monotonic_ns()
        times = launch.program.stage_times()
        self._free.put(launch.launcher)  # at once: the lane must not wait for what follows
        self._collected += 1
        self._tokens.put(_LAUNCH_ENDED)
        self._spans.stages(launch.launcher.lane.index, launch.slots[0].info, times, launch.started_ns, done_ns)
        for slot in launch.slots:
            slot.holder = "collector"
            self._inspect(slot)
            self._publish(slot)
            self._spans.collect(slot.info, done_ns, self._clock.monotonic_ns())
            self._hand_to_sinks(slot)
        if self._ring is not None:
            self._ring.wake()
        self.frames += len(launch.slots)
        self._heartbeat(self.frames)
        if self._collected % self._guard.check_interval == 0:
            self._guard.check()

    def _wait(self, launch: _Launch[B]) -> None:
        deadline_ns = self._clock.monotonic_ns() + int(_STALL_S * 1e9)
        while not launch.fence.wait(_POLL_S):
            if self._broken.is_set():
                raise _Stopped
            if self._clock.monotonic_ns() > deadline_ns:
                raise PipelineError(f"no result for {_STALL_S:.0f} s", where=f"lane {launch.launcher.lane.index}")

    def _publish(self, slot: FrameSlot[B]) -> None:
        if self._ring is None:
            return
        view, image = self._views[slot.channel][slot.index], slot.surface.format
        count: int = _COUNT.unpack_from(view)[0]
        detections = view[_DETECTIONS_AT : _DETECTIONS_AT + count * _DETECTION_BYTES]
        self._last[slot.channel] = slot.info
        self._ring.write(slot.info, image.width_px, image.height_px, self._clock.monotonic_ns(), count, detections)

    def _publish_end(self, channel: int) -> None:
        if self._ring is None:
            return
        info = self._last.get(channel, FrameInfo(channel, -1, self._clock.wall_ns(), self._clock.monotonic_ns()))
        image = self._channels[channel].facts.format
        empty: DetectionArray = self._channels[channel].pool.slots[0].results[0]["detections"][:0]
        self._ring.publish(
            RingRecord(info, image.width_px, image.height_px, self._clock.monotonic_ns(), empty, is_end=True)
        )
        self._ring.wake()

    def _hand_to_sinks(self, slot: FrameSlot[B]) -> None:
        channel = self._channels[slot.channel]
        sinks = channel.sinks if self._ring is not None else ()  # warm-up frames are nobody's output
        if not sinks:
            channel.pool.release(slot)
            return
        shared = channel.shared[slot.index]
        shared.begin(len(sinks))
        for sink, name in zip(sinks, channel.sink_names, strict=True):
            slot.holder = name
            try:
                is_taken = name not in channel.broken_sinks and self._submit(channel, sink, slot, shared)
            except OutputError as error:
                # The other sinks and detection go on; the sink raises again when it is closed.
                log.error("channel %s, %s: %s", channel.name, name, error)
                channel.broken_sinks.add(name)
                is_taken = False
            if not is_taken:
                channel.sink_dropped += 1
                shared.give_back(slot)

    def _submit(self, channel: Channel[B], sink: Sink[B], slot: FrameSlot[B], shared: SharedSlot[B]) -> bool:
        """A file waits for its sinks, so that no frame of the output is missing; a camera's frame is dropped."""
        while not sink.submit(slot, shared.give_back):
            if channel.facts.is_live or self._broken.wait(_SINK_RETRY_S):
                return False
        return True

    # -- threads -----------------------------------------------------------------------------------------------
    def _thread(self, name: str, body: Callable[..., None], *args: object) -> threading.Thread:
        def guarded() -> None:
            self._guard.watch_thread()
            try:
                body(*args)
            except _Stopped:
                pass
            except ZhcEdgeError as error:
                self._fail(error)
            except Exception as error:  # a thread's last resort: an unknown fault ends the run
                log.exception("%s failed", name)
                self._fail(PipelineError(f"{type(error).__name__}: {error}", where=name, fix="report this as a bug"))

        return threading.Thread(target=guarded, name=name, daemon=True)

    def _fail(self, error: ZhcEdgeError) -> None:
        self._error = self._error or error
        self._broken.set()
        self._stopping.set()
        self._inflight.put(None)


class _Stopped(Exception):
    """Unwinds a thread because another one failed."""

"""The frame path in motion: a reader per channel, one lane runner, one collector.

Each thread has one owner and one blocking call. Nothing is shared but bounded queues made at initialisation: slots
are the only currency, so every queue is bounded by the pools. A slot travels

    pool -> reader (read, ingest) -> channel's ready queue -> runner (launch) -> collector (results) -> sinks -> pool

The same pass serves warm-up (a few frames, no sinks) and the active phase. Channels may come and go while it runs.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

from zhcedge.core.errors import PipelineError, ZhcEdgeError
from zhcedge.core.ports import Clock, Device, FrameSlot
from zhcedge.core.types import B
from zhcedge.pipeline.channel import Channel, ChannelListener, Launcher, read_ahead
from zhcedge.pipeline.collecting import Collector
from zhcedge.pipeline.drawing import Drawer
from zhcedge.pipeline.guard import Guard
from zhcedge.pipeline.handing import SinkFeeder
from zhcedge.pipeline.launching import ChannelEnd, LaneRunner, Launch, Outcome, Stopped
from zhcedge.pipeline.reader import Reader
from zhcedge.pipeline.recorder import Recorder
from zhcedge.pipeline.ring import DetectionRing
from zhcedge.pipeline.spans import Spans

log = logging.getLogger(__name__)

_JOIN_S = 0.5  # how often the owner of a run looks whether it has failed
_ABANDON_S = 10.0  # how long threads may take to end after a failure


@dataclass(frozen=True)
class PassParts(Generic[B]):
    """What every pass of a run works with.

    Attributes:
        launchers: launch positions of the lanes, by turns.
        sizes: batch sizes to launch, growing.
        max_wait_ms: longest wait for a batch to fill while a lane is idle.
        drawer: makes or returns the drawer; called by the collector thread.
        listener: told how channels are doing.
    """

    device: Device[B]
    launchers: Sequence[Launcher[B]]
    sizes: Sequence[int]
    max_wait_ms: int
    guard: Guard
    recorder: Recorder
    clock: Clock
    drawer: Callable[[], Drawer[B]]
    listener: ChannelListener


class FramePass(Generic[B]):
    """One pass of frames from the sources to the ring: warm-up makes short ones, the active phase one.

    Args:
        channels: opened; more may be attached while it runs.
        frame_limit: frames to read from each channel, 0 for all there are.
        limit_s: seconds after which no more is read, 0 for no limit.
        ring: where results go; None in warm-up.
        inspect: called by the collector with every finished slot, before sinks.
        heartbeat: called by the collector with the total of finished frames after each launch.

    `run` blocks its caller until every channel has ended or `stop` was called, and raises what a thread raised. A
    source that breaks is no such error: it ends its channel.
    """

    def __init__(
        self,
        parts: PassParts[B],
        channels: Sequence[Channel[B]],
        *,
        frame_limit: int = 0,
        limit_s: float = 0.0,
        ring: DetectionRing | None = None,
        inspect: Callable[[FrameSlot[B]], None] = lambda slot: None,
        heartbeat: Callable[[int], None] = lambda frames: None,
    ) -> None:
        self.frame_limit, self._limit_s = frame_limit, limit_s
        self._parts, self._ring, self._inspect = parts, ring, inspect
        self._ranges = parts.recorder.ranges
        self._spans = Spans(parts.recorder, {launcher.lane.index for launcher in parts.launchers})
        self._stopping, self._broken = threading.Event(), threading.Event()
        self._lock = threading.Lock()  # guards what `attach` and `expect` change
        self._channels: dict[int, Channel[B]] = {}  # those that have not ended
        self._expected = 0  # channels that will be attached later
        self._readers: list[threading.Thread] = []
        self._is_running = False
        self._error: ZhcEdgeError | None = None
        self._outcomes: queue.SimpleQueue[Outcome[B] | None] = queue.SimpleQueue()
        self._runner = LaneRunner(
            parts.launchers,
            self._emit,
            # Who is still on the way when the pass is stopped is not waited for: opening a camera may take minutes.
            lambda: not (self._channels or (self._expected and not self._stopping.is_set())),
            self._stopping,
            self._broken,
            parts.clock,
            self._ranges,
            parts.sizes,
            parts.max_wait_ms,
        )
        self._feeder: SinkFeeder[B] = SinkFeeder(self._stopping, self._broken)
        self._collector = Collector(
            parts.guard,
            parts.clock,
            self._spans,
            self._ranges,
            self._broken,
            ring,
            lambda slot: self._inspect(slot),
            heartbeat,
            parts.drawer,
            self._feeder,
        )
        for channel in channels:
            self.attach(channel, len(channels))

    @property
    def frames(self) -> int:
        """Finished so far, by all channels."""
        return self._collector.frames

    def watch_frames(self, inspect: Callable[[FrameSlot[B]], None]) -> None:
        """Replace what `inspect` does. Before `run`."""
        self._inspect = inspect

    def run(self) -> None:
        """Run to the end. Raises the first error of any thread, as an error of our tree."""
        with self._lock:
            self._is_running = True
            for reader in self._readers:
                reader.start()
        threads = [self._thread("runner", self._launch_all), self._thread("collector", self._collect_all)]
        threads.append(self._thread("sink feeder", self._feeder.run))
        for thread in threads:
            thread.start()
        self._join(threads)
        self._join(self._readers)  # those that were attached meanwhile, too
        if self._error is not None:
            raise self._error

    def _join(self, threads: Sequence[threading.Thread]) -> None:
        """Wait for their end; after a failure not for ever, because one may be inside the driver of a lost GPU."""
        left = [thread for thread in threads if thread.is_alive()]
        while left and not self._broken.is_set():
            left[0].join(_JOIN_S)
            left = [thread for thread in left if thread.is_alive()]
        deadline_s = time.monotonic() + _ABANDON_S
        for thread in left:
            thread.join(max(0.0, deadline_s - time.monotonic()))
            if thread.is_alive():
                log.error("thread %s does not end: it is left behind", thread.name)

    def stop(self) -> None:
        """Read no more frames; what is in flight is finished. Any thread, any time."""
        self._stopping.set()
        self._runner.wake()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    # -- channels that come and go -----------------------------------------------------------------------------
    def attach(self, channel: Channel[B], channels: int = 0) -> None:
        """Work on this channel from now on. Any thread.

        Args:
            channels: how many there are, for how far each file may read ahead; default: those here now.
        """
        with self._lock:
            if not channel.facts.is_live:
                channel.credits = queue.SimpleQueue()
                for _ in range(read_ahead(channels or len(self._channels) + 1, self._parts.sizes[-1])):
                    channel.credits.put(None)
            self._spans.add(channel.index, channel.name)
            self._collector.add(channel)
            self._channels[channel.index] = channel
            self._runner.watch(tuple(self._channels.values()))
            self._readers = [reader for reader in self._readers if reader.is_alive() or not self._is_running]
            self._readers.append(self._thread(f"reader {channel.name}", self._read, channel))
            if self._is_running:
                self._readers[-1].start()

    def expect(self, channels: int) -> None:
        """So many more (or fewer) channels will be attached: unless stopped, the pass goes on till then. Any thread."""
        with self._lock:
            self._expected += channels
        self._runner.wake()

    def _emit(self, outcome: Outcome[B]) -> None:
        if isinstance(outcome, ChannelEnd):
            with self._lock:
                del self._channels[outcome.channel.index]
                self._runner.watch(tuple(self._channels.values()))
        self._outcomes.put(outcome)

    # -- threads -----------------------------------------------------------------------------------------------
    def _read(self, channel: Channel[B]) -> None:
        clock = self._parts.clock
        Reader(
            channel,
            self._parts.device,
            clock,
            self._spans,
            self._ranges,
            self._stopping,
            self._runner.wake,
            self._parts.listener,
            frame_limit=self.frame_limit,
            deadline_ns=clock.monotonic_ns() + int(self._limit_s * 1e9) if self._limit_s else 0,
        ).run()

    def _launch_all(self) -> None:
        try:
            self._runner.run()
        finally:
            self._outcomes.put(None)

    def _collect_all(self) -> None:
        try:
            self._collect_outcomes()
        finally:
            self._feeder.finish()
        self._parts.guard.check()

    def _collect_outcomes(self) -> None:
        while (item := self._outcomes.get()) is not None:
            if isinstance(item, Launch):
                launcher = item.launcher
                self._collector.launch(item, lambda launcher=launcher: self._runner.launch_ended(launcher))  # type: ignore[misc]
            elif isinstance(item, ChannelEnd):
                self._collector.channel_end(item)
            else:
                self._collector.skipped(item)

    def _thread(self, name: str, body: Callable[..., None], *args: object) -> threading.Thread:
        def guarded() -> None:
            self._parts.guard.watch_thread()
            try:
                body(*args)
            except Stopped:
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
        self._runner.wake()
        self._outcomes.put(None)

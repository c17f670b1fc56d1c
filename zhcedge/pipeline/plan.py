"""`Plan` -> warm_up() -> `Runtime`: only a Runtime can process, so an unsealed run does not type-check.

A Plan has allocated every pool, opened every source and sink, and compiled every program. Warming it up runs real
frames through all of it, seals the arena, plants the canaries, and hands over a Runtime.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Generic

import numpy as np

from zhcedge.core.errors import BackendUnavailableError, PipelineError, ZhcEdgeError
from zhcedge.core.lifecycle import Lifecycle, Phase
from zhcedge.core.ports import Clock, Device, Engine, FrameSlot, JpegEncoder
from zhcedge.core.types import B, DetectorSettings, Hop, ViolationKind
from zhcedge.pipeline.channel import Channel, ChannelListener, ChannelParts, Launcher, nobody_listens, read_ahead
from zhcedge.pipeline.drawing import Drawer
from zhcedge.pipeline.guard import Guard
from zhcedge.pipeline.ledger import LedgerReport
from zhcedge.pipeline.live_channels import LiveChannels
from zhcedge.pipeline.opening import ChannelOpener
from zhcedge.pipeline.recorder import Recorder
from zhcedge.pipeline.ring import DetectionRing
from zhcedge.pipeline.roster import Roster
from zhcedge.pipeline.runner import FramePass, PassParts
from zhcedge.pipeline.snapshots import SnapshotDesk
from zhcedge.pipeline.warmup import Exerciser

log = logging.getLogger(__name__)

_MAX_WARMUP_PASSES = 4
_STEADY = 0.25  # two passes whose median frame times differ by less than this fraction are steady
_WARMUP_LIMIT_S = 5.0  # of one pass: a camera that is lost meanwhile must not hold up the others


def _no_jpeg() -> JpegEncoder[B]:
    raise BackendUnavailableError("this run has no encoder for snapshots", where="snapshot")


@dataclass(frozen=True)
class PlanSettings:
    """Sizes of a run.

    Attributes:
        lanes: batches in flight, each with its own input, engine context and scratch.
        slots: frames in flight per channel, 0 to size them from lanes and sinks.
        warmup_frames: frames per channel and warm-up pass.
        detector: post-processing values.
        max_wait_ms: longest wait for a batch to fill while a lane is idle.
        max_latency_ms: measure the batch sizes in warm-up and launch only those up to the fastest one whose launches
            take no longer; None launches all sizes that the engine is made for.
    """

    lanes: int
    slots: int
    warmup_frames: int
    detector: DetectorSettings
    max_wait_ms: int = 0
    max_latency_ms: int | None = None


@dataclass(frozen=True)
class RunReport:
    """What a run did. Times in seconds; counts of the active phase only.

    Attributes:
        pools: how many slots of each channel were in use at most.
        warnings: what was odd about the sources.
        failures: channels that broke while others went on, by name.
        dropped_by_channel: (frames that were dropped, frames that a sink did not get) by channel.
        snapshots, snapshots_refused: pictures that were taken, and requests that came too soon or in vain.
    """

    frames: int
    seconds: float
    dropped: int
    sink_dropped: int
    ledger: LedgerReport
    pools: str
    warnings: tuple[str, ...]
    failures: Mapping[str, ZhcEdgeError] = field(default_factory=dict)
    dropped_by_channel: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    snapshots: int = 0
    snapshots_refused: int = 0

    @property
    def fps(self) -> float:
        return self.frames / self.seconds if self.seconds else 0.0


class Plan(Generic[B]):
    """An initialised run. Use as a context manager: leaving it closes everything, whatever happened.

    Args:
        device, engine: opened; closed here when the plan closes.
        parts: the channels, in order.
        guard: started, not yet proved.
        ring: where results go in the active phase, or None.
        heartbeat: called by the collector with the number of finished frames.
        listener: told how channels are doing; any thread.
        make_jpeg: makes what encodes snapshots; called with the first one.
        stop: set by whoever wants the run to end before there is a Plan to tell; cameras are then not waited for.

    Raises what a sink, arena or engine raises, and what a source raises when none of the channels can be opened and
    none is worth waiting for; then everything that was opened is closed.
    """

    def __init__(
        self,
        device: Device[B],
        engine: Engine[B],
        parts: Sequence[ChannelParts[B]],
        settings: PlanSettings,
        guard: Guard,
        recorder: Recorder,
        lifecycle: Lifecycle,
        clock: Clock,
        ring: DetectionRing | None = None,
        heartbeat: Callable[[int], None] = lambda frames: None,
        listener: ChannelListener = nobody_listens,
        stop: threading.Event | None = None,
        make_jpeg: Callable[[], JpegEncoder[B]] = _no_jpeg,
    ) -> None:
        self._device, self._engine, self._settings = device, engine, settings
        self._guard, self._recorder, self._lifecycle, self._clock = guard, recorder, lifecycle, clock
        self._ring, self._heartbeat, self._listener = ring, heartbeat, listener
        self._is_complete = self._is_stopping = False
        self._stop = stop or threading.Event()
        self._pass: FramePass[B] | None = None  # the one that runs, or ran last
        self._drawer: Drawer[B] | None = None
        self._sizes = engine.facts.batch_sizes
        device.watch_threads(guard.watch_thread)
        opener = ChannelOpener(
            device,
            guard.watch_thread,
            nms_iou=settings.detector.nms_iou,
            in_lanes=settings.lanes * device.depth * engine.facts.input_shape[0],
            slots=settings.slots,
            draws=any(part.sinks for part in parts),
        )
        self._desk = SnapshotDesk(make_jpeg, guard, device.arena, clock)
        self._roster = Roster(
            opener,
            device.arena,
            guard,
            lambda channels: read_ahead(channels, self._sizes[-1]),
            self._make_drawer,
            listener,
            self._stop,
            self._desk.leave,
        )
        try:
            self._roster.open_all(parts)
            self._launchers = self._compile(any(part.sinks for part in parts))
            self._exerciser = Exerciser(device, self._launchers, engine.facts, clock)
        except BaseException:
            self._fail()
            self._guard.stop()
            self._close_parts()
            raise

    def __enter__(self) -> Plan[B]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if value is not None:
            self._fail()
        self.close()

    def _fail(self) -> None:
        """Say so before closing, which may take its time, or never end on a lost GPU."""
        if self._lifecycle.phase not in (Phase.FAILED, Phase.STOPPED):
            self._lifecycle.to(Phase.FAILED)

    # -- initialising ------------------------------------------------------------------------------------------
    def _compile(self, draws: bool) -> list[Launcher[B]]:
        facts, device = self._engine.facts, self._device
        by_lane: list[list[Launcher[B]]] = []
        for index in range(self._settings.lanes):
            lane = device.create_lane(index, facts)
            stages = [
                device.preprocess(lane, facts),
                self._engine.bind(lane),
                device.detect(lane, facts, self._settings.detector),
            ]
            if draws:
                stages.append(device.overlay(lane, facts.labels))
            by_lane.append(
                [
                    Launcher(lane, {batch: device.compile(stages, lane, batch) for batch in facts.batch_sizes})
                    for _ in range(device.depth)
                ]
            )
        # Lanes by turns: two launches of one lane in a row would leave the others idle until they are collected.
        return [launcher for turn in zip(*by_lane, strict=True) for launcher in turn]

    def _make_drawer(self) -> Drawer[B]:
        """Made with the first channel that needs it, so that others don't pay for its lane."""
        if self._drawer is None:
            facts = self._engine.facts
            self._drawer = Drawer(self._device, self._settings.lanes, facts, facts.labels)
        return self._drawer

    # -- warming up --------------------------------------------------------------------------------------------
    def warm_up(self) -> Runtime[B]:
        """Run real frames through everything, seal, prove that the instruments see. Once only.

        Raises PipelineError when a result is not finite or a box leaves its frame, and what a source raises when no
        channel is left.
        """
        self._lifecycle.to(Phase.WARMING_UP)
        self._choose_sizes()
        previous_s = 0.0
        for number in range(_MAX_WARMUP_PASSES):
            # A camera that sends nothing costs one pass's limit, not that of each pass.
            channels = [channel for channel in self._roster.channels if not channel.is_silent]
            if not channels:
                break
            median_s = self._warm_pass(channels)
            if self._is_stopping or (number and abs(median_s - previous_s) <= _STEADY * previous_s):
                break
            previous_s = median_s
        self._device.arena.seal()
        self._guard.prove()
        self._guard.seal()
        self._lifecycle.to(Phase.ACTIVE)
        return Runtime(self)

    def _choose_sizes(self) -> None:
        """Run every program, so that no size of batch is launched for the first time in the active phase."""
        self._exerciser.touch(self._sizes)
        limit_ms = self._settings.max_latency_ms
        if limit_ms is not None and len(self._sizes) > 1:
            self._sizes = self._exerciser.sizes_within(self._sizes, limit_ms)

    def _warm_pass(self, channels: Sequence[Channel[B]]) -> float:
        """Median seconds of the engine, or of a whole launch where stages are not timed."""
        since = self._recorder.count
        self.make_pass(
            channels, frame_limit=self._settings.warmup_frames, limit_s=_WARMUP_LIMIT_S, inspect=_check_result
        ).run()
        self._roster.start_over()
        spans = self._recorder.select("engine", since)
        if not len(spans):
            spans = self._recorder.select("run", since)
        return float(np.median(spans["end_ns"] - spans["start_ns"])) / 1e9 if len(spans) else 0.0

    def make_pass(
        self,
        channels: Sequence[Channel[B]] | None = None,
        *,
        frame_limit: int = 0,
        limit_s: float = 0.0,
        ring: DetectionRing | None = None,
        inspect: Callable[[FrameSlot[B]], None] = lambda slot: None,
        heartbeat: Callable[[int], None] = lambda frames: None,
    ) -> FramePass[B]:
        """A pass over `channels` of the roster, all of them by default."""
        is_warming = self._lifecycle.phase is Phase.WARMING_UP
        parts = PassParts(
            self._device,
            self._launchers,
            self._sizes,
            self._settings.max_wait_ms,
            self._guard,
            self._recorder,
            self._clock,
            self._make_drawer,
            nobody_listens if is_warming else self._listener,
        )
        self._pass = FramePass(
            parts,
            self._roster.channels if channels is None else channels,
            frame_limit=frame_limit,
            limit_s=limit_s,
            ring=ring,
            inspect=inspect,
            heartbeat=heartbeat,
        )
        if self._is_stopping:
            self._pass.stop()
        return self._pass

    def stop(self) -> None:
        """Read no more frames, in warm-up or after it; what is in flight is finished. Any thread."""
        self._is_stopping = True
        self._roster.stop()
        if self._pass is not None:
            self._pass.stop()

    # -- closing -----------------------------------------------------------------------------------------------
    def mark_complete(self) -> None:
        """The run came to its regular end: outputs are finished, not removed."""
        self._is_complete = True

    def close(self) -> None:
        """Close sinks, sources, engine, device. Raises the first OutputError of a sink, after closing the rest."""
        self._guard.stop()
        error = self._close_parts()
        if error is not None and self._is_complete:
            raise error

    def _close_parts(self) -> ZhcEdgeError | None:
        self._desk.close()
        first = self._roster.close(self._is_complete)
        for close in (self._engine.close, self._device.close):
            try:
                close()
            except ZhcEdgeError as error:
                first = first or error
        return first

    # -- what the Runtime reads --------------------------------------------------------------------------------
    @property
    def channels(self) -> Sequence[Channel[B]]:
        return self._roster.channels

    @property
    def roster(self) -> Roster[B]:
        return self._roster

    @property
    def desk(self) -> SnapshotDesk[B]:
        return self._desk

    @property
    def lifecycle(self) -> Lifecycle:
        return self._lifecycle

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def active_outputs(self) -> tuple[DetectionRing | None, Callable[[int], None]]:
        return self._ring, self._heartbeat

    @property
    def violations(self) -> Mapping[ViolationKind, int]:
        """Since the seal, as of the guard's last check. Any thread."""
        return self._guard.noted

    def ledger(self, frames: int) -> LedgerReport:
        """The account so far, `frames` being those of the active phase."""
        hops: list[Hop] = []
        channels = self._roster.channels
        for channel in channels:
            hops += channel.facts.hops
        hops += self._device.hops(self._engine.facts, [channel.facts.format for channel in channels])
        for channel in channels:
            for sink in channel.sinks:
                hops += sink.hops
        return LedgerReport(
            tuple(hops),
            frames,
            self._guard.violations(),
            self._guard.proof,
            self._device.arena.total_bytes,
            self._guard.rewarm_totals(),
            self._guard.rewarms(),
        )


class Runtime(Generic[B]):
    """A sealed run. Made by Plan.warm_up only; the Plan still owns and closes the parts.

    Channels come and go while `process` runs, by the roster's `add`, `remove`, `pause` and `resume`.
    """

    def __init__(self, plan: Plan[B]) -> None:
        self._plan = plan
        ring, heartbeat = plan.active_outputs
        self._pass = plan.make_pass(ring=ring, heartbeat=heartbeat)
        self._live = LiveChannels(plan.roster, plan.desk)

    @property
    def roster(self) -> Roster[B]:
        return self._plan.roster

    @property
    def live(self) -> LiveChannels[B]:
        """What can be changed about channels, or asked of them, while `process` runs."""
        return self._live

    @property
    def violations(self) -> Mapping[ViolationKind, int]:
        """Since the seal, as of the guard's last check. Any thread."""
        return self._plan.violations

    @property
    def in_hand(self) -> int:
        """Frames that a lane or the collector works on now. Any thread."""
        return sum(channel.pool.in_hand for channel in self._plan.roster.channels)

    def process(self, frame_limit: int = 0, on_frame: Callable[[FrameSlot[B]], None] = lambda slot: None) -> RunReport:
        """Run until every source has ended or `stop` is called. Once only; blocks the caller.

        Args:
            frame_limit: frames to read from each channel, 0 for all there are.
            on_frame: called by the collector with every finished slot, in order per channel, before sinks.

        Raises what a thread of the frame path raised, and what broke the channels when no channel came through; the
        phase is then `failed`.
        """
        plan = self._plan
        self._pass.frame_limit = frame_limit
        self._pass.watch_frames(on_frame)
        started_ns = plan.clock.monotonic_ns()
        try:
            with plan.roster.attached_to(self._pass):
                self._pass.run()
            plan.roster.raise_if_all_failed()
        except ZhcEdgeError:
            plan.lifecycle.to(Phase.FAILED)
            raise
        seconds = (plan.clock.monotonic_ns() - started_ns) / 1e9
        report = self._report(seconds)
        plan.lifecycle.to(Phase.DRAINING)
        plan.mark_complete()
        return report

    def stop(self) -> None:
        """Read no more frames; `process` returns once what is in flight is done. Any thread, a signal handler too."""
        self._plan.stop()

    def _report(self, seconds: float) -> RunReport:
        roster = self._plan.roster
        channels = roster.channels
        return RunReport(
            self._pass.frames,
            seconds,
            roster.dropped,
            roster.sink_dropped,
            self._plan.ledger(self._pass.frames),
            "; ".join(f"{channel.name} {channel.pool.high_water} of {len(channel.pool)}" for channel in channels),
            tuple(f"{channel.name}: {text}" for channel in channels for text in channel.source.warnings),
            roster.failures,
            roster.dropped_by_channel,
            self._plan.desk.taken,
            self._plan.desk.refused,
        )


def _check_result(slot: FrameSlot[B]) -> None:
    """Warm-up's look at a result: finite numbers, boxes inside the frame."""
    result, image = slot.results[0], slot.surface.format
    detections = result["detections"][: int(result["count"])]
    boxes = detections["box"]
    is_finite = bool(np.isfinite(boxes).all() and np.isfinite(detections["score"]).all())
    limits = np.array([image.width_px, image.height_px, image.width_px, image.height_px], np.float32)
    if not is_finite or bool((boxes < 0).any()) or bool((boxes > limits).any()):
        raise PipelineError(
            "a detection is not finite or lies outside its frame",
            where=f"warm-up, frame {slot.info.sequence}",
            fix="check the model and its manifest",
        )

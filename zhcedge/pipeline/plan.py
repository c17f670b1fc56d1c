"""`Plan` -> warm_up() -> `Runtime`: only a Runtime can process, so an unsealed run does not type-check.

A Plan has allocated every pool, opened every source and sink, and compiled every program. Warming it up runs real
frames through all of it, seals the arena, plants the canaries, and hands over a Runtime.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Generic

import numpy as np

from zhcedge.core.errors import PipelineError, ZhcEdgeError
from zhcedge.core.lifecycle import Lifecycle, Phase
from zhcedge.core.ports import Clock, Device, Engine, FrameSlot, Sink, Source
from zhcedge.core.types import B, DetectorSettings, Hop, ImageFormat, PixelFormat
from zhcedge.pipeline.channel import Channel, Launcher, read_ahead
from zhcedge.pipeline.guard import Guard
from zhcedge.pipeline.ledger import LedgerReport
from zhcedge.pipeline.pools import SharedSlot, SlotPool
from zhcedge.pipeline.recorder import Recorder
from zhcedge.pipeline.ring import DetectionRing
from zhcedge.pipeline.runner import FramePass

log = logging.getLogger(__name__)

_MAX_WARMUP_PASSES = 4
_STEADY = 0.25  # two passes whose median frame times differ by less than this fraction are steady
_SINK_FRAMES = 4  # slots added for each sink, so that an encoder's hiccup does not starve the reader


@dataclass(frozen=True)
class ChannelParts(Generic[B]):
    """What a channel is made of: unopened source, unopened sinks with names for messages."""

    name: str
    source: Source[B]
    sinks: Sequence[tuple[str, Sink[B]]]


@dataclass(frozen=True)
class PlanSettings:
    """Sizes of a run.

    Attributes:
        lanes: batches in flight, each with its own input, engine context and scratch.
        slots: frames in flight per channel, 0 to size them from lanes and sinks.
        warmup_frames: frames per channel and warm-up pass.
        detector: post-processing values.
    """

    lanes: int
    slots: int
    warmup_frames: int
    detector: DetectorSettings


@dataclass(frozen=True)
class RunReport:
    """What a run did. Times in seconds; counts of the active phase only.

    `pools` says how many slots of each channel were in use at most; `warnings` what was odd about the sources.
    """

    frames: int
    seconds: float
    dropped: int
    sink_dropped: int
    ledger: LedgerReport
    pools: str
    warnings: tuple[str, ...]

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

    Raises what a source, sink, arena or engine raises; then everything that was opened is closed.
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
    ) -> None:
        self._device, self._engine, self._settings = device, engine, settings
        self._guard, self._recorder, self._lifecycle, self._clock = guard, recorder, lifecycle, clock
        self._ring, self._heartbeat = ring, heartbeat
        self._parts = tuple(parts)
        self._channels: list[Channel[B]] = []
        self._is_complete = self._is_stopping = False
        self._pass: FramePass[B] | None = None  # the one that runs, or ran last
        device.watch_threads(guard.watch_thread)
        try:
            for index, part in enumerate(self._parts):
                self._channels.append(self._open_channel(index, part))
            self._launchers = self._compile()
        except BaseException:
            self._guard.stop()
            self._close_parts()
            raise

    def __enter__(self) -> Plan[B]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- initialising ------------------------------------------------------------------------------------------
    def _open_channel(self, index: int, part: ChannelParts[B]) -> Channel[B]:
        facts = part.source.open()
        for _, sink in part.sinks:
            sink.watch_threads(self._guard.watch_thread)
            sink.open(facts)
        count = self._settings.slots or self._slots_needed(len(part.sinks))
        image = facts.format
        slot_format = ImageFormat(
            image.width_px, image.height_px, PixelFormat.NV12, matrix=image.matrix, is_full_range=image.is_full_range
        )
        slots = [self._slot(number, index, slot_format, part.name) for number in range(count)]
        pool = SlotPool(slots)
        names = tuple(f"sink {number} {name}" for number, (name, _) in enumerate(part.sinks))
        sinks = tuple(sink for _, sink in part.sinks)
        shared = tuple(SharedSlot(pool) for _ in slots)
        log.info("channel %s: %s; %s", part.name, facts.description, self._sizing(count, len(sinks)))
        return Channel(index, part.name, part.source, facts, sinks, names, pool, shared)

    def _slot(self, number: int, channel: int, image: ImageFormat, owner: str) -> FrameSlot[B]:
        arena = self._device.arena
        return FrameSlot(number, channel, arena.surface(image, owner), arena.results(owner))

    def _slots_needed(self, sinks: int) -> int:
        batch = self._engine.facts.input_shape[0]
        in_lanes = self._settings.lanes * self._device.depth * batch
        return read_ahead(len(self._parts), batch) + in_lanes + _SINK_FRAMES * sinks

    def _sizing(self, slots: int, sinks: int) -> str:
        lanes, depth, batch = self._settings.lanes, self._device.depth, self._engine.facts.input_shape[0]
        if self._settings.slots:
            return f"{slots} slots as configured"
        in_lanes = f"{lanes} lanes x {depth} x batch {batch}"
        waiting = read_ahead(len(self._parts), batch)
        return f"{slots} slots = {waiting} reading and waiting + {in_lanes} + {sinks} sinks x {_SINK_FRAMES}"

    def _compile(self) -> list[Launcher[B]]:
        facts, device = self._engine.facts, self._device
        draws = any(channel.sinks for channel in self._channels)
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

    # -- warming up --------------------------------------------------------------------------------------------
    def warm_up(self) -> Runtime[B]:
        """Run real frames through everything, seal, prove that the instruments see. Once only.

        Raises PipelineError when a result is not finite or a box leaves its frame.
        """
        self._lifecycle.to(Phase.WARMING_UP)
        previous_s = 0.0
        for number in range(_MAX_WARMUP_PASSES):
            median_s = self._warm_pass()
            if self._is_stopping or (number and abs(median_s - previous_s) <= _STEADY * previous_s):
                break
            previous_s = median_s
        self._device.arena.seal()
        self._guard.prove()
        self._guard.seal()
        self._lifecycle.to(Phase.ACTIVE)
        return Runtime(self)

    def _warm_pass(self) -> float:
        since = self._recorder.count
        self.make_pass(frame_limit=self._settings.warmup_frames, inspect=_check_result).run()
        for channel in self._channels:
            channel.source.rewind()
            channel.frames = channel.dropped = channel.sink_dropped = 0
        spans = self._recorder.select("engine", since)
        if not len(spans):
            spans = self._recorder.select("run", since)
        return float(np.median(spans["end_ns"] - spans["start_ns"])) / 1e9 if len(spans) else 0.0

    def make_pass(
        self,
        *,
        frame_limit: int = 0,
        ring: DetectionRing | None = None,
        inspect: Callable[[FrameSlot[B]], None] = lambda slot: None,
        heartbeat: Callable[[int], None] = lambda frames: None,
        channels: int | None = None,
    ) -> FramePass[B]:
        """A pass over the first `channels` channels, all of them by default."""
        self._pass = FramePass(
            self._device,
            self._channels[:channels],
            self._launchers,
            self._guard,
            self._recorder,
            self._clock,
            frame_limit=frame_limit,
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
        first: ZhcEdgeError | None = None
        closers: list[Callable[[], None]] = []
        for part in self._parts:
            closers += [lambda sink=sink: sink.close(self._is_complete) for _, sink in part.sinks]  # type: ignore[misc]
            closers.append(part.source.close)
        for close in (*closers, self._engine.close, self._device.close):
            try:
                close()
            except ZhcEdgeError as error:
                first = first or error
        return first

    # -- what the Runtime reads --------------------------------------------------------------------------------
    @property
    def channels(self) -> Sequence[Channel[B]]:
        return self._channels

    @property
    def lifecycle(self) -> Lifecycle:
        return self._lifecycle

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def active_outputs(self) -> tuple[DetectionRing | None, Callable[[int], None]]:
        return self._ring, self._heartbeat

    def ledger(self, frames: int) -> LedgerReport:
        """The account so far, `frames` being those of the active phase."""
        hops: list[Hop] = []
        for channel in self._channels:
            hops += channel.facts.hops
        hops += self._device.hops(self._engine.facts, [channel.facts.format for channel in self._channels])
        for channel in self._channels:
            for sink in channel.sinks:
                hops += sink.hops
        return LedgerReport(
            tuple(hops), frames, self._guard.violations(), self._guard.proof, self._device.arena.total_bytes
        )


class Runtime(Generic[B]):
    """A sealed run. Made by Plan.warm_up only; the Plan still owns and closes the parts."""

    def __init__(self, plan: Plan[B]) -> None:
        self._plan = plan
        ring, heartbeat = plan.active_outputs
        self._pass = plan.make_pass(ring=ring, heartbeat=heartbeat)

    def process(self, frame_limit: int = 0) -> RunReport:
        """Run until every source has ended or `stop` is called. Once only; blocks the caller.

        Args:
            frame_limit: frames to read from each channel, 0 for all there are.

        Raises what a thread of the frame path raised; the phase is then `failed`.
        """
        plan = self._plan
        self._pass.frame_limit = frame_limit
        started_ns = plan.clock.monotonic_ns()
        try:
            self._pass.run()
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
        channels = self._plan.channels
        return RunReport(
            self._pass.frames,
            seconds,
            sum(channel.dropped for channel in channels),
            sum(channel.sink_dropped for channel in channels),
            self._plan.ledger(self._pass.frames),
            "; ".join(f"{channel.name} {channel.pool.high_water} of {len(channel.pool)}" for channel in channels),
            tuple(f"{channel.name}: {text}" for channel in channels for text in channel.source.warnings),
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

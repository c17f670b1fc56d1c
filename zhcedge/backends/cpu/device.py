"""The CPU as a device: the reference that every other one is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from zhcedge.backends.cpu.arena import CpuArena, CpuBuffer
from zhcedge.backends.cpu.detect import DetectStage
from zhcedge.backends.cpu.heads import needs_rewrite, rewritten_bytes
from zhcedge.backends.cpu.ingest import ingest
from zhcedge.backends.cpu.letterbox import LetterboxStage
from zhcedge.backends.cpu.motion import LumaMotion
from zhcedge.backends.cpu.overlay import OverlayStage
from zhcedge.backends.cpu.picture import LumaPicture
from zhcedge.backends.cpu.program import Company, CpuLane, CpuProgram, DoneFence, ThreadHooks
from zhcedge.core.errors import PipelineError
from zhcedge.core.geometry import plane_sizes
from zhcedge.core.ports import Fence, FrameSlot, Instrument, Lane, Stage
from zhcedge.core.requests import DeviceSettings
from zhcedge.core.types import (
    RESULT_DTYPE,
    Agent,
    DetectorSettings,
    Hop,
    ImageFormat,
    MemoryDomain,
    ModelFacts,
    Payload,
    PixelFormat,
    Provenance,
    Surface,
    ViolationKind,
)

_SOURCE_TIMEOUT_S = 10.0


class CpuDevice:
    """Implements core.ports.Device with numpy; the buffer type is an array of bytes (see arena.py).

    Each lane runs its launches on a thread of its own, so `depth` is 1. `settings.threads` is for the engine; the
    numpy stages use one thread a lane.
    """

    def __init__(self, settings: DeviceSettings) -> None:
        if settings.index != 0:
            raise PipelineError(f"there is no cpu device {settings.index}", fix="use device 0")
        self._arena = CpuArena()
        self._hooks = ThreadHooks()
        self._company = Company()
        self._lanes: list[CpuLane] = []
        self._programs: list[CpuProgram] = []
        self._admitted: dict[tuple[int, int], FrameSlot[CpuBuffer]] = {}  # one of each kind, by channel and part

    @property
    def name(self) -> str:
        return "cpu"

    @property
    def arena(self) -> CpuArena:
        return self._arena

    @property
    def depth(self) -> int:
        return 1

    def hops(self, model: ModelFacts, formats: Sequence[ImageFormat]) -> tuple[Hop, ...]:
        """One ingest row for each format, then input tensor, output tensor and results of one frame."""

        def row(name: str, payload: Payload, size_bytes: int, reason: str) -> Hop:
            host = MemoryDomain.HOST
            return Hop(name, Agent.CPU, host, host, payload, size_bytes, Provenance.DERIVED, reason)

        rows = []
        for image in dict.fromkeys(formats):
            nv12 = ImageFormat(image.width_px, image.height_px, PixelFormat.NV12)
            size_bytes = sum(width * rows_px for width, rows_px in plane_sizes(nv12))
            name = f"ingest {image.width_px}x{image.height_px}"
            rows.append(row(name, Payload.PIXELS, size_bytes, "the decoder reuses its picture; overlay needs a copy"))
        input_bytes = math.prod(model.input_shape[1:]) * np.dtype(model.input_dtype).itemsize
        output_bytes = math.prod(model.output_shape[1:]) * np.dtype(model.output_dtype).itemsize
        rows.append(row("letterbox", Payload.TENSOR, input_bytes, "the model's input"))
        rows.append(row("engine output", Payload.TENSOR, output_bytes, "the model's output"))
        if needs_rewrite(model):
            reason = "the output in the layout and precision that boxes are read from"
            rows.append(row("head", Payload.TENSOR, rewritten_bytes(model), reason))
        rows.append(row("results", Payload.RESULTS, RESULT_DTYPE.itemsize, "detections of the frame"))
        return tuple(rows)

    @property
    def claims(self) -> frozenset[ViolationKind]:
        """Nothing beyond host memory: there is no device boundary to cross."""
        return frozenset()

    def instruments(self) -> tuple[Instrument, ...]:
        """None: what watches host memory belongs to the pipeline."""
        return ()

    def ingest(self, source: Surface[CpuBuffer], slot: FrameSlot[CpuBuffer], after: Fence | None = None) -> Fence:
        """Copy I420 or NV12 into the slot's NV12 before returning. Raises PipelineError when they don't fit."""
        if after is not None and not after.wait(_SOURCE_TIMEOUT_S):
            raise PipelineError("the source's picture does not arrive", where="ingest")
        ingest(source, slot.surface)
        return DoneFence()

    def create_lane(self, index: int, model: ModelFacts) -> CpuLane:
        """Allocate a lane and start its thread. Raises PhaseError after the seal."""
        lane = CpuLane(index, model, self._arena, self._hooks, self._company)
        self._lanes.append(lane)
        return lane

    def preprocess(self, lane: Lane[CpuBuffer], model: ModelFacts) -> Stage:
        return LetterboxStage(self._own(lane), model, self._arena)

    def detect(self, lane: Lane[CpuBuffer], model: ModelFacts, settings: DetectorSettings) -> Stage:
        return DetectStage(self._own(lane), model, settings, self._arena)

    def overlay(self, lane: Lane[CpuBuffer], labels: Sequence[str]) -> Stage:
        return OverlayStage(self._own(lane), labels, self._arena)

    def compile(self, stages: Sequence[Stage], lane: Lane[CpuBuffer], batch: int) -> CpuProgram:
        """Keep the stages in order, made ready for every size of NV12 (what slots hold) handed out so far.

        A size that comes later is prepared at its first launch, which must be before the seal.
        """
        formats = [image for image in self._arena.formats if image.pixel_format is PixelFormat.NV12]
        program = CpuProgram(stages, self._own(lane), batch, formats)
        for slot in self._admitted.values():
            program.admit(slot)
        self._programs.append(program)
        return program

    def admit(self, slot: FrameSlot[CpuBuffer]) -> None:
        """Prepare all programs, also those compiled later, for slots like this one."""
        self._admitted[slot.channel, slot.part] = slot
        for program in self._programs:
            program.admit(slot)

    def dismiss(self, channel: int) -> None:
        """Forget the channel's slots. Tables for its picture size stay: another channel may have the same."""
        for key in [key for key in self._admitted if key[0] == channel]:
            del self._admitted[key]

    def motion_meter(self, slot: FrameSlot[CpuBuffer], slots: int, owner: str) -> LumaMotion:
        return LumaMotion(slot.surface.format, slots, self._arena, owner)

    def picture_meter(self, slot: FrameSlot[CpuBuffer], owner: str) -> LumaPicture:
        return LumaPicture(slot.surface.format)

    def watch_threads(self, hook: Callable[[], None]) -> None:
        """`hook` runs once on every lane's thread, before its next launch. Before launches start."""
        self._hooks.add(hook)

    def close(self) -> None:
        """Finish launches in flight and end the lanes' threads; a second call does nothing."""
        while self._lanes:
            lane = self._lanes.pop()
            lane.worker.close()
            lane.assistant.close()

    def _own(self, lane: Lane[CpuBuffer]) -> CpuLane:
        if not isinstance(lane, CpuLane):
            raise PipelineError(f"lane {lane.index} is not one of the cpu device")
        return lane

"""A lane's stages as one CUDA graph, and its launch.

Every program has a descriptor table of its own in pinned memory; the graph begins by copying it to the lane's table on
the device. So two programs of a lane may be in flight: the second waits its turn on the lane's stream, and the host
never stands between them. A launch is one table write a frame, one wait for the ingest of each slot (by the stream,
not the host), one graph launch and one event.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zhcedge.backends.cuda import _vendor
from zhcedge.backends.cuda._vendor import CudaCallError, TimingEvent
from zhcedge.backends.cuda.arena import CudaArena
from zhcedge.backends.cuda.context import CudaContext, CudaFence, gpu_error
from zhcedge.backends.cuda.descriptor import FRAME, check_surface, pack
from zhcedge.backends.cuda.graph import capture
from zhcedge.backends.cuda.graph_rules import GraphFacts
from zhcedge.backends.cuda.stages import CudaLane
from zhcedge.core.errors import PhaseError, PipelineError
from zhcedge.core.ports import NO_RANGES, FrameSlot, Ranges, Stage, StageTime
from zhcedge.core.types import PixelFormat, Surface

_WARM_RUNS = 3  # before the capture: kernels loaded, engines' own choices and allocations made


@dataclass(frozen=True)
class _Known:
    """A slot that was launched before: its surface then, its descriptor, its ingest."""

    slot: FrameSlot[int]
    surface: Surface[int]
    descriptor: bytes
    ingest: CudaFence


class CudaProgram:
    """Implements core.ports.Program. Made by CudaDevice.compile.

    Args:
        is_timed: record an event after every stage, for stage_times; a microsecond or two of GPU time each.
        ranges: told of each stage while it is enqueued: in the warm runs and at the capture, never at a replay.

    Raises PipelineError when the stages can't be captured, or leave the GPU when they run.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        lane: CudaLane,
        batch: int,
        context: CudaContext,
        arena: CudaArena,
        *,
        is_timed: bool = False,
        ranges: Ranges = NO_RANGES,
    ) -> None:
        self._where = f"lane {lane.index}"
        if not 1 <= batch <= lane.input.shape[0]:
            raise PipelineError(f"batch {batch} is outside 1..{lane.input.shape[0]}", where=self._where)
        self._stages, self._lane, self._batch = tuple(stages), lane, batch
        self._context, self._arena, self._ranges = context, arena, ranges
        self._input_size = (lane.input.shape[3], lane.input.shape[2])
        size = batch * FRAME.size
        self._pinned, _ = arena.pinned(size, f"{self._where}, descriptors")
        self._table = self._pinned.data
        self._table_address: int = self._pinned.ctypes.data
        self._known: dict[int, _Known] = {}
        self._fence = context.create_fence(self._where)
        self._marks: tuple[TimingEvent, ...] = ()
        with context.push():
            try:
                self._warm()
                if is_timed:
                    self._marks = tuple(TimingEvent() for _ in range(len(self._stages) + 1))
                self._exec, self.facts = self._capture()
            except BaseException:
                self._close_marks()
                raise
        self._is_open = True

    def _warm(self) -> None:
        """Run the stages on empty descriptors: they touch no picture and no results, but load and allocate."""
        for _ in range(_WARM_RUNS):
            self._enqueue()
        self._lane.stream.synchronize()

    def _capture(self) -> tuple[_vendor.GraphExec, GraphFacts]:
        return capture(self._lane.stream, self._enqueue, self._freeze, self._table_address, self._batch, self._where)

    def _freeze(self, constants: bytes) -> int:
        array = np.frombuffer(constants, np.uint8)
        return self._arena.constant(array, f"{self._where}, engine constants")

    def _enqueue(self) -> None:
        lane = self._lane
        _vendor.copy_to_device_async(lane.table, self._table_address, self._batch * FRAME.size, lane.stream.handle)
        self._mark(0)
        for position, stage in enumerate(self._stages):
            self._ranges.push(stage.name)
            stage.enqueue(self._batch)
            self._ranges.pop()
            self._mark(position + 1)

    def _mark(self, position: int) -> None:
        if self._marks:
            self._marks[position].capture(self._lane.stream.handle)

    @property
    def batch(self) -> int:
        return self._batch

    def launch(self, slots: Sequence[FrameSlot[int]]) -> CudaFence:
        """Start the graph over `slots` and return at once. Runner thread; the last launch must be done.

        Raises PipelineError for another number of slots, a launch still in flight, or a lost GPU.
        """
        if not self._is_open:
            raise PhaseError("the device is closed", where=self._where)
        if len(slots) != self._batch:
            raise PipelineError(f"{len(slots)} slots were launched on a program for {self._batch}", where=self._where)
        if not self._fence.is_done():
            raise PipelineError("launched again before the last launch was done", where=self._where)
        table, stream, offset = self._table, self._lane.stream, 0
        for slot in slots:
            known = self._known.get(slot.surface.planes[0].buffer)
            if known is None or known.slot is not slot or known.surface is not slot.surface:
                known = self._learn(slot)
            table[offset : offset + FRAME.size] = known.descriptor
            offset += FRAME.size
            stream.wait_for(known.ingest)
        try:
            self._exec.launch()
        except CudaCallError as error:
            raise gpu_error(error, self._where) from error
        self._fence.record(stream)
        return self._fence

    def _learn(self, slot: FrameSlot[int]) -> _Known:
        surface = slot.surface
        check_surface(surface, "slot")
        if surface.format.pixel_format is not PixelFormat.NV12:
            raise PipelineError(f"the slot is {surface.format.pixel_format.value}, not nv12", where=self._where)
        results = self._arena.device_address(slot.results)
        descriptor = pack(surface, results, self._input_size, slot.mask, slot.is_drawn)
        known = _Known(slot, surface, descriptor, self._arena.ingest_fence(surface))
        # By address, so that channels that come and go don't make the table grow: the arena hands out the same ones.
        self._known[surface.planes[0].buffer] = known
        return known

    def stage_times(self) -> Sequence[StageTime]:
        """Times of the last finished launch on the GPU, placed so that the last stage ends now; empty when not timed.

        Collector thread, right after the fence.
        """
        if not self._marks:
            return ()
        self._context.attach()
        end_ns = time.monotonic_ns()
        try:
            offsets = [int(mark.milliseconds_since(self._marks[0]) * 1e6) for mark in self._marks]
        except CudaCallError as error:
            raise gpu_error(error, self._where) from error
        start_ns = end_ns - offsets[-1]
        return tuple(
            StageTime(stage.name, start_ns + offsets[position], start_ns + offsets[position + 1])
            for position, stage in enumerate(self._stages)
        )

    def wait(self, timeout_s: float) -> bool:
        """Wait for the last launch; False when it does not end in time. Raises PipelineError when it failed."""
        return self._fence.wait(timeout_s)

    def close(self) -> None:
        """Wait for the last launch and free the graph; twice is fine. On the thread that opened the context."""
        if not self._is_open:
            return
        self._is_open = False
        with self._context.push():
            self._fence.wait(10.0)
            self._exec.close()
            self._close_marks()
        self._stages = ()  # an engine's session must go before the stream that it was made with

    def _close_marks(self) -> None:
        for mark in self._marks:
            mark.close()
        self._marks = ()

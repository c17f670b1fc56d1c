"""One NVIDIA GPU as a device: memory, copies, stages, and lanes compiled into CUDA graphs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

import numpy as np

from zhcedge.backends.cuda._vendor import pycuda
from zhcedge.backends.cuda.arena import CudaArena
from zhcedge.backends.cuda.context import CudaContext, CudaFence
from zhcedge.backends.cuda.cupti.instrument import CuptiInstrument, Mode, visible_kinds
from zhcedge.backends.cuda.cupti.table import RULES
from zhcedge.backends.cuda.descriptor import FRAME, check_surface, pack
from zhcedge.backends.cuda.ingest import Ingest
from zhcedge.backends.cuda.kernels import Kernels
from zhcedge.backends.cuda.motion import CudaMotion
from zhcedge.backends.cuda.picture import CudaPicture
from zhcedge.backends.cuda.program import CudaProgram
from zhcedge.backends.cuda.stages import (
    CudaLane,
    DetectStage,
    LetterboxStage,
    OverlayStage,
    needs_rewrite,
    rewritten_bytes,
)
from zhcedge.core.errors import PhaseError, PipelineError
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

log = logging.getLogger(__name__)

_BLOCK = (32, 8, 1)
_CLOSE_S = 10.0  # how long the last launch may take
_PREVIEWS = -1  # the stream of downscaling, beside those of the channels


class CudaDevice:
    """Implements core.ports.Device on the GPU `settings.index`; the buffer type is a device address.

    Open it before any other library touches the GPU: it sets the blocking-sync flag of the primary context. Opening,
    compiling and closing belong to one thread. `settings.threads` means nothing here: the device has no threads.

    `settings.is_audit` chooses how much CUPTI watches, and with it what `claims` says: without it only what costs
    nothing until something is wrong (allocations, frees, device-wide waits), with it copies to the host as well.

    Attributes:
        is_timed: programs compiled from now on record when each stage ran, for stage_times; True in an audit.

    Raises BackendUnavailableError without GPU, driver or NVRTC; PipelineError when a kernel does not compile or load.
    """

    def __init__(self, settings: DeviceSettings) -> None:
        self.index = settings.index
        self.is_timed = settings.is_audit
        self._ranges = settings.ranges
        self._mode = Mode.AUDIT if settings.is_audit else Mode.LIVE
        self.context = CudaContext(settings.index)
        try:
            self._kernels = Kernels(self.context)
            self._domain = _memory_domain(settings.index)
        except BaseException:
            self.context.close()
            raise
        self._arena = CudaArena(self.context, self._domain)
        self._ingest = Ingest(self.context, self._arena, self._kernels["ingest"])
        self._programs: list[CudaProgram] = []
        self._is_open = True

    @property
    def name(self) -> str:
        """ "cuda:0" for the first GPU; the product's name is `context.name`."""
        return f"cuda:{self.index}"

    @property
    def arena(self) -> CudaArena:
        return self._arena

    @property
    def depth(self) -> int:
        """2: the next launch waits on the lane's stream while the last one runs, so no lane waits for the host."""
        return 2

    def hops(self, model: ModelFacts, formats: Sequence[ImageFormat]) -> tuple[Hop, ...]:
        """One ingest row for each format, then input tensor, output tensor, parameters and results of one frame."""
        gpu, pinned = self._domain, MemoryDomain.PINNED
        rows = []
        for image in dict.fromkeys(formats):
            nv12 = ImageFormat(image.width_px, image.height_px, PixelFormat.NV12)
            size_bytes = sum(width * rows_px for width, rows_px in plane_sizes(nv12))
            agent = Agent.COPY_ENGINE if image.pixel_format is PixelFormat.NV12 else Agent.GPU
            reason = "the decoder reuses its surface; overlay needs a copy"
            name = f"ingest {image.width_px}x{image.height_px}"
            rows.append(Hop(name, agent, gpu, gpu, Payload.PIXELS, size_bytes, Provenance.DERIVED, reason))

        def tensor(name: str, size_bytes: int, reason: str) -> Hop:
            return Hop(name, Agent.GPU, gpu, gpu, Payload.TENSOR, size_bytes, Provenance.DERIVED, reason)

        input_bytes = math.prod(model.input_shape[1:]) * np.dtype(model.input_dtype).itemsize
        output_bytes = math.prod(model.output_shape[1:]) * np.dtype(model.output_dtype).itemsize
        rows.append(tensor("letterbox", input_bytes, "the model's input"))
        rows.append(tensor("engine output", output_bytes, "the model's output"))
        if needs_rewrite(model):
            reason = "the output in the layout and precision that boxes are read from"
            rows.append(tensor("head", rewritten_bytes(model), reason))
        rows.append(self._parameters(pinned, gpu))
        rows.append(
            Hop(
                "results",
                Agent.GPU,
                gpu,
                pinned,
                Payload.RESULTS,
                RESULT_DTYPE.itemsize,
                Provenance.DERIVED,
                "detections of the frame, written by the kernel into mapped memory; at most this many bytes",
            )
        )
        return tuple(rows)

    def _parameters(self, source: MemoryDomain, destination: MemoryDomain) -> Hop:
        """Read off the captured graphs where there are any."""
        per_frame = [-(-program.facts.parameter_bytes // program.batch) for program in self._programs]
        provenance = Provenance.STATIC if per_frame else Provenance.DERIVED
        reason = "addresses and geometry of the frame"
        size_bytes = max(per_frame, default=FRAME.size)
        return Hop(
            "parameters", Agent.COPY_ENGINE, source, destination, Payload.PARAMETERS, size_bytes, provenance, reason
        )

    @property
    def claims(self) -> frozenset[ViolationKind]:
        """What CUPTI can see in the device's mode: no allocation, no free, no device-wide wait; in an audit, no copy
        of a frame to the host either."""
        return frozenset(visible_kinds(tuple(RULES.values()), self._mode))

    def instruments(self) -> tuple[Instrument, ...]:
        """The CUPTI instrument, not started."""
        return (CuptiInstrument(self.context, self._mode),)

    def admit(self, slot: FrameSlot[int]) -> None:
        """Make the channel's stream. Kernels take any format from the descriptor."""
        self._ingest.stream(slot.channel)

    def dismiss(self, channel: int) -> None:
        """The channel's stream may serve another."""
        self._ingest.forget(channel)

    def motion_meter(self, slot: FrameSlot[int], slots: int, owner: str) -> CudaMotion:
        """Raises PhaseError after the seal, PipelineError when memory is short."""
        return CudaMotion(slots, self._arena, self._ingest.stream(slot.channel), self._kernels["motion"], owner)

    def picture_meter(self, slot: FrameSlot[int], owner: str) -> CudaPicture:
        """Raises PhaseError after the seal, PipelineError when memory is short."""
        return CudaPicture(self._arena, self._ingest.stream(slot.channel), self._kernels["picture"], owner)

    def watch_threads(self, hook: Callable[[], None]) -> None:
        """Never calls `hook`: the device has no threads."""

    def ingest(self, source: Surface[int], slot: FrameSlot[int], after: Fence | None = None) -> CudaFence:
        """Enqueue the copy of a surface (NV12, I420 or P010) into the slot, once `after` is done. Reader threads.

        A fence of this device is waited for by the GPU, any other one here. A later launch over the slot waits for the
        copy on the GPU. Raises PipelineError when the surfaces don't fit.
        """
        return self._ingest(source, slot, after)

    def downscale(self, source: Surface[int], target: Surface[int], after: CudaFence | None = None) -> CudaFence:
        """Shrink an NV12 surface into a smaller one of the arena, for snapshots and previews, once `after` is done.

        On the stream that all downscaling shares; one thread at a time, any. Raises PipelineError when one is not NV12.
        """
        for surface, what in ((source, "picture"), (target, "preview")):
            check_surface(surface, what)
            if surface.format.pixel_format is not PixelFormat.NV12:
                raise PipelineError(f"the {what} is {surface.format.pixel_format.value}, not nv12", where="downscale")
        self.context.attach()
        stream, fence = self._ingest.stream(_PREVIEWS), self._arena.ingest_fence(target)
        if after is not None:
            stream.wait_for(after)
        image = target.format
        grid = (-(-image.width_px // (2 * _BLOCK[0])), -(-image.height_px // (2 * _BLOCK[1])), 1)
        self._kernels["downscale"].launch(stream, grid, _BLOCK, pack(source), pack(target))
        fence.record(stream)
        return fence

    def create_lane(self, index: int, model: ModelFacts) -> CudaLane:
        """Allocate a lane. Raises PhaseError after the seal, PipelineError when memory is short."""
        return CudaLane(index, model, self.context, self._arena)

    def preprocess(self, lane: Lane[int], model: ModelFacts) -> Stage:
        return LetterboxStage(_own(lane), model, self._kernels)

    def detect(self, lane: Lane[int], model: ModelFacts, settings: DetectorSettings) -> Stage:
        return DetectStage(_own(lane), model, settings, self._kernels, self._arena)

    def overlay(self, lane: Lane[int], labels: Sequence[str]) -> Stage:
        return OverlayStage(_own(lane), labels, self._kernels, self._arena)

    def compile(self, stages: Sequence[Stage], lane: Lane[int], batch: int) -> CudaProgram:
        """Capture the stages into a graph. Raises PipelineError when that fails or the graph would leave the GPU."""
        if not self._is_open:
            raise PhaseError("the device is closed", where=self.name)
        program = CudaProgram(
            stages, _own(lane), batch, self.context, self._arena, is_timed=self.is_timed, ranges=self._ranges
        )
        self._programs.append(program)
        return program

    def close(self) -> None:
        """Wait for launches in flight and free everything; twice is fine. On the thread that opened the device.

        When the GPU is lost, or does not finish, everything is left to the end of the process: freeing it would fail,
        or block for ever.
        """
        if not self._is_open:
            return
        self._is_open = False
        if not self._is_idle():
            log.error("%s does not answer any more: what it holds is freed when this process ends", self.name)
            self.context.abandon(self)
            return
        while self._programs:
            self._programs.pop().close()
        self._kernels.close()
        self._arena.close()
        self.context.close()

    def _is_idle(self) -> bool:
        """Wait for what is in flight; False when the GPU is lost or does not finish."""
        try:
            are_done = all(program.wait(_CLOSE_S) for program in self._programs)
        except PipelineError:
            return False
        return are_done and not self.context.is_lost()


def _own(lane: Lane[int]) -> CudaLane:
    if not isinstance(lane, CudaLane):
        raise PipelineError(f"lane {lane.index} is not one of the cuda device")
    return lane


def _memory_domain(index: int) -> MemoryDomain:
    """Boards whose GPU shares the CPU's memory have unified memory only."""
    is_integrated = pycuda.Device(index).get_attribute(pycuda.device_attribute.INTEGRATED)
    return MemoryDomain.UNIFIED if is_integrated else MemoryDomain.DEVICE

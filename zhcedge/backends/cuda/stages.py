"""The GPU's stages of a lane: letterbox, detect, overlay. Each enqueues kernels on the lane's stream.

A stage knows the lane's buffers when it is made and reads everything about frames from the lane's descriptor table on
the device, so what `enqueue` records serves every slot. Initialising phase, the thread that compiles.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from zhcedge.backends.cuda import _vendor
from zhcedge.backends.cuda._vendor import pycuda
from zhcedge.backends.cuda.arena import CudaArena
from zhcedge.backends.cuda.context import CudaContext, CudaStream, gpu_error
from zhcedge.backends.cuda.descriptor import FRAME
from zhcedge.backends.cuda.kernels import Kernels
from zhcedge.backends.cuda.text import load_atlas, pack_names
from zhcedge.core.errors import PipelineError
from zhcedge.core.types import RESULT_DTYPE, DetectorSettings, HeadKind, ModelFacts, Tensor

_TILE = (32, 8, 1)  # threads of a block over a picture
_LETTERBOX = (64, 32)  # columns and rows of a block in kernels/letterbox.cu
_COLLECT = (32, 8, 1)  # ANCHORS, GROUPS of kernels/detect.cu
_SUPPRESS = (256, 1, 1)  # THREADS of kernels/detect.cu
_OVERLAY_BLOCKS = 2048  # blocks that walk over a frame's tiles of 64 x 16 pixels: one each at 1080p


class CudaLane:
    """Implements core.ports.Lane: a stream, the engine's tensors, the descriptor table and a copy of the results.

    Attributes:
        table: device address of the descriptors of the launch that runs, one struct Frame a frame.
        records: device address of the results of that launch, one RESULT_DTYPE a frame.
    """

    def __init__(self, index: int, model: ModelFacts, context: CudaContext, arena: CudaArena) -> None:
        owner = f"lane {index}"
        batch = model.input_shape[0]
        self._index = index
        self._input = arena.tensor(model.input_name, model.input_shape, "float32", owner)
        self._output = arena.tensor(model.output_name, model.output_shape, "float32", owner)
        self.table = arena.memory(batch * FRAME.size, owner)
        self.records = arena.memory(batch * RESULT_DTYPE.itemsize, owner)
        self.stream: CudaStream = context.create_stream()

    @property
    def index(self) -> int:
        return self._index

    @property
    def input(self) -> Tensor[int]:
        return self._input

    @property
    def output(self) -> Tensor[int]:
        return self._output

    @property
    def stream_handle(self) -> int:
        return self.stream.handle


class LetterboxStage:
    """Slot surfaces -> lane.input."""

    name = "letterbox"

    def __init__(self, lane: CudaLane, model: ModelFacts, kernels: Kernels) -> None:
        self._lane, self._kernel = lane, kernels["letterbox"]
        self._height, self._width = model.input_shape[2:]
        self._scale, self._pad = model.scale, model.pad_value * model.scale

    def enqueue(self, batch: int) -> None:
        lane, width, height = self._lane, self._width, self._height
        grid = (-(-width // _LETTERBOX[0]), -(-height // _LETTERBOX[1]), batch)
        self._kernel.launch(
            lane.stream, grid, _TILE, lane.table, lane.input.buffer, width, height, self._scale, self._pad
        )


class DetectStage:
    """lane.output -> slot.results and lane.records. Raises PipelineError for a head or labels it does not know."""

    name = "detect"

    def __init__(
        self,
        lane: CudaLane,
        model: ModelFacts,
        settings: DetectorSettings,
        kernels: Kernels,
        context: CudaContext,
        arena: CudaArena,
    ) -> None:
        owner = f"lane {lane.index}, detect"
        if model.head is not HeadKind.YOLO_ANCHOR_FREE:
            raise PipelineError(f"the cuda device can't decode a {model.head.value} head", where=owner)
        batch, self._anchors = model.output_shape[0], model.output_shape[2]
        self._classes = model.output_shape[1] - 4
        chosen = settings.label_indices
        if any(not 0 <= label < self._classes for label in chosen or ()):
            raise PipelineError(f"labels {chosen} are not all in 0..{self._classes - 1}", where=owner)
        keeps_label = np.ones(self._classes, np.uint8)
        if chosen is not None:
            keeps_label[:] = 0
            keeps_label[list(chosen)] = 1
        self._lane, self._settings = lane, settings
        self._collect, self._suppress = kernels["collect"], kernels["suppress"]
        self._keeps_label = upload(keeps_label, context, arena, owner)
        # Zeroed by the arena; each launch leaves the counters at zero for the next.
        self._counters = arena.memory(4 * batch, owner)
        self._keys = arena.memory(8 * batch * self._anchors, owner)
        self._labels = arena.memory(4 * batch * self._anchors, owner)

    def enqueue(self, batch: int) -> None:
        lane, output, size = self._lane, self._lane.output.buffer, (self._classes, self._anchors)
        grid = (-(-self._anchors // _COLLECT[0]), batch, 1)
        scratch = (self._counters, self._keys, self._labels)
        threshold, nms_iou = self._settings.score_threshold, self._settings.nms_iou
        self._collect.launch(lane.stream, grid, _COLLECT, output, *size, threshold, self._keeps_label, *scratch)
        self._suppress.launch(
            lane.stream, (batch, 1, 1), _SUPPRESS, lane.table, output, *size, nms_iou, *scratch, lane.records
        )


class OverlayStage:
    """lane.records drawn into slot.surface, which must be NV12."""

    name = "overlay"

    def __init__(
        self, lane: CudaLane, labels: Sequence[str], kernels: Kernels, context: CudaContext, arena: CudaArena
    ) -> None:
        owner = f"lane {lane.index}, overlay"
        atlas = load_atlas()
        names, lengths = pack_names(labels)
        self._lane, self._kernel = lane, kernels["overlay"]
        self._glyph_height, self._glyph_width = atlas.shape[1:]
        self._text = tuple(upload(array, context, arena, owner) for array in (atlas, names, lengths))

    def enqueue(self, batch: int) -> None:
        lane = self._lane
        self._kernel.launch(
            lane.stream,
            (_OVERLAY_BLOCKS, batch, 1),
            _TILE,
            lane.table,
            lane.records,
            *self._text,
            self._glyph_width,
            self._glyph_height,
        )


def upload(array: npt.NDArray[np.uint8], context: CudaContext, arena: CudaArena, owner: str) -> int:
    """A copy of a constant array on the device. Initialising only."""
    address = arena.memory(array.nbytes, owner)
    try:
        with context.push():
            pycuda.memcpy_htod(address, np.ascontiguousarray(array))
            pycuda.Context.synchronize()  # streams of ours don't wait for the null stream, where this runs
    except _vendor.PYCUDA_ERROR as error:
        raise gpu_error(error, owner) from error
    return address

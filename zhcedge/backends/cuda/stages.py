"""The GPU's stages of a lane: letterbox, detect, overlay. Each enqueues kernels on the lane's stream.

A stage knows the lane's buffers when it is made and reads everything about frames from the lane's descriptor table on
the device, so what `enqueue` records serves every slot. Initialising phase, the thread that compiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from zhcedge.backends.cuda.arena import CudaArena
from zhcedge.backends.cuda.context import CudaContext, CudaStream
from zhcedge.backends.cuda.descriptor import FRAME
from zhcedge.backends.cuda.kernels import Kernel, Kernels
from zhcedge.backends.cuda.text import load_atlas, pack_names
from zhcedge.core.errors import PipelineError
from zhcedge.core.types import RESULT_DTYPE, DetectorSettings, HeadKind, ModelFacts, Tensor

_TILE = (32, 8, 1)  # threads of a block over a picture
_LETTERBOX = (64, 32)  # columns and rows of a block in kernels/letterbox.cu
_COLLECT = (32, 8, 1)  # ANCHORS, GROUPS of kernels/detect.cu
_HEADS = 32  # TILE of kernels/heads.cu
_SUPPRESS = (1024, 1, 1)  # THREADS of kernels/detect.cu
_MAX_ANCHORS = 1 << 22  # MAX_ANCHORS of kernels/detect.cu
_LINE = (256, 1, 1)  # threads of a block that walks over marks or a mask; THREADS of kernels/overlay.cu
_OVERLAY_BLOCKS = 128  # share a frame's marks, two blocks a mark: 64 marks at once
_BUS_BLOCKS = 32  # where each of them reads the results over the bus
_MASK_BLOCKS = 64  # share a frame's mask: at 1080p 8 words of it a thread


HEAD_NUMBERS = {
    HeadKind.YOLO_ANCHOR_FREE: 0,
    HeadKind.YOLO_ANCHOR_FREE_ROWS: 1,
    HeadKind.YOLO_OBJECTNESS: 2,
    HeadKind.YOLO_OBJECTNESS_COLUMNS: 3,
    HeadKind.END_TO_END: 4,
}
"""enum Head of kernels/heads.cu."""


class CudaLane:
    """Implements core.ports.Lane: a stream, the engine's tensors, the descriptor table and a copy of the results.

    Attributes:
        table: device address of the descriptors of the launch that runs, one struct Frame a frame.
        records: device address of the results of that launch, one RESULT_DTYPE a frame.
        has_records: a detect stage fills them; without one the overlay reads each slot's own results.
    """

    def __init__(self, index: int, model: ModelFacts, context: CudaContext, arena: CudaArena) -> None:
        owner = f"lane {index}"
        batch = model.input_shape[0]
        self._index = index
        self._input = arena.tensor(model.input_name, model.input_shape, model.input_dtype, owner)
        self._output = arena.tensor(model.output_name, model.output_shape, model.output_dtype, owner)
        self.table = arena.memory(batch * FRAME.size, owner)
        self.records = arena.memory(batch * RESULT_DTYPE.itemsize, owner)
        self.has_records = False
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
        self._values = (model.scale, model.pad_value * model.scale, model.input_dtype == "float16", model.is_bgr)

    def enqueue(self, batch: int) -> None:
        lane, width, height = self._lane, self._width, self._height
        grid = (-(-width // _LETTERBOX[0]), -(-height // _LETTERBOX[1]), batch)
        self._kernel.launch(lane.stream, grid, _TILE, lane.table, lane.input.buffer, width, height, *self._values)


class DetectStage:
    """lane.output -> slot.results and lane.records. Raises PipelineError for a head or labels it does not know."""

    name = "detect"

    def __init__(
        self,
        lane: CudaLane,
        model: ModelFacts,
        settings: DetectorSettings,
        kernels: Kernels,
        arena: CudaArena,
    ) -> None:
        owner = f"lane {lane.index}, detect"
        batch, self._anchors = model.output_shape[0], model.anchors
        if self._anchors > _MAX_ANCHORS:
            raise PipelineError(f"{self._anchors} anchors are more than {_MAX_ANCHORS}", where=owner)
        self._classes = model.classes
        chosen = settings.label_indices
        if any(not 0 <= label < self._classes for label in chosen or ()):
            raise PipelineError(f"labels {chosen} are not all in 0..{self._classes - 1}", where=owner)
        keeps_label = np.ones(self._classes, np.uint8)
        if chosen is not None:
            keeps_label[:] = 0
            keeps_label[list(chosen)] = 1
        self._lane, self._threshold = lane, settings.score_threshold
        # Nothing overlaps by more than infinity: an end-to-end head's boxes all stay.
        self._nms_iou = math.inf if model.head is HeadKind.END_TO_END else settings.nms_iou
        self._rewrite = _HeadRewriter(lane, model, kernels["heads"], arena, owner) if needs_rewrite(model) else None
        self._collect, self._suppress = kernels["collect"], kernels["suppress"]
        self._keeps_label = arena.constant(keeps_label, owner)
        # Zeroed by the arena; each launch leaves the counters at zero for the next.
        self._counters = arena.memory(4 * batch, owner)
        self._keys = arena.memory(8 * batch * self._anchors, owner)
        self._boxes = arena.memory(16 * batch * self._anchors, owner)
        self._labels = arena.memory(4 * batch * self._anchors, owner)
        lane.has_records = True

    def enqueue(self, batch: int) -> None:
        lane, size = self._lane, (self._classes, self._anchors)
        output = self._rewrite.enqueue(batch) if self._rewrite else lane.output.buffer
        grid = (-(-self._anchors // _COLLECT[0]), batch, 1)
        scratch = (self._counters, self._keys, self._boxes, self._labels)
        self._collect.launch(lane.stream, grid, _COLLECT, output, *size, self._threshold, self._keeps_label, *scratch)
        self._suppress.launch(
            lane.stream, (batch, 1, 1), _SUPPRESS, lane.table, self._anchors, self._nms_iou, *scratch, lane.records
        )


class _HeadRewriter:
    """Any head's output in YOLOv8's layout and float32, in memory of its own, [batch, 4 + classes, anchors]."""

    def __init__(self, lane: CudaLane, model: ModelFacts, kernel: Kernel, arena: CudaArena, owner: str) -> None:
        self._lane, self._kernel = lane, kernel
        self._size = (model.classes, model.anchors)
        self._kind = (HEAD_NUMBERS[model.head], model.output_dtype == "float16")
        values, _ = model.head.values_and_anchors(model.output_shape)
        longest = max(values, 4 + model.classes)
        self._grid = (-(-model.anchors // _HEADS), -(-longest // _HEADS))
        self._output = arena.memory(model.output_shape[0] * rewritten_bytes(model), owner)

    def enqueue(self, batch: int) -> int:
        """Returns the device address of the result."""
        lane = self._lane
        self._kernel.launch(
            lane.stream, (*self._grid, batch), _TILE, lane.output.buffer, self._output, *self._size, *self._kind
        )
        return self._output


def needs_rewrite(model: ModelFacts) -> bool:
    """Whether the output has another layout or precision than kernels/detect.cu reads."""
    return model.head is not HeadKind.YOLO_ANCHOR_FREE or model.output_dtype != "float32"


def rewritten_bytes(model: ModelFacts) -> int:
    """Size of one frame's output in the layout that kernels/detect.cu reads."""
    return 4 * (4 + model.classes) * model.anchors


class OverlayStage:
    """slot.mask, then lane.records or slot.results, drawn into slot.surface, which must be NV12."""

    name = "overlay"

    def __init__(self, lane: CudaLane, labels: Sequence[str], kernels: Kernels, arena: CudaArena) -> None:
        owner = f"lane {lane.index}, overlay"
        atlas = load_atlas()
        names, lengths = pack_names(labels)
        self._lane, self._mask, self._overlay = lane, kernels["mask"], kernels["overlay"]
        self._glyph_height, self._glyph_width = atlas.shape[1:]
        self._text = tuple(arena.constant(array, owner) for array in (atlas, names, lengths))

    def enqueue(self, batch: int) -> None:
        lane = self._lane
        self._mask.launch(lane.stream, (_MASK_BLOCKS, batch, 1), _LINE, lane.table)
        self._overlay.launch(
            lane.stream,
            (_OVERLAY_BLOCKS if lane.has_records else _BUS_BLOCKS, batch, 1),
            _LINE,
            lane.table,
            lane.records if lane.has_records else 0,
            *self._text,
            self._glyph_width,
            self._glyph_height,
        )

"""Post-processing on the CPU: a model's output -> boxes in pixels of the source. The numpy twin of the GPU kernel.

Other heads than YOLOv8's are first written in its layout (heads.py). Then, in this order, all in float32:

1. an anchor's score is its best class score, NaN scores ignored, ties to the lower class index; it is a candidate when
   the score is above the threshold and finite, the label is kept, and the box is finite and not empty;
2. the 1024 best candidates stay (ties: lower anchor index);
3. greedy NMS within each label on unclipped boxes in input pixels: a box goes when
   intersection > nms_iou * union with a better one that stays; at most MAX_DETECTIONS stay;
4. boxes go to source pixels, (x - left) * scale_x, are clipped to the picture, and dropped when empty.

`candidates` of the result counts step 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from zhcedge.backends.cpu.arena import CpuArena, tensor_values
from zhcedge.backends.cpu.heads import make_rewriter
from zhcedge.backends.cpu.program import CpuLane
from zhcedge.core.errors import PipelineError
from zhcedge.core.geometry import Letterbox
from zhcedge.core.types import MAX_DETECTIONS, DetectorSettings, HeadKind, ModelFacts

MAX_CANDIDATES = 1024
"""Candidates that enter NMS."""

_BLOCK = 2048
"""Anchors searched together: bounds the index lists that numpy makes of its own, 8 bytes an anchor."""

_CHUNK = 512
"""Candidates decoded together: bounds the temporaries of a chunk."""

_TILE = 8192
"""Pairs of boxes compared together: few calls for the usual 50 boxes, and a tile stays in the first-level cache."""

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]
Indices = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]


class Detector:
    """Decodes one output at a time into one result record. One thread at a time; scratch is made in the constructor.

    Args:
        classes, anchors: the output is [4 + classes, anchors] float32, C order.
    """

    def __init__(self, classes: int, anchors: int, settings: DetectorSettings, arena: CpuArena, owner: str) -> None:
        self._classes = classes
        self._threshold = np.float32(settings.score_threshold)
        self._suppressor = Suppressor(settings.nms_iou, arena, owner)
        self._keeps_label = np.zeros(classes, np.bool_)
        kept: Sequence[int] | slice = slice(None) if settings.label_indices is None else list(settings.label_indices)
        self._keeps_label[kept] = True
        self._best = arena.array((anchors,), np.float32, owner)
        self._is_above = arena.array((anchors,), np.bool_, owner)
        self._is_finite = arena.array((anchors,), np.bool_, owner)
        self._anchors = arena.array((anchors,), np.intp, owner)
        self._by_class = arena.array((classes * _CHUNK,), np.float32, owner)
        self._by_anchor = arena.array((classes * _CHUNK,), np.float32, owner)
        self._is_nan = arena.array((classes * _CHUNK,), np.bool_, owner)
        self._centres = arena.array((4 * _CHUNK,), np.float32, owner)
        # Candidates in order of their anchors.
        self._scores = arena.array((anchors,), np.float32, owner)
        self._sorted = arena.array((anchors,), np.float32, owner)
        self._labels = arena.array((anchors,), np.int32, owner)
        self._boxes = arena.array((4, anchors), np.float32, owner)
        # The strongest of them, best first.
        self._best_scores = arena.array((MAX_CANDIDATES,), np.float32, owner)
        self._best_labels = arena.array((MAX_CANDIDATES,), np.int32, owner)
        self._best_boxes = arena.array((4 * MAX_CANDIDATES,), np.float32, owner)

    def __call__(self, output: Floats, letterbox: Letterbox, result: npt.NDArray[np.void]) -> None:
        """Fill `result`, a RESULT_DTYPE array of shape [1], from `output`, [4 + classes, anchors] float32."""
        # Wild boxes may overflow on their way to being dropped.
        with np.errstate(over="ignore", invalid="ignore"):
            count = self._collect(output)
            scores, labels, boxes = self._best_first(self._strongest(count))
            kept = self._suppressor(boxes, labels)
            self._write(boxes[:, kept], scores[kept], labels[kept], letterbox, result)
        result["candidates"][0] = count

    def _collect(self, output: Floats) -> int:
        """Step 1: candidates into scratch; returns how many."""
        np.fmax.reduce(output[4:], axis=0, out=self._best)
        np.greater(self._best, self._threshold, out=self._is_above)
        np.less(self._best, np.inf, out=self._is_finite)
        np.logical_and(self._is_above, self._is_finite, out=self._is_above)
        above = 0
        for start in range(0, len(self._best), _BLOCK):
            found = np.flatnonzero(self._is_above[start : start + _BLOCK])
            np.add(found, start, out=self._anchors[above : above + len(found)])
            above += len(found)
        count = 0
        for start in range(0, above, _CHUNK):
            count = self._append(output, self._anchors[start : min(start + _CHUNK, above)], count)
        return count

    def _append(self, output: Floats, anchors: Indices, count: int) -> int:
        labels = self._labels_of(output, anchors)
        centres = self._centres[: 4 * len(anchors)].reshape(4, -1)
        np.take(output[:4], anchors, axis=1, out=centres, mode="clip")
        half_width, half_height = centres[2] * np.float32(0.5), centres[3] * np.float32(0.5)
        edges = (
            centres[0] - half_width,
            centres[1] - half_height,
            centres[0] + half_width,
            centres[1] + half_height,
        )
        is_valid = self._keeps_label[labels] & (edges[2] > edges[0]) & (edges[3] > edges[1])
        for edge in edges:
            is_valid &= np.isfinite(edge)
        end = count + int(np.count_nonzero(is_valid))
        self._labels[count:end] = labels[is_valid]
        self._scores[count:end] = self._best[anchors][is_valid]
        for target, edge in zip(self._boxes, edges, strict=True):
            target[count:end] = edge[is_valid]
        return end

    def _labels_of(self, output: Floats, anchors: Indices) -> Indices:
        size = self._classes * len(anchors)
        by_class = self._by_class[:size].reshape(self._classes, -1)
        by_anchor = self._by_anchor[:size].reshape(-1, self._classes)
        np.take(output[4:], anchors, axis=1, out=by_class, mode="clip")
        # argmax over the first axis would make a transposed copy of its own.
        np.copyto(by_anchor, by_class.T)
        is_nan = self._is_nan[:size].reshape(-1, self._classes)
        np.isnan(by_anchor, out=is_nan)
        np.copyto(by_anchor, -np.inf, where=is_nan)
        labels: Indices = np.argmax(by_anchor, axis=1)
        return labels

    def _strongest(self, count: int) -> Indices:
        """Step 2: indices of the best candidates, ascending."""
        if count <= MAX_CANDIDATES:
            return np.arange(count)
        scores, ordered = self._scores[:count], self._sorted[:count]
        np.copyto(ordered, scores)
        ordered.partition(count - MAX_CANDIDATES)
        weakest = ordered[count - MAX_CANDIDATES]
        flags = self._is_above[:count]  # free again since _collect
        np.greater(scores, weakest, out=flags)
        better = _first_indices(flags, MAX_CANDIDATES)
        np.equal(scores, weakest, out=flags)
        ties = _first_indices(flags, MAX_CANDIDATES - len(better))
        return np.sort(np.concatenate((better, ties)))

    def _best_first(self, chosen: Indices) -> tuple[Floats, Integers, Floats]:
        """Scores, labels and boxes [4, n] of the chosen candidates; equal scores stay in order of their anchors."""
        order = chosen[np.argsort(-self._scores[chosen], kind="stable")]
        count = len(order)
        scores, labels = self._best_scores[:count], self._best_labels[:count]
        boxes = self._best_boxes[: 4 * count].reshape(4, count)
        np.take(self._scores, order, out=scores, mode="clip")
        np.take(self._labels, order, out=labels, mode="clip")
        np.take(self._boxes, order, axis=1, out=boxes, mode="clip")
        return scores, labels, boxes

    def _write(
        self, boxes: Floats, scores: Floats, labels: Integers, letterbox: Letterbox, result: npt.NDArray[np.void]
    ) -> None:
        """Step 4."""
        for edges, offset, scale, limit in (
            (boxes[0::2], letterbox.left_px, letterbox.scale_x, letterbox.source_width_px),
            (boxes[1::2], letterbox.top_px, letterbox.scale_y, letterbox.source_height_px),
        ):
            edges -= np.float32(offset)
            edges *= np.float32(scale)
            np.clip(edges, np.float32(0), np.float32(limit), out=edges)
        is_inside = (boxes[2] > boxes[0]) & (boxes[3] > boxes[1])
        count = int(np.count_nonzero(is_inside))
        detections = result["detections"][0]
        detections["box"][:count] = boxes[:, is_inside].T
        detections["score"][:count] = scores[is_inside]
        detections["label"][:count] = labels[is_inside]
        result["count"][0] = count


def _first_indices(flags: Flags, limit: int) -> Indices:
    """Indices of the first `limit` set flags, without an index list as long as the flags."""
    parts: list[Indices] = []
    for start in range(0, len(flags), _BLOCK):
        if limit <= 0:
            break
        found = np.flatnonzero(flags[start : start + _BLOCK])[:limit] + start
        limit -= len(found)
        parts.append(found)
    return np.concatenate(parts) if parts else np.zeros(0, np.intp)


class Suppressor:
    """Step 3: greedy NMS. One thread at a time; scratch is made in the constructor.

    Args:
        nms_iou: an overlap above it suppresses.
    """

    def __init__(self, nms_iou: float, arena: CpuArena, owner: str) -> None:
        self._nms_iou = np.float32(nms_iou)
        self._floats = tuple(arena.array((_TILE,), np.float32, owner) for _ in range(3))
        self._flags = tuple(arena.array((_TILE,), np.bool_, owner) for _ in range(2))

    def __call__(self, boxes: Floats, labels: Integers) -> Indices:
        """Indices of the boxes that stay, ascending, MAX_DETECTIONS at most.

        Args:
            boxes: [4, n] x1, y1, x2, y2, best score first; n at most 8192.
            labels: [n].
        """
        count = len(labels)
        areas = (boxes[2] - boxes[0]) * (boxes[3] - boxes[1])
        keys = labels.astype(np.float32)  # exact up to 2**24, and shares the scratch
        is_alive = np.ones(count, np.bool_)
        kept: list[int] = []
        # Many rows of the overlap matrix at once: a call per box would cost more than its arithmetic.
        rows = max(1, _TILE // max(count, 1))
        for start in range(0, count, rows):
            stop = min(start + rows, count)
            overlaps = self._overlaps(boxes, areas, keys, start, stop)
            for index in range(start, stop):
                if not is_alive[index]:
                    continue
                kept.append(index)
                if len(kept) == MAX_DETECTIONS:
                    return np.asarray(kept, np.intp)
                # A box overlaps itself and better ones too, but those are decided already.
                is_alive[start:] &= ~overlaps[index - start]
        return np.asarray(kept, np.intp)

    def _overlaps(self, boxes: Floats, areas: Floats, labels: Floats, start: int, stop: int) -> Flags:
        """Whether boxes start..stop overlap those from start on, same label only: [stop - start, n - start]."""
        shape = (stop - start, len(labels) - start)
        width, height, other = (scratch[: shape[0] * shape[1]].reshape(shape) for scratch in self._floats)
        flags, is_same = (scratch[: shape[0] * shape[1]].reshape(shape) for scratch in self._flags)
        # Rows are spread by copyto first: a ufunc that broadcasts two operands makes buffers of 64 KiB for them.
        rows = slice(start, stop)
        for low, high, extent in ((boxes[0], boxes[2], width), (boxes[1], boxes[3], height)):
            np.copyto(extent, high[rows, None])
            np.minimum(extent, high[start:], out=extent)
            np.copyto(other, low[rows, None])
            np.maximum(other, low[start:], out=other)
            np.subtract(extent, other, out=extent)
            np.maximum(extent, np.float32(0), out=extent)
        intersection = np.multiply(width, height, out=width)
        np.copyto(other, areas[rows, None])
        np.add(other, areas[start:], out=other)
        np.subtract(other, intersection, out=other)
        np.multiply(other, self._nms_iou, out=other)
        np.greater(intersection, other, out=flags)
        np.copyto(other, labels[rows, None])
        np.equal(other, labels[start:], out=is_same)
        return np.logical_and(flags, is_same, out=flags)


class DetectStage:
    """Implements core.ports.Stage: lane.output -> slot.results. Runs on the lane's thread."""

    name = "detect"

    def __init__(self, lane: CpuLane, model: ModelFacts, settings: DetectorSettings, arena: CpuArena) -> None:
        where = f"lane {lane.index}, detect"
        labels = settings.label_indices or ()
        if any(not 0 <= label < model.classes for label in labels):
            raise PipelineError(f"labels {labels} are not all in 0..{model.classes - 1}", where=where)
        self._lane = lane
        self._output = tensor_values(lane.output)
        self._input_size = (model.input_shape[3], model.input_shape[2])
        self._rewrite = make_rewriter(model, arena, where)
        if model.head is HeadKind.END_TO_END:
            settings = replace(settings, nms_iou=math.inf)  # nothing overlaps by more: step 3 keeps every box
        self._detector = Detector(model.classes, model.anchors, settings, arena, where)
        self._letterboxes: dict[tuple[int, int], Letterbox] = {}

    def enqueue(self, batch: int) -> None:
        for index, slot in enumerate(self._lane.slots[:batch]):
            image = slot.surface.format
            letterbox = self._letterbox(image.width_px, image.height_px)
            self._detector(self._rewrite(self._output[index]), letterbox, slot.results)

    def _letterbox(self, width_px: int, height_px: int) -> Letterbox:
        size = (width_px, height_px)
        if size not in self._letterboxes:
            self._letterboxes[size] = Letterbox.fit(*size, *self._input_size)
        return self._letterboxes[size]

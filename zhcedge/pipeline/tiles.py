"""Parts of a picture that are detected in by themselves: where they lie, and one result from those of all parts.

A part is a view of the frame's own memory, so it costs no copy: `Arena.view` makes a surface of it. Its detections are
in its own pixels and are moved and merged here, once all parts of a frame are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zhcedge.core.types import MAX_DETECTIONS, DetectionArray

WHOLE = (0.0, 0.0, 1.0, 1.0)
_CONTAINED = 0.7  # a box that lies to this share in another one of its class, from another part, is a piece of it
_EDGE_PX = 2.0  # a box that ends this close to a part's inner edge was cut there


@dataclass(frozen=True)
class Rectangle:
    """Part of a picture, in pixels. Even numbers, as 4:2:0 chroma needs."""

    left_px: int
    top_px: int
    width_px: int
    height_px: int


@dataclass(frozen=True)
class Regions:
    """Which parts of the picture are detected in.

    Attributes:
        crop: left, top, right, bottom as shares of the picture, 0..1.
        columns, rows: tiles that the crop is cut into.
        overlap: share of a tile that its neighbour covers too, 0..0.5.
    """

    crop: tuple[float, float, float, float] = WHOLE
    columns: int = 1
    rows: int = 1
    overlap: float = 0.0

    @property
    def is_whole(self) -> bool:
        """The picture is detected in as it is."""
        return self.crop == WHOLE and self.columns == self.rows == 1

    def rectangles(self, width_px: int, height_px: int) -> tuple[Rectangle, ...]:
        """The parts of a picture of this size, row by row. Together they cover the crop, rounded outwards to even."""
        left, top, right, bottom = self.crop
        across = _spans(left, right, width_px, self.columns, self.overlap)
        down = _spans(top, bottom, height_px, self.rows, self.overlap)
        return tuple(Rectangle(x, y, width, height) for y, height in down for x, width in across)


WHOLE_PICTURE = Regions()


def _spans(start: float, end: float, size_px: int, count: int, overlap: float) -> list[tuple[int, int]]:
    """(offset, length) of `count` equal overlapping parts of start..end, shares of `size_px`; even where it can."""
    first = min(int(start * size_px) // 2 * 2, max(size_px - 2, 0) // 2 * 2)
    last = min(max(-(-round(end * size_px) // 2) * 2, first + 2), size_px)
    whole = last - first
    # count tiles of this length, neighbours sharing `overlap` of it, are as long as the whole.
    length = whole / (count - (count - 1) * overlap)
    spans = []
    for index in range(count):
        at = first + int(index * length * (1 - overlap)) // 2 * 2
        until = last if index == count - 1 else min(at + -(-int(np.ceil(length)) // 2) * 2, last)
        spans.append((at, until - at))
    return spans


class TileMerger:
    """Makes one result of a frame from those of its parts. Collector thread.

    An object that several parts show is found in each of them, whole or cut by the part's edge. Boxes that touch an
    inner edge come last; then the best score wins, as in the detector's own non-maximum suppression, over boxes of
    the same class from other parts that overlap it by `nms_iou` or lie mostly inside one another.

    Args:
        rectangles: the parts.
        width_px, height_px: of the picture.
        nms_iou: overlap from which two boxes are one object.
    """

    def __init__(self, rectangles: Sequence[Rectangle], width_px: int, height_px: int, nms_iou: float) -> None:
        self._rectangles = tuple(rectangles)
        self._size_px = width_px, height_px
        self._nms_iou = nms_iou

    def merge(self, parts: Sequence[DetectionArray], into: npt.NDArray[np.void]) -> None:
        """Write the merged detections of `parts` (in the order of the rectangles) into a RESULT_DTYPE record."""
        moved = [self._in_picture(part, where) for part, where in zip(parts, self._rectangles, strict=True)]
        boxes = np.concatenate([part["box"] for part in moved]) if moved else np.empty((0, 4), np.float32)
        found = np.concatenate(moved)
        owner = np.repeat(np.arange(len(moved)), [len(part) for part in moved])
        is_cut = np.concatenate(
            [self._is_cut(part["box"], where) for part, where in zip(moved, self._rectangles, strict=True)]
        )
        order = np.lexsort((-found["score"], is_cut))
        kept = self._suppress(boxes[order], found["label"][order], owner[order])
        chosen = found[order][kept]
        chosen = chosen[np.argsort(-chosen["score"], kind="stable")][:MAX_DETECTIONS]
        into["count"] = len(chosen)
        into["detections"][0, : len(chosen)] = chosen

    def _in_picture(self, part: DetectionArray, where: Rectangle) -> DetectionArray:
        moved: DetectionArray = part.copy()
        moved["box"] += np.array([where.left_px, where.top_px] * 2, np.float32)
        return moved

    def _is_cut(self, boxes: npt.NDArray[np.float32], where: Rectangle) -> npt.NDArray[np.bool_]:
        width_px, height_px = self._size_px
        right, bottom = where.left_px + where.width_px, where.top_px + where.height_px
        at_left = (boxes[:, 0] <= where.left_px + _EDGE_PX) & (where.left_px > 0)
        at_top = (boxes[:, 1] <= where.top_px + _EDGE_PX) & (where.top_px > 0)
        at_right = (boxes[:, 2] >= right - _EDGE_PX) & (right < width_px)
        at_bottom = (boxes[:, 3] >= bottom - _EDGE_PX) & (bottom < height_px)
        result: npt.NDArray[np.bool_] = at_left | at_top | at_right | at_bottom
        return result

    def _suppress(
        self, boxes: npt.NDArray[np.float32], labels: npt.NDArray[np.int32], owner: npt.NDArray[np.int64]
    ) -> list[int]:
        kept: list[int] = []
        for index in range(len(boxes)):
            rivals = [k for k in kept if owner[k] != owner[index] and labels[k] == labels[index]]
            if not rivals or not self._is_same(boxes[index], boxes[rivals]):
                kept.append(index)
        return kept

    def _is_same(self, box: npt.NDArray[np.float32], others: npt.NDArray[np.float32]) -> bool:
        size = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
        shared = np.maximum(size, 0).prod(axis=1)
        area, areas = (box[2:] - box[:2]).prod(), (others[:, 2:] - others[:, :2]).prod(axis=1)
        is_overlap = shared >= self._nms_iou * (area + areas - shared)
        is_inside = shared >= _CONTAINED * np.minimum(area, areas)
        return bool(((is_overlap | is_inside) & (shared > 0)).any())

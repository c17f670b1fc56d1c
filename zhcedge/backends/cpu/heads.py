"""Every head written as YOLOv8's: [4 + classes, anchors] float32, which detect.py reads. Twin: cuda/kernels/heads.cu.

All in float32; float16 is widened first, which is exact.

- transposed heads: rows become columns;
- objectness: a class score is objectness * class score;
- end to end: a box is an anchor; its edges become centre and size, ((x1 + x2) / 2, x2 - x1); its class, rounded to the
  nearest integer (halves to even), gets its score and all others 0. One that is no class of the model gets 0 too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from zhcedge.backends.cpu.arena import CpuArena, Reals
from zhcedge.core.types import HeadKind, ModelFacts

Floats = npt.NDArray[np.float32]

Rewriter = Callable[[Reals], Floats]
"""One frame's output -> [4 + classes, anchors] float32: the output itself, or scratch that the next call overwrites."""


def needs_rewrite(model: ModelFacts) -> bool:
    """Whether the output has another layout or precision than decoding reads."""
    return model.head is not HeadKind.YOLO_ANCHOR_FREE or model.output_dtype != "float32"


def rewritten_bytes(model: ModelFacts) -> int:
    """Size of one frame's rewritten output."""
    return 4 * (4 + model.classes) * model.anchors


def make_rewriter(model: ModelFacts, arena: CpuArena, owner: str) -> Rewriter:
    """The rewriter of a model's head, with scratch of its own. Before the seal; one thread at a time."""
    if not needs_rewrite(model):
        return _as_it_is
    if model.head is HeadKind.END_TO_END:
        return _EndToEnd(model.classes, model.anchors, arena, owner)
    if model.head.has_objectness:
        return _Objectness(model, arena, owner)
    return _AnchorFree(model, arena, owner)


def _as_it_is(output: Reals) -> Floats:
    return output.astype(np.float32, copy=False)


class _AnchorFree:
    """YOLOv8's values, transposed or in float16."""

    def __init__(self, model: ModelFacts, arena: CpuArena, owner: str) -> None:
        self._is_rows = model.head.is_rows
        self._scratch = arena.array((4 + model.classes, model.anchors), np.float32, owner)

    def __call__(self, output: Reals) -> Floats:
        np.copyto(self._scratch, output.T if self._is_rows else output)
        return self._scratch


class _Objectness:
    """The objectness goes in front of the boxes, so that what follows it is YOLOv8's layout."""

    def __init__(self, model: ModelFacts, arena: CpuArena, owner: str) -> None:
        self._is_rows = model.head.is_rows
        self._scratch = arena.array((5 + model.classes, model.anchors), np.float32, owner)

    def __call__(self, output: Reals) -> Floats:
        values, scratch = output.T if self._is_rows else output, self._scratch
        np.copyto(scratch[0], values[4])
        np.copyto(scratch[1:5], values[:4])
        np.copyto(scratch[5:], values[5:])
        with np.errstate(over="ignore", invalid="ignore"):
            # Row by row: a ufunc that spreads one operand over the other makes buffers of 64 KiB.
            for scores in scratch[5:]:
                np.multiply(scores, scratch[0], out=scores)
        return scratch[1:]


class _EndToEnd:
    def __init__(self, classes: int, boxes: int, arena: CpuArena, owner: str) -> None:
        self._is_class = arena.array((boxes,), np.bool_, owner)
        self._values = arena.array((6, boxes), np.float32, owner)
        self._scratch = arena.array((4 + classes, boxes), np.float32, owner)

    def __call__(self, output: Reals) -> Floats:
        values, scratch = self._values, self._scratch
        np.copyto(values, output.T)
        x1, y1, x2, y2, scores, classes = values
        with np.errstate(over="ignore", invalid="ignore"):
            for low, high, centre, extent in ((x1, x2, scratch[0], scratch[2]), (y1, y2, scratch[1], scratch[3])):
                np.add(low, high, out=centre)
                np.multiply(centre, np.float32(0.5), out=centre)
                np.subtract(high, low, out=extent)
            np.rint(classes, out=classes)
            scratch[4:].fill(0)
            for label, row in enumerate(scratch[4:]):
                np.equal(classes, np.float32(label), out=self._is_class)
                np.copyto(row, scores, where=self._is_class)
        return scratch

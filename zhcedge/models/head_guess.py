"""Which head a model has, from the shape of its output, its operators and how many classes it is said to have. Pure.

The grid is the strongest evidence. A YOLO looks at its picture in cells of 8, 16 and 32 pixels (or a few other sets of
strides) and gives one box a cell, or three where it has anchor boxes (YOLOv3 to v7), which then have an objectness. A
head with few boxes of six values each has done its own selection.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from zhcedge.core.errors import ModelError
from zhcedge.core.types import HeadKind

NAMES: dict[str, HeadKind] = {
    "yolov8": HeadKind.YOLO_ANCHOR_FREE,
    "yolov8-transposed": HeadKind.YOLO_ANCHOR_FREE_ROWS,
    "yolov5": HeadKind.YOLO_OBJECTNESS,
    "yolov5-transposed": HeadKind.YOLO_OBJECTNESS_COLUMNS,
    "end2end": HeadKind.END_TO_END,
}
"""What people call the heads: the values of --head."""

_STRIDES = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32), (16, 32), (8, 16, 32, 64, 128), (8, 16), (4, 8, 16), (32,))
_MOST_BOXES = 1000  # of a head that selects by itself; exports have 100 or 300
_SELECTING = frozenset({"TopK", "NonMaxSuppression", "EfficientNMS_TRT"})
_MOST_CLASSES = 10_000


@dataclass(frozen=True)
class HeadGuess:
    """A head, and why: `reason` continues the sentence "head: yolov8, because ..."."""

    head: HeadKind
    classes: int | None
    anchors: int
    reason: str

    @property
    def name(self) -> str:
        return name_of(self.head)


def name_of(head: HeadKind) -> str:
    """What people call a head."""
    return next(name for name, kind in NAMES.items() if kind is head)


def guess_head(
    shape: tuple[int, int, int],
    size_px: tuple[int, int],
    operators: Set[str],
    labels: int | None,
    *,
    selects: bool = False,
) -> HeadGuess:
    """The head of an output.

    Args:
        shape: [batch, a, b] of the output for a picture of `size_px`, (width, height).
        operators: of the graph.
        labels: how many class names are known, None for none.
        selects: the metadata says that the model selects its boxes by itself.

    Raises ModelError, naming --head and what could be meant, when the evidence is not enough or contradicts itself.
    """
    for rule in (_end_to_end, _on_a_grid):
        guess = rule(shape, size_px, operators, labels, selects)
        if guess is not None:
            return guess
    readings = _readings(shape)
    if not readings:
        raise ModelError(f"an output of {list(shape)} is no head that we know", fix=f"known: {', '.join(NAMES)}")
    raise ModelError(
        f"can't tell the head of an output of {list(shape)} for {size_px[0]}x{size_px[1]} pixels: "
        f"it could be {' or '.join(readings)}",
        fix="name it with --head, or the size that the model was made for with --size",
    )


def chosen_head(head: HeadKind, shape: tuple[int, int, int]) -> HeadGuess:
    """A head that somebody named. Raises ModelError when the output has no room for it."""
    values, anchors = head.values_and_anchors(shape)
    classes = _classes(head, values)
    if (head is HeadKind.END_TO_END and values != 6) or (classes is not None and classes < 1):
        raise ModelError(
            f"an output of {list(shape)} can't be {name_of(head)}, which would have {values} values a box",
            fix="name another --head",
        )
    return HeadGuess(head, classes, anchors, "--head says so")


def grid(size_px: tuple[int, int], anchors: int) -> tuple[tuple[int, ...], int] | None:
    """(strides, boxes a cell) of a grid with so many boxes over a picture of (width, height); None for no known one."""
    for boxes in (1, 3):
        for strides in _STRIDES:
            cells = sum(-(-size_px[0] // stride) * -(-size_px[1] // stride) for stride in strides)
            if boxes * cells == anchors:
                return strides, boxes
    return None


def _end_to_end(
    shape: tuple[int, int, int], size_px: tuple[int, int], operators: Set[str], labels: int | None, selects: bool
) -> HeadGuess | None:
    _, boxes, values = shape
    if values != 6 or boxes > _MOST_BOXES:
        return None
    found = sorted(operators & _SELECTING)
    if selects or found:
        how = "its metadata says that it selects them" if selects else f"it selects them with {' and '.join(found)}"
    elif grid(size_px, boxes) is None and labels not in (1, 2):
        how = "so few are no grid over the picture"
    else:
        return None
    return HeadGuess(HeadKind.END_TO_END, None, boxes, f"the output {list(shape)} holds {boxes} boxes, and {how}")


def _on_a_grid(
    shape: tuple[int, int, int], size_px: tuple[int, int], operators: Set[str], labels: int | None, selects: bool
) -> HeadGuess | None:
    _, middle, last = shape
    grids = {axis: found for axis, count in ((1, middle), (2, last)) if (found := grid(size_px, count)) is not None}
    if len(grids) == 2:  # a small picture and many classes: only the labels can tell one from the other
        grids = {axis: found for axis, found in grids.items() if labels in (shape[3 - axis] - 4, shape[3 - axis] - 5)}
    if len(grids) != 1:
        return None
    ((axis, (strides, boxes)),) = grids.items()
    values, anchors = (last, middle) if axis == 1 else (middle, last)
    plain, scored = (
        (HeadKind.YOLO_ANCHOR_FREE_ROWS, HeadKind.YOLO_OBJECTNESS)
        if axis == 1
        else (HeadKind.YOLO_ANCHOR_FREE, HeadKind.YOLO_OBJECTNESS_COLUMNS)
    )
    if boxes == 3:
        head, why = scored, "three boxes a cell come with an objectness"
    elif labels == values - 5:
        # YOLOX and YOLOv6 have one box a cell, and still an objectness. With the usual layout of YOLOv8 it is more
        # likely that a label is missing: that is for a person to decide.
        if axis == 2:
            return None
        head, why = scored, f"{labels} labels leave one value for an objectness"
    elif axis == 2 or labels == values - 4:
        head, why = plain, "the values of a box are its four sides and a score for each class"
    else:
        return None
    classes = _classes(head, values)
    if classes is None or not 1 <= classes <= _MOST_CLASSES:
        return None
    cells = "a box" if boxes == 1 else "three boxes"
    places = ", ".join(map(str, strides))
    reason = (
        f"{anchors} is {cells} for each cell of {size_px[0]}x{size_px[1]} pixels at strides {places}, "
        f"and of {values} values a box {why}"
    )
    return HeadGuess(head, classes, anchors, reason)


def _readings(shape: tuple[int, int, int]) -> list[str]:
    readings = []
    for name, head in NAMES.items():
        values, anchors = head.values_and_anchors(shape)
        classes = _classes(head, values)
        if classes is None and values == 6:
            readings.append(f"{name} ({anchors} boxes)")
        elif classes is not None and 1 <= classes <= _MOST_CLASSES:
            readings.append(f"{name} ({classes} classes, {anchors} anchors)")
    return readings


def _classes(head: HeadKind, values: int) -> int | None:
    return None if head is HeadKind.END_TO_END else values - 4 - head.has_objectness

"""How well boxes fit a truth: COCO's average precision, and what was missed or made up. Pure.

Two different truths lead to two different figures, which must never be mixed: people's labels give *mAP*, another
model's boxes give *agreement*. Whoever calls says which it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from zhcedge.core.types import DetectionArray
from zhcedge.models._vendor_coco import Crowds, precisions

COCO_IOUS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
"""Overlaps 0.50, 0.55, ... 0.95, over which COCO's mAP is a mean (https://cocodataset.org/#detection-eval)."""

SAME_IOU = 0.5
"""Overlap from which two boxes of one label are the same object."""


@dataclass(frozen=True)
class LabelPrecision:
    """Average precision of one label, 0..1, and how many boxes of it the truth has."""

    truth: int
    precision: float


@dataclass(frozen=True)
class Precision:
    """Average precision of the labels that the truth has."""

    by_label: dict[str, LabelPrecision]

    @property
    def mean(self) -> float:
        """Every label counts the same, as in COCO; 0 of none."""
        return float(np.mean([one.precision for one in self.by_label.values()])) if self.by_label else 0.0

    @property
    def mean_of_boxes(self) -> float:
        """Every box of the truth counts the same; 0 of none.

        For a truth that is another model's output: a label that flickers up in one frame must not weigh as much as a
        thousand persons.
        """
        boxes = sum(one.truth for one in self.by_label.values())
        return sum(one.truth * one.precision for one in self.by_label.values()) / boxes if boxes else 0.0


def average_precision(
    truth: Mapping[int, DetectionArray],
    found: Mapping[int, DetectionArray],
    labels: Sequence[str],
    ious: Sequence[float] = COCO_IOUS,
    crowds: Crowds | None = None,
) -> Precision:
    """COCO's average precision.

    Args:
        truth, found: boxes by picture, of the same pictures. What was found should include low scores.
        crowds: which boxes of the truth stand for many things.

    Raises BackendUnavailableError without pycocotools.
    """
    by_class = precisions(truth, found, crowds or {}, len(labels), ious)
    counts = np.zeros(len(labels), np.int64)
    for boxes in truth.values():
        np.add.at(counts, boxes["label"], 1)
    return Precision(
        {
            labels[index]: LabelPrecision(int(counts[index]), float(by_class[index]))
            for index in range(len(labels))
            if by_class[index] >= 0
        }
    )


@dataclass
class Tally:
    """Boxes of one threshold, counted: one-to-one pairs of one label that overlap by half or more."""

    truth: int = 0
    found: int = 0
    matched: int = 0

    def add(self, truth: DetectionArray, found: DetectionArray) -> Matches:
        """Count one picture."""
        matches = match(truth, found)
        self.truth += len(truth)
        self.found += len(found)
        self.matched += matches.pairs
        return matches

    @property
    def recall(self) -> float:
        """Share of the truth that was found; 1 of nothing."""
        return self.matched / self.truth if self.truth else 1.0

    @property
    def extra(self) -> float:
        """Share of what was found that is not in the truth; 0 of nothing."""
        return (self.found - self.matched) / self.found if self.found else 0.0

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {"truth": self.truth, "found": self.found, "recall": self.recall, "extra": self.extra}


@dataclass(frozen=True)
class Matches:
    """Which boxes of one picture have a partner: bool [truth] and [found]."""

    is_found: npt.NDArray[np.bool_]
    is_true: npt.NDArray[np.bool_] = field()

    @property
    def pairs(self) -> int:
        return int(self.is_found.sum())

    @property
    def faults(self) -> int:
        """Boxes without a partner."""
        return int((~self.is_found).sum() + (~self.is_true).sum())


def match(truth: DetectionArray, found: DetectionArray) -> Matches:
    """Pair boxes of one label, each once, the best overlaps first."""
    matches = Matches(np.zeros(len(truth), np.bool_), np.zeros(len(found), np.bool_))
    if not len(truth) or not len(found):
        return matches
    overlaps = _overlaps(truth["box"].astype(np.float64), found["box"].astype(np.float64))
    overlaps[truth["label"][:, None] != found["label"][None, :]] = 0.0
    while float(overlaps.max()) >= SAME_IOU:
        a, b = divmod(int(overlaps.argmax()), len(found))
        matches.is_found[a] = matches.is_true[b] = True
        overlaps[a, :] = overlaps[:, b] = 0.0
    return matches


def _overlaps(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Intersection over union of every pair of boxes, [first, second]."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    both = np.prod(np.maximum(high - low, 0.0), axis=2)
    areas = [np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) for boxes in (first, second)]
    overlaps: npt.NDArray[np.float64] = both / np.maximum(areas[0][:, None] + areas[1][None, :] - both, 1e-12)
    return overlaps

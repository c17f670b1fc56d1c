"""The one home of pycocotools (FreeBSD licence), the reference implementation of COCO's metric; its untyped surface
ends here."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zhcedge.core.errors import BackendUnavailableError
from zhcedge.core.types import DetectionArray

INSTALL = "pip install 'zhcedge[eval]'"

_MOST = 256
"""Boxes of a picture that count. COCO's own 100 never matters there; a crowded frame may have more."""

Crowds = Mapping[int, npt.NDArray[np.bool_]]


def precisions(
    truth: Mapping[int, DetectionArray],
    found: Mapping[int, DetectionArray],
    crowds: Crowds,
    classes: int,
    ious: Sequence[float],
) -> npt.NDArray[np.float64]:
    """COCO's average precision of every class, [classes], mean over `ious`; -1 where the truth has none of it.

    Args:
        truth, found: boxes by picture. crowds: which of the truth's boxes stand for many things; may lack pictures.

    Raises BackendUnavailableError without the package.
    """
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError as error:
        raise BackendUnavailableError(
            f"precision is computed by pycocotools, which can't be imported ({error})", fix=INSTALL
        ) from error
    pictures = [{"id": number} for number in sorted(truth)]
    categories = [{"id": label, "name": str(label)} for label in range(classes)]
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress
        wanted, given = COCO(), COCO()
        for index, boxes, marked in ((wanted, truth, crowds), (given, found, {})):
            annotations = _annotations(boxes, marked)
            index.dataset = {"images": pictures, "categories": categories, "annotations": annotations}
            index.createIndex()
        evaluation = COCOeval(wanted, given, "bbox")
        evaluation.params.iouThrs = np.asarray(ious, np.float64)
        evaluation.params.maxDets = [_MOST]
        evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0.0, 1e10]], ["all"]
        evaluation.evaluate()
        evaluation.accumulate()
    by_class: npt.NDArray[np.float64] = evaluation.eval["precision"][:, :, :, 0, 0].mean(axis=(0, 1))
    return by_class


def _annotations(boxes: Mapping[int, DetectionArray], crowds: Crowds) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number, array in sorted(boxes.items()):
        marks = crowds.get(number, np.zeros(len(array), np.bool_))
        for row, is_crowd in zip(array, marks, strict=True):
            x1, y1, x2, y2 = (float(value) for value in row["box"])
            rows.append(
                {
                    "id": len(rows) + 1,  # 0 would mean "not matched" to it
                    "image_id": number,
                    "category_id": int(row["label"]),
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "area": (x2 - x1) * (y2 - y1),
                    "score": float(row["score"]),
                    "iscrowd": int(is_crowd),
                }
            )
    return rows

"""Labels made by people, in COCO's JSON format (https://cocodataset.org/#format-data, object detection)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, ValidationError

from zhcedge.core.errors import ModelError, SourceMissingError
from zhcedge.core.types import DETECTION_DTYPE, DetectionArray

_MAX_BYTES = 1 << 30


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class _Image(_Part):
    id: int
    file_name: str


class _Annotation(_Part):
    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]
    iscrowd: int = 0


class _Category(_Part):
    id: int
    name: str


class _Document(_Part):
    images: list[_Image]
    annotations: list[_Annotation]
    categories: list[_Category]


@dataclass(frozen=True)
class LabelledPicture:
    """A picture and what people say is on it.

    Attributes:
        name: of its file, as written.
        boxes: DETECTION_DTYPE, pixels of the picture, score 1; labels are indices of the model.
        is_crowd: bool, which of them stand for many things.
    """

    name: str
    boxes: DetectionArray
    is_crowd: npt.NDArray[np.bool_]


def read_coco_labels(path: Path, labels: tuple[str, ...]) -> tuple[LabelledPicture, ...]:
    """Read labels for a model with these class names; the categories are matched by name.

    Raises SourceMissingError without the file; ModelError for what is no such file, has no boxes, or has boxes of a
    category that the model does not know.
    """
    where = str(path)
    document = _parse(path, where)
    names = {category.id: category.name for category in document.categories}
    used = {annotation.category_id for annotation in document.annotations}
    if not document.annotations:
        raise ModelError("has no boxes", where=where, fix="give labels of object detection")
    unknown = sorted({names.get(number, f"number {number}") for number in used} - set(labels))
    if unknown:
        shown = ", ".join(unknown[:8]) + (f" and {len(unknown) - 8} more" if len(unknown) > 8 else "")
        raise ModelError(
            f"has boxes of {shown}, which the model does not know",
            where=where,
            fix="give labels with the names of the bundle's labels.txt",
        )
    rows: dict[int, list[_Annotation]] = {image.id: [] for image in document.images}
    for annotation in document.annotations:
        if annotation.image_id not in rows:
            raise ModelError(f"has a box on image {annotation.image_id}, which it does not list", where=where)
        rows[annotation.image_id].append(annotation)
    return tuple(_picture(image.file_name, rows[image.id], names, labels) for image in document.images)


def _picture(
    name: str, annotations: list[_Annotation], names: dict[int, str], labels: tuple[str, ...]
) -> LabelledPicture:
    boxes = np.zeros(len(annotations), DETECTION_DTYPE)
    for box, annotation in zip(boxes, annotations, strict=True):
        x, y, width, height = annotation.bbox
        box["box"] = (x, y, x + width, y + height)
        box["score"], box["label"] = 1.0, labels.index(names[annotation.category_id])
    return LabelledPicture(name, boxes, np.array([bool(one.iscrowd) for one in annotations], np.bool_))


def _parse(path: Path, where: str) -> _Document:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ModelError("is larger than 1 GiB, too large for labels", where=where)
        return _Document.model_validate(json.loads(path.read_bytes()))
    except FileNotFoundError as error:
        raise SourceMissingError("there is no such file", where=where, fix="check the path") from error
    except OSError as error:
        raise SourceMissingError(f"can't be read: {error.strerror}", where=where, fix="check the path") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the document"
        raise ModelError(
            f"is no COCO JSON of object detection ({place}: {first['msg']})",
            where=where,
            fix="export the labels in COCO's format",
        ) from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"is no JSON ({error})", where=where, fix="export the labels in COCO's format") from error

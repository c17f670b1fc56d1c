"""manifest.json of a bundle: its fields, and their rules that need no other file.

Format 1 knows one head, float32 and RGB. Format 2 adds the other heads, float16 and BGR, format 3 quantised models. A
manifest is written in the lowest format that can say it, so that older programs can read it.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from zhcedge.core.errors import ModelError
from zhcedge.core.types import HeadKind

MANIFEST_NAME = "manifest.json"

NAME_PATTERN = r"^[a-z0-9][a-z0-9.-]{0,62}$"
"""Names of bundles: no path can be one."""

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


def _plain_file_name(value: str) -> str:
    """A name inside the bundle and nothing else: no folders, no hidden files, no way out by ".."."""
    if not _FILE_NAME.fullmatch(value) or value == MANIFEST_NAME:
        raise ValueError("must be a plain file name of letters, digits, dots, '-' and '_', without folders")
    return value


FileName = Annotated[str, AfterValidator(_plain_file_name)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
TensorName = Annotated[str, Field(min_length=1, max_length=200)]
ElementType = Literal["float32", "float16"]
Text = Annotated[str, Field(min_length=1, max_length=1000)]
FREE_BATCH = -1
Batch = PositiveInt | Literal[-1]
"""First dimension of a shape; -1 where the graph takes any."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class InputFacts(_Part):
    """The input tensor: `scale` times 0..255 values, letterbox borders of `pad` (0..255, before scaling)."""

    name: TensorName
    shape: tuple[Batch, Literal[3], PositiveInt, PositiveInt]
    layout: Literal["nchw"]
    colour: Literal["rgb", "bgr"]
    scale: Annotated[float, Field(gt=0, le=1)]
    pad: Annotated[int, Field(ge=0, le=255)]
    dtype: ElementType = "float32"


class OutputFacts(_Part):
    """The output tensor and how boxes are written in it: HeadKind says what the two last sizes are."""

    name: TensorName
    shape: tuple[Batch, PositiveInt, PositiveInt]
    head: HeadKind
    dtype: ElementType = "float32"

    @field_validator("head")
    @classmethod
    def _check_values(cls, head: HeadKind, info: ValidationInfo) -> HeadKind:
        if "shape" in info.data:
            check_values(head, info.data["shape"])
        return head


def check_values(head: HeadKind, shape: tuple[int, int, int]) -> None:
    """Raise ValueError when an output of this shape has no room for a box and a class, or no box ends in six values."""
    values, _ = head.values_and_anchors(shape)
    least = 5 + head.has_objectness
    if head is HeadKind.END_TO_END and values != 6:
        raise ValueError(f"{head.value} takes 6 values a box, output.shape has {values}")
    if values < least:
        raise ValueError(f"{head.value} takes {least} values a box or more, output.shape has {values}")


class Thresholds(_Part):
    """Defaults that suit the model, both 0..1."""

    score: Annotated[float, Field(ge=0, le=1)]
    nms_iou: Annotated[float, Field(ge=0, le=1)]


class QuantisationFacts(_Part):
    """How the model was quantised.

    Attributes:
        precision: int8-qdq is float32 with explicit QuantizeLinear and DequantizeLinear pairs.
        method: how ranges were chosen, see calibration.Method.
        table: file with the ranges and the hashes of the pictures.
        data_sha256: one hash for all of those pictures, whatever their order; `frames` is how many.
        corrects_biases: biases make up for the mean error of their layer.
        excluded: layers that stay in floating point, by their names in the graph.
    """

    precision: Literal["int8-qdq"]
    method: Text
    table: FileName
    data_sha256: Sha256
    frames: PositiveInt
    corrects_biases: bool
    excluded: tuple[TensorName, ...]


class Manifest(_Part):
    """The whole manifest. `sha256` names every other file of the bundle."""

    format: Literal[1, 2, 3]
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    model: FileName
    labels: FileName
    notice: FileName
    input: InputFacts
    output: OutputFacts
    thresholds: Thresholds
    licence: Text
    source: Text
    sha256: dict[FileName, Sha256]
    quantisation: QuantisationFacts | None = None

    @model_validator(mode="after")
    def _check_together(self) -> Manifest:
        table = (self.quantisation.table,) if self.quantisation else ()
        unlisted = [name for name in (self.model, self.labels, self.notice, *table) if name not in self.sha256]
        if unlisted:
            raise ValueError(f"sha256 lacks {', '.join(unlisted)}")
        if self.input.shape[0] != self.output.shape[0]:
            raise ValueError("input and output shapes differ in the batch size")
        if self.format < self.needed_format:
            raise ValueError(
                "format 3 is needed for a quantised model"
                if self.quantisation
                else "format 1 has no other head than yolo-anchor-free, no float16 and no bgr: write format 2"
            )
        return self

    @property
    def needed_format(self) -> int:
        """The lowest format that can say what this manifest says."""
        if self.quantisation:
            return 3
        is_plain = (
            self.input.colour == "rgb"
            and self.input.dtype == self.output.dtype == "float32"
            and self.output.head is HeadKind.YOLO_ANCHOR_FREE
        )
        return 1 if is_plain else 2


def parse_manifest(text: str, *, where: str) -> Manifest:
    """Parse and check a manifest's text. Raises ModelError that lists every problem; `where` names the file."""
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in problem['loc']) or 'manifest'}: {problem['msg']}"
            for problem in error.errors(include_url=False, include_context=False, include_input=False)
        )
        raise ModelError(f"the manifest is malformed ({problems})", where=where, fix="correct these fields") from error

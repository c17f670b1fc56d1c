"""manifest.json of a bundle: its fields, and their rules that need no other file."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from zhcedge.core.errors import ModelError
from zhcedge.core.types import HeadKind

MANIFEST_NAME = "manifest.json"

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


def _plain_file_name(value: str) -> str:
    """A name inside the bundle and nothing else: no folders, no hidden files, no way out by ".."."""
    if not _FILE_NAME.fullmatch(value) or value == MANIFEST_NAME:
        raise ValueError("must be a plain file name of letters, digits, dots, '-' and '_', without folders")
    return value


FileName = Annotated[str, AfterValidator(_plain_file_name)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
TensorName = Annotated[str, Field(min_length=1, max_length=200)]
Text = Annotated[str, Field(min_length=1, max_length=1000)]
FREE_BATCH = -1
Batch = PositiveInt | Literal[-1]
"""First dimension of a shape; -1 where the graph takes any."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class InputFacts(_Part):
    """The input tensor: float32, `scale` times 0..255 values, letterbox borders of `pad` (0..255, before scaling)."""

    name: TensorName
    shape: tuple[Batch, Literal[3], PositiveInt, PositiveInt]
    layout: Literal["nchw"]
    colour: Literal["rgb"]
    scale: Annotated[float, Field(gt=0, le=1)]
    pad: Annotated[int, Field(ge=0, le=255)]


class OutputFacts(_Part):
    """The output tensor: float32 [batch, 4 + classes, anchors] and how boxes are written in it."""

    name: TensorName
    shape: tuple[Batch, Annotated[int, Field(ge=5)], PositiveInt]
    head: HeadKind


class Thresholds(_Part):
    """Defaults that suit the model, both 0..1."""

    score: Annotated[float, Field(ge=0, le=1)]
    nms_iou: Annotated[float, Field(ge=0, le=1)]


class Manifest(_Part):
    """The whole manifest. `sha256` names every other file of the bundle."""

    format: Literal[1]
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")]
    model: FileName
    labels: FileName
    notice: FileName
    input: InputFacts
    output: OutputFacts
    thresholds: Thresholds
    licence: Text
    source: Text
    sha256: dict[FileName, Sha256]

    @model_validator(mode="after")
    def _check_together(self) -> Manifest:
        unlisted = [name for name in (self.model, self.labels, self.notice) if name not in self.sha256]
        if unlisted:
            raise ValueError(f"sha256 lacks {', '.join(unlisted)}")
        if self.input.shape[0] != self.output.shape[0]:
            raise ValueError("input and output shapes differ in the batch size")
        return self


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

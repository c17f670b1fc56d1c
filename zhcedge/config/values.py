"""The kinds of values that a configuration holds, and what a section of it is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from zhcedge.core.addresses import without_password

PROBLEM_TYPE = "zhcedge"
"""Type of the validation errors that this module raises itself; their text tells the user what to do."""

SLUG_WORDS = "1 to 63 lower-case letters, digits and hyphens"
_SLUG_PATTERN = r"^[a-z0-9-]{1,63}$"
_NOT_IN_PATHS = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")  # control characters, and halves of a UTF-16 pair

Whole = Annotated[int, Field(strict=True)]
Fraction = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Point = tuple[Fraction, Fraction]
Polygon = Annotated[tuple[Point, ...], Field(min_length=3, max_length=32)]
Slug = Annotated[str, Field(pattern=_SLUG_PATTERN, json_schema_extra={"allowed": SLUG_WORDS})]
Line = Annotated[
    str,
    Field(
        pattern=r"^[^\x00-\x1f\x7f]+$",
        max_length=4096,
        json_schema_extra={"allowed": "one line of text, not empty"},
    ),
]


def is_slug(text: str) -> bool:
    """Whether a Slug may be this text. Pure."""
    return re.fullmatch(_SLUG_PATTERN, text) is not None


def _path_text(value: object) -> object:
    # pathlib would take "" for the current folder, and a NUL only fails much later, when the file is opened.
    # The folder of the configuration file, which comes in front later, may have a name that is no text at all.
    if isinstance(value, (str, Path)) and 0 < len(str(value)) <= 4096 and not _NOT_IN_PATHS.search(str(value)):
        return value
    raise PydanticCustomError(PROBLEM_TYPE, "")


PathText = Annotated[
    Path, BeforeValidator(_path_text), Field(json_schema_extra={"allowed": "the path of a file or folder"})
]


def _rectangle(value: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    left, top, right, bottom = value
    if not (left < right and top < bottom):
        raise PydanticCustomError(PROBLEM_TYPE, "left must be smaller than right, and top than bottom")
    return value


Rectangle = Annotated[
    tuple[Fraction, Fraction, Fraction, Fraction],
    AfterValidator(_rectangle),
    Field(json_schema_extra={"allowed": "four numbers from 0 to 1: left, top, right, bottom"}),
]
Labels = Annotated[
    tuple[Line, ...], Field(min_length=1, max_length=1000, json_schema_extra={"allowed": "a list of 1 to 1000 labels"})
]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _read_empty_section(cls, value: object) -> object:
        # YAML reads a section whose keys are all commented out as null; its author means the defaults.
        return {} if value is None else value

    def __repr_args__(self) -> Iterable[tuple[str | None, object]]:
        """For logs and tracebacks: no password of an address is shown."""
        for name, value in super().__repr_args__():
            yield name, without_password(value) if isinstance(value, str) else value

"""What can be told of an ONNX file before it is run: whether it is a detector, its input, its weights' files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from zhcedge.core.errors import ModelError, SourceMissingError
from zhcedge.models._vendor import OnnxFile, read_onnx
from zhcedge.models.labels import labels_of_metadata, literal

MAX_ONNX_BYTES = 2**31 - 1
"""What a protobuf message can hold."""

_ELEMENTS = {"FLOAT": "float32", "FLOAT16": "float16"}
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_SIDES_PX = range(32, 4097)


@dataclass(frozen=True)
class Candidate:
    """An ONNX file that may be a detector.

    Attributes:
        path, file: where it lies and what it says.
        data_files: its external data, beside it.
        input_name, input_dtype: of its one picture.
        batch: None where the graph leaves it open.
        size_px: (width, height); None for a side that the graph leaves open.
    """

    path: Path
    file: OnnxFile
    data_files: tuple[Path, ...]
    input_name: str
    input_dtype: str
    batch: int | None
    size_px: tuple[int | None, int | None]

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Class names of the metadata (ultralytics' `names`), None without usable ones."""
        return labels_of_metadata(self.file.metadata.get("names", ""))

    @property
    def selects(self) -> bool:
        """Whether the metadata says that the model selects its boxes by itself."""
        arguments = literal(self.file.metadata.get("args", ""))
        has_nms = isinstance(arguments, dict) and arguments.get("nms") is True
        return has_nms or self.file.metadata.get("end2end", "").strip().lower() == "true"

    def choose_size(self, wanted: tuple[int, int] | None) -> tuple[tuple[int, int], str]:
        """(width, height) and why. Raises ModelError when the graph fixes another size than the wanted one."""
        width, height = self.size_px
        declared = literal(self.file.metadata.get("imgsz", ""))
        if wanted is not None:
            if any(have not in (None, want) for have, want in zip(self.size_px, wanted, strict=True)):
                have = "x".join("?" if side is None else str(side) for side in self.size_px)
                raise ModelError(
                    f"the graph takes {have} pixels, not {wanted[0]}x{wanted[1]}",
                    where=str(self.path),
                    fix="leave --size out, or export the model for that size",
                )
            size, why = wanted, "--size says so"
        elif width is not None and height is not None:
            size, why = (width, height), "the graph takes no other"
        elif isinstance(declared, (list, tuple)) and len(declared) == 2 and all(map(_is_side, declared)):
            size, why = (declared[1], declared[0]), "its metadata says so; --size changes it"
        else:
            size, why = (640, 640), "nothing says otherwise; --size changes it"
        size = (width or size[0], height or size[1])
        if any(side not in _SIDES_PX for side in size):
            raise ModelError(
                f"an input of {size[0]}x{size[1]} pixels is outside of 32 to 4096 a side", where=str(self.path)
            )
        return size, why


def _is_side(value: object) -> bool:
    return type(value) is int and value.bit_length() <= 32  # a longer one may be too long to be printed


def read_candidate(path: Path) -> Candidate:
    """Read an ONNX file, weights left out.

    Raises SourceMissingError where there is none; ModelError for what is damaged, too large, lacks its weights or is
    no detector; BackendUnavailableError without the onnx package.
    """
    where = str(path)
    try:
        size_bytes = path.stat().st_size
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        raise SourceMissingError("there is no such file", where=where, fix="check the path") from error
    if not path.is_file():
        raise ModelError("is no file", where=where, fix="name an ONNX file")
    if size_bytes > MAX_ONNX_BYTES:
        raise ModelError(
            f"has {size_bytes / 2**30:.1f} GiB, an ONNX file can't be larger than 2",
            where=where,
            fix="export the model with its weights in a file beside it",
        )
    file = read_onnx(path)
    if file.ir_version < 1 or not file.operators or not file.outputs:
        raise ModelError("is no ONNX model, or an empty one", where=where, fix="export the model again")
    task = file.metadata.get("task", "detect")
    if task != "detect":
        raise ModelError(
            f"is made for the task {task[:40]!r}; zhc-edge runs detectors only",
            where=where,
            fix="import a detection model",
        )
    data_files = _data_files(path, file)
    return _candidate(path, file, data_files)


def _data_files(path: Path, file: OnnxFile) -> tuple[Path, ...]:
    for name in file.external_data:
        if not _FILE_NAME.fullmatch(name):
            raise ModelError(
                f"keeps weights in {name!r}, which is no plain name of a file beside it",
                where=str(path),
                fix="export it with its weights beside it",
            )
        if not (path.parent / name).is_file():
            raise ModelError(
                f"keeps weights in {name}, and that file is not beside it", where=str(path), fix=f"copy {name} there"
            )
    return tuple(path.parent / name for name in file.external_data)


def _candidate(path: Path, file: OnnxFile, data_files: tuple[Path, ...]) -> Candidate:
    where = str(path)
    if len(file.inputs) != 1:
        names = ", ".join(value.name for value in file.inputs) or "none"
        raise ModelError(f"has {len(file.inputs)} inputs ({names}), a detector takes one picture", where=where)
    picture = file.inputs[0]
    if picture.element not in _ELEMENTS:
        raise ModelError(
            f"takes {picture.element.lower() or 'no tensor'}, not float or float16",
            where=where,
            fix="export it without quantised inputs",
        )
    shape = picture.shape or (None,) * 4
    shown = [side or "?" for side in shape]
    if len(shape) != 4:
        raise ModelError(f"takes an input of shape {shown}, not a picture [batch, 3, height, width]", where=where)
    if shape[1] not in (None, 3):
        fix = "export it with the channels first" if shape[3] == 3 else "import a model for colour pictures"
        raise ModelError(f"takes an input of shape {shown}, not [batch, 3, height, width]", where=where, fix=fix)
    return Candidate(path, file, data_files, picture.name, _ELEMENTS[picture.element], shape[0], (shape[3], shape[2]))

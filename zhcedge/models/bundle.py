"""Model bundles: a folder with a model, its labels, the facts around it, its licence, and a hash of every file.

A bundle is flat: manifest.json and the files that it lists, nothing else. Everything is checked on load, before
an engine sees a byte: a changed file, a wrong label count or a stray file is a ModelError that says what to do.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zhcedge.core.errors import ModelError
from zhcedge.core.types import HeadKind, ModelFacts
from zhcedge.models.labels import MAX_LABELS
from zhcedge.models.library import embedded_bundles, find_bundle
from zhcedge.models.manifest import FREE_BATCH, MANIFEST_NAME, Manifest, QuantisationFacts, parse_manifest

__all__ = ["Bundle", "embedded_bundles", "find_bundle", "load_bundle"]

MAX_TEXT_BYTES = 1024 * 1024
"""Limit for the manifest and the labels, so that a wrong path can't fill the memory."""

_REINSTALL = "copy the bundle again, or reinstall zhcedge for a built-in one"


@dataclass(frozen=True)
class Bundle:
    """A verified bundle.

    Attributes:
        facts: what pre- and post-processing must know.
        folder: where the bundle lies.
        model_path: the verified model file.
        licence: SPDX expression of the model.
        source: where the model came from, for people.
        notice_path: the verified notice file that must travel with the model.
        sha256: of every file, by its name in the folder.
        quantisation: how the model was quantised, None for one that is not.
    """

    facts: ModelFacts
    folder: Path
    model_path: Path
    licence: str
    source: str
    notice_path: Path
    sha256: Mapping[str, str]
    quantisation: QuantisationFacts | None = None

    @property
    def precision(self) -> str:
        """ "float32", "float16" or "int8-qdq"."""
        return self.facts.input_dtype if self.quantisation is None else self.quantisation.precision


def load_bundle(name_or_path: str | Path) -> Bundle:
    """Find a bundle by its name (library.py says where) or its folder, and verify all of it. Reads every file once.

    Raises ModelError when it is missing, malformed, changed, or does not fit its manifest.
    """
    folder = find_bundle(name_or_path)
    manifest = parse_manifest(_read_text(folder / MANIFEST_NAME), where=str(folder / MANIFEST_NAME))
    _verify_files(folder, manifest)
    labels = _read_labels(folder / manifest.labels)
    _check_label_count(labels, manifest, folder)
    has_free_batch = manifest.input.shape[0] == FREE_BATCH
    batch = 1 if has_free_batch else manifest.input.shape[0]
    return Bundle(
        facts=ModelFacts(
            name=manifest.name,
            sha256=manifest.sha256[manifest.model],
            labels=labels,
            input_name=manifest.input.name,
            output_name=manifest.output.name,
            input_shape=(batch, *manifest.input.shape[1:]),
            output_shape=(batch, *manifest.output.shape[1:]),
            scale=manifest.input.scale,
            pad_value=manifest.input.pad,
            head=manifest.output.head,
            score_threshold=manifest.thresholds.score,
            nms_iou=manifest.thresholds.nms_iou,
            has_free_batch=has_free_batch,
            input_dtype=manifest.input.dtype,
            output_dtype=manifest.output.dtype,
            is_bgr=manifest.input.colour == "bgr",
        ),
        folder=folder,
        model_path=folder / manifest.model,
        licence=manifest.licence,
        source=manifest.source,
        notice_path=folder / manifest.notice,
        sha256=manifest.sha256,
        quantisation=manifest.quantisation,
    )


def _read_text(path: Path) -> str:
    """A small UTF-8 file. Raises ModelError."""
    try:
        _require_regular(path)
        with path.open("rb") as stream:
            data = stream.read(MAX_TEXT_BYTES + 1)
        if len(data) > MAX_TEXT_BYTES:
            raise ModelError(f"larger than {MAX_TEXT_BYTES} bytes", where=str(path), fix=_REINSTALL)
        return data.decode("utf-8")
    except FileNotFoundError as error:
        raise ModelError("the bundle lacks this file", where=str(path), fix=_REINSTALL) from error
    except OSError as error:
        raise ModelError(f"can't be read: {error.strerror}", where=str(path), fix="check its permissions") from error
    except UnicodeDecodeError as error:
        raise ModelError(f"is not UTF-8 text (byte {error.start})", where=str(path), fix=_REINSTALL) from error


def _require_regular(path: Path) -> None:
    """Refuse links (they lead out of the bundle) and devices or pipes (reading them may never end)."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ModelError("is not a regular file", where=str(path), fix="put the file itself into the bundle")


def _verify_files(folder: Path, manifest: Manifest) -> None:
    try:
        present = {entry.name for entry in folder.iterdir()}
    except OSError as error:
        raise ModelError(f"can't be read: {error.strerror}", where=str(folder), fix="check its permissions") from error
    stray = sorted(present - set(manifest.sha256) - {MANIFEST_NAME})
    if stray:
        raise ModelError(
            f"holds files that the manifest does not list: {', '.join(stray)}",
            where=str(folder),
            fix="remove them, or add their sha256 to the manifest",
        )
    for name, expected in sorted(manifest.sha256.items()):
        path = folder / name
        found = file_sha256(path)
        if found != expected:
            raise ModelError(f"sha256 is {found}, the manifest expects {expected}", where=str(path), fix=_REINSTALL)


def file_sha256(path: Path) -> str:
    """SHA-256 of a regular file, as hexadecimal digits. Raises ModelError."""
    digest = hashlib.sha256()
    try:
        _require_regular(path)
        with path.open("rb") as stream:
            while chunk := stream.read(1024 * 1024):
                digest.update(chunk)
    except FileNotFoundError as error:
        raise ModelError("the bundle lacks this file", where=str(path), fix=_REINSTALL) from error
    except OSError as error:
        raise ModelError(f"can't be read: {error.strerror}", where=str(path), fix="check its permissions") from error
    return digest.hexdigest()


def _read_labels(path: Path) -> tuple[str, ...]:
    labels = tuple(line.strip() for line in _read_text(path).rstrip("\n").split("\n"))
    if len(labels) > MAX_LABELS:
        raise ModelError(f"{len(labels)} labels are more than {MAX_LABELS}", where=str(path), fix=_REINSTALL)
    seen: set[str] = set()
    for number, label in enumerate(labels, start=1):
        if not label or label in seen:
            problem = f"repeats {label!r}" if label else "is empty"
            raise ModelError(f"line {number} {problem}", where=str(path), fix="give one distinct label per line")
        seen.add(label)
    return labels


def _check_label_count(labels: tuple[str, ...], manifest: Manifest, folder: Path) -> None:
    head = manifest.output.head
    if head is HeadKind.END_TO_END:
        return  # its output does not say how many classes there are
    values, _ = head.values_and_anchors(manifest.output.shape)
    classes = values - 4 - head.has_objectness
    if len(labels) != classes:
        raise ModelError(
            f"{len(labels)} labels, but a {head.value} output of {list(manifest.output.shape)} has {classes} classes",
            where=str(folder / manifest.labels),
            fix="give one label per class of the model",
        )

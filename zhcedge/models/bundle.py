"""Model bundles: a folder with a model, its labels, the facts around it, its licence, and a hash of every file.

A bundle is flat: manifest.json and the files that it lists, nothing else. Everything is checked on load, before
an engine sees a byte: a changed file, a wrong label count or a stray file is a ModelError that says what to do.
"""

from __future__ import annotations

import difflib
import hashlib
import stat
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from zhcedge.core.errors import ModelError
from zhcedge.core.types import ModelFacts
from zhcedge.models.manifest import FREE_BATCH, MANIFEST_NAME, Manifest, parse_manifest

MAX_TEXT_BYTES = 1024 * 1024
"""Limit for the manifest and the labels, so that a wrong path can't fill the memory."""

_BOX_ROWS = 4
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
    """

    facts: ModelFacts
    folder: Path
    model_path: Path
    licence: str
    source: str
    notice_path: Path


def embedded_bundles() -> tuple[str, ...]:
    """Names of the bundles that come with the package, sorted."""
    root = resources.files("zhcedge.models") / "bundles"
    return tuple(
        sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith((".", "_")))
    )


def load_bundle(name_or_path: str | Path) -> Bundle:
    """Find a bundle by its built-in name or its folder, and verify all of it. Reads every file once.

    Raises ModelError when it is missing, malformed, changed, or does not fit its manifest.
    """
    folder = _find(name_or_path)
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
        ),
        folder=folder,
        model_path=folder / manifest.model,
        licence=manifest.licence,
        source=manifest.source,
        notice_path=folder / manifest.notice,
    )


def _find(name_or_path: str | Path) -> Path:
    text = str(name_or_path)
    embedded = embedded_bundles()
    if isinstance(name_or_path, str) and text in embedded:
        folder = resources.files("zhcedge.models") / "bundles" / text
        if not isinstance(folder, Path):
            # Engines open a model by its path, so the package can't stay inside a zip file.
            raise ModelError("the package lies in an archive", where=text, fix="install zhcedge as a normal package")
        return folder
    folder = Path(name_or_path)
    try:
        is_folder = folder.is_dir()
    except (OSError, ValueError) as error:  # a name too long, a NUL byte
        raise ModelError(f"not a usable path: {error}", where=repr(text), fix="name a bundle or its folder") from error
    if is_folder:
        return folder
    close = difflib.get_close_matches(text, embedded, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"built in: {', '.join(embedded)}"
    raise ModelError("no such model bundle", where=text, fix=f"name a built-in bundle or a bundle's folder ({hint})")


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
        found = _sha256(path)
        if found != expected:
            raise ModelError(f"sha256 is {found}, the manifest expects {expected}", where=str(path), fix=_REINSTALL)


def _sha256(path: Path) -> str:
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
    seen: set[str] = set()
    for number, label in enumerate(labels, start=1):
        if not label or label in seen:
            problem = f"repeats {label!r}" if label else "is empty"
            raise ModelError(f"line {number} {problem}", where=str(path), fix="give one distinct label per line")
        seen.add(label)
    return labels


def _check_label_count(labels: tuple[str, ...], manifest: Manifest, folder: Path) -> None:
    classes = manifest.output.shape[1] - _BOX_ROWS
    if len(labels) != classes:
        raise ModelError(
            f"{len(labels)} labels, but an output of shape {list(manifest.output.shape)} has {classes} classes",
            where=str(folder / manifest.labels),
            fix="give one label per class of the model",
        )

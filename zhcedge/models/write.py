"""Writes a bundle: whole, verified, under its final name only when all of it is there."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zhcedge.core.errors import ModelError, OutputError
from zhcedge.core.types import ModelFacts
from zhcedge.models.bundle import file_sha256, load_bundle
from zhcedge.models.manifest import FREE_BATCH, MANIFEST_NAME, Manifest, QuantisationFacts, parse_manifest

_MODEL, _LABELS, _NOTICE = "model.onnx", "labels.txt", "NOTICE"
_RESERVED = frozenset({_MODEL, _LABELS, _NOTICE, MANIFEST_NAME})


@dataclass(frozen=True)
class NewBundle:
    """What a bundle is made of.

    Attributes:
        facts: of the model; sha256 is worked out when it is written.
        model_path: the ONNX file.
        data_files: files with the model's external data, under the names that the model gives them; for a quantised
            one its calibration table.
        licence, source, notice: texts for people.
        quantisation: how it was quantised, if it was.
    """

    facts: ModelFacts
    model_path: Path
    data_files: Sequence[Path]
    licence: str
    source: str
    notice: str
    quantisation: QuantisationFacts | None = None


@contextlib.contextmanager
def bundle_in_progress(new: NewBundle, parent: Path) -> Iterator[Path]:
    """Write a bundle into a hidden folder inside `parent`, verify it, and give that folder; it is gone afterwards
    unless `put_in_place` has moved it.

    Raises OutputError where it can't be written, ModelError for contents that make no bundle.
    """
    clash = sorted(path.name for path in new.data_files if path.name in _RESERVED)
    if clash:
        raise ModelError(f"its weights may not be called {', '.join(clash)}", fix="export the model under another name")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{new.facts.name}.", dir=parent))
    except OSError as error:
        raise _unwritable(parent, error) from error
    try:
        try:
            _write(new, folder)
        except OSError as error:
            raise _unwritable(parent, error) from error
        load_bundle(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def put_in_place(folder: Path, target: Path) -> None:
    """Give a finished bundle its name, in place of an older one there. Raises OutputError and then changes nothing."""
    old = folder.with_name(f"{folder.name}.old")
    try:
        had_old = target.exists()
        if had_old:
            target.rename(old)
        try:
            folder.rename(target)
        except OSError:
            if had_old:
                old.rename(target)
            raise
    except OSError as error:
        raise _unwritable(target, error) from error
    shutil.rmtree(old, ignore_errors=True)


def _write(new: NewBundle, folder: Path) -> None:
    folder.chmod(0o755)  # mkdtemp makes folders for their owner alone
    shutil.copyfile(new.model_path, folder / _MODEL)
    for path in new.data_files:
        shutil.copyfile(path, folder / path.name)
    (folder / _LABELS).write_text("".join(f"{label}\n" for label in new.facts.labels), encoding="utf-8")
    (folder / _NOTICE).write_text(new.notice, encoding="utf-8")
    names = (_MODEL, _LABELS, _NOTICE, *(path.name for path in new.data_files))
    manifest = _manifest(new, {name: file_sha256(folder / name) for name in sorted(names)})
    text = json.dumps(manifest.model_dump(mode="json", exclude=_unused(manifest)), indent=2)
    (folder / MANIFEST_NAME).write_text(text + "\n", encoding="utf-8")


def _manifest(new: NewBundle, sha256: Mapping[str, str]) -> Manifest:
    facts = new.facts
    batch = FREE_BATCH if facts.has_free_batch else facts.input_shape[0]
    data = {
        "format": 3,
        "name": facts.name,
        "model": _MODEL,
        "labels": _LABELS,
        "notice": _NOTICE,
        "input": {
            "name": facts.input_name,
            "shape": [batch, *facts.input_shape[1:]],
            "layout": "nchw",
            "colour": "bgr" if facts.is_bgr else "rgb",
            "scale": facts.scale,
            "pad": facts.pad_value,
            "dtype": facts.input_dtype,
        },
        "output": {
            "name": facts.output_name,
            "shape": [batch, *facts.output_shape[1:]],
            "head": facts.head.value,
            "dtype": facts.output_dtype,
        },
        "thresholds": {"score": facts.score_threshold, "nms_iou": facts.nms_iou},
        "licence": new.licence,
        "source": new.source,
        "sha256": sha256,
        "quantisation": None if new.quantisation is None else new.quantisation.model_dump(mode="json"),
    }
    manifest = parse_manifest(json.dumps(data), where=facts.name)
    return manifest.model_copy(update={"format": manifest.needed_format})


def _unused(manifest: Manifest) -> dict[str, bool | set[str]]:
    """What the format has no words for; its values are the ones that the format means."""
    unused: dict[str, bool | set[str]] = {"input": {"dtype"}, "output": {"dtype"}} if manifest.format == 1 else {}
    return unused if manifest.format >= 3 else {**unused, "quantisation": True}


def _unwritable(path: Path, error: OSError) -> OutputError:
    reason = error.strerror or str(error)
    return OutputError(f"the bundle can't be written: {reason}", where=str(path), fix="name another folder with --out")

"""Bundles: what is shipped loads, and nothing changed, missing, stray or malformed gets past the loader."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.core.errors import ModelError
from zhcedge.core.types import HeadKind
from zhcedge.models.bundle import embedded_bundles, load_bundle
from zhcedge.models.manifest import parse_manifest

DEFAULT = "nanodet-g-416"
MODEL_BYTES = b"not a real network, the loader never looks inside"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_free_batch_is_one_until_the_configuration_says_more(tmp_path: Path) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["input"]["shape"][0] = manifest["output"]["shape"][0] = -1

    facts = load_bundle(make_bundle(tmp_path / "b", change)).facts
    assert facts.has_free_batch
    assert (facts.input_shape[0], facts.output_shape[0]) == (1, 1)
    assert facts.with_batch(6).batch_sizes == (1, 2, 4, 6)


def make_bundle(folder: Path, change: Callable[[dict[str, Any]], None] = lambda manifest: None) -> Path:
    """A small valid bundle with two labels; `change` edits the manifest before it is written."""
    files = {"model.onnx": MODEL_BYTES, "labels.txt": b"person\ncar\n", "NOTICE": b"notice"}
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    manifest: dict[str, Any] = {
        "format": 1,
        "name": "small",
        "model": "model.onnx",
        "labels": "labels.txt",
        "notice": "NOTICE",
        "input": {"name": "images", "shape": [1, 3, 64, 96], "layout": "nchw", "colour": "rgb", "scale": 1.0, "pad": 0},
        "output": {"name": "out", "shape": [1, 6, 100], "head": "yolo-anchor-free"},
        "thresholds": {"score": 0.4, "nms_iou": 0.5},
        "licence": "Apache-2.0",
        "source": "made by the test",
        "sha256": {name: sha256(data) for name, data in files.items()},
    }
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder


def refusal(path: str | Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        load_bundle(path)
    assert caught.value.where
    assert caught.value.fix
    return caught.value


def test_the_shipped_bundle_loads_with_the_facts_of_its_notice() -> None:
    bundle = load_bundle(DEFAULT)
    facts = bundle.facts
    assert DEFAULT in embedded_bundles()
    assert (facts.name, facts.input_name, facts.output_name) == (DEFAULT, "images", "output0")
    assert (facts.input_shape, facts.output_shape) == ((1, 3, 416, 416), (1, 84, 3549))
    assert (facts.pad_value, facts.score_threshold, facts.nms_iou) == (114, 0.45, 0.5)
    assert facts.scale == 1 / 255
    assert facts.head is HeadKind.YOLO_ANCHOR_FREE
    assert (len(facts.labels), facts.labels[0], facts.labels[-1]) == (80, "person", "toothbrush")
    assert facts.sha256 == sha256(bundle.model_path.read_bytes())
    assert bundle.notice_path.is_file()
    assert bundle.licence


def test_a_bundle_loads_from_a_folder(tmp_path: Path) -> None:
    folder = make_bundle(tmp_path / "any name")
    assert load_bundle(folder).facts == load_bundle(str(folder)).facts
    assert load_bundle(folder).model_path == folder / "model.onnx"


@pytest.mark.parametrize("name", ["model.onnx", "labels.txt", "NOTICE"])
def test_one_changed_byte_in_any_file_is_refused_with_both_hashes(tmp_path: Path, name: str) -> None:
    path = make_bundle(tmp_path / "bundle") / name
    before = path.read_bytes()
    after = bytes([before[0] ^ 1]) + before[1:]
    path.write_bytes(after)
    error = refusal(path.parent)
    assert sha256(before) in error.what
    assert sha256(after) in error.what
    assert name in error.where


@pytest.mark.parametrize("name", ["model.onnx", "labels.txt", "NOTICE", "manifest.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    folder = make_bundle(tmp_path / "bundle")
    (folder / name).unlink()
    assert refusal(folder).where.endswith(name)


@pytest.mark.parametrize("name", ["extra.bin", ".hidden", "folder/"])
def test_a_file_that_is_not_listed_is_refused(tmp_path: Path, name: str) -> None:
    folder = make_bundle(tmp_path / "bundle")
    (folder / name).mkdir() if name.endswith("/") else (folder / name).write_bytes(b"x")
    assert name.rstrip("/") in refusal(folder).what


def test_a_link_out_of_the_bundle_is_refused_though_its_content_fits(tmp_path: Path) -> None:
    folder = make_bundle(tmp_path / "bundle")
    shutil.move(folder / "model.onnx", tmp_path / "elsewhere.onnx")
    (folder / "model.onnx").symlink_to(tmp_path / "elsewhere.onnx")
    assert "regular file" in refusal(folder).what


def test_a_pipe_in_place_of_a_file_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    folder = make_bundle(tmp_path / "bundle")
    (folder / "manifest.json").unlink()
    os.mkfifo(folder / "manifest.json")
    assert "regular file" in refusal(folder).what


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "a/b", "..", ".", "", "a\\b", "a\0b", "manifest.json"])
@pytest.mark.parametrize("field", ["model", "labels", "notice"])
def test_names_that_lead_out_of_the_bundle_are_refused(tmp_path: Path, field: str, name: str) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["sha256"][name] = manifest["sha256"][manifest[field]]
        manifest[field] = name

    assert field in refusal(make_bundle(tmp_path / "bundle", change)).what


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (b"person\n", "1 labels"),
        (b"person\ncar\ndog\n", "3 labels"),
        (b"person\n\n\n", "1 labels"),
        (b"person\n\ncar\n", "line 2 is empty"),
        (b"car\ncar\n", "line 2 repeats 'car'"),
        (b"person\n\xff\n", "UTF-8"),
    ],
)
def test_labels_that_do_not_fit_the_output_are_refused(tmp_path: Path, labels: bytes, words: str) -> None:
    folder = make_bundle(tmp_path / "bundle", lambda m: m["sha256"].update({"labels.txt": sha256(labels)}))
    (folder / "labels.txt").write_bytes(labels)
    assert words in refusal(folder).what


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.pop("licence"), "licence"),
        (lambda m: m.update(surprise=1), "surprise"),
        (lambda m: m["input"].update(layout="nhwc"), "input.layout"),
        (lambda m: m["input"].update(shape=[1, 4, 64, 96]), "input.shape"),
        (lambda m: m["input"].update(shape=[2, 3, 64, 96]), "batch size"),
        (lambda m: m["input"].update(pad=256), "input.pad"),
        (lambda m: m["input"].update(pad="114"), "input.pad"),
        (lambda m: m["input"].update(scale=float("nan")), "input.scale"),
        (lambda m: m["output"].update(shape=[1, 4, 100]), "output.shape"),
        (lambda m: m["output"].update(head="ssd"), "output.head"),
        (lambda m: m["thresholds"].update(score=1.5), "thresholds.score"),
        (lambda m: m["sha256"].pop("NOTICE"), "sha256 lacks NOTICE"),
        (lambda m: m["sha256"].update({"NOTICE": "ABC"}), "sha256.NOTICE"),
        (lambda m: m.update(format=2), "format"),
    ],
)
def test_a_malformed_manifest_names_the_field(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    assert words in refusal(make_bundle(tmp_path / "bundle", change)).what


def test_every_problem_of_a_manifest_is_reported_at_once(tmp_path: Path) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["input"]["pad"] = -1
        manifest["thresholds"]["nms_iou"] = 2

    what = refusal(make_bundle(tmp_path / "bundle", change)).what
    assert "input.pad" in what
    assert "thresholds.nms_iou" in what


def test_a_misspelt_name_gets_a_suggestion() -> None:
    assert DEFAULT in refusal("nanodet-g-461").fix


@pytest.mark.parametrize("path", ["", "no/such/folder", "a\0b", "x" * 5000])
def test_a_path_that_leads_nowhere_is_refused(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError):
        load_bundle(path)


def test_an_oversized_manifest_is_refused(tmp_path: Path) -> None:
    folder = make_bundle(tmp_path / "bundle")
    (folder / "manifest.json").write_bytes(b" " * (1024 * 1024 + 1))
    assert "larger" in refusal(folder).what


@given(st.text() | st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_no_text_makes_the_manifest_parser_fail_in_another_way(text: str) -> None:
    with pytest.raises(ModelError):
        parse_manifest(text, where="manifest.json")

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
        (lambda m: m.update(format=4), "format"),
    ],
)
def test_a_malformed_manifest_names_the_field(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    assert words in refusal(make_bundle(tmp_path / "bundle", change)).what


@pytest.mark.parametrize(
    ("head", "shape", "classes"),
    [
        ("yolo-anchor-free", [1, 6, 100], 2),
        ("yolo-anchor-free-rows", [1, 100, 6], 2),
        ("yolo-objectness", [1, 100, 7], 2),
        ("yolo-objectness-columns", [1, 7, 100], 2),
        ("end-to-end", [1, 100, 6], 2),
    ],
)
def test_format_2_knows_every_head_half_precision_and_bgr(
    tmp_path: Path, head: str, shape: list[int], classes: int
) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["format"] = 2
        manifest["input"].update(dtype="float16", colour="bgr")
        manifest["output"].update(head=head, shape=shape, dtype="float16")

    facts = load_bundle(make_bundle(tmp_path / "bundle", change)).facts
    assert (facts.head.value, facts.classes, facts.anchors) == (head, classes, 100)
    assert (facts.input_dtype, facts.output_dtype, facts.is_bgr) == ("float16", "float16", True)


@pytest.mark.parametrize(
    ("part", "values", "words"),
    [
        ("input", {"dtype": "float16"}, "write format 2"),
        ("input", {"colour": "bgr"}, "write format 2"),
        ("output", {"dtype": "float16"}, "write format 2"),
        ("output", {"head": "yolo-objectness", "shape": [1, 100, 7]}, "write format 2"),
        ("output", {"head": "yolo-objectness", "shape": [1, 100, 5]}, "6 values"),
        ("output", {"head": "end-to-end", "shape": [1, 100, 7]}, "takes 6 values"),
        ("output", {"dtype": "int8"}, "output.dtype"),
    ],
)
def test_what_format_1_has_no_words_for_and_heads_without_room_are_refused(
    tmp_path: Path, part: str, values: dict[str, Any], words: str
) -> None:
    assert words in refusal(make_bundle(tmp_path / "bundle", lambda m: m[part].update(values))).what


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, ""),
        ({"table": "missing.json"}, "sha256 lacks missing.json"),
        ({"precision": "int4"}, "quantisation.precision"),
        ({"frames": 0}, "quantisation.frames"),
        ({"data_sha256": "x"}, "quantisation.data_sha256"),
    ],
)
def test_format_3_says_how_a_model_was_quantised(tmp_path: Path, values: dict[str, Any], words: str) -> None:
    facts = {
        "precision": "int8-qdq",
        "method": "l4",
        "table": "NOTICE",
        "data_sha256": "0" * 64,
        "frames": 100,
        "corrects_biases": True,
        "excluded": ["last"],
    }

    def change(manifest: dict[str, Any]) -> None:
        manifest.update(format=3, quantisation={**facts, **values})

    folder = make_bundle(tmp_path / "bundle", change)
    if words:
        assert words in refusal(folder).what
        return
    bundle = load_bundle(folder)
    assert bundle.quantisation is not None
    assert (bundle.precision, bundle.quantisation.excluded) == ("int8-qdq", ("last",))
    older = make_bundle(tmp_path / "older", lambda manifest: manifest.update(quantisation=facts))
    assert "format 3 is needed" in refusal(older).what


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

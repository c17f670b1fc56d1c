"""`zhc-edge model import`, from the command line to the bundle: right models, wrong models, broken files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.unit.support_models import ANCHORS, SIDE, Row, encode, write_constant_model
from zhcedge import cli
from zhcedge.core.errors import ModelError
from zhcedge.core.types import HeadKind
from zhcedge.models.bundle import load_bundle
from zhcedge.models.head_guess import NAMES
from zhcedge.models.labels import labels_of_metadata, labels_of_option, tidy
from zhcedge.models.library import search_folders

LABELS = ("person", "car", "dog")
NAMES_TEXT = "{0: 'person', 1: 'car', 2: 'dog'}"
# Apart from each other; inside the letterboxed picture of the bundled clip, rows 8 to 55.
ROWS: list[Row] = [((8, 16, 16, 32), 0.75, 0), ((32, 20, 48, 28), 0.5, 1), ((4, 40, 12, 44), 0.875, 0)]
BOXES = {"person": 2, "car": 1}
ULTRALYTICS = {"task": "detect", "stride": "32", "imgsz": "[64, 64]", "names": NAMES_TEXT, "license": "AGPL-3.0"}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def anchors_of(head: HeadKind) -> int:
    """What the head gives for 64 x 64 pixels."""
    return 30 if head is HeadKind.END_TO_END else ANCHORS * (3 if head.has_objectness else 1)


def output_of(head: HeadKind, rows: list[Row] = ROWS) -> np.ndarray:
    return encode(head, rows, len(LABELS), anchors_of(head))


def import_json(tmp_path: Path, capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> dict[str, object]:
    code = cli.main(["model", "import", str(path), "--out", str(tmp_path / "models"), "--json", *words])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    report: dict[str, object] = json.loads(captured.out)
    return report


def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], path: Path, *words: str, code: int = 65) -> str:
    """The error's line; nothing may be left behind."""
    assert cli.main(["model", "import", str(path), "--out", str(tmp_path / "models"), *words]) == code
    captured = capsys.readouterr()
    assert not (tmp_path / "models").exists() or not list((tmp_path / "models").iterdir())
    line = captured.err.strip().splitlines()[-1]
    assert line.startswith("zhc-edge: ")
    assert "Traceback" not in captured.err
    return line


@pytest.mark.parametrize("head", list(HeadKind), ids=lambda head: head.value)
@pytest.mark.parametrize("element", [TensorProto.FLOAT, TensorProto.FLOAT16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("batch", [1, "batch", 2], ids=str)
def test_every_head_in_both_precisions_with_any_batch_is_found_run_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], head: HeadKind, element: int, batch: int | str
) -> None:
    path = write_constant_model(
        tmp_path / "My Model_v1.onnx", output_of(head), batch=batch, element=element, metadata=ULTRALYTICS
    )
    report = import_json(tmp_path, capsys, path)
    assert report["name"] == "my-model-v1"
    assert report["counts"] == BOXES
    assert report["warnings"] == []
    assert report["licence"] == "AGPL-3.0"
    assert Path(str(report["drawing"])).read_bytes().startswith(b"\xff\xd8")
    name = next(name for name, kind in NAMES.items() if kind is head)
    assert f"head: {name}" in str(report["said"])
    facts = load_bundle(Path(str(report["folder"]))).facts
    assert (facts.head, facts.labels, facts.anchors) == (head, LABELS, anchors_of(head))
    assert facts.input_dtype == facts.output_dtype == ("float16" if element == TensorProto.FLOAT16 else "float32")
    assert facts.has_free_batch == (batch == "batch")
    assert facts.input_shape[0] == (2 if batch == 2 else 1)


def test_boxes_come_out_in_pixels_of_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The clip's 768 x 576 in 64 x 64: 12 pixels each, 8 rows of border above."""
    head = HeadKind.YOLO_ANCHOR_FREE
    report = import_json(tmp_path, capsys, write_constant_model(tmp_path / "m.onnx", output_of(head)), *labels())
    boxes = report["boxes"]
    assert isinstance(boxes, list)
    assert boxes[0] == {"label": "person", "score": 0.875, "box": [48, 384, 144, 432]}


def labels() -> tuple[str, str]:
    return ("--labels", ",".join(LABELS))


def test_sizes_that_the_graph_leaves_open_are_chosen_and_may_be_oblong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """96 x 64 pixels have 126 cells at strides 8, 16 and 32."""
    output = encode(HeadKind.YOLO_ANCHOR_FREE, ROWS, len(LABELS), 126)
    path = write_constant_model(tmp_path / "open.onnx", output, batch="n", size=("w", "h"), metadata=ULTRALYTICS)
    report = import_json(tmp_path, capsys, path, "--size", "96x64")
    assert load_bundle(Path(str(report["folder"]))).facts.input_shape == (1, 3, 64, 96)
    assert "--size says so" in str(report["said"])


def test_the_size_of_the_metadata_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = encode(HeadKind.YOLO_ANCHOR_FREE, ROWS, len(LABELS), 126)
    metadata = {**ULTRALYTICS, "imgsz": "[64, 96]"}
    path = write_constant_model(tmp_path / "m.onnx", output, size=("w", "h"), metadata=metadata)
    report = import_json(tmp_path, capsys, path)
    assert load_bundle(Path(str(report["folder"]))).facts.input_shape == (1, 3, 64, 96)


@pytest.mark.parametrize("inside", ["one", "mean"])
def test_a_batch_that_is_only_declared_open_is_found_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], inside: Literal["one", "mean"]
) -> None:
    output = output_of(HeadKind.YOLO_ANCHOR_FREE)
    path = write_constant_model(tmp_path / "m.onnx", output, batch="n", metadata=ULTRALYTICS, inside=inside)
    report = import_json(tmp_path, capsys, path)
    assert not load_bundle(Path(str(report["folder"]))).facts.has_free_batch


def test_a_graph_that_declares_no_shapes_at_all_is_found_out_by_running_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_constant_model(tmp_path / "m.onnx", output_of(HeadKind.YOLO_ANCHOR_FREE), metadata=ULTRALYTICS)
    model = onnx.load(str(path))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    onnx.save(model, str(path))
    report = import_json(tmp_path, capsys, path)
    assert report["counts"] == BOXES


def test_options_land_in_the_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = tmp_path / "names.txt"
    names.write_text("person\ncar\ndog\n")
    path = write_constant_model(tmp_path / "m.onnx", output_of(HeadKind.YOLO_ANCHOR_FREE))
    words = ["--labels", str(names), "--scale", "1", "--bgr", "--pad", "0", "--score", "0.6", "--nms-iou", "0.7"]
    report = import_json(tmp_path, capsys, path, *words, "--name", "mine", "--licence", "MIT")
    facts = load_bundle(tmp_path / "models" / "mine").facts
    assert (facts.scale, facts.is_bgr, facts.pad_value, facts.score_threshold, facts.nms_iou) == (1, True, 0, 0.6, 0.7)
    assert report["licence"] == "MIT"
    assert report["counts"] == {"person": 2}


def test_a_picture_of_ones_own_is_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from zhcedge.media.picture import write_pixels

    picture = tmp_path / "grey.jpg"
    write_pixels(np.full((64, 128, 3), 128, np.uint8), picture)
    path = write_constant_model(tmp_path / "m.onnx", output_of(HeadKind.YOLO_ANCHOR_FREE), metadata=ULTRALYTICS)
    report = import_json(tmp_path, capsys, path, "--test", str(picture))
    boxes = report["boxes"]
    assert isinstance(boxes, list)
    assert boxes[-1]["box"] == [64, 8, 96, 24]


def test_an_older_bundle_goes_only_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_constant_model(tmp_path / "m.onnx", output_of(HeadKind.YOLO_ANCHOR_FREE), metadata=ULTRALYTICS)
    import_json(tmp_path, capsys, path)
    words = ["model", "import", str(path), "--out", str(tmp_path / "models"), "--score", "0.6"]
    assert cli.main(words) == 73
    assert "--replace" in capsys.readouterr().err
    assert cli.main([*words, "--replace"]) == 0
    assert load_bundle(tmp_path / "models" / "m").facts.score_threshold == 0.6
    assert sorted(entry.name for entry in (tmp_path / "models").iterdir()) == ["m", "m.jpg"]


def test_weights_beside_the_file_come_along_and_missing_ones_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_constant_model(tmp_path / "m.onnx", output_of(HeadKind.YOLO_ANCHOR_FREE), metadata=ULTRALYTICS)
    model = onnx.load(str(path))
    onnx.save(model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=1024)
    report = import_json(tmp_path, capsys, path)
    assert (Path(str(report["folder"])) / "weights.bin").is_file()
    assert report["counts"] == BOXES
    (tmp_path / "weights.bin").unlink()
    line = refused(tmp_path / "again", capsys, path)
    assert "weights.bin" in line
    assert "not beside it" in line


# -- loud about what looks wrong -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "nothing was found"),
        ([((0.1, 0.2, 0.15, 0.3), 0.75, 0), ((0.4, 0.5, 0.6, 0.7), 0.75, 1)], "outside"),
        ([((30.1, 30.1, 30.2, 30.2), 0.75, 0), ((40, 40, 40.1, 40.1), 0.75, 0)], "no box is larger"),
        ([((8, 16, 16, 32), 0.75, 0), ((8, 16, 16, 32), 0.75, 1)], "the same"),
        ([((8, 16, 16, 32), 7.5, 0)], "above 1"),
        ([((0, 0, 64, 64), 0.75, 0)], "whole picture"),
        ([((x, y, x + 1.0, y + 1.0), 0.75, 0) for x in range(0, 60, 2) for y in (20, 30, 40)][:ANCHORS], ""),
    ],
)
def test_what_looks_wrong_is_said_loudly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: list[Row], words: str
) -> None:
    path = write_constant_model(tmp_path / "m.onnx", output_of(HeadKind.YOLO_ANCHOR_FREE, rows), metadata=ULTRALYTICS)
    assert cli.main(["model", "import", str(path), "--out", str(tmp_path / "models")]) == 0
    captured = capsys.readouterr()
    assert ("WARNING: " in captured.err) == bool(words)
    assert words in captured.err
    assert f"LOOK AT {tmp_path / 'models' / 'm.jpg'}" in captured.out


# -- refused ---------------------------------------------------------------------------------------------------
def graph_file(path: Path, inputs: list[list[int | str]], outputs: list[list[int]], element: int = 1) -> Path:
    """A graph of constants with any inputs and outputs."""
    constants = [numpy_helper.from_array(np.zeros(shape, np.float32), f"c{n}") for n, shape in enumerate(outputs)]
    graph = helper.make_graph(
        [helper.make_node("Identity", [f"c{n}"], [f"out{n}"]) for n in range(len(outputs))],
        "any",
        [helper.make_tensor_value_info(f"in{n}", element, shape) for n, shape in enumerate(inputs)],
        [helper.make_tensor_value_info(f"out{n}", 1, shape) for n, shape in enumerate(outputs)],
        constants,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))
    return path


PICTURE: list[int | str] = [1, 3, SIDE, SIDE]
BOX_SHAPE = [1, 7, ANCHORS]


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        ([PICTURE], [[1, 1000]], "classifier"),
        ([PICTURE], [BOX_SHAPE, [1, 32, 16, 16]], "segmentation"),
        ([PICTURE], [BOX_SHAPE, BOX_SHAPE], "several outputs"),
        ([PICTURE], [[1, 7, 4, 4]], "no output of boxes"),
        ([PICTURE], [[1, 7, 1001]], "could be"),
        ([PICTURE], [[1, 2, 3]], "no head that we know"),
        ([PICTURE, PICTURE], [BOX_SHAPE], "2 inputs"),
        ([], [BOX_SHAPE], "0 inputs"),
        ([[1, SIDE, SIDE, 3]], [BOX_SHAPE], "channels first"),
        ([[1, 1, SIDE, SIDE]], [BOX_SHAPE], "colour"),
        ([[1, 3, SIDE]], [BOX_SHAPE], "not a picture"),
        ([[1, 3, 16, 16]], [BOX_SHAPE], "32 to 4096"),
        ([[1, 3, 100_000, 64]], [BOX_SHAPE], "32 to 4096"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_detector_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    inputs: list[list[int | str]],
    outputs: list[list[int]],
    words: str,
) -> None:
    path = graph_file(tmp_path / "m.onnx", inputs, outputs)
    assert words in refused(tmp_path, capsys, path, *labels())


@pytest.mark.parametrize("task", ["classify", "segment", "pose", "obb"])
def test_another_task_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], task: str) -> None:
    output = output_of(HeadKind.YOLO_ANCHOR_FREE)
    path = write_constant_model(tmp_path / "m.onnx", output, metadata={**ULTRALYTICS, "task": task})
    assert f"task {task!r}" in refused(tmp_path, capsys, path)


def test_other_elements_than_floats_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = graph_file(tmp_path / "m.onnx", [PICTURE], [BOX_SHAPE], element=TensorProto.UINT8)
    assert "uint8" in refused(tmp_path, capsys, path, *labels())


@pytest.mark.parametrize("given", ["person", "person,car", "a,b,c,d,e"])
def test_a_wrong_number_of_labels_is_refused_with_both_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    path = write_constant_model(tmp_path / "m.onnx", output_of(HeadKind.YOLO_ANCHOR_FREE))
    line = refused(tmp_path, capsys, path, "--labels", given)
    assert f"{len(given.split(','))} labels" in line
    assert "3 classes" in line


def test_a_model_without_names_is_refused_with_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_constant_model(tmp_path / "m.onnx", output_of(HeadKind.YOLO_ANCHOR_FREE))
    line = refused(tmp_path, capsys, path)
    assert "names of its 3 classes" in line
    assert "--labels" in line


def write_bytes(data: bytes) -> Callable[[Path], None]:
    return lambda path: (path.write_bytes(data), None)[1]


def flip_half(path: Path) -> None:
    data = write_constant_model(path, output_of(HeadKind.YOLO_ANCHOR_FREE)).read_bytes()
    path.write_bytes(data[: len(data) // 2])


def three_gib(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(3 * 2**30)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (write_bytes(b""), "no ONNX model"),
        (write_bytes(b"this is no protobuf at all"), "no ONNX model"),
        (write_bytes(b"\x08\x08"), "no ONNX model"),  # a valid message that says next to nothing
        (flip_half, "damaged"),
        (three_gib, "3.0 GiB"),
        (lambda path: path.mkdir(), "is no file"),
    ],
    ids=["empty", "text", "bare", "truncated", "3 GiB", "folder"],
)
def test_a_broken_file_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], None], words: str
) -> None:
    path = tmp_path / "m.onnx"
    make(path)
    assert words in refused(tmp_path, capsys, path, *labels())


def test_an_operator_of_somebody_elses_is_named_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_constant_model(tmp_path / "m.onnx", output_of(HeadKind.YOLO_ANCHOR_FREE))
    model = onnx.load(str(path))
    last = model.graph.node[-1]
    last.output[0], output = "raw", last.output[0]
    model.graph.node.append(helper.make_node("MyNms", ["raw"], [output], name="/model/nms", domain="acme"))
    model.opset_import.append(helper.make_opsetid("acme", 1))
    onnx.save(model, str(path))
    line = refused(tmp_path, capsys, path, *labels())
    assert f"acme.MyNms (node {len(model.graph.node) - 1}, '/model/nms')" in line
    assert "without them" in line


@pytest.mark.parametrize(("opset", "ir_version", "words"), [(13, 99, "IR version 99"), (999, 8, "opset 999")])
def test_a_format_that_is_too_new_says_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], opset: int, ir_version: int, words: str
) -> None:
    output = output_of(HeadKind.YOLO_ANCHOR_FREE)
    path = write_constant_model(tmp_path / "m.onnx", output, opset=opset, ir_version=ir_version)
    line = refused(tmp_path, capsys, path, *labels())
    assert words in line
    assert "older opset" in line


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["--head", "ssd"], 2, "choose one of yolov8"),
        (["--head", "end2end"], 65, "can't be end2end"),
        (["--name", "Bad Name"], 2, "Bad Name"),
        (["--name", "nanodet-g-416"], 2, "built-in"),
        (["--size", "96x64"], 65, "takes 64x64 pixels, not 96x64"),
        (["--labels", "missing/names.txt"], 66, "no such file"),
        (["--test", "missing.jpg"], 66, "missing.jpg"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, part: str
) -> None:
    path = write_constant_model(tmp_path / "m.onnx", output_of(HeadKind.YOLO_ANCHOR_FREE), metadata=ULTRALYTICS)
    assert part in refused(tmp_path, capsys, path, *words, code=code)


@pytest.mark.parametrize("words", [["--size", "axb"], ["--score", "2"], ["--scale", "1/0"], ["--pad", "256"], []])
def test_a_command_line_without_sense_is_exit_2(tmp_path: Path, words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["model", "import", *([str(tmp_path / "m.onnx")] if words else []), *words])
    assert caught.value.code == 2


def test_a_missing_file_is_exit_66(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("m.onnx", "m.pt"):
        assert "no such file" in refused(tmp_path, capsys, tmp_path / name, code=66)


# -- checkpoints -----------------------------------------------------------------------------------------------
def test_a_checkpoint_without_ultralytics_gives_the_command_to_run_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "best.pt"
    path.write_bytes(b"zip")
    line = refused(tmp_path, capsys, path, "--size", "640x384", code=69)
    assert "pip install ultralytics" in line
    assert f"yolo export model={path} format=onnx 'imgsz=[384,640]'" in line


EXPORTER = """
import shutil, sys
class YOLO:
    def __init__(self, path):
        self.path = path
    def export(self, **options):
        assert options == {"format": "onnx", "imgsz": [64, 64]}, options
        if open(self.path, "rb").read() == b"broken":
            sys.exit("this checkpoint is broken")
        return shutil.copy(%r, self.path.replace(".pt", ".onnx"))
"""


def test_a_checkpoint_is_exported_by_ultralytics_in_a_process_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package of that name stands in for ultralytics: it takes what the real one takes, and gives a ready file."""
    ready = write_constant_model(tmp_path / "ready.onnx", output_of(HeadKind.END_TO_END), metadata=ULTRALYTICS)
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "ultralytics.py").write_text(EXPORTER % str(ready))
    monkeypatch.syspath_prepend(str(packages))
    monkeypatch.setenv("PYTHONPATH", str(packages))
    checkpoint = tmp_path / "best.pt"
    checkpoint.write_bytes(b"broken")
    assert "this checkpoint is broken" in refused(tmp_path, capsys, checkpoint, "--size", "64")
    checkpoint.write_bytes(b"fine")
    report = import_json(tmp_path, capsys, checkpoint, "--size", "64")
    assert (report["name"], report["counts"]) == ("best", BOXES)
    assert "best.pt" in load_bundle(tmp_path / "models" / "best").source
    assert not list(tmp_path.glob("*best*.onnx"))


# -- labels ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "found"),
    [
        (NAMES_TEXT, LABELS),
        ("['person', 'car', 'dog']", LABELS),
        ("{'0': 'person', '1': 'car', '2': 'dog'}", LABELS),
        ("{0: 'a', 2: 'b'}", None),
        ("{1e999: 'a', 0: 'b'}", None),
        ("{0: 'a', 0.5: 'b', 1: 'c'}", None),  # 0.5 would take the place of 0
        ("{False: 'a', True: 'b'}", None),
        ("{0: 'a', '0': 'b', 1: 'c'}", None),
        ("{'00': 'a'}", None),
        (f"{{0: 0x{'f' * 5000}}}", None),
        (f"{{0x{'f' * 5000}: 'a'}}", None),
        (f"['{'x' * 201}']", None),
        (f"[{','.join(['0'] * 10_001)}]", None),
        (r"['\d']", ("\\d",)),
        ("{}", None),
        ("[[1]]", None),
        ("", None),
        ("__import__('os').getcwd()", None),
        ("[" * 100_000, None),
        ("9" * 2_000_000, None),
        ("{0: 'a\\nb', 1: '', 2: 'a b'}", ("a b", "class 1", "a b (2)")),
    ],
)
def test_names_in_metadata_are_data_never_code(text: str, found: tuple[str, ...] | None) -> None:
    assert labels_of_metadata(text) == found


@given(st.text())
def test_no_text_in_metadata_raises(text: str) -> None:
    names = labels_of_metadata(text)
    assert names is None or len(set(names)) == len(names)


@given(st.lists(st.text(max_size=8), min_size=1, max_size=30))
def test_tidy_labels_are_distinct_printable_lines_of_the_same_number(names: list[str]) -> None:
    tidied = tidy(names)
    assert len(tidied) == len(names) == len(set(tidied))
    assert all(label.strip() == label and label.isprintable() and label for label in tidied)


def test_ten_thousand_equal_names_are_told_apart() -> None:
    tidied = tidy(["a (2)", *["a"] * 10_000])
    assert len(set(tidied)) == 10_001
    assert tidied[1:4] == ("a", "a (3)", "a (4)")


@pytest.mark.parametrize("form", ["file", "list"])
@pytest.mark.parametrize(("labels", "words"), [(["x"] * 10_001, "10001 labels"), (["a", "x" * 201], "label 2 has 201")])
def test_too_many_or_too_long_labels_are_refused(tmp_path: Path, form: str, labels: list[str], words: str) -> None:
    path = tmp_path / "names"
    path.write_text("\n".join(labels))
    with pytest.raises(ModelError, match=words):
        labels_of_option(str(path) if form == "file" else ",".join(labels))


@pytest.mark.parametrize(
    "metadata",
    [
        {"names": "{1e999: 'a', 0: 'b'}"},
        {"names": f"{{0: 0x{'f' * 5000}}}"},
        {"imgsz": f"[0x{'f' * 5000}, 64]"},
        {"task": "\x1b[31m" + "x" * 100_000},
    ],
    ids=["infinite key", "long name", "long size", "long task"],
)
def test_metadata_without_sense_is_one_short_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], metadata: dict[str, str]
) -> None:
    path = write_constant_model(
        tmp_path / "m.onnx",
        output_of(HeadKind.YOLO_ANCHOR_FREE),
        size=("w", "h"),
        metadata={"names": NAMES_TEXT, **metadata},
    )
    assert len(refused(tmp_path, capsys, path)) < 600


def test_what_metadata_says_reaches_no_terminal_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metadata = {**ULTRALYTICS, "license": "\x1b[31mMIT\x07", "description": "\x1b]0;t\x07", "author": "\x9b1m"}
    path = write_constant_model(tmp_path / "m.onnx", output_of(HeadKind.YOLO_ANCHOR_FREE), metadata=metadata)
    out = tmp_path / "models"
    assert cli.main(["model", "import", str(path), "--out", str(out)]) == 0
    assert cli.main(["model", "show", str(out / "m")]) == 0
    captured = capsys.readouterr()
    assert r"\x1b[31mMIT\x07" in captured.out
    for text in (captured.out, captured.err, (out / "m" / "NOTICE").read_text()):
        assert all(letter.isprintable() or letter == "\n" for letter in text)


def test_a_file_name_that_is_no_text_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / os.fsdecode(b"m\xff.onnx")
    write_constant_model(tmp_path / "m.onnx", output_of(HeadKind.YOLO_ANCHOR_FREE), metadata=ULTRALYTICS).rename(path)
    assert r"m\udcff.onnx: " in refused(tmp_path, capsys, path)


def test_a_graph_that_does_not_run_is_told_in_our_words_only(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_constant_model(
        tmp_path / "m.onnx", output_of(HeadKind.YOLO_ANCHOR_FREE), batch=2, inside="one", metadata=ULTRALYTICS
    )
    assert cli.main(["model", "import", str(path), "--out", str(tmp_path / "models")]) == 65
    assert len(capfd.readouterr().err.splitlines()) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="cannot run here: needs root")
def test_an_import_by_root_goes_into_the_first_folder_that_is_searched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_constant_model(tmp_path / "m.onnx", output_of(HeadKind.YOLO_ANCHOR_FREE), metadata=ULTRALYTICS)
    assert cli.main(["model", "import", str(path), "--json"]) == 0
    folder = tmp_path / "data" / "zhcedge" / "models"
    assert json.loads(capsys.readouterr().out)["folder"] == str(folder / "m")
    assert search_folders()[0] == folder


def test_a_file_of_labels_may_have_a_byte_order_mark_and_dos_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "names"
    path.write_bytes(b"\xef\xbb\xbfperson\r\ncar\r\n")
    assert labels_of_option(str(path)) == ("person", "car")

"""`zhc-edge model quantize` and `model eval`, from the command line to the bundle and the figures."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.contract.sinks import disk_full_at
from tests.unit.support_graphs import SIDE, write_detector
from tests.unit.support_models import SIDE as CONSTANT_SIDE
from tests.unit.support_models import Row, encode, write_constant_model
from zhcedge import cli
from zhcedge.core.types import HeadKind
from zhcedge.models.bundle import load_bundle
from zhcedge.models.quantize import TABLE_NAME, read_digests

LABELS = ("person", "car", "dog")
TRUTH: list[Row] = [((8, 16, 16, 32), 0.75, 0), ((32, 20, 48, 28), 0.5, 1), ((4, 40, 12, 44), 0.875, 0)]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    code = cli.main(["model", *map(str, words)])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return code, captured.out, captured.err


def refused(capsys: pytest.CaptureFixture[str], code: int, *words: str | Path) -> str:
    """The error's line."""
    found, _, err = run(capsys, *words)
    line = err.strip().splitlines()[-1]
    assert found == code, line
    return line


def write_pictures(folder: Path, count: int, *, first: int = 0, size: tuple[int, int] = (64, 48)) -> Path:
    """Lossless noise: picture number n is always the same."""
    folder.mkdir(exist_ok=True)
    for number in range(first, first + count):
        noise = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), np.uint8)
        Image.fromarray(noise).save(folder / f"{number:03}.png")
    return folder


def make_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str], model: Path, name: str) -> Path:
    """Import a model; its labels are in its metadata or are LABELS."""
    words = ("--name", name, "--head", "yolov8", "--labels", ",".join(LABELS), "--out", tmp_path / "models")
    code, _, err = run(capsys, "import", model, *words)
    assert code == 0, err
    return tmp_path / "models" / name


@pytest.fixture
def detector(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A bundle of a small network with random weights."""
    return make_bundle(tmp_path, capsys, write_detector(tmp_path / "model.onnx"), "float")


def constant_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, rows: list[Row]) -> Path:
    """A bundle that finds the same in every picture."""
    output = encode(HeadKind.YOLO_ANCHOR_FREE, rows, len(LABELS), 84)
    return make_bundle(tmp_path, capsys, write_constant_model(tmp_path / f"{name}.onnx", output), name)


def test_a_quantised_bundle_says_how_it_was_made_and_can_be_told_from_its_pictures(
    tmp_path: Path, detector: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, out = write_pictures(tmp_path / "images", 12), tmp_path / "out" / "int8"
    code, text, err = run(capsys, "quantize", detector, "--images", images, "--out", out, "--json")
    assert code == 0, err
    assert "12 pictures are few to calibrate with" in err
    report, bundle = json.loads(text), load_bundle(out)
    facts = bundle.quantisation
    assert facts is not None
    assert bundle.precision == facts.precision == report["precision"] == "int8-qdq"
    assert (facts.method, facts.frames, facts.data_sha256) == ("l4", 12, report["data_sha256"])
    assert facts.excluded == tuple(report["excluded"])
    assert json.loads((out / "manifest.json").read_text())["format"] == 3
    assert len(read_digests((out / TABLE_NAME).read_text(), "")) == 12
    assert "quantised to int8" in bundle.notice_path.read_text()
    assert bundle.facts.labels == load_bundle(detector).facts.labels
    assert load_bundle(detector).precision == "float32"
    assert run(capsys, "verify", out)[0] == 0


def test_the_same_pictures_have_the_same_hash_and_others_another_one(
    tmp_path: Path, detector: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hashes = []
    for name, first in (("a", 0), ("b", 0), ("c", 5)):
        images = write_pictures(tmp_path / name, 10, first=first)
        for path in sorted(images.iterdir()) if name == "b" else ():
            path.rename(images / f"{999 - int(path.stem)}.png")  # another order
        code, text, err = run(
            capsys, "quantize", detector, "--images", images, "--out", tmp_path / f"o{name}", "--json"
        )
        assert code == 0, err
        hashes.append(json.loads(text)["data_sha256"])
    assert hashes[0] == hashes[1] != hashes[2]


def test_frames_of_a_video_are_spread_over_it_and_a_name_leads_to_the_bundle(
    tmp_path: Path, detector: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)  # root's bundles are the computer's
    from zhcedge.app.channels import clip_path

    code, _, err = run(
        capsys,
        "quantize",
        detector,
        "--video",
        clip_path("walkers"),
        "--frames",
        "10",
        "--out",
        "night",
        "--keep-biases",
    )
    assert code == 0, err
    bundle = load_bundle("night")
    assert bundle.folder == tmp_path / "data" / "zhcedge" / "models" / "night"
    assert bundle.quantisation is not None
    assert (bundle.quantisation.frames, bundle.quantisation.corrects_biases) == (10, False)


def test_bad_wishes_are_refused_and_leave_nothing(
    tmp_path: Path, detector: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few, none = write_pictures(tmp_path / "few", 9), tmp_path / "none"
    none.mkdir()
    out = tmp_path / "out" / "int8"

    def quantize(code: int, *words: str | Path) -> str:
        line = refused(capsys, code, "quantize", detector, "--out", out, *words)
        assert not out.parent.exists() or not list(out.parent.iterdir())
        return line

    assert "9 pictures are too few" in quantize(65, "--images", few)
    assert "no image" in quantize(65, "--images", none)
    assert "no such file" in quantize(66, "--images", tmp_path / "nowhere")
    assert "either --images DIR or --video FILE" in quantize(2)
    assert "either --images DIR or --video FILE" in quantize(2, "--images", few, "--video", few)
    assert "no method is called 'magic'" in quantize(2, "--images", few, "--method", "magic")
    assert "no part is called tail" in quantize(2, "--images", few, "--float", "tail")
    (tmp_path / "some.mp4").write_bytes(b"no video")
    assert quantize(65, "--video", tmp_path / "some.mp4")


def test_a_quantised_bundle_is_not_quantised_again_and_none_is_replaced_unasked(
    tmp_path: Path, detector: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, out = write_pictures(tmp_path / "images", 10), tmp_path / "out" / "int8"
    assert run(capsys, "quantize", detector, "--images", images, "--out", out)[0] == 0
    line = refused(capsys, 65, "quantize", out, "--images", images, "--out", tmp_path / "out" / "twice")
    assert "quantised already" in line
    assert "--replace" in refused(capsys, 73, "quantize", detector, "--images", images, "--out", out)
    before = (out / "manifest.json").read_bytes()
    code, _, _ = run(capsys, "quantize", detector, "--images", images, "--out", out, "--replace", "--method", "minmax")
    assert code == 0
    assert (out / "manifest.json").read_bytes() != before
    assert [path.name for path in out.parent.iterdir()] == ["int8"]


def test_a_full_disk_leaves_no_half_bundle(tmp_path: Path, detector: Path) -> None:
    images, parent = write_pictures(tmp_path / "images", 10), tmp_path / "out"
    script = "import sys; from zhcedge import cli; sys.exit(cli.main(sys.argv[1:]))"
    words = ["model", "quantize", str(detector), "--images", str(images), "--out", str(parent / "int8")]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))  # a file can't become larger: EFBIG instead of ENOSPC

    done = subprocess.run(
        [sys.executable, "-B", "-c", script, *words], capture_output=True, text=True, check=False, preexec_fn=limit
    )
    assert done.returncode == 73, done.stderr
    assert "can't be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert not parent.exists() or not list(parent.iterdir())


def test_a_bundle_agrees_with_itself_and_its_own_calibration_frames_are_left_out(
    tmp_path: Path, detector: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, out = write_pictures(tmp_path / "images", 10), tmp_path / "int8"
    assert run(capsys, "quantize", detector, "--images", images, "--out", out)[0] == 0
    line = refused(capsys, 65, "eval", out, "--against", detector, "--images", images)
    assert "no frame is left" in line
    write_pictures(images, 5, first=50)
    code, text, _ = run(capsys, "eval", out, "--against", detector, "--images", images, "--json")
    report = json.loads(text)
    assert (code, report["frames"], report["excluded_calibration_frames"]) == (0, 5, 10)
    assert report["labels"] is None
    _, text, _ = run(capsys, "eval", detector, "--against", detector, "--images", images, "--json")
    report = json.loads(text)
    assert report["frames"] == 15
    assert report["agreement"]["boxes"]["extra"] == 0


def coco(
    pictures: list[str], rows: list[Row], *, scale: float = 1.0, names: tuple[str, ...] = LABELS
) -> dict[str, object]:
    """COCO JSON with the same boxes on every picture, in pixels of the model's input times `scale`."""
    annotations = [
        {
            "id": 1 + len(rows) * image + index,
            "image_id": image,
            "category_id": 10 + label,
            "bbox": [x1 * scale, y1 * scale, (x2 - x1) * scale, (y2 - y1) * scale],
            "area": (x2 - x1) * (y2 - y1) * scale**2,
            "iscrowd": 0,
        }
        for image in range(len(pictures))
        for index, ((x1, y1, x2, y2), _, label) in enumerate(rows)
    ]
    return {
        "images": [{"id": number, "file_name": name} for number, name in enumerate(pictures)],
        "annotations": annotations,
        "categories": [{"id": 10 + index, "name": name} for index, name in enumerate(names)],
    }


def test_map_on_labels_and_agreement_are_two_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    side = CONSTANT_SIDE
    write_pictures(tmp_path / "set", 3, size=(side, side))
    right = constant_bundle(tmp_path, capsys, "right", TRUTH)
    # Misses one of two persons, and finds a dog where none is.
    wrong = constant_bundle(tmp_path, capsys, "wrong", [*TRUTH[:2], ((20, 40, 40, 60), 0.9, 2)])
    labels = tmp_path / "set" / "labels.json"
    labels.write_text(json.dumps(coco([f"{n:03}.png" for n in range(3)], TRUTH)))

    code, text, err = run(capsys, "eval", right, "--labels", labels, "--json")
    report = json.loads(text)
    assert code == 0, err
    assert report["labels"]["map"] == pytest.approx(1.0)
    assert report["labels"]["per_label"]["person"] == {"truth": 6, "ap": pytest.approx(1.0)}
    assert report["agreement"] is None

    code, text, _ = run(
        capsys, "eval", wrong, "--against", right, "--labels", labels, "--json", "--worst", tmp_path / "worst"
    )
    report = json.loads(text)
    # COCO reads precision at 101 recalls: half of the persons are the first 51 of them.
    persons = 51 / 101
    assert report["labels"]["map"] == pytest.approx((persons + 1) / 2)
    assert report["labels"]["map_ratio"] == pytest.approx((persons + 1) / 2)
    agreement = report["agreement"]
    assert agreement["ap50_mean_of_labels"] == pytest.approx((persons + 1) / 2)
    assert agreement["ap50"] == pytest.approx((6 * persons + 3) / 9)
    assert agreement["boxes"] == {"truth": 9, "found": 9, "recall": pytest.approx(2 / 3), "extra": pytest.approx(1 / 3)}
    assert len(report["worst"]) == 3
    for path in report["worst"]:
        with Image.open(path) as picture:
            assert picture.size == (side, side)
            red = np.asarray(picture.convert("RGB")).astype(int)[40:42, 4:13]  # the person that was missed
            assert (red[..., 0] - red[..., 1:].max(axis=-1)).mean() > 50


@pytest.mark.parametrize(("least", "code"), [("0.74", 0), ("0.76", 1)])
def test_a_ratio_that_is_too_low_is_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], least: str, code: int
) -> None:
    write_pictures(tmp_path / "set", 2, size=(CONSTANT_SIDE, CONSTANT_SIDE))
    right = constant_bundle(tmp_path, capsys, "right", TRUTH)
    wrong = constant_bundle(tmp_path, capsys, "wrong", TRUTH[:2])
    labels = tmp_path / "set" / "labels.json"
    labels.write_text(json.dumps(coco(["000.png", "001.png"], TRUTH)))
    found, text, _ = run(capsys, "eval", wrong, "--against", right, "--labels", labels, "--min-ratio", least)
    assert found == code
    assert "mAP ratio on labels 0.75" in text
    # Without labels the agreement is judged: (51 / 101 * 2 + 1) / 3.
    for limit, expected in (("0.66", 0), ("0.68", 1)):
        found, text, _ = run(
            capsys, "eval", wrong, "--against", right, "--images", tmp_path / "set", "--min-ratio", limit
        )
        assert found == expected
        assert "agreement AP50 0.67" in text


def test_labels_that_don_t_fit_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_pictures(tmp_path / "set", 1, size=(CONSTANT_SIDE, CONSTANT_SIDE))
    bundle = constant_bundle(tmp_path, capsys, "right", TRUTH)
    labels = folder / "labels.json"

    def check(text: str, *words: str | Path, code: int = 65) -> str:
        labels.write_text(text)
        return refused(capsys, code, "eval", bundle, "--labels", labels, *words)

    good = coco(["000.png"], TRUTH)
    assert "boxes of lorry, which the model does not know" in check(
        json.dumps(coco(["000.png"], TRUTH, names=("person", "lorry", "dog")))
    )
    assert "is no JSON" in check("{")
    assert "is no COCO JSON" in check('{"images": []}')
    assert "has no boxes" in check(json.dumps({**good, "annotations": []}))
    assert "which it does not list" in check(json.dumps({**good, "images": []}))
    assert "no such" in check(json.dumps(coco(["nowhere.png"], TRUTH)), code=66)
    assert "not to a video" in check(json.dumps(good), "--video", tmp_path / "x.mp4", code=2)
    assert "needs a second bundle" in check(json.dumps(good), "--min-ratio", "0.9", code=2)
    assert "no truth to compare with" in refused(capsys, 2, "eval", bundle, "--images", folder)
    assert "no such file" in refused(capsys, 66, "eval", bundle, "--labels", tmp_path / "nowhere.json")


def test_a_full_disk_leaves_no_worst_frames(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images, worst = write_pictures(tmp_path / "images", 3), tmp_path / "worst"
    all_three, one = (
        constant_bundle(tmp_path, capsys, "three", TRUTH),
        constant_bundle(tmp_path, capsys, "one", TRUTH[:1]),
    )
    words = ("eval", one, "--against", all_three, "--images", images, "--worst", worst)
    assert run(capsys, *words)[0] == 0
    sizes = sorted(path.stat().st_size for path in worst.iterdir())
    for path in worst.iterdir():
        path.unlink()
    with disk_full_at(sizes[1]):  # the largest picture no longer fits
        line = refused(capsys, 73, *words)
    assert "can't be written" in line
    assert list(worst.iterdir()) == []


def test_a_truth_without_a_box_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images, blind = write_pictures(tmp_path / "images", 1), constant_bundle(tmp_path, capsys, "blind", [])
    code, _, err = run(capsys, "eval", blind, "--against", blind, "--images", images)
    assert code == 0
    assert "blind finds nothing on these frames" in err


@pytest.mark.parametrize("words", [("--frames", "-1"), ("--frames", "x"), ("--min-ratio", "3"), ("--min-ratio", "x")])
def test_a_number_without_sense_is_told_as_one(capsys: pytest.CaptureFixture[str], words: tuple[str, str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["model", "eval", "nanodet-g-416", *words])
    assert f"{words[0]}: {words[1]!r} is no " in capsys.readouterr().err


def test_a_bundle_with_other_labels_is_no_truth(
    tmp_path: Path, detector: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = write_pictures(tmp_path / "images", 1, size=(SIDE, SIDE))
    assert "has other labels" in refused(capsys, 65, "eval", detector, "--against", "nanodet-g-416", "--images", images)

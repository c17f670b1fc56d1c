"""`zhc-edge model build` with the real builder of TensorRT for RTX, which needs no GPU to build."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests import needs
from tests.contract.sinks import disk_full_at, files
from tests.unit.support_models import write_constant_model
from tests.unit.test_bundle import make_bundle
from tools.bench import model as shaped
from zhcedge import cli
from zhcedge.app.build_process import BuildProcess, available_mib, memory_mib
from zhcedge.app.channels import clip_path
from zhcedge.app.model_build import BuildRequest, build_model, installed_kind
from zhcedge.app.platform_facts import driver_version, l4t_release
from zhcedge.core.errors import ModelError, OutputError, UsageError, ZhcEdgeError
from zhcedge.models._vendor_precision import half_precision, read_precision
from zhcedge.models.bundle import load_bundle
from zhcedge.models.plans import PlanStore, read_plan

pytestmark = [pytest.mark.slow, pytest.mark.company]  # minutes of real processes and servers

DEFAULT = "nanodet-g-416"
TARGETS = ("sm86", "sm89")

needs_builder = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason=needs.wheel("tensorrt-rtx-cu13 is not installed")
)


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's folder of plans; nothing half written may stay in it."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    folder = tmp_path / "data" / "zhcedge" / "plans"
    yield folder
    if folder.is_dir():
        assert [name for name in files(folder) if name.endswith(".part")] == []


def request(bundle: str | Path, **more: object) -> BuildRequest:
    given: dict[str, object] = {"engine": "tensorrt_rtx", "targets": TARGETS, **more}
    return BuildRequest(str(bundle), **given)  # type: ignore[arg-type]


def quantised(folder: Path, source: Path) -> Path:
    """A bundle of `source`'s model in int8, as `model quantize` makes it from ten pictures of noise."""
    from PIL import Image

    pictures = folder.parent / "noise"
    pictures.mkdir()
    for number in range(10):
        noise = np.random.default_rng(number).integers(0, 256, (96, 128, 3), np.uint8)
        Image.fromarray(noise).save(pictures / f"{number}.png")
    assert cli.main(["model", "quantize", str(source), "--images", str(pictures), "--out", str(folder)]) == 0
    return folder


def with_model(folder: Path, bundle: Path, model: Path) -> Path:
    """A copy of a bundle with another model file."""
    import hashlib
    import shutil

    shutil.copytree(bundle, folder)
    shutil.copyfile(model, folder / "model.onnx")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["sha256"]["model.onnx"] = hashlib.sha256(model.read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


# -- the real builder ------------------------------------------------------------------------------------------
@needs_builder
def test_the_bundled_model_is_built_for_two_gpus_and_a_second_time_is_a_cache_hit(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["model", "build", DEFAULT, "--engine", "tensorrt_rtx", "--json", "--target"]
    told = []
    for target in ("sm86,sm89", "sm86,sm89", "sm89"):
        assert cli.main([*words, target]) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert [one["was_there"] for one in told] == [False, True, True]
    assert len({one["plan"] for one in told}) == 1
    assert (told[0]["precision"], told[0]["targets"]) == ("fp16", ["sm86", "sm89"])
    plan = Path(told[0]["plan"])
    identity, data = read_plan(plan)
    assert plan.parent == store
    assert identity.model == load_bundle(DEFAULT).facts.sha256
    assert len(data) > 100_000


@needs_builder
def test_a_damaged_plan_in_the_store_is_built_again() -> None:
    first = build_model(request(DEFAULT, targets=("sm86",)))
    data = bytearray(first.path.read_bytes())
    data[-1] ^= 1
    first.path.write_bytes(data)
    again = build_model(request(DEFAULT, targets=("sm86",)))
    assert not again.was_there
    read_plan(again.path, again.identity)


@needs_builder
def test_progress_grows_to_the_end_and_out_names_the_file(tmp_path: Path, store: Path) -> None:
    shares: list[float] = []
    report = build_model(
        request(DEFAULT, precision="fp32", out=tmp_path / "my.plan"), lambda share, what: shares.append(share)
    )
    assert shares == sorted(shares)
    assert shares[-1] > 0.5
    assert report.path == tmp_path / "my.plan"
    assert read_plan(report.path)[0].precision == "fp32"
    assert not store.exists()


def write_shaped(folder: Path, size_px: int = 320) -> Path:
    """A bundle of the network that is shaped like YOLOv8n."""
    shaped.write_bundle(folder, size_px, "n", is_half=False)
    return folder


@needs_builder
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", [DEFAULT, "yolov8n-shaped"])
def test_both_networks_are_built_in_floating_point(tmp_path: Path, name: str, precision: str) -> None:
    source = name if name == DEFAULT else write_shaped(tmp_path / "shaped")
    report = build_model(request(source, precision=precision, batch=0 if name == DEFAULT else 4))
    assert (report.identity.precision, report.identity.targets) == (precision, TARGETS)
    assert report.size_bytes > 1_000_000


@needs_builder
@pytest.mark.parametrize("name", [DEFAULT, "yolov8n-shaped"])
def test_an_onnx_file_becomes_a_plan_in_int8_by_the_commands_of_the_readme(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Import, quantise, evaluate, build for SM 8.6 and 8.9; ten frames of the clip that were not calibrated with."""
    source = load_bundle(DEFAULT).folder if name == DEFAULT else write_shaped(tmp_path / "shaped")
    clip, models = str(clip_path("walkers")), tmp_path / "models"

    def run(*words: str | Path) -> dict[str, Any]:
        assert cli.main(["model", *map(str, words), "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    # What these two files don't say of themselves: exporters write it into the metadata.
    said = ["--labels", source / "labels.txt", "--head", "yolov8", "--score", "0.4"]
    size = ["--size", "416"] if name == DEFAULT else ["--size", "320"]
    run("import", source / "model.onnx", "--name", "float", "--out", models, *said, *size)
    made = run("quantize", models / "float", "--video", clip, "--frames", "10", "--out", models / "int8")
    # The head alone stays in floating point: three last layers, or six and the product that reads the distribution.
    assert (made["frames"], len(made["excluded"])) == (10, 3 if name == DEFAULT else 7)
    found = run("eval", models / "int8", "--against", models / "float", "--video", clip, "--frames", "10")
    assert (found["frames"], found["excluded_calibration_frames"]) == (10, 0)
    assert found["agreement"]["boxes"]["truth"] > 20
    assert found["agreement"]["ap50"] > 0.9
    built = run("build", models / "int8", "--engine", "tensorrt_rtx", "--target", ",".join(TARGETS))
    assert (built["precision"], built["targets"], built["was_there"]) == ("int8", list(TARGETS), False)
    assert built["model_sha256"] == load_bundle(models / "int8").facts.sha256
    assert read_plan(Path(built["plan"]))[0].precision == "int8"


@pytest.mark.slow
@pytest.mark.parametrize("is_quantised", [False, True])
def test_half_precision_gives_the_same_boxes_within_its_resolution(tmp_path: Path, is_quantised: bool) -> None:
    import onnxruntime

    folder = write_shaped(tmp_path / "shaped", 96)
    folder = quantised(tmp_path / "int8", folder) if is_quantised else folder
    half = onnx.load_from_string(half_precision(folder / "model.onnx"))
    for entry in half.opset_import:  # ONNX Runtime, other than TensorRT, insists on an opset with FP16 scales
        entry.version = 19
    picture = {"images": np.random.default_rng(3).random((1, 3, 96, 96), np.float32)}
    options = onnxruntime.SessionOptions()  # its fusions make operators of Q/DQ pairs that have no FP16
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    outputs = [
        onnxruntime.InferenceSession(model, options).run(None, picture)[0]
        for model in ((folder / "model.onnx").read_bytes(), half.SerializeToString())
    ]
    assert outputs[0].dtype == outputs[1].dtype == np.float32
    tolerance = 0.1 if is_quantised else 0.02  # a step of int8 falls the other way now and then
    assert np.abs(outputs[0][:, 4:] - outputs[1][:, 4:]).max() < tolerance


# -- bad input -------------------------------------------------------------------------------------------------
def bad_bundle(folder: Path, kind: str) -> Path:
    """A bundle that is well formed but for its graph."""
    path = folder.parent / "bad.onnx"
    if kind == "not ONNX":
        path.write_bytes(b"this is a text\n")
    elif kind == "opset":
        write_constant_model(path, np.zeros((6, 126), np.float32), size=(96, 64), opset=26, ir_version=13)
    else:
        shape = [1, 3, 64, 96]
        node = helper.make_node("Det", ["images"], ["d"], name="/model/Det_3")
        nodes = [node, helper.make_node("Reshape", ["d", "shape"], ["output0"])]
        inputs = [helper.make_tensor_value_info("images", TensorProto.FLOAT, shape)]
        if kind == "second input":
            nodes = [helper.make_node("Add", ["images", "more"], ["output0"], name="sum")]
            inputs.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, ["a", 3, 64, 96]))
        graph = helper.make_graph(
            nodes,
            "bad",
            inputs,
            [helper.make_tensor_value_info("output0", TensorProto.FLOAT, None)],
            [helper.make_tensor("shape", TensorProto.INT64, [3], [1, 1, 3])],
        )
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))
    return with_model(folder, make_bundle(folder.parent / "good"), path)


@needs_builder
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("not ONNX", "no ONNX model"),
        ("opset", "opset 26, tensorrt_rtx .* reads 9 to 22"),
        ("operator", "operator Det is not supported .node 0, '/model/Det_3'."),
        ("second input", "wants an input 'more'"),
    ],
)
def test_a_bad_graph_is_refused_with_its_fault(tmp_path: Path, store: Path, kind: str, says: str) -> None:
    with pytest.raises(ZhcEdgeError, match=says) as caught:
        build_model(request(bad_bundle(tmp_path / "bad", kind), precision="fp32"))
    assert caught.value.exit_code == ModelError.exit_code
    assert not store.exists()


@needs_builder
def test_a_full_disk_is_an_output_error(tmp_path: Path) -> None:
    with disk_full_at(100_000), pytest.raises(ZhcEdgeError, match="can't be written") as caught:
        build_model(request(DEFAULT, out=tmp_path / "my.plan"))
    assert caught.value.exit_code == OutputError.exit_code
    assert files(tmp_path) == []


@needs_builder
def test_a_builder_above_its_memory_is_stopped_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZhcEdgeError, match=r"took \d+ MiB of memory, 150 are allowed: it was stopped"):
        build_model(request(DEFAULT, memory_mib=150, out=tmp_path / "my.plan"))
    assert files(tmp_path) == []


@needs_builder
def test_a_builder_that_the_system_kills_is_reported_and_gone() -> None:
    with BuildProcess("tensorrt_rtx") as process:
        assert process.facts().version
        process.cancel()
        with pytest.raises(ZhcEdgeError, match="killed, probably by the system"):
            process.build("{}", lambda share, what: None)
    assert not Path(f"/proc/{process.pid}").exists()


def test_a_library_that_is_not_there_is_named() -> None:
    if importlib.util.find_spec("tensorrt") is not None and installed_kind() == "tensorrt":
        pytest.skip("cannot run here: TensorRT is installed")
    with pytest.raises(ZhcEdgeError, match="tensorrt can't be imported"):
        build_model(BuildRequest(DEFAULT, engine="tensorrt"))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"precision": "int8"}, "zhc-edge model quantize nanodet-g-416"),
        ({"batch": 4}, "batches of 1"),
        ({"out": Path("nowhere/x.plan")}, "can't be written there"),
    ],
    ids=["int8", "batch", "out"],
)
def test_what_the_bundle_can_not_give_is_refused_before_anything_starts(more: dict[str, object], says: str) -> None:
    with pytest.raises((UsageError, OutputError), match=says):
        build_model(request(DEFAULT, **more))


@needs_builder
def test_targets_that_can_not_be_built_for_are_refused() -> None:
    with pytest.raises(UsageError, match="sm87"):
        build_model(request(DEFAULT, targets=("sm87",)))


def test_a_quantised_bundle_is_built_as_int8_only(tmp_path: Path) -> None:
    folder = quantised(tmp_path / "int8", write_shaped(tmp_path / "shaped", 64))
    assert read_precision(folder / "model.onnx").is_quantised
    with pytest.raises(UsageError, match="is quantised"):
        build_model(request(folder, precision="fp16"))


def test_a_model_of_half_precision_is_not_built_as_fp32(tmp_path: Path) -> None:
    shaped.write_bundle(tmp_path / "shaped", 64, "n")
    with pytest.raises(UsageError, match="FP16 already"):
        build_model(request(tmp_path / "shaped", precision="fp32"))


def test_values_that_half_precision_can_not_say_are_refused(tmp_path: Path) -> None:
    path = write_constant_model(tmp_path / "m.onnx", np.full((6, 126), 1e5, np.float32), size=(96, 64))
    with pytest.raises(ModelError, match="beyond FP16"):
        half_precision(path)


# -- small parts -----------------------------------------------------------------------------------------------
def test_platforms_are_read_off_the_systems_files() -> None:
    assert l4t_release("# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic\n") == "l4t-36.4.3"
    assert l4t_release("something else") == ""
    text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:15:10 UTC 2025\nGCC version:"
    assert driver_version(text) == "driver-580.65.06"
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build\n"
    assert driver_version(text) == "driver-580.82.07"
    assert driver_version("") == ""


def test_memory_is_measured() -> None:
    import os

    assert memory_mib(os.getpid()) > 5
    assert memory_mib(2**30) == 0
    assert available_mib() > 0


def test_a_store_that_can_not_be_made_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    from tests.unit.test_plans import PLAN, WANTED

    with pytest.raises(OutputError):
        PlanStore(tmp_path / "file" / "plans").put(WANTED, PLAN)

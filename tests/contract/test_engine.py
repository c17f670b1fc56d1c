"""What every engine does: load, refuse what does not fit, and run each lane over its own memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.contract.devices import DeviceCase, each_device, make_slot, tiny_model
from zhcedge.core.errors import ModelError, PhaseError
from zhcedge.core.types import ImageFormat

PATIENCE_S = 30.0


def write_model(
    path: Path, *, batch: int | str = 1, inputs: tuple[str, ...] = ("images",), element: int = TensorProto.FLOAT
) -> Path:
    """A graph that doubles its input and gives it the shape [batch, 6, 32]."""
    shape = helper.make_tensor("shape", TensorProto.INT64, [3], [0, 6, 32])
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["images", inputs[-1]], ["sum"]),
            helper.make_node("Reshape", ["sum", "shape"], ["output0"]),
        ],
        "tiny",
        [helper.make_tensor_value_info(name, element, [batch, 3, 8, 8]) for name in inputs],
        [helper.make_tensor_value_info("output0", element, [batch, 6, 32])],
        [shape],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, str(path))
    return path


@each_device
def test_each_lane_reads_and_writes_its_own_memory_while_the_other_runs(case: DeviceCase, tmp_path: Path) -> None:
    facts = tiny_model()
    with case.open() as device:
        engine = case.open_engine(write_model(tmp_path / "m.onnx"), facts, device)
        lanes = [device.create_lane(index, facts) for index in range(2)]
        slots = [make_slot(device, ImageFormat(8, 8), index) for index in range(2)]
        programs = [device.compile([engine.bind(lane)], lane, 1) for lane in lanes]
        device.arena.seal()
        for turn in range(20):
            pictures = [np.full(facts.input_shape, 10 * turn + index, np.float32) for index in range(2)]
            for lane, picture in zip(lanes, pictures, strict=True):
                case.write_tensor(lane.input, picture)
            fences = [program.launch([slot]) for program, slot in zip(programs, slots, strict=True)]
            assert all(fence.wait(PATIENCE_S) for fence in fences)
            for lane, picture in zip(lanes, pictures, strict=True):
                assert np.array_equal(case.read_tensor(lane.output).ravel(), 2 * picture.ravel())
        engine.close()


@each_device
def test_a_free_batch_runs_each_size_over_the_first_frames_only(case: DeviceCase, tmp_path: Path) -> None:
    facts = tiny_model(has_free_batch=True).with_batch(4)
    assert facts.batch_sizes == (1, 2, 4)
    with case.open() as device:
        engine = case.open_engine(write_model(tmp_path / "m.onnx", batch="n"), facts, device)
        lane = device.create_lane(0, facts)
        slots = [make_slot(device, ImageFormat(8, 8), index) for index in range(4)]
        stage = engine.bind(lane)
        programs = {size: device.compile([stage], lane, size) for size in facts.batch_sizes}
        picture = np.arange(1, 1 + 4 * 192, dtype=np.float32).reshape(facts.input_shape)
        for size in (4, 1, 2, 4, 2):
            case.write_tensor(lane.input, picture)
            case.write_tensor(lane.output, np.zeros(facts.output_shape, np.float32))
            assert programs[size].launch(slots[:size]).wait(PATIENCE_S)
            output = case.read_tensor(lane.output).reshape(4, -1)
            assert np.array_equal(output[:size].ravel(), 2 * picture[:size].ravel())
            assert not output[size:].any()
        engine.close()


@each_device
def test_half_precision_tensors_are_read_and_written_as_such(case: DeviceCase, tmp_path: Path) -> None:
    facts = tiny_model(input_dtype="float16", output_dtype="float16")
    with case.open() as device:
        path = write_model(tmp_path / "m.onnx", element=TensorProto.FLOAT16)
        with pytest.raises(ModelError, match="float16"):
            case.open_engine(path, tiny_model(), device)
        engine = case.open_engine(path, facts, device)
        lane = device.create_lane(0, facts)
        program = device.compile([engine.bind(lane)], lane, 1)
        picture = np.arange(192, dtype=np.float16).reshape(facts.input_shape)
        case.write_tensor(lane.input, picture)
        assert program.launch([make_slot(device, ImageFormat(8, 8))]).wait(PATIENCE_S)
        assert np.array_equal(case.read_tensor(lane.output).ravel(), 2 * picture.ravel())
        engine.close()


@each_device
def test_a_graph_with_a_fixed_batch_is_refused_where_the_facts_call_it_free(case: DeviceCase, tmp_path: Path) -> None:
    facts = tiny_model(has_free_batch=True)
    with case.open() as device, pytest.raises(ModelError, match="fixed batch of 1"):
        case.open_engine(write_model(tmp_path / "m.onnx"), facts, device)


@each_device
def test_a_free_batch_dimension_takes_the_size_of_the_facts(case: DeviceCase, tmp_path: Path) -> None:
    facts = tiny_model(input_shape=(2, 3, 8, 8), output_shape=(2, 6, 32))
    with case.open() as device:
        engine = case.open_engine(write_model(tmp_path / "m.onnx", batch="n"), facts, device)
        lane = device.create_lane(0, facts)
        slots = [make_slot(device, ImageFormat(8, 8), index) for index in range(2)]
        program = device.compile([engine.bind(lane)], lane, 2)
        picture = np.arange(2 * 192, dtype=np.float32).reshape(facts.input_shape)
        case.write_tensor(lane.input, picture)
        assert program.launch(slots).wait(PATIENCE_S)
        assert np.array_equal(case.read_tensor(lane.output).ravel(), 2 * picture.ravel())
        engine.close()


@each_device
def test_the_description_names_library_version_and_precision(case: DeviceCase, tmp_path: Path) -> None:
    with case.open() as device:
        engine = case.open_engine(write_model(tmp_path / "m.onnx"), tiny_model(), device)
        assert len(engine.description.split()) >= 4
        assert engine.facts == tiny_model()
        engine.close()


@each_device
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"input_name": "picture"}, "picture"),
        ({"output_name": "boxes"}, "boxes"),
        ({"input_shape": (1, 3, 16, 8)}, "16"),
        ({"output_shape": (1, 7, 32)}, "7"),
    ],
    ids=str,
)
def test_facts_that_differ_from_the_graph_are_refused(
    case: DeviceCase, tmp_path: Path, changes: dict[str, object], named: str
) -> None:
    with case.open() as device, pytest.raises(ModelError, match=named):
        case.open_engine(write_model(tmp_path / "m.onnx"), tiny_model(**changes), device)


@each_device
def test_a_graph_with_a_second_input_is_refused(case: DeviceCase, tmp_path: Path) -> None:
    with case.open() as device, pytest.raises(ModelError, match="2 inputs"):
        case.open_engine(write_model(tmp_path / "m.onnx", inputs=("images", "more")), tiny_model(), device)


@each_device
def test_another_element_type_is_refused(case: DeviceCase, tmp_path: Path) -> None:
    with case.open() as device, pytest.raises(ModelError, match="double"):
        case.open_engine(write_model(tmp_path / "m.onnx", element=TensorProto.DOUBLE), tiny_model(), device)


@each_device
@pytest.mark.parametrize("content", [None, b"", b"not a model", "cut"], ids=["missing", "empty", "noise", "cut"])
def test_a_file_that_is_no_model_is_refused(case: DeviceCase, tmp_path: Path, content: bytes | str | None) -> None:
    path = tmp_path / "m.onnx"
    if content == "cut":
        path.write_bytes(write_model(path).read_bytes()[:-20])
    elif isinstance(content, bytes):
        path.write_bytes(content)
    with case.open() as device, pytest.raises(ModelError) as caught:
        case.open_engine(path, tiny_model(), device)
    assert "m.onnx" in caught.value.where
    assert "\n" not in str(caught.value)


@each_device
def test_a_closed_engine_binds_no_lane(case: DeviceCase, tmp_path: Path) -> None:
    with case.open() as device:
        engine = case.open_engine(write_model(tmp_path / "m.onnx"), tiny_model(), device)
        lane = device.create_lane(0, tiny_model())
        engine.close()
        with pytest.raises(PhaseError):
            engine.bind(lane)


WITHOUT_RUNTIME = """
import sys
from pathlib import Path

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "onnxruntime":
            raise ModuleNotFoundError("No module named 'onnxruntime'", name=name)

sys.meta_path.insert(0, Blocked())
from zhcedge.backends.engines._vendor import open_session
from zhcedge.core.errors import BackendUnavailableError

try:
    open_session(Path("m.onnx"), install="pip install it", providers=[], threads=1, config={})
except BackendUnavailableError as error:
    print(error)
"""


def test_a_missing_runtime_names_the_line_that_installs_it() -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_RUNTIME], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.strip() == "onnxruntime can't be imported (No module named 'onnxruntime'); pip install it"


def test_opening_a_model_starts_no_usage_upload(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; import sys, time\n"
        "from zhcedge.backends.engines._vendor import open_session\n"
        "providers = [('CPUExecutionProvider', {})]\n"
        "session = open_session(Path(sys.argv[1]), install='', providers=providers, threads=1, config={})\n"
        "time.sleep(1)\n"
    )
    model = Path(__file__).parents[2] / "zhcedge/models/bundles/nanodet-g-416/model.onnx"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environ = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    subprocess.run([sys.executable, "-c", code, model], env={**environ, "TMPDIR": str(scratch)}, check=True)
    assert list(scratch.iterdir()) == []  # the uploader keeps its session file there

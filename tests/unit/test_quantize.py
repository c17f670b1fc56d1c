"""Quantisation: where Q/DQ pairs go, what is left alone, how ranges are chosen, and that little is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper, numpy_helper

from tests.unit.support_graphs import CHANNELS, CLASSES, SIDE, NetworkWriter, write_detector
from zhcedge.core.errors import ModelError, OutputError
from zhcedge.models import calibration as ranges
from zhcedge.models.bundle import load_bundle
from zhcedge.models.calibration import LEVELS, Histogram, Method, Sample, digest_of_all
from zhcedge.models.graph import WEIGHTED, find_head, find_sites, leave_float
from zhcedge.models.qdq_rules import rule_faults
from zhcedge.models.quantize import QuantisedModel, collect, open_float_model, quantise, read_digests

PICTURES = 12
NOTHING = 1e-12
"""What a histogram takes for zero."""
Floats = npt.NDArray[np.float32]


def pictures(count: int = PICTURES, seed: int = 7, batch: int = 1) -> list[Floats]:
    """Noise, each at a brightness of its own."""
    random = np.random.default_rng(seed)
    return [
        (random.random((batch, 3, SIDE, SIDE), np.float32) * random.random()).astype(np.float32) for _ in range(count)
    ]


def samples(count: int = PICTURES, batch: int = 1) -> Iterator[Sample]:
    for number, values in enumerate(pictures(count, batch=batch)):
        yield Sample(f"{number:064x}", values)


def quantised(path: Path, method: Method = Method.MINMAX, parts: tuple[str, ...] = ()) -> QuantisedModel:
    seen = collect(open_float_model(path), samples, parts)
    return quantise(seen, seen.calibrate(method), samples)


def outputs(path: Path, inputs: list[Floats]) -> Floats:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.stack([session.run(None, {"images": values})[0] for values in inputs])


def ops(path: Path, names: frozenset[str]) -> list[str]:
    """Operators of the named nodes, those that multiply and accumulate."""
    graph = open_float_model(path).graph
    return sorted(node.op for node in graph.nodes if node.name in names and node.op in WEIGHTED)


@pytest.mark.parametrize("dfl_by", ["Conv", "MatMul", "ReduceSum"])
@pytest.mark.parametrize("named", [True, False], ids=["named", "nameless"])
def test_the_head_is_found_by_its_connections_however_it_is_exported(tmp_path: Path, dfl_by: str, named: bool) -> None:
    path = write_detector(tmp_path / "model.onnx", dfl_by=dfl_by, named=named)
    graph = open_float_model(path).graph
    head = find_head(graph)
    projection = [dfl_by] if dfl_by in WEIGHTED else []
    assert ops(path, head) == sorted(["Conv", "Conv", *projection])  # the last ones of boxes and of classes
    sites = find_sites(graph, head)
    weighted = [node for node in graph.nodes if node.op in WEIGHTED]
    assert len(sites.excluded) == 2 + len(projection)
    # Two in the stem, two in the block, one before each last layer, and the block's residual; no sum of the head.
    assert len(sites.nodes) == len(weighted) - len(sites.excluded) + 1 == 7


def test_the_bundled_models_last_layers_and_box_arithmetic_are_its_head() -> None:
    graph = open_float_model(load_bundle("nanodet-g-416").model_path).graph
    sites = find_sites(graph, find_head(graph))
    by_name = {node.name: node for node in graph.nodes}
    assert [by_name[name].op for name in sites.excluded] == ["Conv"] * 3
    assert sorted(by_name[name].op for name in sites.nodes) == ["Add"] * 4 + ["Conv"] * 31


def test_more_can_be_left_in_floating_point(tmp_path: Path) -> None:
    path = write_detector(tmp_path / "model.onnx")
    graph = open_float_model(path).graph
    head = find_head(graph)
    first, before = leave_float(graph, ["first"]) - head, leave_float(graph, ["before-head"]) - head
    assert len(first) == 1
    assert "images" in next(node for node in graph.nodes if node.name in first).inputs
    assert len(before) == 2
    assert first.isdisjoint(before)


@pytest.mark.parametrize("method", list(Method), ids=lambda method: method.value)
def test_a_quantised_graph_keeps_every_rule_and_nearly_every_value(tmp_path: Path, method: Method) -> None:
    path = write_detector(tmp_path / "model.onnx", residuals=2)
    model = quantised(path, method)
    assert rule_faults(model.graph, model.constant) == []
    model.save(tmp_path / "int8.onnx")
    onnx.checker.check_model(str(tmp_path / "int8.onnx"))
    before, after = (outputs(tmp_path / name, pictures(4, seed=99)) for name in ("model.onnx", "int8.onnx"))
    assert np.abs(after[:, :, 4:] - before[:, :, 4:]).max() < 0.05  # scores
    assert np.abs(after[:, :, :4] - before[:, :, :4]).max() < 2.0  # pixels
    assert not np.array_equal(before, after)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 1000),
    opset=st.integers(11, 19),
    residuals=st.integers(0, 2),
    bias=st.booleans(),
    batch=st.sampled_from([1, 2, "batch"]),
    dfl_by=st.sampled_from(["Conv", "MatMul"]),
    parts=st.sampled_from([(), ("first",), ("before-head",), ("first", "before-head")]),
)
def test_the_rules_hold_for_any_network_of_this_kind(
    tmp_path: Path,
    seed: int,
    opset: int,
    residuals: int,
    bias: bool,
    batch: int | str,
    dfl_by: str,
    parts: tuple[str, ...],
) -> None:
    path = write_detector(
        tmp_path / "model.onnx", seed=seed, opset=opset, residuals=residuals, bias=bias, batch=batch, dfl_by=dfl_by
    )
    count = batch if isinstance(batch, int) else 1
    seen = collect(open_float_model(path), lambda: samples(10, count), parts)
    model = quantise(seen, seen.calibrate(Method.L4), lambda: samples(10, count))
    assert rule_faults(model.graph, model.constant) == []
    pairs = [node for node in model.graph.nodes if node.op == "QuantizeLinear"]
    # One for each weight and one for each activation, however many layers read it.
    convolutions = sum(node.op == "Conv" for node in seen.model.graph.nodes if node.name in seen.sites.nodes)
    assert len(pairs) == convolutions + len(seen.sites.tensors)
    model.save(tmp_path / "int8.onnx")
    assert np.isfinite(outputs(tmp_path / "int8.onnx", pictures(1, batch=count))).all()


def break_bias(graph: onnx.GraphProto) -> None:
    node = next(node for node in graph.node if node.op_type == "Conv")
    graph.initializer.append(numpy_helper.from_array(np.zeros(CHANNELS, np.int32), "ints"))
    graph.initializer.append(numpy_helper.from_array(np.int32(0), "no_zero"))
    scale = next(node for node in graph.node if node.op_type == "DequantizeLinear").input[1]
    position = list(graph.node).index(node)
    dequantise = helper.make_node("DequantizeLinear", ["ints", scale, "no_zero"], ["bias"], name="bias_dq")
    graph.node.insert(position, dequantise)
    node.input[2] = "bias"


def break_zero_point(graph: onnx.GraphProto) -> None:
    name = next(node for node in graph.node if node.op_type == "QuantizeLinear").input[2]
    weight = next(weight for weight in graph.initializer if weight.name == name)
    values = numpy_helper.to_array(weight) + np.int8(3)
    weight.CopyFrom(numpy_helper.from_array(values.astype(np.int8), name))


def break_residual(graph: onnx.GraphProto) -> None:
    made = {node.output[0]: node for node in graph.node}
    add = next(node for node in graph.node if node.op_type == "Add" and "Dequantize" in made[node.input[0]].op_type)
    add.input[0] = made[made[add.input[0]].input[0]].input[0]


def break_head(graph: onnx.GraphProto) -> None:
    pair = next(node for node in graph.node if node.op_type == "DequantizeLinear" and "w" not in node.input[0])
    last = [node for node in graph.node if node.op_type == "Conv"][-2]  # the last but the projection: the class head
    last.input[0] = pair.output[0]


def break_channels(graph: onnx.GraphProto) -> None:
    made = {node.output[0]: node for node in graph.node}
    conv = next(node for node in graph.node if node.op_type == "Conv")
    scale = made[conv.input[1]].input[1]
    weight = next(weight for weight in graph.initializer if weight.name == scale)
    weight.CopyFrom(numpy_helper.from_array(np.float32(0.1), scale))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (break_bias, "bias"),
        (break_zero_point, "zero point other than 0"),
        (break_residual, "one quantised input of two"),
        (break_head, "belongs to the head"),
        (break_channels, "no scale per channel"),
    ],
)
def test_every_broken_rule_is_seen(tmp_path: Path, damage: object, words: str) -> None:
    assert callable(damage)
    model = quantised(write_detector(tmp_path / "model.onnx"))
    model.save(tmp_path / "int8.onnx")
    broken = onnx.load(str(tmp_path / "int8.onnx"))
    damage(broken.graph)
    from zhcedge.models._vendor_quantization import _view  # the rules work on this view of a file

    weights = {weight.name: numpy_helper.to_array(weight) for weight in broken.graph.initializer}
    faults = rule_faults(_view(broken), weights.__getitem__)
    assert any(words in fault for fault in faults), faults


def test_whoever_is_not_quantised_reads_what_was_never_rounded(tmp_path: Path) -> None:
    net = NetworkWriter()
    stem = net.add("Relu", [net.conv("images", 3, CHANNELS, 4, 4)])  # read by a convolution and by the Concat
    both = net.add("Concat", [stem, net.conv(stem, CHANNELS, CHANNELS)], axis=1)
    last = net.conv(net.conv(both, 2 * CHANNELS, CHANNELS), CHANNELS, 4 + CLASSES, 1)
    net.add("Reshape", [last, net.shape(1, 4 + CLASSES, -1)], "output0")
    graph = quantised(net.save(tmp_path / "model.onnx")).graph
    concat = next(node for node in graph.nodes if node.op == "Concat")
    assert [graph.producers[tensor].op for tensor in concat.inputs] == ["Relu", "Conv"]
    assert {node.op for node in graph.consumers[stem]} == {"QuantizeLinear", "Concat"}


def test_corrected_biases_take_the_mean_error_away(tmp_path: Path) -> None:
    path = write_detector(tmp_path / "model.onnx")
    seen = collect(open_float_model(path), samples)
    # Cutting off at a third makes a large error of one sign.
    cut = seen.calibrate(Method.MINMAX)
    cut.thresholds.update({tensor: limit / 3 for tensor, limit in cut.thresholds.items()})
    errors = {}
    for name, corrected in (("kept", None), ("corrected", samples)):
        reader = quantise(seen, cut, corrected).error_reader()
        means = [np.concatenate(list(reader.read(values).values())) for values in pictures()]
        errors[name] = np.abs(np.mean(means, axis=0)).max()
    assert errors["kept"] > 0.05
    assert errors["corrected"] < 1e-5


@given(
    hnp.arrays(np.float32, st.integers(1, 400), elements=st.floats(-1000, 1000, width=32)),
    st.sampled_from(list(Method)),
)
def test_a_threshold_is_positive_and_no_larger_than_what_was_seen(values: Floats, method: Method) -> None:
    histogram = Histogram()
    histogram.add(values)
    limit = histogram.threshold(method)
    assert limit > 0
    assert limit <= float(np.abs(values).max()) or np.abs(values).max() <= NOTHING


@given(st.lists(hnp.arrays(np.float32, 50, elements=st.floats(-100, 100, width=32)), min_size=1, max_size=6))
def test_a_range_that_grows_loses_no_value(arrays: list[Floats]) -> None:
    histogram = Histogram()
    for array in arrays:
        histogram.add(array)
    assert histogram.count == sum(int((np.abs(array) > NOTHING).sum()) for array in arrays)
    if histogram.count:
        assert histogram.threshold(Method.MINMAX) == max(float(np.abs(array).max()) for array in arrays)


def error_of(values: Floats, limit: float, power: int) -> float:
    scale = limit / LEVELS
    quantised = np.clip(np.rint(values / scale), -LEVELS, LEVELS) * scale
    return float((np.abs(values - quantised) ** power).mean())


@pytest.mark.parametrize(("method", "power"), [(Method.MSE, 2), (Method.L4, 4)])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_search_finds_no_worse_error_than_any_other_method(method: Method, power: int, seed: int) -> None:
    values = np.random.default_rng(seed).laplace(0, 1, 20000).astype(np.float32)
    histogram = Histogram()
    histogram.add(values)
    errors = {other: error_of(values, histogram.threshold(other), power) for other in Method}
    assert errors[method] <= 1.01 * min(errors.values())  # bins and steps cost a little


def test_one_outlier_makes_minmax_coarse_and_not_what_counts_values() -> None:
    values = np.random.default_rng(1).normal(0, 1, 100_000).astype(np.float32)
    limits = {}
    for method in Method:
        histogram = Histogram()
        histogram.add(values)
        histogram.add(np.float32([200.0]))
        limits[method] = histogram.threshold(method)
    assert limits[Method.MINMAX] == 200.0
    assert all(limits[method] < 100 for method in (Method.PERCENTILE, Method.ENTROPY))


def test_activations_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ModelError, match="not finite"):
        Histogram().add(np.float32([1.0, np.nan]))
    with pytest.raises(ModelError, match="not finite"):
        Histogram().add(np.float32([np.inf]))


def test_the_hash_of_the_pictures_does_not_depend_on_their_order() -> None:
    assert digest_of_all(["b", "a"]) == digest_of_all(["a", "b"]) != digest_of_all(["a", "c"])


def test_a_table_gives_its_pictures_back_and_anything_else_is_refused(tmp_path: Path) -> None:
    seen = collect(open_float_model(write_detector(tmp_path / "model.onnx")), samples)
    table = seen.calibrate(Method.MSE).as_json()
    assert read_digests(table, "table") == {sample.digest for sample in samples()}
    for text in ("", "[]", "{}", '{"frames": 3}'):
        with pytest.raises(ModelError, match="no calibration table"):
            read_digests(text, "table")


@pytest.mark.parametrize("count", [0, 9])
def test_too_few_pictures_are_refused(tmp_path: Path, count: int) -> None:
    with pytest.raises(ModelError, match=f"{count} pictures are too few"):
        collect(open_float_model(write_detector(tmp_path / "model.onnx")), lambda: samples(count))
    assert ranges.check_count(10, "x") != ""
    assert ranges.check_count(100, "x") == ""


def test_a_model_that_is_quantised_or_of_half_precision_or_damaged_is_refused(tmp_path: Path) -> None:
    path = write_detector(tmp_path / "model.onnx")
    quantised(path).save(tmp_path / "int8.onnx")
    with pytest.raises(ModelError, match="quantised already"):
        open_float_model(tmp_path / "int8.onnx")
    net = NetworkWriter()
    net.add("Identity", ["images"], "output0")
    half = net.save(tmp_path / "half.onnx", element=TensorProto.FLOAT16)
    with pytest.raises(ModelError, match="not of single precision"):
        open_float_model(half)
    (tmp_path / "torn.onnx").write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ModelError, match="can't be read as ONNX"):
        open_float_model(tmp_path / "torn.onnx")


def test_a_model_that_is_all_head_has_nothing_to_quantise(tmp_path: Path) -> None:
    net = NetworkWriter()
    features = net.conv("images", 3, 4 + CLASSES, 4, 4)
    net.add("Reshape", [features, net.shape(1, 4 + CLASSES, -1)], "output0")
    path = net.save(tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="nothing to quantise"):
        collect(open_float_model(path), samples)


def test_a_file_that_can_t_be_written_is_an_error_of_ours(tmp_path: Path) -> None:
    model = quantised(write_detector(tmp_path / "model.onnx"))
    with pytest.raises(OutputError, match="can't be written"):
        model.save(tmp_path / "nowhere" / "int8.onnx")

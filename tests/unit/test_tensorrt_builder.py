"""Building over a simulator of TensorRT: options, ranges of shapes, progress, timing cache, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim.tensorrt import (
    ErrorCode,
    ITensor,
    MemoryPoolType,
    NetworkDefinitionCreationFlag,
    ParserError,
    Severity,
    SimTensorRt,
)
from zhcedge.backends.engines.tensorrt import versions
from zhcedge.backends.engines.tensorrt.builder import BuildOrder, BuiltPlan, ProgressTree, build
from zhcedge.core.errors import BackendUnavailableError, ModelError, PipelineError, UsageError

ORDER = BuildOrder(
    name="tiny",
    onnx=b"graph",
    onnx_path="tiny.onnx",
    opset=13,
    input_name="images",
    input_shape=(1, 3, 8, 8),
    targets=("sm87",),
    workspace_bytes=1 << 20,
)


def build_with(sim: SimTensorRt, order: BuildOrder = ORDER) -> BuiltPlan:
    return build(sim, "tensorrt", order)


def test_the_network_is_strongly_typed_and_bounded() -> None:
    sim = SimTensorRt(build_says=[(Severity.WARNING, "slow  here"), (Severity.WARNING, "slow here")])
    built = build_with(sim)
    assert built.plan == b"a plan"
    assert built.warnings == ("slow here",)
    ((network, config),) = sim.built
    assert network.flags == 1 << NetworkDefinitionCreationFlag.STRONGLY_TYPED
    assert config.limits == {MemoryPoolType.WORKSPACE: 1 << 20}
    assert config.max_aux_streams == 0
    assert config.profiles == []


def test_an_open_batch_gets_the_range_from_one_and_an_open_side_the_pictures_size() -> None:
    sim = SimTensorRt(inputs=[ITensor("images", (-1, 3, -1, 8))])
    build_with(sim, replace(ORDER, input_shape=(4, 3, 8, 8)))
    (profile,) = sim.built[0][1].profiles
    assert profile.shapes == {"images": ((1, 3, 8, 8), (4, 3, 8, 8), (4, 3, 8, 8))}


def test_a_fixed_batch_with_an_open_side_is_not_made_free() -> None:
    sim = SimTensorRt(inputs=[ITensor("images", (2, 3, -1, 8))])
    build_with(sim, replace(ORDER, input_shape=(2, 3, 8, 8)))
    assert sim.built[0][1].profiles[0].shapes["images"] == ((2, 3, 8, 8),) * 3


@pytest.mark.parametrize(
    ("sim", "says"),
    [
        (SimTensorRt(inputs=[ITensor("images", (1, 3, 16, 8))]), r"takes \[1, 3, 16, 8\], not \[1, 3, 8, 8\]"),
        (SimTensorRt(inputs=[ITensor("images", (2, 3, 8, 8))]), "--batch"),
        (SimTensorRt(inputs=[ITensor("images", (1, 3, 8, 8)), ITensor("size", (-1,))]), r"input 'size' \[-1\]"),
        (SimTensorRt(outputs=[]), "no ONNX model"),
        (
            SimTensorRt(
                parser_errors=[
                    ParserError(ErrorCode.UNSUPPORTED_NODE, "false", 3, "/model/Det_3", "Det"),
                    ParserError(ErrorCode.INVALID_NODE, 'creator && "Plugin not found"', 5, "", "Foo"),
                    ParserError(ErrorCode.UNSUPPORTED_NODE, "Assertion failed: (a == b): ranks", 6, "/c", "Conv"),
                    ParserError(ErrorCode.INVALID_NODE, "axis >= 0", 7, "/cat", "Concat"),
                ]
            ),
            r"Det is not supported \(node 3, '/model/Det_3'\); operator Foo is not supported \(node 5, unnamed\); "
            r"operator Conv is not supported as it is used here: \(a == b\): ranks \(node 6, '/c'\); "
            r"operator Concat: axis >= 0 \(INVALID_NODE, node 7, '/cat'\)",
        ),
    ],
    ids=["size", "batch", "second input without a range", "empty", "operators"],
)
def test_a_graph_that_can_not_be_used_is_refused_with_every_fault(sim: SimTensorRt, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        build_with(sim)
    assert sim.built == []


def test_a_build_that_fails_says_the_last_error() -> None:
    says = [(Severity.ERROR, "first"), (Severity.ERROR, "Could not find any implementation for node conv1")]
    with pytest.raises(PipelineError, match="implementation for node conv1"):
        build_with(SimTensorRt(builds=False, build_says=says))


@pytest.mark.parametrize(
    ("given_cache", "kept"), [(b"", b"+1"), (b"mine", b"mine+1"), (b"rubbish", b"+1"), (b"other GPU", b"+1")]
)
def test_the_timing_cache_is_used_where_it_fits(given_cache: bytes, kept: bytes) -> None:
    assert build_with(SimTensorRt(), replace(ORDER, timing_cache=given_cache)).timing_cache == kept


@pytest.mark.parametrize(
    ("kind", "version", "newest"),
    [
        ("tensorrt", "10.3.0", 20),
        ("tensorrt", "10.13.3.9", 22),
        ("tensorrt", "10.16.0.72", 24),
        ("tensorrt", "11.4.0.106", 24),
        ("tensorrt", "11.5.0.1", 25),
        ("tensorrt_rtx", "1.7.1.116", 22),
    ],
)
def test_an_opset_that_the_parser_would_misread_is_refused(kind: str, version: str, newest: int) -> None:
    versions.check_opset(kind, version, newest, "m")
    for opset in (newest + 1, 8):
        with pytest.raises(ModelError, match=f"opset {opset}.*9 to {newest}"):
            versions.check_opset(kind, version, opset, "m")


def test_progress_reaches_the_end_and_names_the_phase() -> None:
    told: list[tuple[float, str]] = []
    build(SimTensorRt(), "tensorrt", ORDER, lambda share, what: told.append((share, what)))
    assert told[-1] == (1.0, "Building engine")
    assert "Timing" in {what for _, what in told}


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("begin"), st.sampled_from("abcd"), st.integers(0, 5)),
            st.tuples(st.just("step"), st.sampled_from("abcd"), st.integers(0, 9)),
            st.tuples(st.just("end"), st.sampled_from("abcd"), st.just(0)),
        )
    )
)
def test_progress_never_falls_whatever_the_library_says(calls: list[tuple[str, str, int]]) -> None:
    shares: list[float] = []
    tree = ProgressTree(lambda share, what: shares.append(share))
    for what, name, number in calls:
        if what == "begin":
            tree.begin(name, None, number)
        elif what == "step":
            tree.step(name, number)
        else:
            tree.end(name)
    assert shares == sorted(shares)
    assert all(0 <= share <= 1 for share in shares)


def test_targets_are_those_that_the_library_can_build_for() -> None:
    choose = versions.choose_targets
    assert choose("tensorrt", (), "sm87") == ("sm87",)
    assert choose("tensorrt", ("sm87",), "sm87") == ("sm87",)
    assert choose("tensorrt_rtx", (), "sm89") == ("sm89",)
    assert choose("tensorrt_rtx", ("sm120", "sm86", "sm86"), "") == ("sm86", "sm120")
    with pytest.raises(UsageError, match="for the GPU that it runs on"):
        choose("tensorrt", ("sm86",), "sm87")
    with pytest.raises(BackendUnavailableError, match="no NVIDIA GPU"):
        choose("tensorrt", ("sm86",), "")
    with pytest.raises(UsageError, match="sm87"):
        choose("tensorrt_rtx", ("sm86", "sm87"), "")
    with pytest.raises(UsageError, match="--target"):
        choose("tensorrt_rtx", (), "")
    with pytest.raises(UsageError, match="sm90"):
        choose("tensorrt_rtx", (), "sm90")

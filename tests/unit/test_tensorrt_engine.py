"""The TensorRT engine over a simulator of the library: memory, contexts, addresses, and each way to fail."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.contract.devices import tiny_model
from tests.sim.tensorrt import SimTensorRt, plan_of
from zhcedge.backends.engines.tensorrt.engine import TensorRtEngine, open_tensorrt
from zhcedge.core.errors import ModelError, PhaseError, PipelineError
from zhcedge.core.requests import EngineRequest
from zhcedge.core.types import ModelFacts, Tensor


@dataclass
class Arena:
    """Hands out addresses; says no once sealed."""

    owners: dict[str, list[int]] = field(default_factory=dict)
    is_sealed: bool = False
    refused: int = 0
    _next: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def tensor(self, name: str, shape: tuple[int, ...], dtype: str, owner: str) -> Tensor[int]:
        if self.is_sealed:
            self.refused += 1
            raise PhaseError(f"{shape[0]} bytes were asked for after the seal", where=owner)
        address = next(self._next) * 1 << 20
        self.owners.setdefault(owner, []).append(address)
        return Tensor(name, address, tuple(shape), dtype)

    def release(self, owner: str) -> None:
        self.owners.pop(owner, None)


@dataclass
class Lane:
    index: int
    input: Tensor[int]
    output: Tensor[int]
    stream_handle: int


@dataclass
class Device:
    name: str
    arena: Arena


def lane(index: int, facts: ModelFacts) -> Lane:
    first = 1000 * (index + 1)
    return Lane(
        index,
        Tensor(facts.input_name, first, facts.input_shape, facts.input_dtype),
        Tensor(facts.output_name, first + 1, facts.output_shape, facts.output_dtype),
        stream_handle=70 + index,
    )


def engine_of(
    sim: SimTensorRt, facts: ModelFacts | None = None, plan: bytes | None = None, arena: Arena | None = None
) -> tuple[TensorRtEngine, Arena]:
    arena = arena or Arena()
    facts = facts or tiny_model()
    request = EngineRequest(Path("model.onnx"), facts, plan=plan_of() if plan is None else plan, precision="int8")
    return TensorRtEngine(sim, "tensorrt", request, arena), arena


def test_each_lane_runs_on_its_own_stream_memory_and_scratch() -> None:
    sim = SimTensorRt()
    engine, _ = engine_of(sim)
    lanes = [lane(index, engine.facts) for index in range(2)]
    stages = [engine.bind(one) for one in lanes]
    for stage in (*stages, *stages):
        stage.enqueue(1)
    assert [run[0] for run in sim.runs] == [70, 71, 70, 71]
    assert [run[2] for run in sim.runs[:2]] == [{"images": 1000, "output0": 1001}, {"images": 2000, "output0": 2001}]
    scratches = {run[0]: run[1] for run in sim.runs}
    assert scratches[70] != scratches[71]
    assert {size for _, size in scratches.values()} == {sim.scratch_bytes}


def test_a_free_batch_has_one_context_a_size_over_the_scratch_of_its_lane() -> None:
    sim = SimTensorRt()
    facts = tiny_model(has_free_batch=True).with_batch(4)
    engine, arena = engine_of(sim, facts, plan_of(batch=4, is_free=True))
    stage = engine.bind(lane(0, facts))
    for batch in (4, 1, 2, 4, 1):
        stage.enqueue(batch)
    assert [run[3] for run in sim.runs] == [(size, 3, 8, 8) for size in (4, 1, 2, 4, 1)]
    assert len({run[1] for run in sim.runs}) == 1
    assert len(arena.owners["lane 0, engine scratch"]) == 1


def test_all_memory_of_the_library_is_the_arenas_and_goes_back() -> None:
    sim = SimTensorRt(weights_bytes=(5000, 300))
    engine, arena = engine_of(sim)
    assert engine.allocator.held_bytes == 5300
    assert len(arena.owners) == 2
    allocator = sim.allocator
    assert allocator is not None
    address = allocator.allocate(100, 256, 0)
    assert allocator.deallocate(address)
    assert allocator.deallocate_async(0, 0)  # nothing, which the library may give back
    assert engine.allocator.held_bytes == 5300
    assert (engine.allocator.allocations, engine.allocator.frees) == (3, 1)
    assert allocator.reallocate(address, 256, 10) == 0


def test_an_allocation_after_the_seal_is_refused_counted_and_ends_the_run() -> None:
    sim = SimTensorRt()
    engine, arena = engine_of(sim)
    stage = engine.bind(lane(0, engine.facts))
    arena.is_sealed = True

    def allocate() -> None:
        assert sim.allocator is not None
        sim.fails_to_run = not sim.allocator.allocate_async(64, 256, 0, 70)

    sim.on_run = allocate
    with pytest.raises(PipelineError, match="after the seal"):
        stage.enqueue(1)
    assert (arena.refused, engine.allocator.refused) == (1, 1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda sim: setattr(sim, "fails_to_make_contexts", True), "no execution context"),
        (lambda sim: setattr(sim, "scratch_bytes", 0), ""),
    ],
    ids=["context", "no scratch"],
)
def test_binding_fails_with_words_or_works(change: Callable[[SimTensorRt], None], says: str) -> None:
    sim = SimTensorRt()
    change(sim)
    engine, _ = engine_of(sim)
    if not says:
        engine.bind(lane(0, engine.facts)).enqueue(1)
        return
    with pytest.raises(PipelineError, match=says):
        engine.bind(lane(0, engine.facts))


def test_a_failing_run_says_what_the_library_said() -> None:
    sim = SimTensorRt(fails_to_run=True)
    engine, _ = engine_of(sim)
    with pytest.raises(PipelineError, match="enqueueV3 failed"):
        engine.bind(lane(0, engine.facts)).enqueue(1)


@pytest.mark.parametrize(
    ("plan", "facts", "says"),
    [
        (b"", tiny_model(), "no plan"),
        (b"damaged", tiny_model(), "magicTag"),
        (plan_of(input_name="picture"), tiny_model(), "no input 'images' .it has picture, output0."),
        (plan_of(dtype="HALF"), tiny_model(), "not float32"),
        (plan_of(input_shape=(3, 16, 8)), tiny_model(), "16"),
        (plan_of(output_shape=(7, 32)), tiny_model(), "7"),
        (plan_of(), tiny_model(has_free_batch=True), "fixed batch of 1"),
        (plan_of(batch=2, is_free=True), tiny_model(has_free_batch=True).with_batch(4), "up to 2, 4 are wanted"),
    ],
    ids=["none", "damaged", "name", "type", "picture", "boxes", "fixed", "batch"],
)
def test_a_plan_that_does_not_fit_is_refused(plan: bytes, facts: ModelFacts, says: str) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        engine_of(SimTensorRt(), facts, plan)
    assert caught.value.where == facts.name


def test_a_plan_that_finds_no_memory_says_who_refused_it() -> None:
    arena = Arena(is_sealed=True)
    with pytest.raises(ModelError, match="after the seal"):
        engine_of(SimTensorRt(), arena=arena)


def test_a_lane_of_another_model_is_refused() -> None:
    engine, _ = engine_of(SimTensorRt())
    other = lane(0, engine.facts)
    other.input = replace(other.input, shape=(1, 3, 16, 16))
    with pytest.raises(PipelineError, match="images"):
        engine.bind(other)


def test_nothing_is_bound_after_close_and_bound_stages_go_on() -> None:
    sim = SimTensorRt()
    engine, _ = engine_of(sim)
    stage = engine.bind(lane(0, engine.facts))
    engine.close()
    engine.close()
    with pytest.raises(PhaseError):
        engine.bind(lane(1, engine.facts))
    stage.enqueue(1)
    assert len(sim.runs) == 1


def test_the_description_names_library_version_and_precision() -> None:
    engine, _ = engine_of(SimTensorRt(__version__="10.3.0"))
    assert engine.description == "tensorrt 10.3.0, int8"


def test_the_factory_wants_the_cuda_device() -> None:
    request = EngineRequest(Path("m.onnx"), tiny_model(), plan=plan_of())
    with pytest.raises(PipelineError, match="cpu"):
        open_tensorrt(request, Device("cpu", Arena()))


def test_tensorrt_for_rtx_keeps_what_it_compiles_for_the_next_start(tmp_path: Path) -> None:
    cache = tmp_path / "nano.kernels"
    request = EngineRequest(Path("m.onnx"), tiny_model(), plan=plan_of(), runtime_cache=cache)
    for compiled in (1, 0):  # the second start finds what the first one has compiled
        sim = SimTensorRt(__version__="1.7.1")
        engine = TensorRtEngine(sim, "tensorrt_rtx", request, Arena())
        engine.bind(lane(0, engine.facts)).enqueue(1)
        assert (sim.compiled, len(sim.runs)) == (compiled, 1)
        engine.close()
    cache.write_bytes(b"rubbish")
    sim = SimTensorRt(__version__="1.7.1")
    engine = TensorRtEngine(sim, "tensorrt_rtx", request, Arena())
    engine.bind(lane(0, engine.facts)).enqueue(1)
    assert sim.compiled == 1
    assert cache.read_bytes() == b"kernels"


def test_a_runtime_cache_that_can_not_be_written_costs_time_only(tmp_path: Path) -> None:
    request = EngineRequest(Path("m.onnx"), tiny_model(), plan=plan_of(), runtime_cache=tmp_path / "gone" / "kernels")
    sim = SimTensorRt(__version__="1.7.1")
    engine = TensorRtEngine(sim, "tensorrt_rtx", request, Arena())
    engine.bind(lane(0, engine.facts)).enqueue(1)
    engine.close()
    assert len(sim.runs) == 1

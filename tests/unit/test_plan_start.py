"""What a start opens when its plan is there, is another machine's, is damaged, or is refused by the library."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from zhcedge.app import plan_start
from zhcedge.app.build_process import BuildProcess, LibraryFacts
from zhcedge.app.model_build import BuildReport, BuildRequest
from zhcedge.app.plan_start import EngineStart, build_request, open_started, start_engine, wanted_plan
from zhcedge.app.plan_swap import PlanSwap, may_swap
from zhcedge.backends.registry import Registry
from zhcedge.config.schema import Config
from zhcedge.core.errors import BackendUnavailableError, ConfigError, ModelError, UsageError
from zhcedge.core.ports import Device
from zhcedge.core.requests import EngineRequest
from zhcedge.models.bundle import load_bundle
from zhcedge.models.plans import PlanIdentity, PlanStore
from zhcedge.profiles import profile

BUNDLE = load_bundle("nanodet-g-416")
JETSON = LibraryFacts("10.3.0", "sm87")
RTX = profile("rtx")
PATIENCE_S = 30.0


def config(library: str = "tensorrt", chosen: str = "rtx", **engine: object) -> Config:
    return Config.model_validate(
        {
            "profile": chosen,
            "engine": {"library": library, **engine},
            "channels": {"a": {"source": {"uri": "rtsp://camera/1"}}},
        }
    )


def start(store: PlanStore, wanted: Config | None = None, library: LibraryFacts = JETSON) -> EngineStart:
    wanted = wanted or config()
    return start_engine(wanted, profile(wanted.profile), BUNDLE, BUNDLE.facts, store, lambda kind: library)


def wanted_of(wanted: Config | None = None) -> PlanIdentity:
    return wanted_plan(wanted or config(), BUNDLE, BUNDLE.facts, JETSON)


@pytest.fixture
def store(tmp_path: Path) -> PlanStore:
    return PlanStore(tmp_path / "plans")


def test_without_a_library_the_profiles_engine_runs_and_nothing_is_asked() -> None:
    def refuse(kind: str) -> LibraryFacts:
        raise AssertionError(kind)

    found = start_engine(config("profile"), RTX, BUNDLE, BUNDLE.facts, None, refuse)
    assert (found.engine, found.degraded, found.builds) == ("onnxruntime-cuda", "", False)


def test_the_plan_of_this_machine_is_loaded_and_nothing_is_built(store: PlanStore) -> None:
    store.put(wanted_of(), b"the plan")
    found = start(store)
    assert (found.engine, found.request.plan, found.degraded, found.builds) == ("tensorrt", b"the plan", "", False)
    assert found.request.precision == "fp16"
    assert found.request.runtime_cache is None


def test_tensorrt_for_rtx_gets_a_file_for_its_kernels(store: PlanStore) -> None:
    library = LibraryFacts("1.7.1", "sm89")
    path = store.put(wanted_plan(config("tensorrt_rtx"), BUNDLE, BUNDLE.facts, library), b"the plan")
    found = start(store, config("tensorrt_rtx"), library)
    assert found.engine == "tensorrt-rtx"
    assert found.request.runtime_cache == path.with_suffix(".kernels")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": "10.13.0"}, "library version 10.13.0, not 10.3.0"),
        ({"targets": ("sm86",)}, "built for sm86, this is sm87"),
        ({"platform": "l4t-99.0"}, "platform l4t-99.0"),
        ({}, "none was built yet"),
    ],
    ids=["TensorRT", "GPU", "JetPack", "none"],
)
def test_a_plan_of_elsewhere_stays_where_it_is_while_onnx_runtime_runs(
    store: PlanStore, change: dict[str, object], says: str
) -> None:
    if change:
        store.put(replace(wanted_of(), **change), b"foreign")  # type: ignore[arg-type]
    found = start(store)
    assert (found.engine, found.request.plan, found.builds) == ("onnxruntime-cuda", b"", True)
    assert says in found.degraded
    assert "ONNX Runtime runs meanwhile" in found.degraded
    assert len(store.plans()) == len([change] if change else [])


def test_an_older_plan_runs_while_the_wanted_one_is_built(store: PlanStore) -> None:
    store.put(wanted_of(config(precision="fp32")), b"older")
    found = start(store)
    assert (found.engine, found.request.plan, found.builds) == ("tensorrt", b"older", True)
    assert "precision fp32, not fp16" in found.degraded
    assert found.as_message() == {"degraded": found.degraded, "builds": True, "batch": 1}


def test_a_damaged_plan_gives_way_to_an_older_one_and_then_to_onnx_runtime(store: PlanStore) -> None:
    older = store.put(wanted_of(config(precision="fp32")), b"older")
    path = store.put(wanted_of(), b"the plan")
    path.write_bytes(path.read_bytes()[:-1])
    found = start(store)
    assert (found.request.plan, found.builds) == (b"older", True)
    assert "truncated" in found.degraded
    older.write_bytes(older.read_bytes()[:-1] + b"?")
    found = start(store)
    assert (found.engine, found.builds) == ("onnxruntime-cuda", True)
    assert "truncated" in found.degraded


def test_a_profile_without_a_gpu_can_not_run_plans(store: PlanStore) -> None:
    with pytest.raises(ConfigError, match="no GPU for tensorrt"):
        start(store, config(chosen="cpu"))


def test_a_gpu_that_the_library_does_not_know_is_refused(store: PlanStore) -> None:
    with pytest.raises(UsageError, match="sm90"):
        start(store, config("tensorrt_rtx"), LibraryFacts("1.7.1", "sm90"))


# -- what the library says to it -------------------------------------------------------------------------------
def refusing(request: EngineRequest, device: Device[object]) -> object:
    raise ModelError("the plan does not load: magicTag", where="tiny")


def plain(request: EngineRequest, device: Device[object]) -> object:
    return ("an engine", request.plan)


def absent(request: EngineRequest, device: Device[object]) -> object:
    raise BackendUnavailableError("tensorrt can't be imported")


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def use(name: str) -> None:
        entries = {"tensorrt": f"{__name__}:{name}", "onnxruntime-cuda": f"{__name__}:plain"}
        monkeypatch.setattr(plan_start, "ENGINES", Registry("engine", entries))

    return use


def test_a_plan_that_the_library_refuses_is_removed_and_built_again(
    store: PlanStore, engines: Callable[[str], None]
) -> None:
    engines("refusing")
    path = store.put(wanted_of(), b"a lie")
    engine, found = open_started(start(store), RTX, cast("Device[object]", None))
    assert engine == ("an engine", b"")
    assert (found.engine, found.builds) == ("onnxruntime-cuda", True)
    assert "magicTag" in found.degraded
    assert not path.exists()


def test_a_missing_library_is_no_reason_to_run_something_else(store: PlanStore, engines: Callable[[str], None]) -> None:
    engines("absent")
    store.put(wanted_of(), b"the plan")
    with pytest.raises(BackendUnavailableError):
        open_started(start(store), RTX, cast("Device[object]", None))


# -- the build beside the run ----------------------------------------------------------------------------------
def test_the_build_that_is_ordered_makes_the_plan_that_is_wanted() -> None:
    order = build_request(config(precision="fp32", workspace_mib=64), BUNDLE, 4)
    assert (order.engine, order.precision, order.batch, order.workspace_mib) == ("tensorrt", "fp32", 4, 64)
    assert order.is_nice


def report(request: BuildRequest) -> BuildReport:
    return BuildReport(wanted_of(), Path("a.plan"), 1, was_there=False)


def test_a_plan_is_built_once_a_run_and_taken_once() -> None:
    woken, built = threading.Event(), []

    def build(request: BuildRequest, watch: Callable[[BuildProcess], None]) -> BuildReport:
        built.append(request)
        return report(request)

    swap = PlanSwap(woken.set, build)
    order = build_request(config(), BUNDLE, 1)
    assert not swap.is_ready
    swap.start(order)
    assert woken.wait(PATIENCE_S)
    assert (swap.is_ready, swap.failure) == (True, "")
    swap.take()
    swap.start(order)
    swap.close()
    assert (swap.is_ready, built) == (False, [order])


@pytest.mark.parametrize("error", [ModelError("operator Det is not supported"), KeyError("a bug")], ids=["ours", "bug"])
def test_a_build_that_fails_says_why_and_the_run_goes_on(error: Exception) -> None:
    woken = threading.Event()

    def build(request: BuildRequest, watch: Callable[[BuildProcess], None]) -> BuildReport:
        raise error

    swap = PlanSwap(woken.set, build)
    swap.start(build_request(config(), BUNDLE, 1))
    assert woken.wait(PATIENCE_S)
    assert not swap.is_ready
    assert "its plan was not built" in swap.failure
    swap.close()


def test_closing_ends_a_build_that_is_going_on() -> None:
    begun, ended = threading.Event(), threading.Event()

    class Process:
        def cancel(self) -> None:
            ended.set()

    def build(request: BuildRequest, watch: Callable[[BuildProcess], None]) -> BuildReport:
        watch(cast("BuildProcess", Process()))
        begun.set()
        assert ended.wait(PATIENCE_S)
        raise ModelError("it was killed")

    swap = PlanSwap(lambda: None, build)
    swap.start(build_request(config(), BUNDLE, 1))
    assert begun.wait(PATIENCE_S)
    swap.close()
    swap.close()
    assert ended.is_set()
    assert (swap.is_ready, swap.failure) == (False, "")


@pytest.mark.parametrize(
    ("source", "sinks", "may"),
    [
        ({"uri": "rtsp://camera/1"}, [], True),
        ({"uri": "clip:walkers", "loop": True}, [], True),
        ({"uri": "clip:walkers"}, [], False),
        ({"uri": "rtsp://camera/1"}, [{"kind": "mp4", "path": "a.mp4"}], False),
        ({"uri": "rtsp://camera/1"}, [{"kind": "rtsp", "url": "rtsp://server/a"}], True),
    ],
    ids=["camera", "looped", "file", "writes", "pushes"],
)
def test_a_run_that_would_lose_something_is_not_started_again(
    source: dict[str, object], sinks: list[object], may: bool
) -> None:
    assert may_swap(Config.model_validate({"channels": {"a": {"source": source, "sinks": sinks}}})) == may

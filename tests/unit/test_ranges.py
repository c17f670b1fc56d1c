"""Ranges for a profiler: every step of the frame path on its own thread, balanced, and nothing when switched off."""

from __future__ import annotations

import importlib.util
import threading
from collections import defaultdict
from pathlib import Path

import pytest

from tests.sim.parts import SimEngine, SimSource
from tests.unit.test_frame_path import make_plan
from zhcedge.backends.cpu.mp4_sink import Mp4Sink
from zhcedge.backends.registry import RANGES
from zhcedge.config.load import load
from zhcedge.core.ports import NO_RANGES
from zhcedge.core.requests import SinkRequest
from zhcedge.pipeline.segment import Segment


class Recording:
    """Implements Ranges: what each thread pushed, and how deep it is."""

    def __init__(self) -> None:
        self.names: defaultdict[str, list[str]] = defaultdict(list)
        self.depth: defaultdict[str, int] = defaultdict(int)

    def push(self, name: str) -> None:
        thread = threading.current_thread().name
        self.names[thread].append(name)
        self.depth[thread] += 1

    def pop(self) -> None:
        self.depth[threading.current_thread().name] -= 1


def test_every_step_of_every_frame_is_a_range_of_the_thread_that_does_it() -> None:
    ranges = Recording()
    plan, segment = make_plan([SimSource(frames=10)], engine=SimEngine())
    segment.frame_recorder.ranges = ranges
    with plan:
        plan.warm_up().process()
    seen = {thread: set(names) for thread, names in ranges.names.items()}
    assert seen == {"reader c0": {"read", "ingest"}, "runner": {"launch"}, "collector": {"collect"}}
    assert ranges.names["reader c0"].count("ingest") >= 10
    assert ranges.names["runner"].count("launch") == ranges.names["collector"].count("collect") >= 10
    assert set(ranges.depth.values()) == {0}


def test_a_sinks_encoding_is_a_range_of_its_own_thread(tmp_path: Path) -> None:
    ranges = Recording()
    source = SimSource(frames=10)
    sink = Mp4Sink(SinkRequest("c0", tmp_path / "out.mp4", ranges), None)
    plan, _ = make_plan([source], [sink])  # type: ignore[list-item]
    with plan:
        plan.warm_up().process()
    assert ranges.names["sink c0"] == ["sink encode"] * 10
    assert set(ranges.depth.values()) == {0}


def test_without_a_profiler_nobody_is_told() -> None:
    assert Segment().frame_recorder.ranges is NO_RANGES


def test_nvtx_takes_any_name_with_or_without_a_profiler() -> None:
    if importlib.util.find_spec("nvtx") is None:
        pytest.skip("nvtx is not installed")
    ranges = RANGES.get("nvtx")()
    for name in ("read", "sink encode", "read", "größe"):
        ranges.push(name)
        ranges.pop()


def test_the_switch_is_off_by_default(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("channels: {gate: {source: {uri: 'clip:walkers'}}}\n")
    assert not load(path).config.pipeline.nvtx
    assert load(path, ["pipeline.nvtx=true"]).config.pipeline.nvtx

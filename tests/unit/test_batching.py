"""Batches in the frame path: which sizes there are, which one is launched, and that no frame is lost or reordered."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim.parts import FACTS, SimEngine, SimSource, SimStage
from zhcedge.app.wiring import make_guard
from zhcedge.backends.cpu.arena import CpuBuffer
from zhcedge.backends.cpu.device import CpuDevice
from zhcedge.core.lifecycle import Lifecycle
from zhcedge.core.ports import Lane
from zhcedge.core.requests import DeviceSettings
from zhcedge.core.types import DetectorSettings
from zhcedge.pipeline.channel import ChannelParts, read_ahead
from zhcedge.pipeline.guard import GuardPolicy
from zhcedge.pipeline.plan import Plan, PlanSettings
from zhcedge.pipeline.ring import RingRecord
from zhcedge.pipeline.segment import Segment
from zhcedge.service.clock import SystemClock


class CountingStage(SimStage):
    """Sees a person in every frame of a batch, and counts the batches by size."""

    def __init__(self, engine: BatchEngine, lane: Lane[CpuBuffer]) -> None:
        super().__init__(engine, lane)
        self._sizes = engine.sizes

    def enqueue(self, batch: int) -> None:
        super().enqueue(batch)
        self._sizes[batch] += 1
        self._output[:batch] = self._output[:1]


class BatchEngine(SimEngine):
    def __init__(self, batch: int, on_run: Callable[[int], None] = lambda lane: None) -> None:
        super().__init__(on_run)
        self.facts = replace(FACTS, has_free_batch=True).with_batch(batch)
        self.sizes: Counter[int] = Counter()

    def bind(self, lane: Lane[CpuBuffer]) -> CountingStage:
        return CountingStage(self, lane)


class DeepDevice(CpuDevice):
    """Takes a second launch on a lane while the first one runs, as a GPU does."""

    @property
    def depth(self) -> int:
        return 2


def run(
    engine: BatchEngine,
    sources: list[SimSource],
    lanes: int = 2,
    device: CpuDevice | None = None,
    on_active: Callable[[], None] = lambda: None,
) -> list[RingRecord]:
    device, segment = device or CpuDevice(DeviceSettings()), Segment()
    for index, source in enumerate(sources):
        source.channel = index
    plan = Plan(
        device,
        engine,
        [ChannelParts(f"c{index}", source, []) for index, source in enumerate(sources)],
        PlanSettings(lanes, 0, 4, DetectorSettings(0.4, 0.5)),
        make_guard(device, GuardPolicy.COUNT, is_audit=False),
        segment.frame_recorder,
        Lifecycle(lambda phase: None),
        SystemClock(),
        ring=segment.ring,
    )
    with plan:
        runtime = plan.warm_up()
        engine.sizes.clear()
        on_active()
        runtime.process()
    return list(segment.ring.drain())


@given(st.integers(1, 64))
def test_the_sizes_hold_one_and_the_largest_and_never_leave_more_than_half_of_the_waiting_frames(largest: int) -> None:
    sizes = replace(FACTS, has_free_batch=True).with_batch(largest).batch_sizes
    assert sizes[0] == 1
    assert sizes[-1] == largest
    assert list(sizes) == sorted(set(sizes))
    for waiting in range(1, largest + 1):
        assert 2 * max(size for size in sizes if size <= waiting) > waiting


@given(st.integers(1, 64), st.integers(1, 64))
def test_all_files_together_may_read_two_batches_ahead(channels: int, batch: int) -> None:
    assert read_ahead(channels, batch) * channels >= 2 * batch


@pytest.mark.parametrize("frames", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("batch", [1, 3, 4])
def test_every_frame_comes_out_once_and_in_order_whatever_the_batch(batch: int, frames: int) -> None:
    engine = BatchEngine(batch)
    records = run(engine, [SimSource(frames=frames), SimSource(frames=5)])
    for channel, expected in ((0, frames), (1, 5)):
        mine = [record for record in records if record.info.channel == channel]
        assert [record.info.sequence for record in mine if not record.is_end] == list(range(expected))
        assert [len(record.detections) for record in mine if not record.is_end] == [1] * expected
        assert mine[-1].is_end
    assert set(engine.sizes) <= set(engine.facts.batch_sizes)
    assert sum(size * count for size, count in engine.sizes.items()) == frames + 5


def test_a_backlog_fills_whole_batches() -> None:
    engine = BatchEngine(4, on_run=lambda lane: time.sleep(0.01))
    run(engine, [SimSource(frames=120)])
    assert engine.sizes[4] >= 20


def test_frames_gather_for_a_whole_batch_while_every_lane_has_work() -> None:
    has_begun, are_all_read = threading.Event(), threading.Event()
    engine, source = BatchEngine(4), SimSource(frames=5)

    def on_run(lane: int) -> None:
        has_begun.set()
        assert are_all_read.wait(10.0)
        time.sleep(0.1)  # the last frame is still on its way to the runner

    def on_read(sequence: int) -> None:
        """The first frame alone is launched; the others come while it runs, one after the other."""
        if sequence:
            assert has_begun.wait(10.0)
            time.sleep(0.01)
        if sequence == 4:
            are_all_read.set()

    def start() -> None:
        engine.on_run, source.on_read = on_run, on_read

    run(engine, [source], lanes=1, device=DeepDevice(DeviceSettings()), on_active=start)
    assert engine.sizes == {1: 1, 4: 1}


def test_a_lone_frame_does_not_wait_for_others() -> None:
    engine = BatchEngine(8)
    run(engine, [SimSource(frames=20, is_live=True, on_read=lambda sequence: time.sleep(0.02))])
    assert engine.sizes[1] >= 15

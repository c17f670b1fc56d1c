"""The frame path over simulated parts: order, ends, overload, faults in every thread, and the seal."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from tests.sim.parts import SimEngine, SimSink, SimSource
from zhcedge.app.wiring import make_guard
from zhcedge.backends.cpu.arena import CpuBuffer
from zhcedge.backends.cpu.device import CpuDevice
from zhcedge.core.errors import LedgerViolationError, MediaError, OutputError, PhaseError, PipelineError
from zhcedge.core.lifecycle import Lifecycle, Phase
from zhcedge.core.ports import FrameSlot, SourceFacts
from zhcedge.core.requests import DeviceSettings
from zhcedge.core.types import DetectorSettings, ViolationKind
from zhcedge.pipeline.channel import ChannelParts
from zhcedge.pipeline.guard import GuardPolicy
from zhcedge.pipeline.ledger import Verdict
from zhcedge.pipeline.plan import Plan, PlanSettings, RunReport
from zhcedge.pipeline.ring import RingRecord
from zhcedge.pipeline.segment import Segment
from zhcedge.service.clock import SystemClock

FRAME_BYTES = 400 * 300 * 3 // 2


@dataclass
class Outcome:
    report: RunReport
    records: list[RingRecord]
    phases: list[Phase]


def make_plan(
    sources: Sequence[SimSource],
    sinks: Sequence[SimSink] = (),
    engine: SimEngine | None = None,
    *,
    lanes: int = 2,
    slots: int = 0,
    policy: GuardPolicy = GuardPolicy.COUNT,
    phases: list[Phase] | None = None,
) -> tuple[Plan[CpuBuffer], Segment]:
    device, segment = CpuDevice(DeviceSettings()), Segment()
    for index, source in enumerate(sources):
        source.channel = index
    parts = [ChannelParts(f"c{index}", source, [("sim", s) for s in sinks]) for index, source in enumerate(sources)]
    plan = Plan(
        device,
        engine or SimEngine(),
        parts,
        PlanSettings(lanes, slots, 4, DetectorSettings(0.4, 0.5)),
        make_guard(device, policy, is_audit=False),
        segment.frame_recorder,
        Lifecycle((phases if phases is not None else []).append),
        SystemClock(),
        ring=segment.ring,
    )
    return plan, segment


def run(
    sources: Sequence[SimSource], sinks: Sequence[SimSink] = (), engine: SimEngine | None = None, lanes: int = 2
) -> Outcome:
    phases: list[Phase] = []
    plan, segment = make_plan(sources, sinks, engine, phases=phases, lanes=lanes)
    with plan:
        report = plan.warm_up().process()
    return Outcome(report, list(segment.ring.drain()), phases)


def test_every_frame_of_every_channel_comes_out_once_and_in_order_then_its_end() -> None:
    sources = [SimSource(frames=25), SimSource(frames=7), SimSource(frames=0)]
    outcome = run(sources)
    assert outcome.report.frames == 32
    assert outcome.phases == [Phase.INITIALISING, Phase.WARMING_UP, Phase.ACTIVE, Phase.DRAINING]
    for channel, frames in ((0, 25), (1, 7), (2, 0)):
        records = [record for record in outcome.records if record.info.channel == channel]
        assert [record.info.sequence for record in records if not record.is_end] == list(range(frames))
        assert [record.is_end for record in records] == [False] * frames + [True]
    assert all(source.open_leases == 0 and not source.is_open for source in sources)
    assert outcome.report.ledger.verdict is Verdict.PASS


def test_a_detection_is_in_the_ring_bit_for_bit_as_in_the_slot() -> None:
    kept: dict[int, bytes] = {}

    def keep(slot: FrameSlot[CpuBuffer]) -> None:
        result = slot.results[0]
        kept[slot.info.sequence] = result["detections"][: int(result["count"])].tobytes()

    outcome = run([SimSource(frames=5)], [SimSink(on_submit=keep)])
    found = {record.info.sequence: record.detections.tobytes() for record in outcome.records if not record.is_end}
    assert found == kept
    assert all(len(data) == 24 for data in found.values())


def test_a_file_waits_for_a_slow_sink_and_loses_no_frame() -> None:
    sink = SimSink(is_held=True, capacity=2)
    slow = threading.Thread(target=sink.drain, args=(1.0,))
    slow.start()
    outcome = run([SimSource(frames=60)], [sink])
    slow.join()
    assert sink.seen == list(range(60))
    assert (outcome.report.dropped, outcome.report.sink_dropped) == (0, 0)
    assert sink.closed == [True]


def test_a_live_channel_drops_its_oldest_frames_under_overload_and_counts_them() -> None:
    engine = SimEngine(lambda lane: time.sleep(0.004))
    source = SimSource(frames=200, is_live=True, on_read=lambda sequence: time.sleep(0.0005))
    outcome = run([source], engine=engine, lanes=1)
    sequences = [record.info.sequence for record in outcome.records if not record.is_end]
    assert outcome.report.dropped > 0
    assert len(sequences) + outcome.report.dropped == 200
    assert sequences == sorted(sequences)
    assert sequences[-1] >= 198  # the newest survive


def test_dropped_frames_do_not_count_towards_a_limit() -> None:
    source = SimSource(frames=2000, is_live=True, on_read=lambda sequence: time.sleep(0.0005))
    plan, _ = make_plan([source], engine=SimEngine(lambda lane: time.sleep(0.01)))
    with plan:
        report = plan.warm_up().process(12)
    assert report.dropped > 0
    assert report.frames == 12


def test_a_live_channel_keeps_its_pace_when_a_sink_hangs() -> None:
    sink = SimSink(is_held=True, capacity=3)
    outcome = run([SimSource(frames=40, is_live=True, on_read=lambda sequence: time.sleep(0.001))], [sink])
    assert outcome.report.sink_dropped > 0
    assert outcome.report.frames + outcome.report.dropped == 40


@pytest.mark.parametrize("where", ["warm-up", "active"])
def test_a_fault_in_a_stage_ends_the_run_with_its_lane_and_leaves_nothing_open(where: str) -> None:
    runs = [0]

    def on_run(lane: int) -> None:
        runs[0] += 1
        if runs[0] == (2 if where == "warm-up" else 40):
            raise ValueError("planted")

    source, sink, engine = SimSource(frames=200), SimSink(), SimEngine(on_run)
    with pytest.raises(PipelineError, match="planted"):
        run([source], [sink], engine)
    assert not source.is_open
    assert engine.is_closed
    assert sink.closed == [False]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("reader", "runner", "collector"))]


def test_an_error_of_a_source_is_raised_as_it_is() -> None:
    def on_read(sequence: int) -> None:
        if sequence == 9:
            raise MediaError("planted", where="clip")

    with pytest.raises(MediaError, match="planted"):
        run([SimSource(on_read=on_read)])


def test_an_unknown_exception_in_a_thread_becomes_a_pipeline_error_that_names_the_thread() -> None:
    def on_read(sequence: int) -> None:
        raise RuntimeError("planted")

    with pytest.raises(PipelineError, match=r"reader c0.*planted"):
        run([SimSource(on_read=on_read)])


def test_a_sink_that_fails_stops_neither_detection_nor_the_other_sink() -> None:
    def fail(slot: FrameSlot[CpuBuffer]) -> None:
        if slot.info.sequence == 3:
            raise OutputError("disk full", where="a.mp4")

    broken, good = SimSink(on_submit=fail), SimSink()
    outcome = run([SimSource(frames=12)], [broken, good])
    assert good.seen == list(range(12))
    assert broken.seen == [0, 1, 2]
    assert outcome.report.frames == 12


def test_stop_ends_the_run_early_and_finishes_the_outputs() -> None:
    sink = SimSink()
    plan, segment = make_plan([SimSource(frames=10**9)], [sink])
    with plan:
        runtime = plan.warm_up()
        threading.Timer(0.2, runtime.stop).start()
        report = runtime.process()
    assert 0 < report.frames < 10**9
    assert sink.closed == [True]
    assert [record.is_end for record in segment.ring.drain()][-1]


def test_one_frame_sized_array_planted_in_the_loop_is_exactly_one_violation() -> None:
    def plant(slot: FrameSlot[CpuBuffer]) -> None:
        if slot.info.sequence == 5:
            np.zeros(FRAME_BYTES, np.uint8)

    outcome = run([SimSource(frames=20, width_px=400, height_px=300)], [SimSink(on_submit=plant)])
    assert outcome.report.ledger.violations[ViolationKind.HOST_ARRAY] == 1
    assert outcome.report.ledger.verdict is Verdict.FAIL


def test_the_same_array_in_a_lane_thread_is_seen_too() -> None:
    runs = [0]

    def plant(lane: int) -> None:
        runs[0] += 1
        if runs[0] == 60:
            np.zeros(FRAME_BYTES, np.uint8)

    outcome = run([SimSource(frames=100)], engine=SimEngine(plant))
    assert outcome.report.ledger.violations[ViolationKind.HOST_ARRAY] == 1


def test_policy_fail_ends_the_run_at_the_violation() -> None:
    sink = SimSink(on_submit=lambda slot: np.zeros(FRAME_BYTES, np.uint8) if slot.info.sequence == 5 else None)  # type: ignore[func-returns-value, return-value, arg-type]
    plan, _ = make_plan([SimSource(frames=500)], [sink], policy=GuardPolicy.FAIL)
    with pytest.raises(LedgerViolationError, match="1 host array"), plan:
        plan.warm_up().process()


def test_asking_the_arena_after_the_seal_is_refused_and_counted() -> None:
    plan, _ = make_plan([SimSource(frames=5)])
    with plan:
        runtime = plan.warm_up()
        with pytest.raises(PhaseError):
            plan._device.arena.tensor("late", (1,), "float32", "test")
        report = runtime.process()
    assert report.ledger.violations[ViolationKind.ARENA_GROWTH] == 1
    assert report.ledger.verdict is Verdict.FAIL


class Unopenable(SimSource):
    def open(self) -> SourceFacts:
        raise MediaError("planted")


def test_a_run_whose_sources_all_fail_to_open_fails_with_the_first_error() -> None:
    with pytest.raises(MediaError, match="planted"):
        make_plan([Unopenable(), Unopenable()])


def test_a_source_that_does_not_open_fails_its_channel_and_no_other() -> None:
    first = SimSource(frames=9)
    outcome = run([first, Unopenable()])
    assert outcome.report.frames == 9
    assert [str(error) for error in outcome.report.failures.values()] == ["planted"]
    assert not first.is_open


def test_a_source_that_breaks_ends_its_channel_and_no_other() -> None:
    def break_at_5(sequence: int) -> None:
        if sequence == 5:
            raise MediaError("planted")

    outcome = run([SimSource(frames=40), SimSource(frames=40, on_read=break_at_5)])
    assert list(outcome.report.failures) == ["c1"]
    mine = [record for record in outcome.records if record.info.channel == 0]
    assert [record.info.sequence for record in mine if not record.is_end] == list(range(40))


def test_a_sink_that_does_not_open_closes_what_was_opened_before_it() -> None:
    class Refusing(SimSink):
        def open(self, source: SourceFacts) -> None:
            raise OutputError("planted")

    first, sink = SimSource(), SimSink()
    with pytest.raises(OutputError):
        make_plan([first], [sink, Refusing()])
    assert not first.is_open
    assert False in sink.closed

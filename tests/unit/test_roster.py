"""Channels that come, go, wait and are skipped while others run, over simulated parts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.sim.parts import SimEngine, SimSink, SimSource
from zhcedge.app.wiring import make_guard
from zhcedge.backends.cpu.arena import CpuBuffer
from zhcedge.backends.cpu.device import CpuDevice
from zhcedge.core.errors import SourceMissingError, UsageError
from zhcedge.core.lifecycle import Lifecycle
from zhcedge.core.ports import EndOfStream, FrameSlot, Idle, JpegEncoder, SourceFacts
from zhcedge.core.requests import DeviceSettings
from zhcedge.core.types import DetectorSettings
from zhcedge.pipeline.channel import ChannelNews, ChannelParts, ChannelSettings, ChannelState
from zhcedge.pipeline.gate import MotionSettings
from zhcedge.pipeline.guard import GuardPolicy
from zhcedge.pipeline.ledger import Verdict
from zhcedge.pipeline.plan import Plan, PlanSettings, RunReport
from zhcedge.pipeline.ring import RingRecord
from zhcedge.pipeline.segment import Segment
from zhcedge.pipeline.tiles import Regions
from zhcedge.service.clock import SystemClock

TIMEOUT_S = 20.0


@dataclass
class Camera(SimSource):
    """Gives frames at a pace until the test says that it is over."""

    is_live: bool = True
    frames: int = 1_000_000
    pace_s: float = 0.002
    is_over: threading.Event = field(default_factory=threading.Event)

    def read(self, timeout_s: float):  # type: ignore[no-untyped-def]
        if self.is_over.wait(self.pace_s):
            return EndOfStream()
        return super().read(timeout_s)


class AwayAtFirst(Camera):
    """Does not open before its `tries_left` tries are used up."""

    tries_left = 2
    where = ""

    def open(self) -> SourceFacts:
        if self.tries_left:
            self.tries_left -= 1
            raise SourceMissingError("nobody answers", where=self.where)
        return super().open()


class Daemon:
    """A run in a thread of its own."""

    def __init__(
        self,
        parts: list[ChannelParts[CpuBuffer]],
        make_jpeg: Callable[[], JpegEncoder[CpuBuffer]] | None = None,
        **settings: int,
    ) -> None:
        self.states: list[tuple[str, ChannelState]] = []
        self.reasons: list[str] = []
        self.segment = Segment()
        self.engine = SimEngine()
        self.records: list[RingRecord] = []
        device = CpuDevice(DeviceSettings())
        self.device = device
        self.plan = Plan(
            device,
            self.engine,
            parts,
            PlanSettings(2, 0, 4, DetectorSettings(0.4, 0.5), **settings),
            make_guard(device, GuardPolicy.COUNT, is_audit=False),
            self.segment.frame_recorder,
            Lifecycle(lambda phase: None),
            SystemClock(),
            ring=self.segment.ring,
            listener=self._hear,
            **({} if make_jpeg is None else {"make_jpeg": make_jpeg}),
        )
        self.report: RunReport | None = None
        self.error: Exception | None = None

    def _hear(self, news: ChannelNews) -> None:
        self.states.append((news.name, news.state))
        self.reasons.append(news.reason)

    def __enter__(self) -> Daemon:
        self.runtime = self.plan.warm_up()
        self.roster = self.runtime.roster
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def _run(self) -> None:
        try:
            self.report = self.runtime.process()
        except Exception as error:  # noqa: BLE001  the test's thread looks at it
            self.error = error

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not is_so():
            assert time.monotonic() < deadline, "it did not happen"
            self.records += self.segment.ring.drain()
            time.sleep(0.002)

    def frames_of(self, channel: int) -> list[int]:
        self.records += self.segment.ring.drain()
        return [r.info.sequence for r in self.records if r.info.channel == channel and not r.is_end]

    def __exit__(self, *_: object) -> None:
        self.runtime.stop()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()
        self.records += self.segment.ring.drain()
        self.plan.close()


def part(name: str, source: SimSource, channel: int, **rest: object) -> ChannelParts[CpuBuffer]:
    source.channel = channel
    return ChannelParts(name, source, rest.pop("sinks", ()), **rest)  # type: ignore[arg-type]


def test_a_channel_is_added_and_removed_while_the_others_run_on() -> None:
    with Daemon([part("a", Camera(), 0)]) as daemon:
        daemon.wait_for(lambda: len(daemon.frames_of(0)) > 5)
        sink, late = SimSink(), Camera()
        assert daemon.roster.add("b", lambda index: part("b", late, index, sinks=[("sim", sink)])) == 1
        daemon.wait_for(lambda: len(daemon.frames_of(1)) > 5)
        daemon.roster.remove("b")
        assert not late.is_open
        assert late.open_leases == 0
        assert sink.closed == [True]
        assert len(sink.seen) > 5
        seen = len(daemon.frames_of(0))
        daemon.wait_for(lambda: len(daemon.frames_of(0)) > seen + 5)
    assert daemon.error is None
    assert daemon.report is not None
    assert daemon.report.ledger.verdict is Verdict.PASS
    assert [record.is_end for record in daemon.records if record.info.channel == 1][-1]


def test_adding_and_removing_for_ever_takes_no_more_memory() -> None:
    with Daemon([part("a", Camera(), 0)]) as daemon:
        totals = []
        for round_number in range(1, 21):
            daemon.roster.add("b", lambda index: part("b", Camera(), index))
            daemon.wait_for(lambda number=round_number: len(daemon.frames_of(number)) > 1)  # type: ignore[misc]
            daemon.roster.remove("b")
            totals.append(daemon.device.arena.total_bytes)
    assert totals[-1] == totals[0]
    assert daemon.report is not None
    assert daemon.report.ledger.verdict is Verdict.PASS


def test_a_name_that_is_taken_and_one_that_nobody_has_are_refused() -> None:
    with Daemon([part("a", Camera(), 0)]) as daemon:
        with pytest.raises(UsageError, match="already"):
            daemon.roster.add("a", lambda index: part("a", Camera(), index))
        with pytest.raises(UsageError, match="no open channel 'x'"):
            daemon.roster.remove("x")


def test_a_camera_that_is_away_at_the_start_comes_later_and_the_others_do_not_wait() -> None:
    late = AwayAtFirst()
    with Daemon([part("a", Camera(), 0), part("late", late, 1, is_patient=True)]) as daemon:
        assert daemon.states == [("late", ChannelState.DOWN)]
        daemon.wait_for(lambda: len(daemon.frames_of(1)) > 5)
        assert ("late", ChannelState.UP) in daemon.states
    assert daemon.error is None
    assert daemon.report is not None
    assert daemon.report.ledger.verdict is Verdict.PASS


def test_a_run_of_nothing_but_cameras_that_are_away_becomes_active_and_waits() -> None:
    late = AwayAtFirst()
    with Daemon([part("late", late, 0, is_patient=True)]) as daemon:
        daemon.wait_for(lambda: len(daemon.frames_of(0)) > 5)
    assert daemon.error is None


def test_a_run_that_waits_for_a_camera_stops_when_it_is_asked_to() -> None:
    class Never(Camera):
        def open(self) -> SourceFacts:
            raise SourceMissingError("nobody answers")

    with Daemon([part("late", Never(), 0, is_patient=True)]) as daemon:
        time.sleep(0.05)
    assert daemon.error is None


def test_a_camera_that_is_still_away_can_be_removed_and_its_name_be_taken_again() -> None:
    class Never(Camera):
        def open(self) -> SourceFacts:
            raise SourceMissingError("nobody answers")

    with Daemon([part("a", Camera(), 0), part("late", Never(), 1, is_patient=True)]) as daemon:
        with pytest.raises(UsageError, match="already"):
            daemon.roster.add("late", lambda index: part("late", Camera(), index))
        daemon.roster.remove("late")
        index = daemon.roster.add("late", lambda index: part("late", Camera(), index))
        daemon.wait_for(lambda: len(daemon.frames_of(index)) > 5)
    assert daemon.error is None


def test_many_threads_that_change_channels_at_once_leave_what_one_after_the_other_would() -> None:
    outcomes: list[str] = []

    def change(daemon: Daemon, name: str) -> None:
        for _ in range(10):
            try:
                daemon.roster.add(name, lambda index: part(name, Camera(), index))
                daemon.roster.pause(name)
                daemon.roster.resume(name)
                daemon.roster.remove(name)
                outcomes.append("done")
            except UsageError:
                outcomes.append("refused")

    with Daemon([part("a", Camera(), 0)]) as daemon:
        threads = [threading.Thread(target=change, args=(daemon, name)) for name in ("x", "x", "y", "z")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
        seen = len(daemon.frames_of(0))
        daemon.wait_for(lambda: len(daemon.frames_of(0)) > seen + 5)
        assert [channel.name for channel in daemon.roster.channels if channel.name != "x"] == ["a"]
    assert outcomes.count("done") >= 20
    assert daemon.error is None
    assert daemon.report is not None
    assert daemon.report.ledger.verdict is Verdict.PASS


def test_a_paused_channel_gives_no_frames_and_its_source_is_read_on() -> None:
    camera = Camera()
    with Daemon([part("a", camera, 0), part("b", Camera(), 1)]) as daemon:
        daemon.wait_for(lambda: len(daemon.frames_of(0)) > 5)
        daemon.roster.pause("a")
        daemon.wait_for(lambda: ("a", ChannelState.PAUSED) in daemon.states)
        daemon.wait_for(lambda: camera.open_leases == 0)
        time.sleep(0.05)
        paused_at = daemon.frames_of(0)[-1]
        seen = len(daemon.frames_of(1))
        daemon.wait_for(lambda: len(daemon.frames_of(1)) > seen + 20)
        assert daemon.frames_of(0)[-1] == paused_at
        daemon.roster.resume("a")
        daemon.wait_for(lambda: daemon.frames_of(0)[-1] > paused_at)
        assert daemon.frames_of(0)[-1] > paused_at + 10, "its source stood still meanwhile"


def test_skipped_frames_reach_the_sinks_in_order_with_the_last_results_and_not_the_ring() -> None:
    seen: list[tuple[int, int]] = []

    def look(slot: FrameSlot[CpuBuffer]) -> None:
        seen.append((slot.info.sequence, int(slot.results[0]["count"])))

    settings = ChannelSettings(detect_interval=3)
    source = SimSource(frames=20)
    with Daemon([part("a", source, 0, sinks=[("sim", SimSink(on_submit=look))], settings=settings)]) as daemon:
        daemon.wait_for(lambda: any(record.is_end for record in daemon.records))
    assert seen == [(sequence, 1) for sequence in range(20)]
    assert daemon.frames_of(0) == list(range(0, 20, 3))
    assert daemon.report is not None
    assert daemon.report.frames == 20


def test_a_still_picture_spares_the_detector_and_its_frames_say_so_in_the_ring() -> None:
    runs = []
    settings = ChannelSettings(motion=MotionSettings(threshold=0.01, max_skip_ms=60_000))
    daemon = Daemon([part("a", SimSource(frames=30), 0, settings=settings)])
    with daemon:
        daemon.engine.on_run = runs.append
        daemon.wait_for(lambda: any(record.is_end for record in daemon.records))
    still = [record.is_still for record in daemon.records if not record.is_end]
    assert still == [False] + [True] * 29


def test_every_tile_is_detected_in_and_the_boxes_come_back_in_the_pictures_pixels() -> None:
    # The simulated engine sees one person in the middle of whatever it is given.
    settings = ChannelSettings(regions=Regions(columns=2))
    with Daemon([part("a", SimSource(frames=12), 0, settings=settings)]) as daemon:
        daemon.wait_for(lambda: any(record.is_end for record in daemon.records))
    records = [record for record in daemon.records if not record.is_end]
    assert [record.info.sequence for record in records] == list(range(12))
    for record in records:
        centres = sorted((float(x1 + x2) / 2, float(y1 + y2) / 2) for x1, y1, x2, y2 in record.detections["box"])
        assert centres == [pytest.approx(where, abs=1.0) for where in ((16.0, 24.0), (48.0, 24.0))]
        assert (record.width_px, record.height_px) == (64, 48)


def test_a_busy_channel_does_not_starve_the_others_and_priority_weighs() -> None:
    parts = [part(f"c{index}", Camera(pace_s=0.0002), index) for index in range(4)]
    parts[0] = part("c0", parts[0].source, 0, settings=ChannelSettings(priority=3))  # type: ignore[arg-type]
    daemon = Daemon(parts)
    with daemon:
        daemon.engine.on_run = lambda lane: time.sleep(0.004)
        counts = [len(daemon.frames_of(index)) for index in range(4)]
        daemon.wait_for(lambda: sum(len(daemon.frames_of(index)) for index in range(4)) > sum(counts) + 240)
        gained = [len(daemon.frames_of(index)) - counts[index] for index in range(4)]
    others = gained[1:]
    assert min(others) >= 0.8 * max(others)
    assert gained[0] == pytest.approx(3 * sum(others) / 3, rel=0.25)


def test_idle_sources_neither_end_the_run_nor_hold_up_others() -> None:
    readers: set[threading.Thread] = set()

    class Silent(Camera):
        def read(self, timeout_s: float):  # type: ignore[no-untyped-def]
            readers.add(threading.current_thread())
            time.sleep(0.01)
            return Idle()

    with Daemon([part("a", Silent(), 0), part("b", Camera(), 1)]) as daemon:
        daemon.wait_for(lambda: len(daemon.frames_of(1)) > 10)
        assert daemon.frames_of(0) == []
    assert len(readers) == 2, "it was waited for in more than one pass of the warm-up"


def test_a_file_whose_sink_is_stuck_stops_no_other_channel_and_loses_no_frame() -> None:
    stuck = SimSink(is_held=True, capacity=2)
    with Daemon([part("a", Camera(), 0), part("file", SimSource(frames=40), 1, sinks=[("sim", stuck)])]) as daemon:
        daemon.wait_for(lambda: len(stuck.seen) == 2)
        seen = len(daemon.frames_of(0))
        daemon.wait_for(lambda: len(daemon.frames_of(0)) > seen + 50)
        assert len(stuck.seen) == 2
        thread = threading.Thread(target=stuck.drain, args=(2.0,))
        thread.start()
        daemon.wait_for(lambda: len(stuck.seen) == 40)
        thread.join()
    assert stuck.seen == list(range(40))
    assert daemon.error is None


def test_a_channel_that_is_removed_while_the_run_stops_is_closed_once_and_complete() -> None:
    for delay_s in (0.0, 0.001, 0.005, 0.02):
        sink, errors = SimSink(), list[Exception]()

        def remove(daemon: Daemon, errors: list[Exception] = errors) -> None:
            try:
                daemon.roster.remove("b")
            except UsageError as error:  # the run was over before
                errors.append(error)

        with Daemon([part("a", Camera(), 0), part("b", Camera(), 1, sinks=[("sim", sink)])]) as daemon:
            daemon.wait_for(lambda: len(daemon.frames_of(1)) > 5)
            thread = threading.Thread(target=remove, args=(daemon,))
            thread.start()
            time.sleep(delay_s)
        thread.join(TIMEOUT_S)
        assert sink.closed == [True]
        assert daemon.error is None


def test_a_stop_does_not_detect_in_what_still_waits() -> None:
    daemon = Daemon([part("a", Camera(pace_s=0.0005), 0, settings=ChannelSettings(regions=Regions(columns=8, rows=6)))])
    with daemon:
        daemon.engine.on_run = lambda lane: time.sleep(0.02)
        daemon.wait_for(lambda: daemon.frames_of(0) != [])
        started_s = time.monotonic()
    # Two frames of 48 tiles are on their way at most, on two lanes; the pool holds many more.
    assert time.monotonic() - started_s < 8


def test_a_camera_that_stays_away_for_one_reason_is_told_once_and_named_once() -> None:
    away = AwayAtFirst()
    away.tries_left, away.where = 4, "b: rtsp://b"
    with Daemon([part("b", away, 0, is_patient=True)]) as daemon:
        daemon.wait_for(lambda: ("b", ChannelState.UP) in daemon.states)
    assert daemon.states.count(("b", ChannelState.DOWN)) <= 2  # at the start, and by who tries again
    assert daemon.reasons[0] == "rtsp://b: nobody answers"


def test_losses_are_counted_by_channel_those_of_removed_ones_too() -> None:
    def slow(sequence: int) -> None:
        time.sleep(0.001)

    stuck = SimSink(is_held=True, capacity=1)
    parts = [part("a", Camera(on_read=slow), 0, sinks=[("sim", stuck)]), part("b", Camera(pace_s=0.05), 1)]
    with Daemon(parts) as daemon:
        daemon.wait_for(lambda: daemon.roster.sink_dropped > 3)
        stuck.drain(0.0)
        daemon.roster.remove("a")
        counts = daemon.roster.dropped_by_channel
        assert counts["a"][1] > 3
        assert counts["b"][1] == 0
    assert daemon.report is not None
    assert daemon.report.dropped_by_channel["a"] == counts["a"]
    assert daemon.report.sink_dropped == sum(of_sinks for _, of_sinks in daemon.report.dropped_by_channel.values())

"""Media time grows whatever the stream's timestamps do, and a paced file keeps its own time."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.media.timeline import MAX_LATE_S, Pacer, Timeline


class ManualClock:
    """Time that the test moves."""

    def __init__(self) -> None:
        self.now_ns = 5_000_000_000

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_ns(self) -> int:
        return self.now_ns

    def is_synced(self) -> bool:
        return True


def timeline(start: int | None = 0) -> Timeline:
    return Timeline(Fraction(1, 1000), start, 0.1)


@given(st.lists(st.none() | st.integers(-(2**62), 2**62)), st.none() | st.integers(-(2**62), 2**62))
def test_time_starts_at_zero_or_later_and_grows(ticks: list[int | None], start: int | None) -> None:
    times = timeline(start)
    last = -1.0
    for tick in ticks:
        now = times.advance(tick)
        assert now > last
        assert now >= 0
        last = now


def test_regular_timestamps_are_taken_as_they_are() -> None:
    times = timeline(start=500)
    assert [times.advance(tick) for tick in (500, 540, 700, 9000)] == [0.0, 0.04, 0.2, 8.5]


def test_missing_timestamps_follow_at_the_nominal_rate() -> None:
    times = timeline(start=None)
    assert [times.advance(None) for _ in range(3)] == pytest.approx([0.0, 0.1, 0.2])


def test_a_jump_of_the_streams_clock_is_closed_in_both_directions() -> None:
    times = timeline()
    assert [times.advance(tick) for tick in (0, 100, 3_600_000, 3_600_050, 20, 70)] == pytest.approx(
        [0.0, 0.1, 0.2, 0.25, 0.35, 0.40]
    )


def test_the_next_pass_follows_after_one_interval() -> None:
    times = timeline(start=500)
    first = [times.advance(tick) for tick in (500, 600)]
    times.next_pass()
    assert first + [times.advance(tick) for tick in (500, 600)] == pytest.approx([0.0, 0.1, 0.2, 0.3])
    times.reset()
    assert times.advance(500) == 0.0


def test_a_packets_position_does_not_move_time() -> None:
    times = timeline()
    times.advance(0)
    assert times.position_s(400) == 0.4
    assert times.advance(100) == 0.1
    assert times.position_s(None) == 0.1


def test_a_frame_waits_until_it_is_due() -> None:
    clock = ManualClock()
    pacer = Pacer(clock)
    assert pacer.wait_s(0.0) == 0.0
    assert pacer.wait_s(0.5) == pytest.approx(0.5)
    clock.now_ns += 400_000_000
    assert pacer.wait_s(0.5) == pytest.approx(0.1)
    clock.now_ns += 600_000_000
    assert pacer.wait_s(0.5) == 0.0


def test_a_short_delay_is_caught_up_and_a_long_one_is_not() -> None:
    clock = ManualClock()
    pacer = Pacer(clock)
    pacer.wait_s(0.0)
    clock.now_ns += 900_000_000
    assert pacer.wait_s(0.1) == 0.0
    assert pacer.wait_s(1.0) == pytest.approx(0.1)
    clock.now_ns += round((MAX_LATE_S + 9) * 1e9)
    assert pacer.wait_s(1.0) == 0.0
    assert pacer.wait_s(1.2) == pytest.approx(0.2)

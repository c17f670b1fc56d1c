"""Rates are kept evenly, lateness is seen across drifting clocks, a frozen picture is told from a still moment."""

from __future__ import annotations

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from zhcedge.core.pace import Pace
from zhcedge.media.liveness import FreezeWatch, Lateness

MS = 1_000_000


@given(st.integers(1, 120), st.integers(1, 120), st.floats(0, 0.2), st.integers(0, 2**32))
def test_the_wanted_rate_is_kept_evenly(stream_fps: int, wanted_fps: int, jitter: float, seed: int) -> None:
    chance = random.Random(seed)
    times = [(index + chance.uniform(-jitter, jitter)) / stream_fps for index in range(10 * stream_fps)]
    times.sort()
    pace = Pace(wanted_fps)
    kept = [time_s for time_s in times if pace.keeps(time_s)]
    assert len(kept) <= 10 * wanted_fps + 2
    longest_s = 1 / wanted_fps + (1 + 2 * jitter) / stream_fps
    assert all(later - earlier <= longest_s + 1e-9 for earlier, later in itertools.pairwise(kept))


def test_a_stream_of_the_wanted_rate_loses_nothing_to_jitter() -> None:
    chance = random.Random(1)
    pace = Pace(30.0)
    assert all(pace.keeps((index + chance.uniform(-0.1, 0.1)) / 30) for index in range(1000))


def test_the_rhythm_starts_anew_after_a_pause() -> None:
    pace = Pace(10.0)
    assert [pace.keeps(time_s) for time_s in (0.0, 0.05, 0.1, 5.0, 5.05, 5.1)] == [True, False, True, True, False, True]


def test_a_late_frame_is_seen_and_one_on_time_is_not() -> None:
    lateness = Lateness()
    assert lateness.age_ns(5, 3) == 0
    for index in range(100):
        lateness.observe(index * 40 * MS + 7_000 * MS, index * 40 * MS)
    assert lateness.age_ns(7_000 * MS + 4_000 * MS, 4_000 * MS) == 0
    assert lateness.age_ns(7_000 * MS + 4_700 * MS, 4_000 * MS) == 700 * MS


def test_a_sender_whose_clock_runs_slow_does_not_seem_later_and_later() -> None:
    lateness = Lateness()
    for second in range(3600):
        arrival_ns = second * 1000 * MS
        stream_ns = round(arrival_ns * (1 - 200e-6))
        lateness.observe(arrival_ns, stream_ns)
        assert lateness.age_ns(arrival_ns, stream_ns) < 20 * MS


def test_a_frozen_picture_is_told_after_its_time_and_some_repeats() -> None:
    watch = FreezeWatch(1000 * MS)
    assert not any(watch.saw(7, index * 100 * MS) for index in range(10))
    assert watch.saw(7, 1000 * MS)
    assert not watch.saw(8, 1100 * MS)
    assert [watch.saw(8, time_ms * MS) for time_ms in (9000, 9100, 9200)] == [False, False, True]


def test_a_moving_picture_is_not_frozen() -> None:
    watch = FreezeWatch(100 * MS)
    assert not any(watch.saw(index % 2, index * 100 * MS) for index in range(100))

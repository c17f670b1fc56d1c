"""Weekly windows, in a time zone whose clocks are put forward and back."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.core.errors import ConfigError
from zhcedge.core.schedule import Schedule, Window, parse_window

BERLIN = "Europe/Berlin"


def ns(text: str) -> int:
    """Nanoseconds since the epoch of an ISO time with its offset."""
    return int(datetime.fromisoformat(text).timestamp()) * 10**9


@pytest.mark.parametrize(
    ("text", "days", "start", "end"),
    [
        ("mon-fri 08:00-18:00", {0, 1, 2, 3, 4}, 480, 1080),
        ("sat,sun 00:00-24:00", {5, 6}, 0, 1440),
        ("fri-mon 22:30-06:05", {4, 5, 6, 0}, 1350, 365),
        ("daily 12:00 - 12:01", set(range(7)), 720, 721),
        ("Wed 01:00-02:00", {2}, 60, 120),
    ],
)
def test_a_window_is_read(text: str, days: set[int], start: int, end: int) -> None:
    assert parse_window(text) == Window(frozenset(days), start, end)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mon",
        "08:00-18:00",
        "mon 8-18",
        "mon 08:00-25:00",
        "mon 24:00-25:00",
        "mon 08:60-09:00",
        "mon 08:00-24:01",
        "moo 08:00-09:00",
        "mon- 08:00-09:00",
        "mon,, 08:00-09:00",
        "mon 08:00-08:00",
        "mon 0١:00-02:00",
    ],
)
def test_what_is_no_window_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        parse_window(text)


def test_it_is_open_from_the_first_minute_up_to_the_last() -> None:
    schedule = Schedule((parse_window("mon-fri 08:00-18:00"),), BERLIN)
    times = {
        "2026-07-06T07:59:59+02:00": False,  # a Monday
        "2026-07-06T08:00:00+02:00": True,
        "2026-07-06T17:59:59+02:00": True,
        "2026-07-06T18:00:00+02:00": False,
        "2026-07-05T12:00:00+02:00": False,
        "2026-01-09T08:00:00+01:00": True,
    }
    assert {text: schedule.is_open(ns(text)) for text in times} == times


def test_a_window_over_midnight_belongs_to_the_day_on_which_it_begins() -> None:
    schedule = Schedule((parse_window("sun 22:00-06:00"),), BERLIN)
    times = {
        "2026-07-05T21:59:00+02:00": False,
        "2026-07-05T22:00:00+02:00": True,
        "2026-07-06T05:59:00+02:00": True,
        "2026-07-06T06:00:00+02:00": False,
        "2026-07-05T05:00:00+02:00": False,
    }
    assert {text: schedule.is_open(ns(text)) for text in times} == times


@pytest.mark.parametrize(
    ("night", "hours"),
    [("2026-03-28", 7), ("2026-10-24", 9), ("2026-06-06", 8)],
    ids=["clocks go forward", "clocks go back", "neither"],
)
def test_the_window_of_a_night_is_as_long_as_the_night(night: str, hours: int) -> None:
    schedule = Schedule((parse_window("sat 22:00-06:00"),), BERLIN)
    noon = datetime.fromisoformat(f"{night}T12:00:00").replace(tzinfo=timezone.utc)
    minutes = (noon + timedelta(minutes=minute) for minute in range(24 * 60))
    assert sum(schedule.is_open(int(at.timestamp()) * 10**9) for at in minutes) == hours * 60


def test_without_a_name_the_computer_s_own_time_zone_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert Schedule((parse_window("mon 08:00-09:00"),)).is_open(ns("2026-07-06T08:30:00+09:00"))
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("name", ["Europe/Nowhere", "", "../etc/passwd", "Europe", "\0"])
def test_an_unknown_time_zone_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="time zone"):
        Schedule((), name)


@given(st.sets(st.integers(0, 6), min_size=1), st.integers(0, 1439), st.integers(0, 1440), st.integers(0, 7 * 1440 - 1))
def test_any_window_holds_in_the_minutes_after_its_beginnings(
    days: set[int], start: int, end: int, minute: int
) -> None:
    length = (end - start) % 1440 or 1440
    week = 7 * 1440
    expected = any((minute - (1440 * day + start)) % week < length for day in days)
    assert Window(frozenset(days), start, end).holds(minute // 1440, minute % 1440) == expected

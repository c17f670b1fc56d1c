"""Times as people write them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.app.moments import iso_text, local_text, moment_ns
from zhcedge.core.errors import UsageError

NOW_NS = 1_770_000_000_000_000_000
SECOND_NS = 1_000_000_000


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "seconds"), [("90m", 5400), ("2h", 7200), ("3d", 259_200), ("30s", 30), ("1w", 604_800), (" 2h ", 7200)]
)
def test_a_duration_is_so_long_ago(text: str, seconds: int) -> None:
    assert moment_ns(text, NOW_NS, "--since") == NOW_NS - seconds * SECOND_NS


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-01-31", (2026, 1, 30, 23, 0)),
        ("2026-07-31", (2026, 7, 30, 22, 0)),
        ("2026-01-31T18:30", (2026, 1, 31, 17, 30)),
        ("2026-01-31 18:30", (2026, 1, 31, 17, 30)),
        ("2026-01-31T18:30Z", (2026, 1, 31, 18, 30)),
        ("2026-01-31T18:30+05:30", (2026, 1, 31, 13, 0)),
    ],
)
@pytest.mark.usefixtures("berlin")
def test_a_time_without_an_offset_is_local(text: str, utc: tuple[int, int, int, int, int]) -> None:
    expected = datetime(*utc, tzinfo=timezone.utc)
    assert moment_ns(text, NOW_NS, "--since") == int(expected.timestamp()) * SECOND_NS


@pytest.mark.parametrize("text", ["", "yesterday", "2x", "h", "-2h", "2026-13-01", "2026-02-30", "99999999999d"])
def test_anything_else_is_refused_and_says_what_may_be_written(text: str) -> None:
    with pytest.raises(UsageError, match="2h") as raised:
        moment_ns(text, NOW_NS, "--since")
    assert raised.value.where == "--since"


@pytest.mark.usefixtures("berlin")
def test_a_year_without_a_local_time_is_no_crash() -> None:
    with pytest.raises(UsageError):
        moment_ns("0001-01-01", NOW_NS, "--since")


@given(st.integers(0, 4_000_000_000))
def test_a_shown_time_is_taken_back(seconds: int) -> None:
    shown = iso_text(seconds * SECOND_NS)
    assert moment_ns(shown, NOW_NS, "--since") == seconds * SECOND_NS
    assert moment_ns(local_text(seconds * SECOND_NS), NOW_NS, "--since") % SECOND_NS == 0


@pytest.mark.parametrize("text", ["999999999w", "0001-01-02", "1699-12-30", "2200-01-02", "9999-12-31T23:59:59"])
def test_a_time_that_nothing_can_hold_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="2200") as raised:
        moment_ns(text, NOW_NS, "--since")
    assert raised.value.where == "--since"

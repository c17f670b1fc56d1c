"""The progress line: on a terminal only, and its arithmetic."""

from __future__ import annotations

import io

import pytest

from zhcedge.app.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Time:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_nothing_is_drawn_where_nobody_looks() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    progress.begin("a.mp4", 10)
    progress.advance(5)
    progress.clear()
    assert stream.getvalue() == ""


def test_the_line_says_how_much_is_done_how_fast_and_how_long_it_takes() -> None:
    time = Time()
    progress = Progress(Terminal(), time)
    progress.begin("a.mp4", 400)
    time.now_s += 10
    progress.advance(100)
    assert progress.text(time.now_s) == "a.mp4  [#####...............] 100/400  10.0/s  ETA 0:30"


def test_an_unknown_length_has_no_end() -> None:
    time = Time()
    progress = Progress(Terminal(), time)
    progress.begin("rtsp://h/", 0)
    time.now_s += 2
    progress.advance(50)
    assert progress.text(time.now_s) == "rtsp://h/  50 frames  25.0/s"


@pytest.mark.parametrize(("total", "eta"), [(36_001, "1:00:00"), (1, "0:00"), (20, "0:02")])
def test_the_estimate_is_in_hours_minutes_and_seconds(total: int, eta: str) -> None:
    time = Time()
    progress = Progress(Terminal(), time)
    progress.begin("a", total)
    time.now_s += 0.1
    progress.advance(1)
    assert progress.text(time.now_s).endswith(f"ETA {eta}")


def test_a_header_that_promised_too_little_is_no_fault() -> None:
    progress = Progress(Terminal(), Time())
    progress.begin("a", 2)
    progress.advance(7)
    assert "[####################] 7/2" in progress.text(200.0)


def test_a_terminal_sees_it_seldom_and_a_shorter_line_covers_a_longer_one() -> None:
    time, stream = Time(), Terminal()
    progress = Progress(stream, time)
    progress.begin("a-long-name.mp4", 1000)
    for _ in range(1000):
        time.now_s += 0.001
        progress.advance()
    assert 4 <= stream.getvalue().count("\r") <= 6
    progress.clear()
    assert stream.getvalue().endswith(" \r")

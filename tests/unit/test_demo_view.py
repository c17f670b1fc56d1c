"""The demo's lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.app.demo_view import Paint, event_line, place, summary_lines

PLAIN = Paint(is_on=False)


def event(**after: object) -> dict[str, object]:
    facts: dict[str, object] = {
        "id": "1",
        "camera": "walkers",
        "label": "person",
        "score": 0.875,
        "box": [10.4, 500.0, 50.0, 570.0],
        "frame_time": 1700000000.25,
    }
    return {"type": "new", "before": None, "after": facts | after}


def summary(**parts: object) -> dict[str, object]:
    whole: dict[str, object] = {
        "frames": 300,
        "seconds": 10.0,
        "fps": 30.0,
        "latency_ms": {"p50": 33.0, "p99": 50.0},
        "events": {"new": 2, "update": 5, "end": 2},
        "dropped": {"frames": 0, "detections": 0},
        "ledger": {"verdict": "pass", "text": "after seal: host arrays 0"},
        "written": ["out/annotated.mp4"],
    }
    return whole | parts


@pytest.mark.parametrize(
    ("box", "word"),
    [
        ((0, 0, 10, 10), "upper left"),
        ((350, 250, 420, 330), "centre"),
        ((350, 0, 420, 30), "upper centre"),
        ((700, 540, 768, 576), "lower right"),
        ((700, 250, 768, 330), "middle right"),
    ],
)
def test_a_box_is_placed_by_its_middle(box: tuple[float, ...], word: str) -> None:
    assert place(box, 768, 576) == word


@given(st.lists(st.floats(-1e5, 1e5), min_size=4, max_size=4), st.integers(1, 9000), st.integers(1, 9000))
def test_every_box_has_a_place(box: list[float], width_px: int, height_px: int) -> None:
    assert place(box, width_px, height_px)


def test_an_event_is_one_line_with_who_where_and_how_sure() -> None:
    line = event_line(event(), (768, 576), PLAIN)
    assert "\n" not in line
    assert line.split()[1:] == ["walkers", "new", "person", "0.88", "lower", "left", "10,500", "to", "50,570"]
    assert line[:12].endswith(".250")


def test_a_payload_that_is_no_event_is_refused() -> None:
    with pytest.raises((KeyError, TypeError)):
        event_line({"type": "new", "after": None}, (768, 576), PLAIN)


def test_colours_come_only_when_asked_for() -> None:
    assert "\x1b" not in event_line(event(), (768, 576), PLAIN)
    assert "\x1b[32mnew" in event_line(event(), (768, 576), Paint(is_on=True))


def test_the_summary_says_everything_that_was_measured() -> None:
    text = "\n".join(summary_lines(summary(), {"new": 2, "update": 5, "end": 2}, PLAIN))
    for part in ("300", "30.0 fps", "p50 33 ms", "p99 50 ms", "2 new, 5 update, 2 end", "all received", "pass", "out/"):
        assert part in text


def test_the_summary_tells_when_events_are_missing() -> None:
    text = "\n".join(summary_lines(summary(), {"new": 2, "update": 4, "end": 2}, PLAIN))
    assert "9 made, 8 received" in text


def test_no_ledger_is_no_pass() -> None:
    assert "pass" not in "\n".join(summary_lines(summary(ledger={}), {}, PLAIN))

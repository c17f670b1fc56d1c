"""The event state machine: new, any number of update, exactly one end."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.analytics.events import EventMachine, EventSettings
from zhcedge.analytics.overlap import iou
from zhcedge.analytics.tracker import Tracker, TrackerSettings
from zhcedge.core.events import EndReason, Event, EventType
from zhcedge.core.types import DETECTION_DTYPE, FrameInfo

LABELS = ("person", "car")
FPS = 10


class Channel:
    """A tracker with its machine, fed at 10 frames per second."""

    def __init__(self, ids: itertools.count[int] | None = None, interval_ms: int = 1000) -> None:
        self.tracker = Tracker(TrackerSettings(confirm_frames=2, max_lost_frames=3), ids)
        self.machine = EventMachine(EventSettings("gate", LABELS, update_interval_ms=interval_ms))
        self.sequence = 0

    def step(self, *boxes: tuple[float, float, float, float], score: float = 0.5) -> list[Event]:
        info = FrameInfo(0, self.sequence, 10**18 + self.sequence * 10**8, 0, self.sequence / FPS)
        self.sequence += 1
        return self.machine.step(
            self.tracker.update(np.array([(box, score, 0) for box in boxes], DETECTION_DTYPE), info)
        )


HERE = (10.0, 10.0, 50.0, 90.0)


def test_an_event_begins_when_its_track_is_confirmed() -> None:
    channel = Channel()
    assert channel.step(HERE) == []
    (event,) = channel.step(HERE)
    assert (event.type, event.before, event.end_reason) == (EventType.NEW, None, None)
    assert (event.after.camera, event.after.label, event.after.id) == ("gate", "person", "gate-1")
    assert event.after.start_time_ns == 10**18
    assert event.after.frame.sequence == 1
    assert event.after.end_time_ns is None


def test_nothing_is_told_while_nothing_changes() -> None:
    channel = Channel()
    events = [event for _ in range(100) for event in channel.step(HERE)]
    assert [event.type for event in events] == [EventType.NEW]


def test_a_moving_object_is_told_at_most_once_per_interval() -> None:
    channel = Channel(interval_ms=1000)
    told = []
    for step in range(60):
        told += [
            (channel.sequence - 1, event.type) for event in channel.step((10 + 5.0 * step, 10, 50 + 5.0 * step, 90))
        ]
    assert told[0] == (1, EventType.NEW)
    assert [at for at, _ in told] == [1, 11, 21, 31, 41, 51]
    assert {kind for _, kind in told[1:]} == {EventType.UPDATE}


def test_a_better_score_is_told_and_a_worse_one_is_not() -> None:
    channel = Channel(interval_ms=0)
    channel.step(HERE)
    channel.step(HERE)
    (event,) = channel.step(HERE, score=0.75)
    assert event.before is not None
    assert (event.before.top_score, event.after.top_score) == (0.5, 0.75)
    assert channel.step(HERE, score=0.25) == []


def test_a_lost_object_ends_with_its_last_sight() -> None:
    channel = Channel()
    for _ in range(5):
        channel.step(HERE)
    events = [event for _ in range(10) for event in channel.step()]
    (event,) = events
    assert (event.type, event.end_reason) == (EventType.END, EndReason.LOST)
    assert event.before is not None
    assert event.before.frame.sequence == 1
    assert event.after.frame.sequence == 4
    assert event.after.end_time_ns == 10**18 + 4 * 10**8


def test_closing_ends_what_is_open_once() -> None:
    channel = Channel()
    for _ in range(3):
        channel.step(HERE, (200, 10, 240, 90))
    assert channel.machine.open_count == 2
    ends = channel.machine.close(EndReason.SHUTDOWN)
    assert [(event.type, event.after.id, event.end_reason) for event in ends] == [
        (EventType.END, "gate-1", EndReason.SHUTDOWN),
        (EventType.END, "gate-2", EndReason.SHUTDOWN),
    ]
    assert channel.machine.close(EndReason.SHUTDOWN) == []


def test_nothing_follows_the_end_of_a_closed_channel() -> None:
    channel = Channel(interval_ms=0)
    for _ in range(3):
        channel.step(HERE)
    channel.machine.close(EndReason.CHANNEL_ENDED)
    assert [event for _ in range(3) for event in channel.step(HERE, score=0.9)] == []
    assert [event for _ in range(9) for event in channel.step()] == []


@pytest.mark.parametrize(
    ("other", "expected"), [(HERE, 1.0), ((30.0, 10.0, 70.0, 90.0), 1 / 3), ((50.0, 10.0, 90.0, 90.0), 0.0)]
)
def test_overlap(other: tuple[float, float, float, float], expected: float) -> None:
    assert iou(HERE, other) == pytest.approx(expected)


boxes = st.builds(lambda x, y, w, h: (x, y, x + w, y + h), *[st.integers(0, 200)] * 2, *[st.integers(1, 150)] * 2)
films = st.lists(st.lists(st.tuples(boxes, st.floats(0, 1, width=32)), max_size=4), max_size=30)


@given(films, films, st.integers(0, 500))
def test_any_film_gives_new_update_end_per_id_and_no_id_twice(
    first: Sequence[Sequence[tuple[tuple[float, float, float, float], float]]],
    second: Sequence[Sequence[tuple[tuple[float, float, float, float], float]]],
    interval_ms: int,
) -> None:
    letters: dict[str, str] = {}
    last: dict[str, Event] = {}
    ids = itertools.count(1)
    for film, reason in ((first, EndReason.CHANNEL_ENDED), (second, EndReason.SHUTDOWN)):
        channel = Channel(ids, interval_ms)  # the camera is opened again: the ids go on
        for items in film:
            for event in channel.step(*(box for box, _ in items), score=items[0][1] if items else 0.0):
                note(event, letters, last)
        for event in channel.machine.close(reason):
            note(event, letters, last)
    assert all(re.fullmatch("nu*e", text) for text in letters.values())


def note(event: Event, letters: dict[str, str], last: dict[str, Event]) -> None:
    event_id = event.after.id
    letters[event_id] = letters.get(event_id, "") + event.type.value[0]
    before = last.get(event_id)
    assert event.before == (before.after if before else None)
    assert (event.after.end_time_ns is not None) == (event.type is EventType.END)
    last[event_id] = event

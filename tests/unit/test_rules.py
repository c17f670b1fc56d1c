"""Rules and events together: what zones and lines say appears in the events, and survives a change of the rules."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support_scenes import Detector, info_of, pattern
from zhcedge.analytics.events import EventMachine, EventSettings
from zhcedge.analytics.lines import LineSettings
from zhcedge.analytics.rules import NOWHERE, Rules, RulesSettings
from zhcedge.analytics.tracker import Tracker, TrackerSettings
from zhcedge.analytics.trail import MAX_POINTS, Trail
from zhcedge.analytics.zones import ZoneSettings
from zhcedge.core.events import Direction, EndReason, Event, EventType
from zhcedge.core.schedule import Schedule, parse_window
from zhcedge.core.types import DETECTION_DTYPE, FrameInfo

LABELS = ("person", "car")
SIZE = (1000, 500)
FPS = 10
LEFT = ZoneSettings("left", ((0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0)))
RIGHT = ZoneSettings("right", ((0.5, 0.0), (1.0, 0.0), (1.0, 1.0), (0.5, 1.0)))
MIDDLE = LineSettings("middle", ((0.5, 1.0), (0.5, 0.0)))


class Channel:
    """A tracker with its machine and rules, fed at 10 frames a second from 1970 on."""

    def __init__(
        self, *rules: ZoneSettings | LineSettings, required: tuple[str, ...] = (), interval_ms: int = 1000
    ) -> None:
        self.settings = EventSettings("gate", LABELS, interval_ms, required_zones=required)
        self.tracker = Tracker(TrackerSettings(confirm_frames=2, max_lost_frames=3, stationary_s=2))
        self.machine = EventMachine(self.settings, Rules(of(*rules), LABELS))
        self.sequence = 0

    def step(self, *places: tuple[float, float], label: int = 0, score: float = 0.5) -> list[Event]:
        """Objects whose lower edges have their middles here, as fractions."""
        boxes = [(1000 * x - 20, 500 * y - 60, 1000 * x + 20, 500 * y) for x, y in places]
        found = np.array([(box, score, label) for box in boxes], DETECTION_DTYPE)
        return self.machine.step(self.tracker.update(found, self._next()), SIZE)

    def rest(self) -> list[Event]:
        return self.machine.step(self.tracker.coast(self._next()), SIZE)

    def walk(self, xs: Iterable[float], y: float = 0.6) -> list[Event]:
        return [event for x in xs for event in self.step((x, y))]

    def _next(self) -> FrameInfo:
        at = self.sequence / FPS
        self.sequence += 1
        return FrameInfo(0, self.sequence - 1, round(at * 1e9), 0, at)


def of(*rules: ZoneSettings | LineSettings) -> RulesSettings:
    return RulesSettings(
        tuple(rule for rule in rules if isinstance(rule, ZoneSettings)),
        tuple(rule for rule in rules if isinstance(rule, LineSettings)),
    )


def way(start: float, end: float, step: float = 0.01) -> list[float]:
    return np.linspace(start, end, round(abs(end - start) / step) + 1).tolist()


def test_events_say_where_the_object_is_and_was_and_which_lines_it_crossed() -> None:
    channel = Channel(LEFT, RIGHT, MIDDLE)
    events = channel.walk(way(0.3, 0.8))
    events += [event for _ in range(5) for event in channel.step()]
    assert [event.type.value[0] for event in (events[0], events[-1])] == ["n", "e"]
    assert events[0].after.current_zones == ("left",)
    end = events[-1].after
    assert (end.current_zones, end.entered_zones) == (("right",), ("left", "right"))
    assert end.line_crossings == {"middle": Direction.IN}
    assert channel.machine.line_counts() == {"middle": {Direction.IN: Counter(person=1), Direction.OUT: Counter()}}


def test_what_a_rule_says_does_not_wait_for_the_interval() -> None:
    channel = Channel(RIGHT, MIDDLE, interval_ms=60_000)
    events = channel.walk(way(0.45, 0.55))
    told = [(event.type, event.after.frame.sequence, event.after.current_zones) for event in events]
    assert told == [(EventType.NEW, 1, ()), (EventType.UPDATE, 5, ("right",)), (EventType.UPDATE, 7, ("right",))]
    assert [dict(event.after.line_crossings) for event in events] == [{}, {}, {"middle": Direction.IN}]


def test_leaving_a_zone_waits_for_the_interval() -> None:
    channel = Channel(LEFT, interval_ms=3000)
    events = channel.walk([0.45] * 5 + way(0.46, 0.60) + [0.6] * 30)
    (update,) = [event for event in events if event.type is EventType.UPDATE]
    assert update.after.frame.sequence == 31
    assert (update.after.current_zones, update.after.entered_zones) == ((), ("left",))


def test_loitering_is_told_once_and_ends_with_the_stay() -> None:
    channel = Channel(ZoneSettings("left", LEFT.points, loiter_s=1.0))
    events = channel.walk([0.2 + 0.002 * (i % 3) for i in range(30)])
    told = [event for event in events if event.after.loitering and event.before and not event.before.loitering]
    assert [(event.after.frame.sequence, event.after.loitering) for event in told] == [(11, ("left",))]
    assert channel.walk(way(0.2, 0.8, 0.02))[-1].after.loitering == ()


def test_loitering_goes_on_while_nothing_moves_and_nothing_is_detected() -> None:
    channel = Channel(ZoneSettings("left", LEFT.points, loiter_s=3.0))
    channel.walk([0.2] * 3)
    events = [event for _ in range(60) for event in channel.rest()]
    assert [event.after.loitering for event in events if event.after.loitering] == [("left",)]


def test_required_zones_hold_an_event_back_until_its_object_is_there() -> None:
    channel = Channel(LEFT, RIGHT, required=("right",))
    assert channel.walk(way(0.3, 0.49)) == []
    assert channel.machine.open_count == 0
    (event, *_) = channel.walk(way(0.5, 0.6))
    assert (event.type, event.after.entered_zones) == (EventType.NEW, ("left", "right"))
    assert event.after.start_time_ns == 0
    again = Channel(LEFT, RIGHT, required=("right",))
    assert again.walk(way(0.3, 0.4)) + [event for _ in range(9) for event in again.step()] == []


def test_a_parked_car_is_told_twice_however_its_box_jitters() -> None:
    chance = np.random.default_rng(2)
    channel = Channel(LEFT, MIDDLE, interval_ms=100)
    events = []
    for second in range(60):
        for _ in range(FPS):
            events += channel.step((0.5 + chance.normal(0, 0.001), 0.6), label=1, score=0.4 + 0.005 * second)
    states = [event.after.is_stationary for event in events]
    assert states.count(True) == 1
    assert len(events) < 30  # all but one in the first two seconds
    assert channel.machine.line_counts()["middle"][Direction.IN]["car"] <= 1


def test_an_object_that_vanishes_on_a_line_has_crossed_it() -> None:
    channel = Channel(MIDDLE)
    events = channel.walk(way(0.4, 0.502, 0.001)) + [event for _ in range(5) for event in channel.step()]
    assert events[-1].type is EventType.END
    assert events[-1].after.line_crossings == {"middle": Direction.IN}
    assert channel.machine.line_counts()["middle"][Direction.IN] == Counter(person=1)


def test_occupancy_counts_open_events_by_zone_and_label() -> None:
    channel = Channel(LEFT, RIGHT)
    for _ in range(3):
        channel.step((0.2, 0.6), (0.3, 0.6), (0.8, 0.6))
    assert channel.machine.zone_counts() == {"left": Counter(person=2), "right": Counter(person=1)}
    channel.step()  # unseen for a moment
    assert channel.machine.zone_counts()["left"] == Counter(person=2)
    channel.machine.close(EndReason.SHUTDOWN)
    assert channel.machine.zone_counts() == {"left": Counter(), "right": Counter()}


def test_a_zone_holds_while_its_schedule_does() -> None:
    zone = ZoneSettings("left", LEFT.points, schedule=Schedule((parse_window("thu 00:01-00:02"),), "UTC"))
    channel = Channel(zone)  # 1970 began on a Thursday
    events = channel.walk([0.2 + 0.02 * (i % 2) for i in range(200 * FPS)])
    inside = [event.after.frame.sequence for event in events if event.after.current_zones]
    assert inside[0] == 60 * FPS
    assert inside[-1] < 120 * FPS
    assert channel.machine.zone_counts() == {"left": Counter()}


def test_other_rules_keep_who_is_where_and_what_was_counted() -> None:
    slow = ZoneSettings("left", LEFT.points, loiter_s=2.0)
    channel = Channel(slow, MIDDLE)
    channel.walk([*way(0.6, 0.4), *([0.4] * 5)])
    before = channel.machine.line_counts()
    assert before["middle"][Direction.OUT] == Counter(person=1)
    larger = ZoneSettings("left", ((0.0, 0.0), (0.6, 0.0), (0.6, 1.0), (0.0, 1.0)), loiter_s=2.0)
    channel.machine.rules.replace(of(RIGHT, larger, MIDDLE, LineSettings("new", ((0.1, 0.0), (0.1, 1.0)))))
    assert channel.machine.zone_counts() == {"right": Counter(), "left": Counter(person=1)}
    events = channel.walk([0.4] * 20)
    assert events[0].after.loitering == ("left",)
    assert channel.machine.line_counts()["middle"] == before["middle"]
    assert channel.machine.line_counts()["new"] == {Direction.IN: Counter(), Direction.OUT: Counter()}
    channel.machine.rules.replace(of(RIGHT))
    assert channel.machine.zone_counts() == {"right": Counter()}
    assert channel.machine.line_counts() == {}
    (end,) = channel.machine.close(EndReason.SHUTDOWN)
    assert (end.after.current_zones, end.after.entered_zones) == ((), ("left",))


def test_rules_go_on_with_the_next_machine_and_keep_their_counts() -> None:
    channel = Channel(MIDDLE)
    channel.walk(way(0.4, 0.6))
    channel.machine.close(EndReason.CHANNEL_ENDED)
    channel.walk(way(0.6, 0.4))  # detection goes on for a moment
    assert channel.machine.rules.of(1) != NOWHERE
    channel.machine.close(EndReason.SHUTDOWN)
    assert channel.machine.rules.of(1) == NOWHERE
    again = EventMachine(channel.settings, channel.machine.rules)
    assert again.line_counts()["middle"][Direction.IN] == Counter(person=1)
    assert again.zone_counts() == {}


def test_names_are_unique_and_shapes_possible() -> None:
    with pytest.raises(ValueError, match="twice"):
        of(LEFT, LEFT)
    with pytest.raises(ValueError, match="3 points"):
        ZoneSettings("z", ((0.0, 0.0), (1.0, 1.0)))
    with pytest.raises(ValueError, match="differ"):
        LineSettings("l", ((0.5, 0.5), (0.5, 0.5)))


def test_a_pattern_s_counts_are_exact() -> None:
    # Each object bounces about in its cell; the truth says how often its foot is on which side of the line.
    scene = pattern(0, 5)
    line = LineSettings("middle", ((0.5, 1.0), (0.5, 0.0)))
    tracker, machine = Tracker(), EventMachine(EventSettings("a", LABELS), Rules(of(line), LABELS))
    chance = np.random.default_rng(1)
    sides: dict[int, list[bool]] = {}
    for frame in range(900):
        boxes = scene(frame)
        found, _ = Detector().find(boxes, chance)
        machine.step(tracker.update(found, info_of(frame)), (1280, 720))
        for key, box in boxes.items():
            # Objects near the line are left to the tests of hysteresis.
            x, clear = (box[0] + box[2]) / 2 - 640, 0.1 * max((box[2] - box[0]) / 1280, (box[3] - box[1]) / 720) * 1280
            if frame >= 3 and abs(x) > clear and sides.setdefault(key, [x > 0])[-1] != (x > 0):
                sides[key].append(x > 0)
    changes = Counter(now for states in sides.values() for now in states[1:])
    counts = machine.line_counts()["middle"]
    assert sum(changes.values()) > 10
    assert (counts[Direction.IN].total(), counts[Direction.OUT].total()) == (changes[True], changes[False])


@given(st.lists(st.tuples(st.floats(-0.5, 1.5), st.floats(-0.5, 1.5)), min_size=1, max_size=200))
def test_a_trail_has_few_points_and_ends_where_the_object_is(points: list[tuple[float, float]]) -> None:
    trail = Trail(points[0])
    for point in points[1:]:
        trail.go(point)
    told = trail.points
    assert 1 <= len(told) <= MAX_POINTS
    assert told[-1] == pytest.approx(np.clip(points[-1], 0, 1), abs=1e-4)
    assert told[0] == pytest.approx(np.clip(points[0], 0, 1), abs=1e-4)


place = st.tuples(st.floats(0, 1, width=16), st.floats(0.25, 1, width=16))
steps = st.lists(
    st.one_of(st.lists(place, max_size=3), st.sampled_from(["rest", "replace", "close"])), min_size=1, max_size=40
)


@given(steps, st.booleans(), st.integers(0, 1000))
def test_whatever_happens_every_new_has_one_end_and_nothing_after_it(
    film: Sequence[list[tuple[float, float]] | str], is_required: bool, interval_ms: int
) -> None:
    channel = Channel(
        ZoneSettings("left", LEFT.points, loiter_s=0.3),
        RIGHT,
        MIDDLE,
        required=("left",) if is_required else (),
        interval_ms=interval_ms,
    )
    others = itertools.cycle([of(LEFT), of(LEFT, RIGHT, MIDDLE)])
    events: list[Event] = []
    for step in film:
        if step == "rest":
            events += channel.rest()
        elif step == "replace":
            channel.machine.rules.replace(next(others))
        elif step == "close":
            events += channel.machine.close(EndReason.CHANNEL_ENDED)
        elif isinstance(step, list):
            events += channel.step(*step)
    events += channel.machine.close(EndReason.SHUTDOWN)
    assert channel.machine.open_count == 0
    last: dict[str, Event] = {}
    for event in events:
        before = last.get(event.after.id)
        assert (event.type is EventType.NEW) == (before is None)
        assert before is None or (before.type is not EventType.END and event.before == before.after)
        assert set(event.after.current_zones) <= set(event.after.entered_zones)
        assert len(event.after.path) <= MAX_POINTS
        last[event.after.id] = event
    assert all(event.type is EventType.END for event in last.values())

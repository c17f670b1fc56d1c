"""Totals by the hour say what the events say, whatever the wall clock does."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support_history import HOUR_NS, NOON_NS, SECOND_NS, Scene
from zhcedge.core.events import Direction
from zhcedge.store import history_batch
from zhcedge.store.history_batch import Batch, Place, Tally, TotalKey

_ZONES = ("drive", "lawn")
_STEPS = st.one_of(
    st.tuples(st.just("new"), st.sampled_from(["person", "car"])),
    st.tuples(st.just("update"), st.integers(0, 5), st.sets(st.sampled_from(_ZONES)).map(sorted)),
    st.tuples(st.just("cross"), st.integers(0, 5), st.sampled_from(list(Direction))),
    st.tuples(st.just("end"), st.integers(0, 5)),
    st.tuples(st.just("wait"), st.floats(0, 9000)),
    st.tuples(st.just("set clock"), st.integers(-30, 30), st.booleans()),
    st.just(("write",)),
)


def together(batch: Batch, place: Place, name: str = "") -> Tally:
    total = Tally()
    for key, tally in batch.totals.items():
        if (key.place, key.name) == (place, name):
            total.add(tally)
    return total


@given(st.lists(_STEPS, max_size=60))
def test_the_sums_over_hours_are_those_of_the_events_also_when_the_clock_is_set(
    steps: list[tuple[object, ...]],
) -> None:
    scene, on_disk, batch = Scene(), Batch(), Batch()
    began, entered, crossed = 0, Counter[str](), Counter[Direction]()
    alive_ns, in_zone_ns = 0, Counter[str]()
    since: dict[str, int] = {}
    inside: dict[str, tuple[int, tuple[str, ...]]] = {}
    known: dict[str, set[str]] = {}
    ways: dict[str, Direction] = {}

    def leave(event_id: str) -> None:
        since_ns, zones = inside.pop(event_id)
        in_zone_ns.update(dict.fromkeys(zones, scene.monotonic_ns - since_ns))

    def pick(number: object) -> str | None:
        ids = scene.open_ids
        return ids[int(str(number)) % len(ids)] if ids else None

    for step in steps:
        if step[0] == "new":
            event = scene.new(str(step[1]))
            batch.note(event, "boot")
            began += 1
            since[event.after.id], inside[event.after.id] = scene.monotonic_ns, (scene.monotonic_ns, ())
            known[event.after.id] = set()
        elif step[0] == "wait":
            scene.move(float(str(step[1])))
        elif step[0] == "set clock":
            scene.wall_ns += int(str(step[1])) * HOUR_NS // 7
            scene.is_set = bool(step[2])
        elif step[0] == "write":
            on_disk.merge(batch)
            batch = Batch()
        elif (event_id := pick(step[1])) is None:
            continue
        elif step[0] == "end":
            batch.note(scene.end(event_id), "boot")
            alive_ns += scene.monotonic_ns - since.pop(event_id)
            leave(event_id)
        elif step[0] == "cross":
            assert isinstance(step[2], Direction)
            batch.note(scene.update(event_id, inside[event_id][1], {"door": step[2]}), "boot")
            crossed[step[2]] += ways.get(event_id) is not step[2]
            ways[event_id] = step[2]
        else:
            zones = tuple(step[2]) if isinstance(step[2], list) else ()
            leave(event_id)
            batch.note(scene.update(event_id, zones), "boot")
            inside[event_id] = (scene.monotonic_ns, zones)
            entered.update(zone for zone in zones if zone not in known[event_id])
            known[event_id] |= set(zones)
    for event_id in scene.open_ids:
        batch.note(scene.end(event_id), "boot")
        alive_ns += scene.monotonic_ns - since.pop(event_id)
        leave(event_id)
    on_disk.merge(batch)

    camera, door = together(on_disk, Place.CAMERA), together(on_disk, Place.LINE, "door")
    assert (camera.events, camera.presence_ns) == (began, alive_ns)
    assert sum(row.presence_ns for row in on_disk.rows.values()) == alive_ns
    assert len(on_disk.rows) == began
    assert all(row.end_reason is not None for row in on_disk.rows.values())
    assert (door.went_in, door.went_out) == (crossed[Direction.IN], crossed[Direction.OUT])
    for zone in _ZONES:
        there = together(on_disk, Place.ZONE, zone)
        assert (there.events, there.presence_ns) == (entered[zone], in_zone_ns[zone])


def test_presence_over_the_end_of_an_hour_is_shared_between_both() -> None:
    scene, batch = Scene(wall_ns=NOON_NS - 10 * SECOND_NS), Batch()
    batch.note(scene.new(), "boot")
    scene.move(3610)
    batch.note(scene.end("gate-1"), "boot")
    noon = NOON_NS // HOUR_NS
    keys = [TotalKey(hour, True, "gate", Place.CAMERA, "", "person") for hour in (noon - 1, noon)]
    assert batch.totals == {keys[0]: Tally(1, 10 * SECOND_NS), keys[1]: Tally(0, 3600 * SECOND_NS)}


def test_hours_that_an_unset_clock_has_told_are_kept_apart() -> None:
    scene, batch = Scene(wall_ns=0, is_set=False), Batch()
    batch.note(scene.new(), "boot")
    scene.move(5)
    scene.wall_ns, scene.is_set = NOON_NS, True
    batch.note(scene.end("gate-1"), "boot")
    assert {(key.hour, key.clock_synced): tally.events for key, tally in batch.totals.items()} == {
        (0, False): 1,
        # The hour before noon: it was there for five seconds up to now.
        (NOON_NS // HOUR_NS - 1, True): 0,
    }
    (row,) = batch.rows.values()
    assert not row.clock_synced


def test_what_waits_in_memory_is_bounded_and_counted() -> None:
    scene, batch = Scene(), Batch()
    more = 7
    for _ in range(history_batch.MAX_ROWS + more):
        batch.note(scene.new(), "boot")
    assert (len(batch.rows), batch.lost) == (history_batch.MAX_ROWS, more)
    assert together(batch, Place.CAMERA).events == history_batch.MAX_ROWS + more

"""The history on disk: written once a minute, read and purged by others meanwhile, and never in the way."""

from __future__ import annotations

import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.disks import fill, small_tmpfs
from tests.contract.outboxes import HandClock
from tests.unit.support_history import HOUR_NS, NOON_NS, SECOND_NS, Scene
from zhcedge.core.delivery import Alert
from zhcedge.core.errors import SourceMissingError, StoreError
from zhcedge.core.events import Direction, EndReason
from zhcedge.store.history import History
from zhcedge.store.history_batch import PastEvent, Place
from zhcedge.store.history_file import FILE_NAME, HistoryLimits
from zhcedge.store.history_reading import PurgeableHistory, Wanted, read_events, read_totals
from zhcedge.store.purging import Selection

ALL = Wanted()
DAY_NS = 24 * HOUR_NS


class Daemon:
    """A history, and what moves it."""

    def __init__(self, folder: Path, boot_id: str = "boot", limits: HistoryLimits | None = None) -> None:
        self.folder, self.clock = folder, HandClock()
        self.alerts: list[Alert] = []
        self.history = History(folder, self.clock, self.alerts.append, boot_id, limits)

    def minute(self) -> None:
        """The next minute begins, and what came in the last one is written."""
        self.settle()
        self.clock.move(60)
        self.history.tick()
        self.settle()

    def settle(self) -> None:
        """Wait until nothing is being written."""
        deadline_s = time.monotonic() + 20
        while self.history._writer.is_busy and time.monotonic() < deadline_s:
            self.history.tick()
            time.sleep(0.002)
        assert not self.history._writer.is_busy


Start = Callable[..., Daemon]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    daemons: list[Daemon] = []

    def make(boot_id: str = "boot", limits: HistoryLimits | None = None, folder: Path = tmp_path) -> Daemon:
        daemons.append(Daemon(folder, boot_id, limits))
        return daemons[-1]

    yield make
    for daemon in daemons:
        daemon.history.close()


def past(scene: Scene, daemon: Daemon, seconds: float = 1.0) -> None:
    """A whole event."""
    event = scene.new()
    daemon.history.take([event])
    scene.move(seconds)
    daemon.history.take([scene.end(event.after.id)])


def ids(folder: Path, wanted: Wanted = ALL) -> list[str]:
    return [event.id for event in read_events(folder, wanted)]


def test_an_event_can_be_read_while_the_daemon_runs_a_minute_later(start: Start, tmp_path: Path) -> None:
    daemon, scene = start(), Scene()
    daemon.history.take([scene.new("car", zones=("drive",))])
    scene.move(2)
    daemon.history.take([scene.update("gate-1", ("lawn",), {"door": Direction.IN}, 0.75)])
    daemon.settle()
    assert ids(tmp_path) == []
    daemon.minute()
    going_on = PastEvent(
        "boot",
        "gate-1",
        "gate",
        "car",
        NOON_NS,
        NOON_NS + 2 * SECOND_NS,
        2 * SECOND_NS,
        0.75,
        ("drive", "lawn"),
        (("door", Direction.IN),),
        clock_synced=True,
    )
    assert read_events(tmp_path, ALL) == [going_on]
    scene.move(3)
    daemon.history.take([scene.end("gate-1")])
    daemon.minute()
    (ended,) = read_events(tmp_path, ALL)
    assert (ended.end_reason, ended.presence_ns, ended.end_ns) == (EndReason.LOST, 5 * SECOND_NS, scene.wall_ns)
    totals = {(key.place, key.name): tally for key, tally in read_totals(tmp_path, ALL)}
    assert totals[Place.CAMERA, ""].events == 1
    assert totals[Place.CAMERA, ""].presence_ns == 5 * SECOND_NS
    assert totals[Place.ZONE, "lawn"].presence_ns == 3 * SECOND_NS
    assert totals[Place.LINE, "door"].went_in == 1


def test_nothing_is_written_within_the_same_minute(start: Start, tmp_path: Path) -> None:
    daemon, scene = start(), Scene()
    past(scene, daemon)
    daemon.minute()
    past(scene, daemon)
    for _ in range(59):
        daemon.clock.move(1)
        daemon.history.tick()
        daemon.settle()
    assert ids(tmp_path) == ["gate-1"]
    daemon.clock.move(1)
    daemon.history.tick()
    daemon.settle()
    assert ids(tmp_path) == ["gate-1", "gate-2"]


def test_closing_writes_what_is_left(start: Start, tmp_path: Path) -> None:
    daemon = start()
    past(Scene(), daemon)
    daemon.history.close()
    assert ids(tmp_path) == ["gate-1"]
    assert daemon.alerts == []


def test_what_a_crash_has_left_open_is_ended_by_the_next_start(start: Start, tmp_path: Path) -> None:
    first, scene = start("first"), Scene()
    first.history.take([scene.new()])
    first.minute()
    second = start("second")
    second.settle()
    (event,) = read_events(tmp_path, ALL)
    assert event.end_reason is EndReason.CRASH
    past(Scene(), second)  # the same id, of another boot
    second.minute()
    assert [(event.boot_id, event.end_reason) for event in read_events(tmp_path, ALL)] == [
        ("first", EndReason.CRASH),
        ("second", EndReason.LOST),
    ]


def test_reading_selects_by_time_camera_and_label(start: Start, tmp_path: Path) -> None:
    daemon = start()
    yard, gate = Scene("yard"), Scene("gate")
    for scene in (yard, gate):
        for _ in range(3):
            past(scene, daemon, 10)
            scene.move(HOUR_NS / SECOND_NS - 10)
    daemon.history.take([gate.new("car"), gate.end("gate-4")])
    daemon.minute()
    assert ids(tmp_path, Wanted(camera="yard")) == ["yard-1", "yard-2", "yard-3"]
    assert ids(tmp_path, Wanted(label="car")) == ["gate-4"]
    assert ids(tmp_path, Wanted(camera="yard", limit=2)) == ["yard-2", "yard-3"]
    begins, ends = NOON_NS + HOUR_NS, NOON_NS + HOUR_NS + 10 * SECOND_NS
    assert ids(tmp_path, Wanted(begins, ends, "gate")) == ["gate-2"]
    assert ids(tmp_path, Wanted(ends + 1, None, "gate")) == ["gate-3", "gate-4"]
    assert ids(tmp_path, Wanted(None, begins, "gate")) == ["gate-1"]
    hours = [key.hour - NOON_NS // HOUR_NS for key, _ in read_totals(tmp_path, Wanted(begins, begins + 1, "yard"))]
    assert hours == [1]


def test_a_folder_without_a_history_says_so(tmp_path: Path) -> None:
    with pytest.raises(SourceMissingError, match="no history"):
        read_events(tmp_path, ALL)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_set_aside_and_no_event_is_lost(start: Start, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"this is no database" * 1000)
    with pytest.raises(StoreError, match="damaged"):
        read_events(tmp_path, ALL)
    daemon = start()
    past(Scene(), daemon)
    daemon.minute()
    assert ids(tmp_path) == ["gate-1"]
    assert [alert.code for alert in daemon.alerts] == ["history-corrupt"]
    assert len(list(tmp_path.glob(f"{FILE_NAME}.broken-*"))) == 1


def test_a_file_of_a_newer_version_is_left_alone(start: Start, tmp_path: Path) -> None:
    start().history.close()
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(StoreError, match="newer version"):
        read_events(tmp_path, ALL)
    daemon = start()
    daemon.minute()
    assert [alert.code for alert in daemon.alerts] == ["history-disk-error"]
    assert "newer version" in daemon.alerts[0].text


def test_a_full_disk_is_told_once_and_its_events_come_when_there_is_room(start: Start, tmp_path: Path) -> None:
    with small_tmpfs(tmp_path):
        daemon, scene = start(), Scene()
        daemon.settle()
        filler = fill(tmp_path)
        for _ in range(3):
            for _ in range(1000):
                past(scene, daemon)
            daemon.minute()
        assert [alert.code for alert in daemon.alerts] == ["history-disk-full"]
        filler.unlink()
        daemon.minute()
        assert [(alert.code, alert.is_over) for alert in daemon.alerts[1:]] == [("history-disk-full", True)]
        assert len(ids(tmp_path)) == 3000
        assert sum(tally.events for _, tally in read_totals(tmp_path, ALL)) == 3000
        daemon.history.close()


def test_a_history_on_a_disk_that_is_read_only_can_be_read(start: Start, tmp_path: Path) -> None:
    with small_tmpfs(tmp_path):
        daemon = start()
        past(Scene(), daemon)
        daemon.history.close()
        subprocess.run(["mount", "-o", "remount,ro", tmp_path], check=True)
        assert ids(tmp_path) == ["gate-1"]
        with pytest.raises(StoreError, match="can't be used"):
            PurgeableHistory(tmp_path).purge(Selection())


def test_events_beyond_their_days_are_forgotten_by_a_clock_that_is_set(start: Start, tmp_path: Path) -> None:
    daemon = start(limits=HistoryLimits(days=1))
    now_ns = daemon.clock.wall_ns()
    old, undated, recent = Scene(wall_ns=now_ns - 2 * DAY_NS), Scene("yard", wall_ns=0, is_set=False), Scene("drive")
    recent.wall_ns = now_ns - 3 * HOUR_NS
    daemon.clock.is_set = False
    for scene in (undated, old, recent, undated):  # the first one must be older than the old one
        past(scene, daemon)
        daemon.minute()
    daemon.clock.move(3600)
    daemon.minute()
    assert len(ids(tmp_path)) == 4
    daemon.clock.is_set = True
    daemon.clock.move(3600)
    daemon.minute()
    assert sorted(ids(tmp_path)) == ["drive-1", "yard-2"]
    assert {key.camera for key, _ in read_totals(tmp_path, ALL)} == {"drive", "yard"}


def test_a_file_that_is_too_large_loses_its_oldest_rows(start: Start, tmp_path: Path) -> None:
    daemon, scene = start(limits=HistoryLimits(max_bytes=400_000)), Scene()
    for _ in range(12):
        for _ in range(500):
            past(scene, daemon)
        daemon.clock.move(3600)
        daemon.minute()
    daemon.history.close()
    left = [int(name.removeprefix("gate-")) for name in ids(tmp_path)]
    assert left == list(range(left[0], 6001))
    assert left[0] > 1
    assert (tmp_path / FILE_NAME).stat().st_size < 800_000


def test_a_purge_takes_what_the_daemon_holds_in_memory_too(start: Start, tmp_path: Path) -> None:
    daemon, gate, yard = start(), Scene("gate"), Scene("yard")
    for scene in (gate, yard):
        past(scene, daemon)
    daemon.minute()
    for scene in (gate, yard):
        past(scene, daemon)
    history = PurgeableHistory(tmp_path)
    assert history.measure(Selection(camera="gate")).count == 2  # the event and its hour
    purged = history.purge(Selection(camera="gate"))
    assert purged.count == 2
    assert purged.size_bytes > 0
    daemon.minute()
    past(gate, daemon)
    daemon.minute()
    assert sorted(ids(tmp_path)) == ["gate-3", "yard-1", "yard-2"]
    history.purge(Selection())
    assert read_events(tmp_path, ALL) == []
    assert read_totals(tmp_path, ALL) == []


def test_a_purge_by_time_takes_what_began_before_and_leaves_nothing_of_it_in_the_file(
    start: Start, tmp_path: Path
) -> None:
    daemon, scene = start(), Scene("first-camera")
    past(scene, daemon)
    other = Scene("second-camera", wall_ns=NOON_NS + 2 * HOUR_NS)
    past(other, daemon)
    daemon.minute()
    PurgeableHistory(tmp_path).purge(Selection(before_ns=NOON_NS + HOUR_NS))
    assert ids(tmp_path) == ["second-camera-1"]
    assert [key.camera for key, _ in read_totals(tmp_path, ALL)] == ["second-camera"]
    daemon.history.close()
    assert b"first-camera" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_purging_where_there_is_no_history_makes_none(tmp_path: Path) -> None:
    assert PurgeableHistory(tmp_path).purge(Selection()).count == 0
    assert list(tmp_path.iterdir()) == []

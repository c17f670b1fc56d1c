"""What outlasts the process and a power cut, and what the flash has to bear for it."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.outboxes import HandClock, Place, held, message, rest, rows, settle, wait_for
from zhcedge.app.outbox_settings import outbox_settings
from zhcedge.config.schema import Config
from zhcedge.core.delivery import OpenEvent
from zhcedge.store import refused
from zhcedge.store.idset import IdSet
from zhcedge.store.settings import OutboxLimits

ROOT = Path(__file__).parents[2]
DURABLE = ("memory-dir", "dir", "both")
each_place = pytest.mark.parametrize("kind", DURABLE)


@each_place
def test_what_waits_is_there_at_the_next_start(tmp_path: Path, kind: str) -> None:
    place = Place(tmp_path, kind)
    outbox = place.open()
    assert outbox.is_durable
    for number in range(5):
        outbox.append(message(number), opens=OpenEvent(str(number), b"%d" % number))
    outbox.append(message(5), closes="2")
    outbox.ack(1)
    name, next_id = outbox.outbox_id, outbox.next_id
    outbox.close()
    again = place.open()
    assert (again.outbox_id, again.next_id, again.depth) == (name, next_id, 5)
    assert held(again) == [1, 2, 3, 4, 5]
    assert [event.id for event in again.open_events()] == ["0", "1", "3", "4"]
    again.close()
    assert place.alerts == []


def test_rows_that_wait_leave_the_memory_and_come_back_for_delivery(tmp_path: Path) -> None:
    place = Place(tmp_path)
    outbox = place.open()
    for number in range(9_000):
        outbox.append(message(number))
    settle(outbox, place.clock)
    assert (outbox.rows_in_memory, outbox.depth) == (0, 9_000)
    outbox.append(message(9_000))
    assert held(outbox) == list(range(9_001))
    # A new connection begins again at the oldest row that is left.
    for row in rows(outbox)[:6_000]:
        outbox.ack(row.id)
    settle(outbox, place.clock)
    assert held(outbox) == list(range(6_000, 9_001))
    outbox.close()


@pytest.mark.parametrize("kind", ["memory-dir", "both"])
def test_ids_go_on_far_behind_a_kill(tmp_path: Path, kind: str) -> None:
    place = Place(tmp_path / "0", kind)
    outbox = place.open()
    last = 0
    for round_number in range(1, 4):
        last = outbox.append(message(round_number))
        place = place.copy(tmp_path / str(round_number))
        outbox.close()
        outbox = place.open()
        assert outbox.next_id > last + 1
    outbox.close()


def test_after_a_power_cut_ids_and_name_go_on(tmp_path: Path) -> None:
    place = Place(tmp_path / "0")
    outbox = place.open()
    outbox.append(message(0), opens=OpenEvent("a", b"new"))
    settle(outbox, place.clock)
    last = outbox.append(message(1), closes="a")
    rest(outbox)
    after = place.copy(tmp_path / "1")
    for file in after.tmpfs.iterdir():
        file.unlink()
    again = after.open()
    assert again.outbox_id == outbox.outbox_id
    assert again.next_id > last
    assert held(again) == [0]
    assert again.open_events() == [OpenEvent("a", b"new")], "its end was not on flash, so it is open there"
    again.close()
    outbox.close()


def test_ids_of_rows_that_never_reached_the_flash_do_not_come_again(tmp_path: Path) -> None:
    place = Place(tmp_path / "0")
    outbox = place.open()
    last = outbox.append(message(0))
    after = place.copy(tmp_path / "1")
    for file in after.tmpfs.iterdir():
        file.unlink()
    again = after.open()
    assert (again.outbox_id, again.depth) == (outbox.outbox_id, 0)
    assert again.next_id > last
    again.close()
    outbox.close()


def test_messages_of_another_disk_are_delivered_too(tmp_path: Path) -> None:
    """The disk was exchanged, and the folder in memory still has rows of the old one."""
    old, new = Place(tmp_path / "old"), Place(tmp_path / "new")
    outbox = old.open()
    outbox.append(message(1), opens=OpenEvent("a", b""))
    killed = old.copy(tmp_path / "killed")
    outbox.close()
    other = new.open()
    other.append(message(0))
    other.close()
    (new.root / "tmpfs").rename(tmp_path / "unused")
    killed.tmpfs.rename(new.root / "tmpfs")
    mixed = new.open()
    assert mixed.outbox_id == other.outbox_id
    assert held(mixed) == [0, 1]
    assert [event.id for event in mixed.open_events()] == ["a"]
    assert mixed.append(message(2)) > rows(mixed)[1].id
    mixed.close()


def test_a_limit_holds_over_memory_and_flash(tmp_path: Path) -> None:
    place = Place(tmp_path, limits=OutboxLimits(6))
    outbox = place.open()
    for number in range(4):
        outbox.append(message(number), is_expendable=number % 2 == 1)
    settle(outbox, place.clock)
    for number in range(4, 9):
        outbox.append(message(number), is_expendable=number == 4)
    assert held(outbox) == [0, 2, 5, 6, 7, 8]
    assert (outbox.dropped, outbox.lost) == (3, 0)
    outbox.append(message(9))
    assert held(outbox) == [2, 5, 6, 7, 8, 9]
    outbox.close()
    again = place.open()
    assert held(again) == [2, 5, 6, 7, 8, 9]
    again.close()
    assert place.codes == ["messages-dropped"]


@pytest.mark.parametrize("kind", ["dir", "both"])
def test_old_rows_on_flash_are_given_up(tmp_path: Path, kind: str) -> None:
    place = Place(tmp_path, kind, OutboxLimits(max_age_s=1_000))
    outbox = place.open()
    for number in range(1_500):
        outbox.append(message(number))
    settle(outbox, place.clock)
    place.clock.move(800)
    outbox.append(message(1_500))

    def is_done() -> bool:
        place.clock.move(1)
        outbox.tick()
        return outbox.depth == 1

    place.clock.move(300)
    wait_for(is_done, "the old rows to go")
    assert held(outbox) == [1_500]
    assert (outbox.dropped, outbox.lost) == (1_500, 1_500)
    outbox.close()


def test_a_clock_that_is_set_for_the_first_time_makes_nothing_old(tmp_path: Path) -> None:
    place = Place(tmp_path, clock=HandClock(is_set=False), limits=OutboxLimits(max_age_s=1_000))
    outbox = place.open()
    outbox.append(message(0))
    settle(outbox, place.clock)
    outbox.append(message(1))
    place.clock.is_set = True
    place.clock.wall_ns = lambda: 1_900_000_000_000_000_000  # type: ignore[method-assign]
    for _ in range(5):
        place.clock.move(100)
        outbox.tick()
        rest(outbox)
    assert held(outbox) == [0, 1]
    outbox.close()


@pytest.mark.parametrize(("kind", "file"), [("memory-dir", "tmpfs/outbox-memory.db"), ("both", "disk/outbox.db")])
def test_refused_rows_are_kept_for_inspection_but_not_all(tmp_path: Path, kind: str, file: str) -> None:
    place = Place(tmp_path, kind)
    outbox = place.open()
    for number in range(refused.KEPT + 3):
        row_id = outbox.append(message(number))
        if kind == "both" and number == 0:
            settle(outbox, place.clock)  # the first one is on flash when it is refused
        outbox.refuse(row_id, f"reason {number}")
    outbox.close()
    with closing(sqlite3.connect(tmp_path / file)) as connection:
        found = connection.execute("SELECT payload, reason FROM refused ORDER BY id").fetchall()
    assert found == [(b"%d" % number, f"reason {number}") for number in range(3, refused.KEPT + 3)]


@pytest.mark.slow
def test_a_killed_process_loses_nothing_that_append_has_returned_for(tmp_path: Path) -> None:
    chance = random.Random(6)
    for number in range(10):
        root = tmp_path / str(number)
        place = Place(root)
        place.settings()
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.contract.outbox_child", str(root)], cwd=ROOT, stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        first = child.stdout.readline()
        time.sleep(chance.uniform(0.0, 0.3))
        child.send_signal(signal.SIGKILL)
        said = [line.split() for line in [first, *child.stdout.read().splitlines()]]
        child.wait()
        child.stdout.close()
        appended = {int(words[1]): int(words[2]) for words in said if words[0] == b"+" and len(words) == 3}
        acknowledged = {int(words[1]) for words in said if words[0] == b"-" and len(words) == 2}
        outbox = place.open()
        found = {row.id: int(row.message.payload) for row in rows(outbox)}
        assert appended.keys() - acknowledged <= found.keys()
        assert all(found[row_id] == appended.get(row_id, found[row_id]) for row_id in found)
        assert {str(one) for one in appended.values()} <= {event.id for event in outbox.open_events()}
        assert outbox.next_id > max(appended)
        assert place.alerts == []
        outbox.close()


# -- the flash's budget -------------------------------------------------------------------------------------------
def test_the_flash_is_synced_once_a_second_at_most_but_for_a_burst(tmp_path: Path) -> None:
    place = Place(tmp_path)
    outbox = place.open()
    started = outbox.flash_syncs
    seconds = 60
    for number in range(seconds * 10):
        outbox.append(message(number, 300), opens=OpenEvent(str(number % 7), b" " * 700))
        place.clock.move(0.1)
        outbox.tick()
        rest(outbox)
    assert seconds / 2 <= outbox.flash_syncs - started <= seconds + 4
    outbox.close()


def test_what_is_acknowledged_within_a_second_is_never_on_flash(tmp_path: Path) -> None:
    place = Place(tmp_path)
    outbox = place.open()
    for number in range(200):
        row_id = outbox.append(message(number))
        place.clock.move(0.3)
        outbox.tick()
        outbox.ack(row_id)
    rest(outbox)
    assert outbox.flash_syncs == 0
    outbox.close()


@given(st.sets(st.integers(1, 50_000), max_size=80), st.data())
def test_a_set_of_ids_is_a_set(ids: set[int], data: st.DataObject) -> None:
    found = IdSet()
    for row_id in sorted(ids):
        found.add(row_id)
    for row_id in data.draw(st.lists(st.sampled_from(sorted(ids)), max_size=80)) if ids else []:
        assert found.remove(row_id) is (row_id in ids)
        ids.discard(row_id)
        assert found.first == min(ids, default=0)
    assert len(found) == len(ids)
    probe = data.draw(st.integers(0, 50_001))
    assert (probe in found) is (probe in ids)
    assert found.next_after(probe) == min((row_id for row_id in ids if row_id > probe), default=0)


def test_folders_come_from_the_configuration_or_from_systemd(tmp_path: Path) -> None:
    config = Config.model_validate({"channels": {"a": {"source": {"uri": "clip:walkers"}}}})
    assert outbox_settings(config, {}).dir is None
    given_by_systemd = {"STATE_DIRECTORY": "/var/lib/a:/var/lib/b", "RUNTIME_DIRECTORY": "/run/a"}
    found = outbox_settings(config, given_by_systemd)
    assert (found.dir, found.memory_dir) == (Path("/var/lib/a"), Path("/run/a"))
    only_disk = config.model_copy(update={"outbox": config.outbox.model_copy(update={"dir": tmp_path})})
    found = outbox_settings(only_disk, {})
    assert (found.dir, found.memory_dir) == (tmp_path, tmp_path)
    assert found.limits == OutboxLimits(200_000, 512 * 1024 * 1024, 168 * 3600.0)

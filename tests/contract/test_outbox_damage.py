"""Damaged files, full disks, disks that do not answer, folders that can't be used: an outbox goes on, or says why."""

from __future__ import annotations

import random
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.disks import fill, frozen, need_root, small_disk, small_tmpfs
from tests.contract.outboxes import Place, held, message, pass_time, rest, rows, settle, wait_for
from zhcedge.core.delivery import OpenEvent
from zhcedge.core.errors import StoreError
from zhcedge.store.durable import DurableOutbox

# -- damage -------------------------------------------------------------------------------------------------------
FILES = ("disk/outbox.db", "disk/outbox.db-wal", "tmpfs/outbox-memory.db", "tmpfs/outbox-memory.db-journal")
damage = st.tuples(st.sampled_from(["cut", "garbage"]), st.floats(0, 1), st.integers(1, 8_000), st.randoms())


@given(file=st.sampled_from(FILES), harm=damage)
def test_a_damaged_file_never_stops_a_start_nor_changes_a_message(
    file: str, harm: tuple[str, float, int, random.Random]
) -> None:
    kind, part, length, chance = harm
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder) / "0")
        outbox = place.open()
        for number in range(30):
            outbox.append(message(number, 700), opens=OpenEvent(str(number), b"%d" % number))
            if number == 20:
                settle(outbox, place.clock)
        rest(outbox)
        after = place.copy(Path(folder) / "1")
        used, name = outbox.next_id - 1, outbox.outbox_id
        outbox.close()
        path = after.root / file
        data = bytearray(path.read_bytes())
        start = int(part * (len(data) - 1))
        if kind == "cut":
            del data[start:]
        else:
            data[start : start + length] = chance.randbytes(min(length, len(data) - start))
        path.write_bytes(data)
        again = after.open()
        found = rows(again)
        assert all(row.message == message(int(row.message.payload), 700) for row in found)
        assert all(event.id.encode() == event.payload for event in again.open_events())
        new_id = again.append(message(99))
        assert new_id > max((row.id for row in found), default=0)
        assert again.outbox_id != name or new_id > used
        assert held(again)[-1] == 99
        again.tick()
        if any(path.parent.glob("*.broken-*")):
            assert "outbox-corrupt" in after.codes
            assert again.outbox_id != name
        again.close()


@pytest.mark.parametrize(("kind", "file"), [("memory-dir", "tmpfs/outbox-memory.db"), ("dir", "disk/outbox.db")])
def test_a_message_with_a_changed_byte_is_not_sent(tmp_path: Path, kind: str, file: str) -> None:
    place = Place(tmp_path, kind)
    outbox = place.open()
    for number in range(3):
        outbox.append(message(number, 100))
    outbox.close()
    data = (tmp_path / file).read_bytes()
    assert data.count(b"1" + b" " * 100) == 1
    (tmp_path / file).write_bytes(data.replace(b"1" + b" " * 100, b"7" + b" " * 100))
    again = place.open()
    assert held(again) == [0, 2]
    assert again.lost == 1
    again.tick()
    assert place.codes == ["outbox-corrupt", "messages-dropped"]
    again.close()


def test_a_file_that_is_no_database_is_set_aside(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.settings()
    names = set()
    for round_number in range(5):
        (place.disk / "outbox.db").write_bytes(b"not a database at all " * 100)
        outbox = place.open()
        outbox.tick()
        outbox.append(message(round_number))
        names.add(outbox.outbox_id)
        outbox.close()
    assert len(names) == 5
    assert place.codes == ["outbox-corrupt"] * 5
    assert len(list(place.disk.glob("outbox.db.broken-*"))) == 3, "only the newest few are kept"


def test_damage_that_is_found_later_costs_only_what_was_there(tmp_path: Path) -> None:
    place = Place(tmp_path)
    outbox = place.open()
    for number in range(9_000):
        outbox.append(message(number, 1_000), is_expendable=number % 3 == 0, opens=OpenEvent("a", b"open"))
    settle(outbox, place.clock)
    outbox.append(message(9_000, 1_000))
    with (place.disk / "outbox.db").open("r+b") as file:
        file.write(b"\xa5" * file.seek(0, 2))
        file.truncate(4096)
    name = outbox.outbox_id

    def is_found() -> bool:
        after = outbox.pending(0, 5_000)
        for row in after:
            outbox.ack(row.id)
        pass_time(outbox, place.clock, 1.1)
        return "outbox-corrupt" in place.codes

    wait_for(is_found, "the damage to be seen")
    settle(outbox, place.clock)
    assert outbox.outbox_id == name
    assert outbox.dropped > 0
    outbox.append(message(9_001))
    outbox.close()
    again = place.open()
    assert held(again)[-1] == 9_001
    assert [event.id for event in again.open_events()] == ["a"]
    again.close()


@pytest.mark.parametrize(("file", "folder"), [("outbox.db", "disk"), ("outbox-memory.db", "tmpfs")])
def test_a_newer_version_of_the_file_is_refused(tmp_path: Path, file: str, folder: str) -> None:
    place = Place(tmp_path)
    place.open().close()
    path = place.root / folder / file
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 7")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="a newer version of the program wrote this outbox") as caught:
        place.open()
    assert caught.value.exit_code == 73
    assert path.read_bytes() == before


def test_an_unknown_version_of_the_file_is_set_aside(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.open().close()
    with closing(sqlite3.connect(place.disk / "outbox.db")) as connection:
        connection.execute("PRAGMA user_version = 0")
    outbox = place.open()
    outbox.close()
    assert place.codes == ["outbox-corrupt"]


# -- folders and disks --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["memory-dir", "dir", "both"])
def test_two_processes_cannot_share_an_outbox(tmp_path: Path, kind: str) -> None:
    place = Place(tmp_path, kind)
    outbox = place.open()
    with pytest.raises(StoreError, match="another process uses this outbox"):
        place.open()
    outbox.append(message(0))
    assert held(outbox) == [0]
    outbox.close()
    place.open().close()


@pytest.mark.parametrize("folder", ["disk", "tmpfs"])
def test_a_folder_that_is_not_there_is_refused(tmp_path: Path, folder: str) -> None:
    place = Place(tmp_path)
    settings = place.settings()
    (tmp_path / folder).rmdir()
    with pytest.raises(StoreError, match=f"{folder}: this folder is not there"):
        DurableOutbox(settings, place.clock, place.alerts.append)
    place.open().close()  # and nothing of the other folder is still taken


@pytest.mark.parametrize("full", ["disk", "tmpfs"])
def test_a_full_disk_is_told_of_and_got_over(tmp_path: Path, full: str) -> None:
    place = Place(tmp_path)
    place.settings()
    with small_tmpfs(tmp_path / full) as folder:
        outbox = place.open()
        outbox.append(message(0))
        settle(outbox, place.clock)
        filler = fill(folder)
        for number in range(1, 1_001):
            outbox.append(message(number, 500), opens=OpenEvent("a", b"%d" % number))

        def is_told() -> bool:
            pass_time(outbox, place.clock, 1.1)
            return "outbox-disk-full" in place.codes

        wait_for(is_told, "the alert")
        assert held(outbox) == list(range(1_001))
        filler.unlink()

        def is_over() -> bool:
            pass_time(outbox, place.clock, 1.1)
            return place.alerts[-1].is_over

        wait_for(is_over, "the end of the alert")
        assert place.codes == ["outbox-disk-full"] * 2
        settle(outbox, place.clock)
        outbox.append(message(1_001))
        rest(outbox)
        after = place.copy(tmp_path / "killed")
        outbox.close()
    again = after.open()
    assert held(again) == list(range(1_002))
    assert again.open_events() == [OpenEvent("a", b"1000")]
    again.close()


@pytest.mark.parametrize("full", ["disk", "tmpfs"])
def test_a_start_on_a_full_disk_goes_on_in_memory(tmp_path: Path, full: str) -> None:
    place = Place(tmp_path)
    place.settings()
    with small_tmpfs(tmp_path / full) as folder:
        filler = fill(folder)
        outbox = place.open()
        outbox.append(message(0))
        assert held(outbox) == [0]
        outbox.tick()
        assert "outbox-disk-full" in place.codes
        filler.unlink()
        settle(outbox, place.clock)
        outbox.close()
        assert place.alerts[-1].is_over
        again = place.open()
        assert again.outbox_id == outbox.outbox_id
        assert held(again) == [0]
        again.close()


def test_a_disk_that_does_not_answer_holds_nobody_up(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.settings()
    with small_disk(place.disk):
        outbox = place.open()
        for number in range(10):
            outbox.append(message(number))
        settle(outbox, place.clock)
        with frozen(place.disk):  # whoever touches this disk now waits until it is thawed, below
            for number in range(10, 200):
                outbox.append(message(number))
                place.clock.move(0.5)
                outbox.tick()
                assert [int(row.message.payload) for row in outbox.pending(0, 3)] == [0, 1, 2]
            assert place.codes == ["outbox-disk-error"]
            assert outbox.is_writing
        settle(outbox, place.clock)
        outbox.tick()
        assert place.alerts[-1].is_over
        assert held(outbox) == list(range(200))
        outbox.close()


def test_a_read_only_disk_is_refused(tmp_path: Path) -> None:
    need_root()
    place = Place(tmp_path)
    place.settings()
    with small_disk(place.disk, read_only=True), pytest.raises(StoreError, match="this folder can't be written to"):
        place.open()

"""The index of clips and snapshots, its repair, its limits, and deleting for privacy."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import random
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.clip_scene import Scene, make_video
from tests.contract.media_store import (
    CLIP,
    SNAPSHOT,
    T0,
    S,
    assert_in_line,
    put_file,
    put_indexed,
    scan,
)
from zhcedge.core.errors import StoreError
from zhcedge.core.file_times import file_stamp, stamp_ns
from zhcedge.store.clips import INDEX_NAME, MediaIndex, Use, Wanted
from zhcedge.store.media_files import (
    StorageLimits,
    StorageSettings,
    clips_folder,
    is_ours,
    media_files,
)
from zhcedge.store.purging import Amount, PurgeableMedia, Selection
from zhcedge.store.retention import Retention

DAY_S = 86_400
LAVISH = StorageLimits(10**12, 10_000 * DAY_S, 0)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Of six seconds."""
    folder = tmp_path_factory.mktemp("clip")
    with Scene(make_video(folder / "video.mp4", 6), folder / "clips", before_s=20.0) as scene:
        scene.play(60)
        scene.end("a", 50, 58)
    return scene.clip().parts[0].path.read_bytes()


@pytest.fixture
def index(tmp_path: Path) -> MediaIndex:
    return MediaIndex(tmp_path)


def put_clip(storage: Path, data: bytes, at_s: int, camera: str = "gate", suffix: str = "") -> Path:
    folder = clips_folder(storage, camera)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file_stamp(T0 + at_s * S)}.mp4{suffix}"
    path.write_bytes(data)
    return path


# -- names -------------------------------------------------------------------------------------------------------------
@given(st.integers(0, 4_000_000_000_000_000))
def test_times_in_names_come_back_and_sort(microseconds: int) -> None:
    stamp = file_stamp(microseconds * 1000)
    assert stamp_ns(f"{stamp}.mp4") == microseconds * 1000
    assert file_stamp(microseconds * 1000 + 1000) > stamp


def test_only_what_lies_and_is_called_like_ours_is_ours(tmp_path: Path) -> None:
    ours = put_file(tmp_path, "gate", 0).path
    stamp = ours.stem
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / f"{stamp}.mp4").write_text("x")
    (ours.parent / "holiday.mp4").write_text("x")
    (ours.parent / f"{stamp}.mp4.bak").write_text("x")
    (ours.parent / f"{stamp[:-8]}000001Z.mp4").symlink_to(tmp_path / "secret" / f"{stamp}.mp4")
    (tmp_path / "clips" / "Not A Camera").mkdir()
    (tmp_path / "clips" / "Not A Camera" / f"{stamp}.mp4").write_text("x")
    (tmp_path / "clips" / "link").symlink_to(tmp_path / "secret")
    assert [file.path for file in media_files(tmp_path)] == [ours]
    for path in (tmp_path / "secret" / f"{stamp}.mp4", tmp_path / "clips" / "gate" / ".." / ".." / "etc", ours.parent):
        assert not is_ours(tmp_path, path)


# -- scanning ----------------------------------------------------------------------------------------------------------
def test_what_a_killed_process_left_is_finished_and_indexed(tmp_path: Path, index: MediaIndex, clip: bytes) -> None:
    torn = put_clip(tmp_path, clip[: len(clip) * 2 // 3], 0, suffix=".part")
    put_clip(tmp_path, clip[:500], 10, suffix=".part")
    put_clip(tmp_path, clip, 20)
    report = scan(tmp_path, index)
    assert (report.recovered, report.removed, report.added) == (1, 1, 1)
    assert assert_in_line(tmp_path, index) == 2
    first = index.files()[0]
    assert (first.path, first.camera, first.start_ns) == (torn.with_suffix(""), "gate", T0)
    assert 3 <= (first.end_ns - first.start_ns) / S < 6
    again = scan(tmp_path, index)
    assert (again.recovered, again.removed, again.added, again.forgotten) == (0, 0, 0, 0)


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP])
def test_what_a_killed_process_left_is_finished_where_files_have_one_name_only(
    tmp_path: Path, index: MediaIndex, clip: bytes, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))  # as FAT does

    monkeypatch.setattr(os, "link", refuse)
    left = put_clip(tmp_path, clip, 0, suffix=".part")
    assert scan(tmp_path, index).recovered == 1
    assert [file.path for file in index.files()] == [left.with_suffix("")]
    assert not left.exists()
    other = put_clip(tmp_path, clip[:-10], 0, suffix=".part")  # never over a file that is there
    assert scan(tmp_path, index).recovered == 0
    assert (other.exists(), left.with_suffix("").read_bytes()) == (True, clip)


def test_a_clip_that_is_being_written_is_left_alone(tmp_path: Path, index: MediaIndex, clip: bytes) -> None:
    path = put_clip(tmp_path, clip[:-100], 0, suffix=".part")
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert scan(tmp_path, index).being_written == 1
        assert path.stat().st_size == len(clip) - 100
    assert scan(tmp_path, index).recovered == 1


def test_finished_files_that_cannot_be_played_do_not_stay(tmp_path: Path, index: MediaIndex, clip: bytes) -> None:
    put_clip(tmp_path, b"", 0)
    grown = put_clip(tmp_path, clip, 10)
    scan(tmp_path, index)
    grown.write_bytes(clip[: len(clip) // 2])  # as after a power cut
    scan(tmp_path, index)
    assert assert_in_line(tmp_path, index) == 1


def test_a_scan_that_was_killed_between_two_names_is_completed(tmp_path: Path, index: MediaIndex, clip: bytes) -> None:
    path = put_clip(tmp_path, clip, 0)
    os.link(path, f"{path}.part")
    scan(tmp_path, index)
    assert assert_in_line(tmp_path, index) == 1


def test_a_file_that_somebody_deleted_leaves_the_index(tmp_path: Path, index: MediaIndex) -> None:
    path = put_indexed(index, tmp_path, "gate", 0)
    path.unlink()
    assert scan(tmp_path, index).forgotten == 1
    assert index.files() == []


def test_recovered_clips_find_the_events_that_wanted_them(tmp_path: Path, index: MediaIndex, clip: bytes) -> None:
    index.want(Wanted("boot/1", "gate", T0 + 2 * S, None))
    index.want(Wanted("boot/2", "gate", T0 - 9 * S, T0 + 3 * S))
    index.want(Wanted("boot/3", "gate", T0 + 60 * S, None))
    index.want(Wanted("boot/4", "yard", T0, None))
    put_clip(tmp_path, clip, 0, suffix=".part")
    scan(tmp_path, index)
    ranges = {key: [(use.from_s, use.to_s) for _, use in index.clip_of(f"boot/{key}")] for key in (1, 2, 3, 4)}
    assert ranges == {1: [(2.0, pytest.approx(6.0))], 2: [(0.0, 3.0)], 3: [], 4: []}


# -- the index ---------------------------------------------------------------------------------------------------------
def test_the_index_survives_being_closed(tmp_path: Path, index: MediaIndex) -> None:
    file = put_file(tmp_path, "gate", 0)
    index.add(file, [Use("boot/1", file.path, 1.0, 2.5)])
    index.want(Wanted("boot/2", "gate", 5, None))
    index.close()
    again = MediaIndex(tmp_path)
    assert again.clip_of("boot/1") == [(file, Use("boot/1", file.path, 1.0, 2.5))]
    assert again.wanted() == [Wanted("boot/2", "gate", 5, None)]
    again.unwant("boot/2")
    again.remove(file.path)
    assert (again.wanted(), again.files(), again.clip_of("boot/1")) == ([], [], [])


@pytest.mark.parametrize("damage", [b"no database at all" * 100, None])
def test_a_damaged_index_is_made_again_from_the_files(tmp_path: Path, clip: bytes, damage: bytes | None) -> None:
    index = MediaIndex(tmp_path)
    put_clip(tmp_path, clip, 0)
    scan(tmp_path, index)
    index.close()
    path = tmp_path / INDEX_NAME
    if damage is None:  # rows and pages are there, and make no sense
        data = bytearray(path.read_bytes())
        data[100:] = random.Random(3).randbytes(len(data) - 100)
        damage = bytes(data)
    path.write_bytes(damage)
    with MediaIndexClosed(tmp_path) as again:
        assert again.files() == []
        scan(tmp_path, again)
        assert assert_in_line(tmp_path, again) == 1
    assert list(tmp_path.glob(f"{INDEX_NAME}.broken-*"))


class MediaIndexClosed:
    """A MediaIndex as a context manager."""

    def __init__(self, storage: Path) -> None:
        self._index = MediaIndex(storage)

    def __enter__(self) -> MediaIndex:
        return self._index

    def __exit__(self, *_: object) -> None:
        self._index.close()


def test_an_index_of_a_newer_version_is_not_touched(tmp_path: Path, index: MediaIndex) -> None:
    index.close()
    with sqlite3.connect(tmp_path / INDEX_NAME) as connection:
        connection.execute("PRAGMA user_version = 7")
    connection.close()
    before = (tmp_path / INDEX_NAME).read_bytes()
    with pytest.raises(StoreError, match="newer version"):
        MediaIndex(tmp_path)
    assert (tmp_path / INDEX_NAME).read_bytes() == before


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match=r"storage\.dir"):
        MediaIndex(tmp_path / "file" / "media")


# -- retention ---------------------------------------------------------------------------------------------------------
def names(index: MediaIndex) -> list[tuple[str, int]]:
    """Camera and beginning of every indexed file, in seconds."""
    return [(file.camera, (file.start_ns - T0) // S) for file in index.files()]


def test_files_that_are_too_old_go(tmp_path: Path, index: MediaIndex) -> None:
    for day in range(5):
        put_indexed(index, tmp_path, "gate", day * DAY_S, kind=SNAPSHOT if day % 2 else CLIP)
    retention = Retention(StorageSettings(tmp_path, StorageLimits(10**12, 2 * DAY_S, 0)), index)
    now_ns = T0 + 4 * DAY_S * S
    assert retention.run(now_ns, is_synced=False).files == 0  # who knows whether it is that late
    assert retention.run(now_ns, is_synced=True).files == 2
    assert names(index) == [("gate", day * DAY_S) for day in (2, 3, 4)]


@given(st.lists(st.tuples(st.sampled_from(["gate", "yard"]), st.integers(1, 500)), max_size=20), st.integers(1, 3000))
def test_beyond_the_size_the_oldest_go_first_and_no_more_than_needed(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[str, int]], max_bytes: int
) -> None:
    storage = tmp_path_factory.mktemp("media")
    with MediaIndexClosed(storage) as index:
        for at_s, (camera, size) in enumerate(sizes):
            put_indexed(index, storage, camera, at_s, size, SNAPSHOT if at_s % 3 else CLIP)
        Retention(StorageSettings(storage, StorageLimits(max_bytes, DAY_S, 0)), index).run(T0, is_synced=True)
        left = names(index)
        expected = sizes
        while sum(size for _, size in expected) > max_bytes:
            expected = expected[1:]
        assert left == [(camera, len(sizes) - len(expected) + at) for at, (camera, _) in enumerate(expected)]
        assert {file.path for file in media_files(storage)} == {file.path for file in index.files()}


def test_the_disks_floor_is_kept_by_deleting_the_oldest(tmp_path: Path, index: MediaIndex) -> None:
    paths = [put_indexed(index, tmp_path, "gate", at_s, 1000) for at_s in range(10)]

    def free(folder: Path) -> int:
        return 5000 + sum(1000 for path in paths if not path.exists())

    retention = Retention(StorageSettings(tmp_path, StorageLimits(10**12, DAY_S, 8000)), index, free)
    freed = retention.run(T0, is_synced=True)
    assert (freed.files, freed.is_short) == (3, False)
    assert [path.exists() for path in paths] == [False] * 3 + [True] * 7


def test_a_disk_that_others_have_filled_is_told(tmp_path: Path, index: MediaIndex) -> None:
    put_indexed(index, tmp_path, "gate", 0)
    limits = StorageLimits(10**12, DAY_S, 8000)
    freed = Retention(StorageSettings(tmp_path, limits), index, lambda folder: 0).run(T0, is_synced=True)
    assert (freed.files, freed.is_short) == (1, True)


def test_what_is_being_written_counts_and_stays(tmp_path: Path, index: MediaIndex) -> None:
    part = put_file(tmp_path, "gate", 0, 900).path
    part = part.rename(f"{part}.part")
    old, new = (put_indexed(index, tmp_path, "gate", at_s, 100) for at_s in (1, 2))
    Retention(StorageSettings(tmp_path, StorageLimits(1000, DAY_S, 0)), index).run(T0, is_synced=True)
    assert [path.exists() for path in (part, old, new)] == [True, False, True]


def test_a_row_that_leads_elsewhere_deletes_nothing(tmp_path: Path) -> None:
    storage = tmp_path / "media"
    other = tmp_path / "diary.mp4"
    other.write_text("mine")
    with MediaIndexClosed(storage) as index:
        index.close()
        with sqlite3.connect(storage / INDEX_NAME) as connection:
            connection.execute("INSERT INTO files VALUES ('../diary.mp4', 'clip', 'gate', 0, 1, 10)")
        connection.close()
    with MediaIndexClosed(storage) as index:
        Retention(StorageSettings(storage, StorageLimits(1, 1, 0)), index).run(T0, is_synced=True)
        PurgeableMedia(storage, index).purge(Selection())
    assert other.read_text() == "mine"


# -- purging -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("selection", "left"),
    [
        (Selection(), []),
        (Selection(camera="gate"), [("yard", 1), ("yard", 5)]),
        (Selection(before_ns=T0 + 4 * S), [("gate", 4), ("yard", 5)]),
        (Selection("yard", T0 + 4 * S), [("gate", 0), ("gate", 4), ("yard", 5)]),
    ],
    ids=["all", "camera", "before", "camera-before"],
)
def test_purging_deletes_what_fits_and_nothing_else(
    tmp_path: Path, index: MediaIndex, selection: Selection, left: list[tuple[str, int]]
) -> None:
    for at_s, camera, kind in ((0, "gate", CLIP), (1, "yard", SNAPSHOT), (4, "gate", SNAPSHOT), (5, "yard", CLIP)):
        put_indexed(index, tmp_path, camera, at_s, 10, kind)
        index.want(Wanted(f"boot/{at_s}", camera, T0 + at_s * S, None))
    (tmp_path / "clips" / "gate" / "mine.txt").write_text("x")
    purgeable = PurgeableMedia(tmp_path, index)
    gone = 4 - len(left)
    assert purgeable.measure(selection) == purgeable.purge(selection) == Amount(gone, gone * 10)
    assert names(index) == left
    assert sorted((file.camera, (file.start_ns - T0) // S) for file in media_files(tmp_path)) == sorted(left)
    assert [(wanted.camera, (wanted.from_ns - T0) // S) for wanted in index.wanted()] == left
    assert (tmp_path / "clips" / "gate" / "mine.txt").exists()


def test_purging_finds_files_that_are_not_in_the_index_and_those_being_written(
    tmp_path: Path, index: MediaIndex, clip: bytes
) -> None:
    put_clip(tmp_path, clip, 0)
    part = put_clip(tmp_path, clip[:1000], 5, suffix=".part")
    with part.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert PurgeableMedia(tmp_path, index).purge(Selection()).count == 2
    assert list(media_files(tmp_path)) == []


def test_what_was_purged_is_not_in_the_index_files_bytes_either(tmp_path: Path, index: MediaIndex) -> None:
    file = put_file(tmp_path, "very-private-camera", 0)
    index.add(file, [Use("boot/1", file.path, 0, 1)])
    PurgeableMedia(tmp_path, index).purge(Selection())
    left = b"".join(path.read_bytes() for path in tmp_path.glob(f"{INDEX_NAME}*"))
    assert b"very-private-camera" not in left


def test_two_users_of_one_index_do_not_disturb_each_other(tmp_path: Path, index: MediaIndex) -> None:
    with MediaIndexClosed(tmp_path) as other:
        for at_s, writer in zip(range(40), itertools.cycle((index, other)), strict=False):
            put_indexed(writer, tmp_path, "gate", at_s)
            assert len(index.files()) == len(other.files()) == at_s + 1
        PurgeableMedia(tmp_path, other).purge(Selection())
        assert index.files() == []

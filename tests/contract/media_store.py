"""Storage folders for tests: files of ours in them, and what must hold of them at any time."""

from __future__ import annotations

from pathlib import Path

from tests.contract.clip_scene import assert_decodes_to_its_end
from zhcedge.core.file_times import file_stamp
from zhcedge.media.fragments import cut_to_whole
from zhcedge.store.clips import IndexedFile, MediaIndex
from zhcedge.store.media_files import CLIP, SNAPSHOT, clips_folder, media_files, snapshots_folder
from zhcedge.store.media_scan import MediaScan, ScanReport

S = 1_000_000_000
T0 = 1_750_000_000 * S


def put_file(storage: Path, camera: str, at_s: int, size: int = 1000, kind: str = CLIP) -> IndexedFile:
    """A file of ours with a name and no sense, which began `at_s` after T0."""
    folder = (clips_folder if kind == CLIP else snapshots_folder)(storage, camera)
    folder.mkdir(parents=True, exist_ok=True)
    start_ns = T0 + at_s * S
    path = folder / f"{file_stamp(start_ns)}{'.mp4' if kind == CLIP else '-best.jpg'}"
    path.write_bytes(bytes(size))
    return IndexedFile(path, kind, camera, start_ns, start_ns + 5 * S, size)


def put_indexed(index: MediaIndex, storage: Path, camera: str, at_s: int, size: int = 1000, kind: str = CLIP) -> Path:
    """The same, in the index."""
    file = put_file(storage, camera, at_s, size, kind)
    index.add(file)
    return file.path


def repair(path: Path) -> float | None:
    whole = cut_to_whole(path)
    return None if whole is None else whole.seconds


def scan(storage: Path, index: MediaIndex) -> ScanReport:
    return MediaScan(storage, index, repair).run()


def assert_in_line(storage: Path, index: MediaIndex, checked: set[Path] | None = None) -> int:
    """Index and files agree, nothing is half written, and every clip decodes to its end. Returns their number.

    Args:
        checked: files that need not be decoded again; those that were are added.
    """
    checked = set() if checked is None else checked
    found = list(media_files(storage))
    assert [file for file in found if file.is_part] == []
    assert {file.path for file in found} == {file.path for file in index.files()}
    for file in index.files():
        assert file.path.stat().st_size == file.size_bytes
        if file.path not in checked:
            assert_decodes_to_its_end(file.path)
            checked.add(file.path)
    return len(found)


__all__ = ["CLIP", "SNAPSHOT", "S", "T0", "assert_in_line", "put_file", "put_indexed", "repair", "scan"]

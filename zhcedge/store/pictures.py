"""Writes pictures of events into the storage folder: each whole or not at all, found by retention, scan and purge."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from zhcedge.core.errors import StoreError
from zhcedge.core.file_times import file_stamp
from zhcedge.store.clips import IndexedFile, MediaIndex, Use
from zhcedge.store.media_files import PART_SUFFIX, SNAPSHOT, StorageSettings, snapshots_folder
from zhcedge.store.retention import free_bytes


@dataclass(frozen=True)
class Pictured:
    """Whose picture it is.

    Attributes:
        key: of the event, unique over all runs of the daemon: BOOT_ID/ID.
        event_id: letters, digits, dots, hyphens and underscores, 100 at most: part of the files' names.
        start_ns: wall clock of the event's beginning, by which its files are kept and purged.
    """

    key: str
    event_id: str
    camera: str
    start_ns: int


class PictureStore:
    """An event has two files, TIME-EVENT.jpg and TIME-EVENT-crop.jpg; a better picture replaces them. Owned by one
    thread. The index is opened with the first picture.

    Args:
        free: what is free on the disk, in bytes.
    """

    def __init__(self, storage: StorageSettings, free: Callable[[Path], int] = free_bytes) -> None:
        self._storage, self._free = storage, free
        self._index: MediaIndex | None = None

    def keep(self, of: Pictured, whole: bytes, crop: bytes) -> None:
        """Write both, in place of an earlier picture of the event, and note them in the index.

        Raises StoreError when the disk has no room for them, or what it must keep free for others; then an earlier
        picture stays. A file that the index does not take is found by the next scan.
        """
        folder = snapshots_folder(self._storage.dir, of.camera)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            free = self._free(self._storage.dir)
        except OSError as error:
            raise _fault(error, folder) from error
        if free - len(whole) - len(crop) < self._storage.limits.min_free_bytes:
            what = f"no room for a picture: {free / 1e6:.0f} MB are free, and storage.min_free_mb is left to others"
            raise StoreError(what, where=str(folder), fix="make room on the disk")
        files = {self.crop_path(of): crop, self.whole_path(of): whole}
        _write_all(files)
        for path, jpeg in files.items():
            self._note(of, path, len(jpeg))

    def whole_path(self, of: Pictured) -> Path:
        """Where the whole picture of an event is, or would be."""
        return self._path(of, "")

    def crop_path(self, of: Pictured) -> Path:
        """Where the picture of its object alone is, or would be."""
        return self._path(of, "-crop")

    def whole(self, of: Pictured) -> bytes | None:
        """The whole picture; None where it has been deleted. Raises StoreError."""
        path = self.whole_path(of)
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"can't be read: {error.strerror}", where=str(path)) from error

    def close(self) -> None:
        """Twice is fine."""
        if self._index is not None:
            self._index.close()
            self._index = None

    def _path(self, of: Pictured, suffix: str) -> Path:
        return snapshots_folder(self._storage.dir, of.camera) / f"{file_stamp(of.start_ns)}-{of.event_id}{suffix}.jpg"

    def _note(self, of: Pictured, path: Path, size_bytes: int) -> None:
        file = IndexedFile(path, SNAPSHOT, of.camera, of.start_ns, of.start_ns, size_bytes)
        with suppress(StoreError):  # the index's own thread tells of its trouble, and its next scan finds the file
            self._index = self._index or MediaIndex(self._storage.dir)
            self._index.add(file, [Use(of.key, path, 0.0, 0.0)])


def _write_all(files: Mapping[Path, bytes]) -> None:
    """All of them or, but for a fault between two renames, none.

    While it is written, a file has a name that is ours and a lock: a purge finds it, and a scan leaves it alone.
    """
    parts = {path: path.with_name(path.name + PART_SUFFIX) for path in files}
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with ExitStack() as stack:
            for path, data in files.items():
                stream = stack.enter_context(os.fdopen(os.open(parts[path], flags, 0o644), "wb"))
                fcntl.flock(stream, fcntl.LOCK_EX)
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            for path, part in parts.items():
                part.replace(path)
    except OSError as error:
        for part in parts.values():
            with suppress(OSError):
                part.unlink(missing_ok=True)
        raise _fault(error, next(iter(files))) from error


def _fault(error: OSError, path: Path) -> StoreError:
    what = f"a picture can't be written: {error.strerror}"
    return StoreError(what, where=str(path), fix="make room on the disk, or correct the folder's owner and mode")

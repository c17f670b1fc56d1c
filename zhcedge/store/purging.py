"""Deleting for privacy: what everything that remembers cameras must be able to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from zhcedge.core.errors import StoreError
from zhcedge.store.clips import INDEX_NAME, MediaIndex
from zhcedge.store.database import files_aside
from zhcedge.store.media_files import MediaFile, media_files


@dataclass(frozen=True)
class Selection:
    """What is to go: everything that fits both.

    Attributes:
        camera: of this camera; None of all.
        before_ns: what began before this moment of the wall clock; None at any time.
    """

    camera: str | None = None
    before_ns: int | None = None

    def covers(self, camera: str, start_ns: int) -> bool:
        return self.camera in (None, camera) and (self.before_ns is None or start_ns < self.before_ns)


@dataclass(frozen=True)
class Amount:
    """So many things of so many bytes."""

    count: int
    size_bytes: int

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.count + other.count, self.size_bytes + other.size_bytes)


class Purgeable(Protocol):
    """Something that remembers cameras, and can forget them while the daemon runs."""

    @property
    def things(self) -> str:
        """For people: "clips and snapshots"."""
        ...

    def measure(self, selection: Selection) -> Amount:
        """What `purge` would delete now. Raises StoreError."""
        ...

    def purge(self, selection: Selection) -> Amount:
        """Delete it. Raises StoreError when something stays; all else is gone then all the same."""
        ...


def measure_aside(path: Path) -> Amount:
    """What was set aside of a damaged database (store.database): nobody can tell whom it knows, so it is covered by
    every selection."""
    files = files_aside(path)
    return Amount(len(files), sum(map(_size, files)))


def purge_aside(path: Path) -> Amount:
    """Delete it. Raises StoreError when something stays."""
    amount = measure_aside(path)
    for file in files_aside(path):
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            fix = "check the folder's owner and mode"
            raise StoreError(f"can't be deleted: {error.strerror}", where=str(file), fix=fix) from error
    return amount


class PurgeableMedia:
    """Clips and snapshots, those being written included: their writer finds out and says so. Implements Purgeable.

    A clip that began before the moment goes, although its end may lie behind it.
    """

    things = "clips and snapshots"

    def __init__(self, storage: Path, index: MediaIndex) -> None:
        self._storage, self._index = storage, index

    def measure(self, selection: Selection) -> Amount:
        """See Purgeable."""
        sizes = [_size(file.path) for file in self._chosen(selection)]
        return Amount(len(sizes), sum(sizes)) + measure_aside(self._storage / INDEX_NAME)

    def purge(self, selection: Selection) -> Amount:
        """See Purgeable."""
        self._index.unwant_where(selection.camera, selection.before_ns)
        count = total = 0
        faults: list[str] = []
        # Twice: a clip that was being written may have got its final name in between.
        for file in (*self._chosen(selection), *self._chosen(selection)):
            size = _size(file.path)
            try:
                file.path.unlink()
            except FileNotFoundError:
                continue
            except OSError as error:
                faults.append(f"{file.path}: {error.strerror}")
                continue
            count, total = count + 1, total + size
        for row in self._index.files():
            if selection.covers(row.camera, row.start_ns) and not row.path.exists():
                self._index.remove(row.path)
        self._index.tidy()
        if faults:
            where = "; ".join(dict.fromkeys(faults))
            raise StoreError("these files could not be deleted", where=where, fix="check the folder's owner and mode")
        return Amount(count, total) + purge_aside(self._storage / INDEX_NAME)

    def _chosen(self, selection: Selection) -> list[MediaFile]:
        try:
            return [file for file in media_files(self._storage) if selection.covers(file.camera, file.start_ns)]
        except OSError as error:
            raise StoreError(f"can't be read: {error.strerror}", where=str(self._storage)) from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # it has just gone

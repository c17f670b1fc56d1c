"""Deletes the oldest clips and snapshots beyond the limits: age, their size together, and what the disk must keep free.

Only files that are in the index and lie where ours lie are deleted; those that are being written never.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from zhcedge.core.errors import StoreError
from zhcedge.store.clips import IndexedFile, MediaIndex
from zhcedge.store.media_files import StorageSettings, is_ours, media_files

log = logging.getLogger(__name__)


@dataclass
class Freed:
    """What was deleted, and whether that was not enough for the disk."""

    files: int = 0
    size_bytes: int = 0
    is_short: bool = False


def free_bytes(folder: Path) -> int:
    """What is free on a folder's disk for everybody. Raises OSError."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


class Retention:
    """Owned by the index's thread.

    Args:
        free: what is free on the disk, in bytes.
    """

    def __init__(self, storage: StorageSettings, index: MediaIndex, free: Callable[[Path], int] = free_bytes) -> None:
        self._storage, self._index, self._free = storage, index, free

    def run(self, now_ns: int, is_synced: bool) -> Freed:
        """Keep the limits.

        Args:
            now_ns: of the wall clock.
            is_synced: the wall clock is right. Nothing is deleted by age while it may not be.

        Raises StoreError when folder or index can't be used.
        """
        freed, limits = Freed(), self._storage.limits
        files = self._index.files()
        total = sum(file.size_bytes for file in files) + self._being_written()
        oldest_ns = now_ns - round(limits.max_age_s * 1e9)
        for file in files:
            is_old = is_synced and file.start_ns < oldest_ns
            if not is_old and total <= limits.max_bytes and not self._is_disk_short():
                break
            if self._delete(file, freed):
                total -= file.size_bytes
        freed.is_short = self._is_disk_short()
        return freed

    def _is_disk_short(self) -> bool:
        try:
            return self._free(self._storage.dir) < self._storage.limits.min_free_bytes
        except OSError as error:
            raise StoreError(f"can't be looked at: {error.strerror}", where=str(self._storage.dir)) from error

    def _being_written(self) -> int:
        total = 0
        for file in media_files(self._storage.dir):
            try:
                total += file.path.stat().st_size if file.is_part else 0
            except OSError:
                continue  # it has just been finished or removed
        return total

    def _delete(self, file: IndexedFile, freed: Freed) -> bool:
        if not is_ours(self._storage.dir, file.path):
            log.warning("%s is in the index and is none of our files: left alone", file.path)
            return False
        try:
            file.path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s can't be deleted: %s", file.path, error.strerror)
            return False
        self._index.remove(file.path)
        freed.files += 1
        freed.size_bytes += file.size_bytes
        return True

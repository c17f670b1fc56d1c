"""Brings the index and the files into line: after a kill, a power cut, a lost index, or a hand that deleted files."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from zhcedge.core.errors import StoreError
from zhcedge.store.clips import IndexedFile, MediaIndex, Use, Wanted
from zhcedge.store.media_files import CLIP, PART_SUFFIX, MediaFile, media_files

log = logging.getLogger(__name__)

Repair = Callable[[Path], float | None]
"""Cuts a clip behind its last whole fragment, in place. Returns the seconds that are left; None, where nothing can be
played, and then the file is as it was. Raises OSError."""


@dataclass
class ScanReport:
    """What a scan has done.

    Attributes:
        recovered: clips that a killed process had left, finished now.
        added: files that were not in the index.
        removed: clips of which nothing could be played, and halves of pictures.
        forgotten: rows whose file is gone.
        being_written: clips that another process has open.
    """

    recovered: int = 0
    added: int = 0
    removed: int = 0
    forgotten: int = 0
    being_written: int = 0


class MediaScan:
    """Owned by the index's thread.

    Args:
        repair: see Repair.
    """

    def __init__(self, storage: Path, index: MediaIndex, repair: Repair) -> None:
        self._storage, self._index, self._repair = storage, index, repair

    def run(self) -> ScanReport:
        """After it every file in the index is there and can be played to its end, and every finished file of ours is
        in the index. Files that are being written are left alone.

        Raises StoreError when the folder or the index can't be used.
        """
        report = ScanReport()
        known = {file.path: file for file in self._index.files()}
        try:
            found = list(media_files(self._storage))
        except OSError as error:
            raise StoreError(f"can't be read: {error.strerror}", where=str(self._storage)) from error
        for file in found:
            row = known.get(file.path)
            try:
                if file.is_part:
                    self._finish(file, report)
                elif row is None or file.path.stat().st_size != row.size_bytes:
                    self._check(file, report)
            except OSError as error:  # one file's trouble is not that of the others; the next scan tries again
                log.warning("%s: %s", file.path, error.strerror)
        for path in known:
            if not path.exists():
                self._index.remove(path)
                report.forgotten += 1
        return report

    def _finish(self, file: MediaFile, report: ScanReport) -> None:
        """Complete a clip that nobody is writing any more; a picture goes."""
        with _owned(file.path) as is_ours:
            if not is_ours:
                report.being_written += 1
                return
            whole = file.path.with_name(file.path.name.removesuffix(PART_SUFFIX))
            seconds = self._repair(file.path) if file.kind == CLIP else None  # half a picture is none
            if seconds is None:
                log.info("%s was begun and holds nothing yet: removed", file.path)
                file.path.unlink()
                report.removed += 1
                return
            with suppress(FileExistsError) if _is_same(file.path, whole) else nullcontext():
                _link_or_rename(file.path, whole)
            file.path.unlink(missing_ok=True)
        log.info("%s was left unfinished: %.1f s of it are there", whole, seconds)
        report.recovered += 1
        self._add(MediaFile(whole, file.kind, file.camera, file.start_ns), seconds)

    def _check(self, file: MediaFile, report: ScanReport) -> None:
        """A finished file that the index does not know like this."""
        seconds = 0.0
        if file.kind == CLIP:
            left = self._repair(file.path)
            if left is None:
                log.warning("%s can't be played: removed", file.path)
                file.path.unlink()
                report.removed += 1
                return
            seconds = left
        report.added += 1
        self._add(file, seconds)

    def _add(self, file: MediaFile, seconds: float) -> None:
        end_ns = file.start_ns + round(seconds * 1e9)
        size = file.path.stat().st_size
        indexed = IndexedFile(file.path, file.kind, file.camera, file.start_ns, end_ns, size)
        uses = [use for wanted in self._index.wanted() if (use := _use(indexed, wanted)) is not None]
        self._index.add(indexed, uses)


def _use(file: IndexedFile, wanted: Wanted) -> Use | None:
    """The range of a clip that an event wants whose own word about it was lost; None where it wants nothing of it."""
    if file.kind != CLIP or file.camera != wanted.camera:
        return None
    from_ns = max(wanted.from_ns, file.start_ns)
    to_ns = file.end_ns if wanted.to_ns is None else min(wanted.to_ns, file.end_ns)
    if from_ns >= to_ns:
        return None
    return Use(wanted.event, file.path, (from_ns - file.start_ns) / 1e9, (to_ns - file.start_ns) / 1e9)


def _is_same(path: Path, other: Path) -> bool:
    """Whether a scan was killed between giving a file its name and taking away the other one."""
    return other.exists() and path.samefile(other)


def _link_or_rename(path: Path, other: Path) -> None:
    """Give a file another name. Raises FileExistsError where there is one of that name, and other OSErrors."""
    try:
        os.link(path, other)  # unlike rename it never replaces a file
    except FileExistsError:
        raise
    except OSError as error:
        # A file has one name on FAT, exFAT and many network drives; each says so in its own way.
        if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        if other.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(other)) from error
        path.rename(other)


@contextmanager
def _owned(path: Path) -> Iterator[bool]:
    """Whether nobody else has locked the file; then it is ours for the length of the block."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        is_ours = False
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = True
        yield is_ours
    finally:
        os.close(descriptor)

"""The thread that alone uses the file on flash: a disk may take seconds for a sync, and longer when it breaks."""

from __future__ import annotations

import queue
import sqlite3
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from zhcedge.core.delivery import Row
from zhcedge.core.errors import StoreError
from zhcedge.store.database import Fault, fault_of, set_aside
from zhcedge.store.flash import Changes, FlashFile


@dataclass(frozen=True)
class Load:
    """Read rows above `after_id`."""

    after_id: int
    limit: int


@dataclass(frozen=True)
class Expire:
    """Look for rows that are too old: see FlashFile.older."""

    created_ns: int
    undated_below: int


Job = Changes | Load | Expire


@dataclass
class Done:
    """What became of a job.

    Attributes:
        error: of the disk, None when it worked.
        aside: the file was damaged and has this name now; everything in it is lost to us.
        rows: that were loaded.
        damaged: ids of rows that were loaded in vain.
        expired: ids that were found too old.
        syncs, bytes_written: what the job cost.
    """

    job: Job
    error: sqlite3.Error | None = None
    aside: Path | None = None
    rows: list[Row] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)
    expired: list[int] = field(default_factory=list)
    syncs: int = 0
    bytes_written: int = 0


class FlashThread:
    """Does jobs in order. `put`, `done` and `close` belong to one thread, the control loop's.

    Args:
        file: open, or None where the disk was full at the start; it is opened by the first job that works.
    """

    def __init__(self, path: Path, file: FlashFile | None) -> None:
        self._path, self._file = path, file
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Done] = queue.SimpleQueue()
        # A daemon: a thread that a dead disk holds for ever must not hold the process too.
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    def put(self, job: Job) -> None:
        self._jobs.put(job)

    def done(self, timeout_s: float = 0.0) -> Done | None:
        """The next finished job; None when there is none within the time."""
        try:
            return self._done.get(timeout=timeout_s) if timeout_s > 0 else self._done.get_nowait()
        except queue.Empty:
            return None

    def close(self, timeout_s: float) -> None:
        """End when all jobs are done, and close the file; a disk that takes longer is left alone."""
        self._jobs.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._done.put(self._do(job))
        self._close_file()

    def _do(self, job: Job) -> Done:
        done = Done(job)
        try:
            self._work(done)
        except (sqlite3.Error, StoreError) as error:
            done.error = error if isinstance(error, sqlite3.Error) else sqlite3.OperationalError(str(error))
            fault = fault_of(done.error)
            if fault is Fault.DAMAGED:
                self._begin_anew(done)
            elif fault is not Fault.FULL:
                self._close_file()  # opened again by the next job: the disk may have come back
        return done

    def _work(self, done: Done) -> None:
        if self._file is None:
            self._file = FlashFile(self._path)
        file, job = self._file, done.job
        syncs, bytes_written = file.syncs, file.bytes_written
        if isinstance(job, Load):
            done.rows, done.damaged = file.read(job.after_id, job.limit)
        elif isinstance(job, Expire):
            done.expired = file.older(job.created_ns, job.undated_below)
        else:
            try:
                file.apply(job)
            except sqlite3.Error as error:
                if fault_of(error) is Fault.FULL:
                    file.checkpoint()  # the log's space may be what the next attempt needs
                raise
        done.syncs, done.bytes_written = file.syncs - syncs, file.bytes_written - bytes_written

    def _begin_anew(self, done: Done) -> None:
        """Rename the damaged file; the next job makes a new one."""
        self._close_file()
        with suppress(OSError):  # then the next job finds it damaged again
            done.aside = set_aside(self._path)

    def _close_file(self) -> None:
        if self._file is not None:
            with suppress(sqlite3.Error):
                self._file.close()
            self._file = None

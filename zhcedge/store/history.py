"""The history that a daemon writes: finished and open events, and totals by the hour.

A thread of its own writes what has come in a minute, with one sync; so a power cut loses at most a minute of it, and a
killed process as well. Once 4 MiB of SQLite's log are brought into the file, which takes three more syncs.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from zhcedge.core.delivery import Alert, OnAlert
from zhcedge.core.errors import StoreError
from zhcedge.core.events import Event
from zhcedge.core.ports import Clock
from zhcedge.store.database import Fault, check_folder, fault_of, set_aside
from zhcedge.store.history_batch import Batch
from zhcedge.store.history_file import FILE_NAME, HistoryFile, HistoryLimits

_EVERY_NS = 60 * 1_000_000_000  # between two writes
_EXPIRE_EVERY_NS = 3600 * 1_000_000_000
_CLOSE_S = 5.0  # how long the last write may take


@dataclass
class _Job:
    """A batch to be written, and what became of it.

    Attributes:
        expires: whether to look for what is too old or too much, too.
        now_ns: wall clock; None while it is not set.
        error: of the disk; None when it worked.
        aside: the file was damaged and has this name now.
    """

    batch: Batch
    expires: bool
    now_ns: int | None
    error: sqlite3.Error | None = None
    aside: Path | None = None


class History:
    """Belongs to the control loop's thread. No call but `close` waits for the disk.

    A full or broken disk is told by an alert, and its events wait in memory, within limits; a damaged file is renamed
    and a new one begun.

    Args:
        folder: of the outbox; holds history.db.
        on_alert: takes alerts; any thread.
        boot_id: of this start of the daemon: with it an event's id is unique.

    Raises StoreError for a folder that nothing can be written to; then there is no thread.
    """

    def __init__(
        self, folder: Path, clock: Clock, on_alert: OnAlert, boot_id: str, limits: HistoryLimits | None = None
    ) -> None:
        check_folder(folder, "outbox.dir")
        self._path, self._clock, self._on_alert, self._boot_id = folder / FILE_NAME, clock, on_alert, boot_id
        self._pending = Batch()
        self._failing: Alert | None = None
        self._written_ns = self._expired_ns = clock.monotonic_ns()
        self._writer = _Writer(self._path, boot_id, limits or HistoryLimits())
        # Without any event, so that one that a crash has left open has its end at once.
        self._hand_over(expires=True)

    def take(self, events: Sequence[Event]) -> None:
        """Note what one frame's events say."""
        for event in events:
            self._pending.note(event, self._boot_id)

    def tick(self) -> None:
        """Called by the loop every now and then: hand a minute's events to the thread, hear of the one before."""
        self._hear(self._writer.done())
        now_ns = self._clock.monotonic_ns()
        if self._writer.is_busy:
            if now_ns - self._written_ns > 2 * _EVERY_NS:
                self._begin("history-disk-error", "the disk does not answer: events wait in memory")
            return
        if now_ns - self._written_ns < _EVERY_NS:
            return
        expires = now_ns - self._expired_ns >= _EXPIRE_EVERY_NS
        if self._pending or expires:
            self._hand_over(expires=expires)

    def close(self) -> None:
        """Write what is left. Waits for the disk, some seconds at most."""
        self._hear(self._writer.done(_CLOSE_S))
        if not self._writer.is_busy:
            if self._pending:
                self._hand_over(expires=False)
            self._hear(self._writer.done(_CLOSE_S))
        self._writer.close(_CLOSE_S)

    def _hand_over(self, *, expires: bool) -> None:
        self._written_ns = self._clock.monotonic_ns()
        if expires:
            self._expired_ns = self._written_ns
        batch, self._pending = self._pending, Batch()
        if batch.lost:
            text = f"{batch.lost} events or totals found no place in memory; see whether the disk is full or broken"
            self._on_alert(Alert("history-lost", f"{self._path}: {text}", "error"))
            batch.lost = 0
        self._writer.put(_Job(batch, expires, self._clock.wall_ns() if self._clock.is_synced() else None))

    def _hear(self, job: _Job | None) -> None:
        if job is None:
            return
        if job.aside is not None:
            text = f"the history was damaged and is now {job.aside.name}; a new one was begun"
            self._on_alert(Alert("history-corrupt", f"{self._path}: {text}; see whether the disk is broken", "error"))
        if job.error is None:
            self._works()
            return
        job.batch.merge(self._pending)
        self._pending = job.batch
        if fault_of(job.error) is Fault.FULL:
            self._begin("history-disk-full", "the disk is full: events wait in memory; make room")
        else:
            self._begin("history-disk-error", f"{job.error}: events wait in memory")

    def _begin(self, code: str, text: str) -> None:
        if self._failing is None or self._failing.code != code:
            self._works()
            self._failing = Alert(code, f"{self._path}: {text}", "error")
            self._on_alert(self._failing)

    def _works(self) -> None:
        if self._failing is not None:
            text = f"{self._path}: the history is written again"
            self._on_alert(Alert(self._failing.code, text, "info", is_over=True))
            self._failing = None


@dataclass
class _Writer:
    """The thread that alone uses the file. `put`, `done` and `close` belong to one thread; one job at a time."""

    path: Path
    boot_id: str
    limits: HistoryLimits
    is_busy: bool = False
    _jobs: queue.SimpleQueue[_Job | None] = field(default_factory=queue.SimpleQueue)
    _done: queue.SimpleQueue[_Job] = field(default_factory=queue.SimpleQueue)
    _file: HistoryFile | None = None
    _has_begun: bool = False

    def __post_init__(self) -> None:
        # A daemon: a thread that a dead disk holds for ever must not hold the process too.
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    def put(self, job: _Job) -> None:
        self.is_busy = True
        self._jobs.put(job)

    def done(self, timeout_s: float = 0.0) -> _Job | None:
        """The job, when it has been finished within the time."""
        if not self.is_busy:
            return None
        try:
            job = self._done.get(timeout=timeout_s) if timeout_s > 0 else self._done.get_nowait()
        except queue.Empty:
            return None
        self.is_busy = False
        return job

    def close(self, timeout_s: float) -> None:
        self._jobs.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._do(job)
            self._done.put(job)
        self._close_file()

    def _do(self, job: _Job) -> None:
        try:
            try:
                self._write(job)
            except sqlite3.Error as error:
                if fault_of(error) is not Fault.DAMAGED:
                    raise
                self._close_file()
                job.aside = set_aside(self.path)
                self._write(job)
        except (sqlite3.Error, StoreError, OSError) as error:
            job.error = error if isinstance(error, sqlite3.Error) else sqlite3.OperationalError(str(error))
            self._close_file()  # opened again by the next job: the disk may have come back

    def _write(self, job: _Job) -> None:
        if self._file is None:
            self._file = HistoryFile(self.path)
        if not self._has_begun:
            self._file.begin(self.boot_id)
            self._has_begun = True
        if job.expires:
            self._file.expire(self.limits, job.now_ns)
        if job.batch:
            self._file.apply(job.batch)
            job.batch = Batch()  # so that nothing of it is written twice, should what follows fail
        self._file.checkpoint()

    def _close_file(self) -> None:
        if self._file is not None:
            with suppress(sqlite3.Error):
                self._file.close()
            self._file = None

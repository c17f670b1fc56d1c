"""What the control loop knows and wants of the outbox's part on flash; it never waits for it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from zhcedge.core.delivery import Alert, Row
from zhcedge.core.errors import StoreError
from zhcedge.core.ports import Clock
from zhcedge.store import rows as row_format
from zhcedge.store.alerts import Alerts, DiskWatch, Drops
from zhcedge.store.budget import BYTES_PER_DAY, SYNC_BURST, SYNCS_PER_S, TokenBucket
from zhcedge.store.database import Fault, Meta, check_folder, fault_of, set_aside
from zhcedge.store.events import OpenEntry
from zhcedge.store.flash import AGE_CHUNK, FILE_NAME, Changes, FlashContents, FlashFile
from zhcedge.store.flash_events import FlashEvents
from zhcedge.store.flash_thread import Done, Expire, FlashThread, Load
from zhcedge.store.idset import IdSet
from zhcedge.store.refused import Refusal
from zhcedge.store.rows import Held
from zhcedge.store.waiting import Waiting
from zhcedge.store.window import RowWindow

ID_BLOCK = 1 << 24
"""Ids reserved ahead: after a process that did not close, numbering goes on behind them. 2^53 / 2^24 such starts."""

_S = 1_000_000_000
_DUE_NS = 1 * _S  # age at which a change wants to be on flash
_SILENT_NS = 30 * _S
_EXPIRE_EVERY_NS = 60 * _S
_RETRY_NS = 1 * _S
_CHUNK = 1_000  # rows read together
_WINDOW = 4 * _CHUNK


class FlashSide:
    """Belongs to the control loop's thread. `open`ed by the constructor, in use after `start`.

    Args:
        waiting: the outbox's rows in memory; those that are on flash are taken out of it.
        entries: its open events.

    Raises:
        StoreError: the folder can't be used, the file is another process's or of a newer version.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        waiting: Waiting,
        entries: Mapping[str, OpenEntry],
        max_age_s: float,
        alerts: Alerts,
        drops: Drops,
    ) -> None:
        check_folder(folder, "outbox.dir")
        self._path = folder / FILE_NAME
        self._clock, self._waiting = clock, waiting
        self._alerts, self._drops, self._max_age_ns = alerts, drops, int(max_age_s * _S)
        self._watch = DiskWatch(self._path, alerts)
        self.was_damaged = False
        self.contents = FlashContents()
        self._file: FlashFile | None = None
        self._open()
        self._ids, self._expendable = IdSet(), IdSet()
        self.meta = self.contents.meta
        self._window = RowWindow(0, 0 if self.contents.ids else self.meta.flushed)
        self._is_loading = False
        self._load_at_ns = 0
        self._deletes: list[int] = []
        self._refusals: list[Refusal] = []
        self._gone_since_ns = 0  # of the oldest of both
        self._job: Changes | None = None
        self._job_at_ns = 0
        now_ns = clock.monotonic_ns()
        self._started_ns, self._expire_at_ns = now_ns, now_ns
        self._events = FlashEvents(entries, self.contents.entries, now_ns)
        self._first_id = 0  # of this process
        self._syncs = TokenBucket(SYNCS_PER_S, SYNC_BURST, now_ns)
        self._bytes = TokenBucket(BYTES_PER_DAY / 86_400, BYTES_PER_DAY, now_ns)
        self._is_over_budget = False
        self._row_bytes = self.contents.bytes + len(self.contents.ids) * row_format.OVERHEAD_BYTES
        self.syncs = self.bytes_written = 0
        """Of all that was written; the file system's own bytes come on top."""

    def _open(self) -> None:
        try:
            for _ in range(2):
                try:
                    self._file = FlashFile(self._path)
                    self.contents = self._file.load()
                    break
                except sqlite3.Error as error:
                    self.abandon()
                    if fault_of(error) is not Fault.DAMAGED:
                        raise
                    self.was_damaged = True
                    self._watch.was_damaged(set_aside(self._path))
        except (sqlite3.Error, OSError) as error:
            if not isinstance(error, sqlite3.Error) or fault_of(error) is not Fault.FULL:
                raise StoreError(str(error), where=str(self._path), fix="correct outbox.dir") from error
            self._watch.failed(error)
        if self.contents.damaged_entries:
            self.was_damaged = True
            self._watch.was_damaged(None)

    def abandon(self) -> None:
        """Close the file of a side that was not started."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def start(self, outbox_id: str, next_id: int) -> bool:
        """Reserve ids, and begin to work; False when the disk is full, so that nothing is reserved.

        Waits for the disk: the one sync that a start needs.
        """
        self.meta = Meta(outbox_id, next_id - 1, self.contents.meta.flushed)
        self._first_id = next_id
        is_reserved = False
        if self._file is not None:
            meta = Meta(outbox_id, next_id - 1 + ID_BLOCK, self.meta.flushed)
            try:
                self._file.apply(Changes(meta))
                self.meta, is_reserved = meta, True
            except sqlite3.Error as error:
                self._watch.failed(error)
        for row_id in self.contents.ids:
            self._ids.add(row_id)
        for row_id in self.contents.expendable:
            self._expendable.add(row_id)
        self._thread = FlashThread(self._path, self._file)
        if self._ids:
            self._load()
        self.contents = FlashContents()
        return is_reserved

    def rename(self, outbox_id: str) -> str:
        """Go on under another name; written with the next change."""
        self.meta = replace(self.meta, outbox_id=outbox_id)
        return outbox_id

    @property
    def is_writing(self) -> bool:
        """Whether a batch is on its way."""
        return self._job is not None

    @property
    def events(self) -> FlashEvents:
        """For news of open events."""
        return self._events

    # -- rows --------------------------------------------------------------------------------------------------
    def __contains__(self, row_id: int) -> bool:
        return row_id in self._ids

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def bytes(self) -> int:
        """Of the rows, nearly: what was forgotten counts as much as the mean."""
        return self._row_bytes

    @property
    def oldest(self) -> int:
        """Id of the oldest row; 0 for none."""
        return self._ids.first

    @property
    def oldest_expendable(self) -> int:
        return self._expendable.first

    def after(self, after_id: int, limit: int) -> tuple[list[Row], bool]:
        """Rows above `after_id` that are in memory, and whether there are no more of them on flash.

        Asks for those that come next, so a call a little later has more.
        """
        window, first = self._window, self._ids.next_after(after_id)
        if not first:
            return [], True
        if first <= window.start or (first > window.end and self._ids.next_after(window.end) != first):
            window.reset(first - 1)
        found = window.after(after_id, limit)
        is_complete = window.end >= self.meta.flushed
        if not is_complete and window.count_after(after_id) < _CHUNK:
            self._load()
        return found, is_complete

    def forget(self, row_id: int) -> bool | None:
        """Delete a row, soon; whether it was expendable, None when it is not here."""
        if row_id not in self._ids:
            return None
        self._row_bytes -= self._row_bytes // len(self._ids)
        self._ids.remove(row_id)
        is_expendable = self._expendable.remove(row_id)
        self._window.remove(row_id)
        self._deletes.append(row_id)
        self._note_gone()
        return is_expendable

    def refuse(self, row_id: int, row: Row | None, reason: str) -> None:
        """Keep a refused row for inspection. Args: row is None for one that is on flash; forget it afterwards."""
        self._refusals.append(Refusal(row_id, row, reason, self._clock.wall_ns()))
        self._note_gone()

    def _note_gone(self) -> None:
        if not self._gone_since_ns:
            self._gone_since_ns = self._clock.monotonic_ns()

    def _load(self) -> None:
        if not self._is_loading and self._clock.monotonic_ns() >= self._load_at_ns:
            self._is_loading = True
            self._thread.put(Load(self._window.end, _CHUNK))

    # -- writing -----------------------------------------------------------------------------------------------
    def tick(self, next_id: int) -> int:
        """Hand over what is due. Returns the id up to which rows are on flash since the last call; 0 for none."""
        flushed = self.collect()
        now_ns = self._clock.monotonic_ns()
        if self._job is not None:
            if now_ns - self._job_at_ns > _SILENT_NS:
                self._watch.is_silent()
        elif self._is_due(next_id, now_ns) and self._syncs.has(1, now_ns) and self._has_bytes(now_ns):
            self._write(self._changes(next_id, now_ns), now_ns)
        if now_ns >= self._expire_at_ns and self._ids:
            self._expire_at_ns = now_ns + _EXPIRE_EVERY_NS
            created_ns = self._clock.wall_ns() - self._max_age_ns if self._clock.is_synced() else 0
            is_old = now_ns - self._started_ns > self._max_age_ns
            self._thread.put(Expire(created_ns, self._first_id if is_old else 0))
        return flushed

    def _is_due(self, next_id: int, now_ns: int) -> bool:
        due_ns, oldest = now_ns - _DUE_NS, self._waiting.oldest
        return (
            (oldest is not None and oldest.at_ns <= due_ns)
            or 0 < self._gone_since_ns <= due_ns
            or self._events.is_due(due_ns, now_ns)
            or next_id > self.meta.reserved - ID_BLOCK // 2
        )

    def _changes(self, next_id: int, now_ns: int) -> Changes:
        """Everything that is in memory, the youngest row included.

        Rows and open events must be of one moment: an event whose `end` is not on flash must be open there.
        """
        rows = list(self._waiting.by_id.values())
        is_low = next_id > self.meta.reserved - ID_BLOCK // 2
        meta = Meta(
            self.meta.outbox_id,
            next_id - 1 + ID_BLOCK if is_low else self.meta.reserved,
            rows[-1].row.id if rows else self.meta.flushed,
        )
        entries, closed = self._events.changes(now_ns)
        changes = Changes(meta, rows, self._deletes, self._refusals, entries, closed)
        self._deletes, self._refusals, self._gone_since_ns = [], [], 0
        return changes

    def _write(self, changes: Changes, now_ns: int) -> None:
        self._job, self._job_at_ns = changes, now_ns
        self._thread.put(changes)

    def _has_bytes(self, now_ns: int) -> bool:
        has_bytes = self._bytes.has(1, now_ns)
        if has_bytes is self._is_over_budget:
            self._is_over_budget = not has_bytes
            text = "as much as it should take in a day was written to flash: messages wait in memory, within its limit"
            alert = Alert("outbox-flash-budget", f"{self._path}: {text}", "warning", is_over=has_bytes)
            self._alerts.put(alert)
        return has_bytes

    # -- what the thread has done ------------------------------------------------------------------------------
    def collect(self) -> int:
        """Take in finished jobs; returns what `tick` returns."""
        flushed = 0
        while (done := self._thread.done()) is not None:
            flushed = max(flushed, self._take(done))
        return flushed

    def _take(self, done: Done) -> int:
        self.syncs += done.syncs
        self.bytes_written += done.bytes_written
        self._bytes.spend(done.bytes_written)
        if isinstance(done.job, Changes):
            self._job = None
            self._syncs.spend(max(1, done.syncs))
        elif isinstance(done.job, Load):
            self._is_loading = False
        if done.error is not None:
            self._take_error(done, done.error)
        elif isinstance(done.job, Changes):
            self._watch.works()
            return self._take_written(done.job)
        elif isinstance(done.job, Load):
            self._take_loaded(done.job, done)
        else:
            for row_id in done.expired:
                self._give_up(row_id)
            if len(done.expired) == AGE_CHUNK:
                self._expire_at_ns = 0
        return 0

    def _take_error(self, done: Done, error: sqlite3.Error) -> None:
        if isinstance(done.job, Changes):
            self._deletes = [*done.job.deletes, *self._deletes]
            self._refusals = [*done.job.refusals, *self._refusals]
            if self._deletes or self._refusals:
                self._note_gone()
        self._load_at_ns = self._clock.monotonic_ns() + _RETRY_NS
        if done.aside is None:
            self._watch.failed(error)
            return
        self._watch.was_damaged(done.aside)
        self._drops.note(True, len(self._expendable))
        self._drops.note(False, len(self._ids) - len(self._expendable))
        self._ids.clear()
        self._expendable.clear()
        self._row_bytes = 0
        self._window.reset(self.meta.flushed)
        self._deletes.clear()
        self._events.lost()

    def _take_written(self, job: Changes) -> int:
        now_ns, is_window_complete = self._clock.monotonic_ns(), self._window.end >= self.meta.flushed
        moved: list[Held] = []
        for held in job.rows:
            if self._waiting.remove(held.row.id) is None:  # acknowledged while it was written
                self._deletes.append(held.row.id)
                self._note_gone()
                continue
            moved.append(held)
            self._ids.add(held.row.id)
            if held.is_expendable:
                self._expendable.add(held.row.id)
            self._row_bytes += held.size
        if is_window_complete and len(self._window) + len(moved) <= _WINDOW:
            self._window.extend((held.row for held in moved), job.meta.flushed, _WINDOW)
        self.meta = job.meta
        self._events.wrote(job.entries, job.closed, now_ns)
        return job.meta.flushed if job.rows else 0

    def _take_loaded(self, job: Load, done: Done) -> None:
        window = self._window
        if job.after_id != window.end:
            return  # asked for before the window was reset
        found = {row.id for row in done.rows}
        seen = [*found, *done.damaged]
        # The thread works in order, so a short answer has seen everything that is known to be on flash.
        end = max(seen) if len(seen) == job.limit else self.meta.flushed
        window.extend((row for row in done.rows if row.id in self._ids), end, _WINDOW)
        if done.damaged:
            self._watch.was_damaged(None)
        row_id = self._ids.next_after(job.after_id)
        while 0 < row_id <= end:
            if row_id not in found:
                self._give_up(row_id)
            row_id = self._ids.next_after(row_id)

    def _give_up(self, row_id: int) -> None:
        is_expendable = self.forget(row_id)
        if is_expendable is not None:
            self._drops.note(is_expendable)

    # -- the end -----------------------------------------------------------------------------------------------
    def close(self, next_id: int, timeout_s: float) -> int:
        """Write everything and close; returns the id up to which rows are on flash, -1 when it was not in time."""
        deadline_s = time.monotonic() + timeout_s
        self._settle(deadline_s)
        flushed = -1
        if self._job is None:
            now_ns = self._clock.monotonic_ns()
            changes = self._changes(next_id, now_ns)
            meta = replace(changes.meta, reserved=next_id - 1)
            self._write(replace(changes, meta=meta), now_ns)
            self._settle(deadline_s)
            if self._job is None and self.meta == meta:
                flushed = meta.flushed
        self._thread.close(max(0.0, deadline_s - time.monotonic()))
        return flushed

    def _settle(self, deadline_s: float) -> None:
        while self._job is not None and (left_s := deadline_s - time.monotonic()) > 0:
            done = self._thread.done(left_s)
            if done is not None:
                self._take(done)

"""The outbox's part in memory (tmpfs): every row and open event at once, so that a killed process loses nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from zhcedge.core.errors import StoreError
from zhcedge.store import events, refused, rows
from zhcedge.store.alerts import Alerts, DiskWatch
from zhcedge.store.database import (
    META_TABLE,
    Fault,
    Meta,
    check_folder,
    fault_of,
    open_checked,
    read_meta,
    roll_back,
    set_aside,
    write_meta,
)
from zhcedge.store.events import OpenEntry
from zhcedge.store.refused import Refusal
from zhcedge.store.rows import Held

FILE_NAME = "outbox-memory.db"

# A rollback journal that is kept and overwritten, not a write-ahead log: nothing ever has to be checkpointed, an append
# is as fast (16 us either way), and where the folder lies on a disk after all, the few pages in use are written by the
# kernel now and then instead of a growing log. Nothing is synced: what was written survives the process.
_PRAGMAS = ("page_size=8192", "journal_mode=PERSIST", "synchronous=OFF", "cache_size=-2048")
_TABLES = META_TABLE + rows.TABLE + events.TABLE + refused.TABLE
_DELETES = 256  # acknowledged rows that are deleted together
_DELETES_HELD = 10_000  # while a full disk refuses them
_CATCH_UP = 500  # rows a tick, about 10 ms
_RETRY_NS = 1_000_000_000


@dataclass
class HotContents:
    """What an earlier process left."""

    meta: Meta = field(default_factory=Meta)
    rows: list[Held] = field(default_factory=list)
    events: list[OpenEntry] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)  # ids of rows that can't be read


class HotStore:
    """Belongs to the control loop's thread, which also holds every row of it in memory.

    A full or broken disk never raises: what could not be written is noted, and written by `tick` later on.

    Raises:
        StoreError: the folder can't be used, the file is another process's or of a newer version.
    """

    def __init__(self, folder: Path, alerts: Alerts, now_ns: int) -> None:
        check_folder(folder, "outbox.memory_dir")
        self._path = folder / FILE_NAME
        self._watch = DiskWatch(self._path, alerts)
        self._connection: sqlite3.Connection | None = None
        self._done: list[int] = []  # ids to be deleted
        self._done_upto = 0
        self._missing_rows: dict[int, None] = {}  # in order
        self._missing_events: set[int] = set()  # by `begun`
        self.meta = Meta()
        self._is_meta_missing = False
        self._retry_at_ns = 0
        self.was_damaged = False
        self.contents = HotContents()
        try:
            self._open(now_ns)
        except sqlite3.Error as error:
            if fault_of(error) is not Fault.FULL:
                raise StoreError(str(error), where=str(self._path), fix="correct outbox.memory_dir") from error
            self._fail(error)

    def _open(self, now_ns: int) -> None:
        for _ in range(2):
            connection = None
            try:
                connection = open_checked(self._path, _PRAGMAS, _TABLES)
                self.contents = self._load(connection, now_ns)
                self._connection = connection
                return
            except sqlite3.Error as error:
                if connection is not None:
                    connection.close()
                if fault_of(error) is not Fault.DAMAGED:
                    raise
                self._set_aside(error)
        raise sqlite3.OperationalError("a new file is damaged at once")

    def _set_aside(self, error: sqlite3.Error) -> None:
        try:
            aside = set_aside(self._path)
        except OSError:
            raise error from None
        self.was_damaged = True
        self._watch.was_damaged(aside)

    def _load(self, connection: sqlite3.Connection, now_ns: int) -> HotContents:
        found: list[Held] = []
        damaged: list[int] = []
        for columns in connection.execute(f"{rows.SELECT} ORDER BY id"):
            held = rows.from_columns(columns, now_ns)
            if held is None:
                damaged.append(columns[0])
            else:
                found.append(held)
        entries = [events.from_columns(columns) for columns in connection.execute(events.SELECT)]
        if damaged or None in entries:
            self.was_damaged = True
            self._watch.was_damaged(None)
        return HotContents(read_meta(connection), found, [entry for entry in entries if entry], damaged)

    # -- writing -----------------------------------------------------------------------------------------------
    def keep(self, held: Sequence[Held], changed: Sequence[OpenEntry], ended: Sequence[OpenEntry]) -> None:
        """Write rows and what became of events in one transaction: all or, until the next tick, nothing."""
        if self._connection is None or self._missing_rows or self._missing_events:
            self._miss(held, [*changed, *ended])
            return
        connection = self._connection
        try:
            connection.execute("BEGIN")
            for one in held:
                connection.execute(rows.INSERT, rows.to_columns(one))
            for entry in changed:
                connection.execute(events.UPSERT, events.to_columns(entry))
            for entry in ended:
                connection.execute(events.DELETE, (entry.begun,))
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._fail(error)
            self._miss(held, [*changed, *ended])

    def write_meta(self, meta: Meta) -> None:
        """Note what the file says of itself; written by the next tick where it can't be now."""
        self.meta, self._is_meta_missing = meta, True
        if self._connection is None:
            return
        try:
            write_meta(self._connection, meta)
            self._is_meta_missing = False
        except sqlite3.Error as error:
            self._fail(error)

    def begin(self, meta: Meta, held: Mapping[int, Held], entries: Mapping[str, OpenEntry]) -> bool:
        """Make the file hold exactly these rows and events, after the constructor; False when it can't be now."""
        contents, self.contents = self.contents, HotContents()
        known = {one.row.id: one for one in contents.rows}
        self._missing_rows = dict.fromkeys(row_id for row_id in held if held[row_id] is not known.get(row_id))
        open_before, open_now = set(contents.events), set(entries.values())
        self._missing_events = {entry.begun for entry in open_before ^ open_now}
        self._done.extend(row_id for row_id in (*known, *contents.damaged) if row_id not in held)
        self.meta, self._is_meta_missing = meta, True
        self._delete()
        while self._connection is not None and (self._missing_rows or self._is_meta_missing):
            before = len(self._missing_rows)
            self._catch_up(held, entries)
            if self._is_meta_missing or (before and len(self._missing_rows) == before):
                break
        return not (self._missing_rows or self._is_meta_missing)

    def forget(self, row_id: int) -> None:
        """The row is gone. A process that is killed before this is written sends it again: at least once."""
        if self._connection is None:
            return  # what is in the file is compared with what is held when it is opened again
        self._done.append(row_id)
        if len(self._done) >= _DELETES:
            self._delete()

    def forget_upto(self, row_id: int) -> None:
        """The rows up to this id are on flash."""
        self._done_upto = row_id

    def refuse(self, refusal: Refusal) -> None:
        """Keep a refused row for inspection, where that is possible."""
        if self._connection is not None:
            with suppress(sqlite3.Error):  # it only serves curiosity, and a fault of the disk shows elsewhere
                refused.write(self._connection, [refusal])

    def tick(self, held: Mapping[int, Held], entries: Mapping[str, OpenEntry], now_ns: int) -> None:
        """Write what is missing. Args: held and entries are all rows that are not on flash, all open events."""
        if self._connection is None and now_ns >= self._retry_at_ns:
            self._retry_at_ns = now_ns + _RETRY_NS
            self._reopen(held, entries, now_ns)
        self._delete()
        self._catch_up(held, entries)

    def close(self) -> None:
        self._delete()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _reopen(self, held: Mapping[int, Held], entries: Mapping[str, OpenEntry], now_ns: int) -> None:
        try:
            self._open(now_ns)
            self._missing_events = {entry.begun for entry in (*self.contents.events, *entries.values())}
            self._done.extend(one.row.id for one in self.contents.rows if one.row.id not in held)
        except (sqlite3.Error, StoreError) as error:
            if isinstance(error, sqlite3.Error):
                self._fail(error)
            return
        self.contents = HotContents()
        self._missing_rows = dict.fromkeys(held)
        self._is_meta_missing = True

    def _delete(self) -> None:
        if self._connection is None or not (self._done or self._done_upto):
            return
        for row_id in self._done:
            self._missing_rows.pop(row_id, None)
        try:
            self._connection.execute("BEGIN")
            self._connection.execute("DELETE FROM rows WHERE id <= ?", (self._done_upto,))
            self._connection.executemany("DELETE FROM rows WHERE id = ?", ((row_id,) for row_id in self._done))
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._fail(error)
            return
        self._done.clear()
        self._done_upto = 0

    def _catch_up(self, held: Mapping[int, Held], entries: Mapping[str, OpenEntry]) -> None:
        connection = self._connection
        is_missing = self._missing_rows or self._missing_events or self._is_meta_missing
        if connection is None or not (is_missing or self._watch.is_failing):
            return
        batch = list(islice(self._missing_rows, _CATCH_UP))
        try:
            connection.execute("BEGIN")
            write_meta(connection, self.meta)
            for row_id in batch:
                if row_id in held:
                    connection.execute(rows.REPLACE, rows.to_columns(held[row_id]))
            connection.executemany(events.DELETE, ((begun,) for begun in self._missing_events))
            for entry in entries.values():
                if entry.begun in self._missing_events:
                    connection.execute(events.UPSERT, events.to_columns(entry))
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._fail(error)
            return
        for row_id in batch:
            del self._missing_rows[row_id]
        self._missing_events.clear()
        self._is_meta_missing = False
        if not self._missing_rows:
            self._watch.works()

    def _miss(self, held: Sequence[Held], entries: Sequence[OpenEntry]) -> None:
        self._missing_rows.update(dict.fromkeys(one.row.id for one in held))
        self._missing_events.update(entry.begun for entry in entries)

    def _fail(self, error: sqlite3.Error) -> None:
        """Note a fault. A full disk may take the next write; anything else needs the file to be opened again."""
        self._watch.failed(error)
        if self._connection is None:
            return
        roll_back(self._connection)
        if fault_of(error) is not Fault.FULL or len(self._done) > _DELETES_HELD:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None
            self._done.clear()

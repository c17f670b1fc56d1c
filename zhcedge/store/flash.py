"""The outbox's part on flash: one SQLite file, synced with every commit. Used by one thread at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from zhcedge.core.delivery import Row
from zhcedge.store import events, refused, rows
from zhcedge.store.database import META_TABLE, Meta, open_checked, read_meta, transaction, write_meta
from zhcedge.store.events import OpenEntry
from zhcedge.store.refused import Refusal
from zhcedge.store.rows import Held

FILE_NAME = "outbox.db"

# FULL: a commit is on the disk when it returns. The log is brought into the file by `checkpoint` only.
_PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=0", "cache_size=-2048")
_TABLES = META_TABLE + rows.TABLE + events.TABLE + refused.TABLE
_CHECKPOINT_BYTES = 4 * 1024 * 1024
_COMMIT_SYNCS, _CHECKPOINT_SYNCS = 1, 3  # counted with strace: the log; the log, the file, the log's new header
AGE_CHUNK = 1_000


@dataclass(frozen=True)
class Changes:
    """One transaction.

    Attributes:
        meta: of the file, as it is afterwards.
        rows: new ones.
        deletes: ids of rows that are gone.
        entries: open events as they are now.
        closed: events that are no more open, as they are on flash.
    """

    meta: Meta
    rows: Sequence[Held] = ()
    deletes: Sequence[int] = ()
    refusals: list[Refusal] = field(default_factory=list)
    entries: Sequence[OpenEntry] = ()
    closed: Sequence[OpenEntry] = ()


@dataclass
class FlashContents:
    """What an earlier process left. Attributes: ids are those of expendable rows too, both in growing order."""

    meta: Meta = field(default_factory=Meta)
    ids: list[int] = field(default_factory=list)
    expendable: list[int] = field(default_factory=list)
    bytes: int = 0
    entries: list[OpenEntry] = field(default_factory=list)
    damaged_entries: int = 0


class FlashFile:
    """An open file. Every method raises sqlite3.Error, and then has changed nothing.

    Raises:
        StoreError: see database.open_checked.
        sqlite3.Error: so does the constructor.
    """

    def __init__(self, path: Path) -> None:
        self._log = path.with_name(f"{path.name}-wal")
        self._connection = open_checked(path, _PRAGMAS, _TABLES)
        self.syncs = self.bytes_written = 0
        """Since the file was opened; bytes without the file system's own."""
        self._log_bytes = self._log_size()

    def load(self) -> FlashContents:
        """Everything but the rows themselves."""
        contents = FlashContents(read_meta(self._connection))
        query = f"SELECT id, flags & {rows.EXPENDABLE}, length(payload) + length(topic) FROM rows ORDER BY id"
        for row_id, is_expendable, size in self._connection.execute(query):
            contents.ids.append(row_id)
            contents.bytes += size or 0
            if is_expendable:
                contents.expendable.append(row_id)
        for columns in self._connection.execute(events.SELECT):
            entry = events.from_columns(columns)
            if entry is None:
                contents.damaged_entries += 1
            else:
                contents.entries.append(entry)
        return contents

    def apply(self, changes: Changes) -> None:
        """Commit and sync; then, when the log has grown large, bring it into the file."""
        connection = self._connection
        with transaction(connection):
            refused.write(connection, changes.refusals)
            connection.executemany("DELETE FROM rows WHERE id = ?", ((row_id,) for row_id in changes.deletes))
            connection.executemany(rows.REPLACE, map(rows.to_columns, changes.rows))
            connection.executemany(events.DELETE, ((entry.begun,) for entry in changes.closed))
            connection.executemany(events.UPSERT, map(events.to_columns, changes.entries))
            write_meta(connection, changes.meta)
        self._count(_COMMIT_SYNCS)
        if self._log_bytes >= _CHECKPOINT_BYTES:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Bring the log into the file and begin a new one; with a full disk this makes room for the next one."""
        frames_bytes = self._log_size()
        with suppress(sqlite3.Error):  # the commit is safe in the log; the same error comes back with the next one
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        # Each page of the log once, at most.
        self._log_bytes = self._log_size()
        self.bytes_written += frames_bytes
        self.syncs += _CHECKPOINT_SYNCS

    def read(self, after_id: int, limit: int) -> tuple[list[Row], list[int]]:
        """The oldest rows above `after_id`, and the ids of those among them that are damaged."""
        sound: list[Row] = []
        damaged: list[int] = []
        query = f"{rows.SELECT} WHERE id > ? ORDER BY id LIMIT ?"
        for columns in self._connection.execute(query, (after_id, limit)):
            held = rows.from_columns(columns, 0)
            if held is None:
                damaged.append(columns[0])
            else:
                sound.append(held.row)
        return sound, damaged

    def older(self, created_ns: int, undated_below: int) -> list[int]:
        """Ids of those among the oldest AGE_CHUNK rows that were created before `created_ns`, by a clock that was set.

        Of rows from before it was set, those with an id below `undated_below`.
        """
        query = (
            f"SELECT id FROM (SELECT id, flags, created_ns FROM rows ORDER BY id LIMIT {AGE_CHUNK}) "
            f"WHERE CASE WHEN flags & {rows.DATED} THEN created_ns < ? ELSE id < ? END"
        )
        return [row_id for (row_id,) in self._connection.execute(query, (created_ns, undated_below))]

    def close(self) -> None:
        """SQLite brings the log into the file."""
        self._connection.close()

    def _count(self, syncs: int) -> None:
        size = self._log_size()
        # A log that was begun anew is smaller than before.
        self.bytes_written += size - self._log_bytes if size >= self._log_bytes else size
        self._log_bytes = size
        self.syncs += syncs

    def _log_size(self) -> int:
        try:
            return self._log.stat().st_size
        except OSError:  # not there yet, or the disk is broken, which the next write will find
            return 0

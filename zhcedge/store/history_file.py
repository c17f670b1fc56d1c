"""The history on disk: one SQLite file that its daemon writes and others may read and purge meanwhile.

Unlike the outbox it is not locked: SQLite's write-ahead log lets readers see what was committed last.
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from zhcedge.core.errors import StoreError
from zhcedge.core.events import EndReason
from zhcedge.store.database import DamagedError, transaction
from zhcedge.store.history_batch import HOUR_NS, Batch, PastEvent, Tally, TotalKey

FILE_NAME = "history.db"

_VERSION = 1  # of the tables: the file's user_version
_APPLICATION_ID = 0x7A686348  # "zhcH"
_WAIT_S = 10.0  # for another process that is purging
_CHECKPOINT_BYTES = 4 * 1024 * 1024
_DAY_NS = 86_400 * 1_000_000_000
_SHRINK_BY = 8  # a file that is too large loses this part of its rows at a time

_TABLES = """
CREATE TABLE events (
    number INTEGER PRIMARY KEY, boot_id TEXT, id TEXT, camera TEXT, label TEXT, start_ns INTEGER, end_ns INTEGER,
    presence_ns INTEGER, top_score REAL, zones TEXT, lines TEXT, end_reason TEXT, has_snapshot INTEGER,
    has_clip INTEGER, clock_synced INTEGER, UNIQUE (boot_id, id));
CREATE INDEX events_by_end ON events (end_ns);
CREATE TABLE totals (
    number INTEGER PRIMARY KEY, hour INTEGER, clock_synced INTEGER, camera TEXT, place TEXT, name TEXT, label TEXT,
    events INTEGER, presence_ns INTEGER, went_in INTEGER, went_out INTEGER,
    UNIQUE (hour, clock_synced, camera, place, name, label));
CREATE TABLE purges (number INTEGER PRIMARY KEY, camera TEXT, before_ns INTEGER)
"""

_PUT_EVENT = """
INSERT INTO events (boot_id, id, camera, label, start_ns, end_ns, presence_ns, top_score, zones, lines, end_reason,
    has_snapshot, has_clip, clock_synced) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (boot_id, id) DO UPDATE SET end_ns = excluded.end_ns, presence_ns = presence_ns + excluded.presence_ns,
    top_score = excluded.top_score, zones = excluded.zones, lines = excluded.lines, end_reason = excluded.end_reason,
    has_snapshot = excluded.has_snapshot, has_clip = excluded.has_clip,
    clock_synced = min(clock_synced, excluded.clock_synced)
"""

_PUT_TOTAL = """
INSERT INTO totals (hour, clock_synced, camera, place, name, label, events, presence_ns, went_in, went_out)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (hour, clock_synced, camera, place, name, label) DO UPDATE SET events = events + excluded.events,
    presence_ns = presence_ns + excluded.presence_ns, went_in = went_in + excluded.went_in,
    went_out = went_out + excluded.went_out,
    number = CASE WHEN clock_synced THEN number ELSE (SELECT max(number) + 1 FROM totals) END
"""
"""An hour told by an unset clock comes again at every start: it is as old as what was added last."""


_START = {"events": "start_ns", "totals": f"hour * {HOUR_NS}"}
_END = {"events": "end_ns", "totals": f"(hour + 1) * {HOUR_NS}"}


@dataclass(frozen=True)
class HistoryLimits:
    """What is kept.

    Attributes:
        days: age from which events and hours are forgotten.
        max_bytes: size of the file from which the oldest are.
    """

    days: int = 90
    max_bytes: int = 256_000_000


class HistoryFile:
    """The writer's open file. Used by one thread. Every method raises sqlite3.Error, and then has changed nothing.

    Raises:
        StoreError: a newer version of the program wrote it.
        sqlite3.Error: anything else; see database.fault_of.
    """

    def __init__(self, path: Path) -> None:
        self._log = path.with_name(f"{path.name}-wal")
        try:
            # Who was seen when is not for everyone.
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o640))
        except OSError as error:
            raise sqlite3.OperationalError(f"unable to open database file: {error.strerror}") from error
        self._connection = connect(path)
        try:
            for pragma in ("journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=0", "cache_size=-2048"):
                self._connection.execute(f"PRAGMA {pragma}")
            with transaction(self._connection):
                _prepare(self._connection, path)
        except BaseException:  # whoever gets an error gets no connection
            with suppress(sqlite3.Error):
                self._connection.close()
            raise

    def begin(self, boot_id: str) -> None:
        """A daemon has started: events of others that are still open were ended by a crash."""
        connection = self._connection
        with transaction(connection):
            ended = (EndReason.CRASH.value, boot_id)
            connection.execute("UPDATE events SET end_reason = ? WHERE end_reason IS NULL AND boot_id != ?", ended)
            connection.execute("DELETE FROM purges")  # what they were about was never written

    def apply(self, batch: Batch) -> None:
        """Commit and sync a batch. What was purged since the last one is taken out of it."""
        connection = self._connection
        with transaction(connection):
            connection.executemany(_PUT_EVENT, map(_event_columns, batch.rows.values()))
            connection.executemany(_PUT_TOTAL, (_total_columns(*item) for item in batch.totals.items()))
            for camera, before_ns in connection.execute("SELECT camera, before_ns FROM purges").fetchall():
                delete(connection, camera, before_ns)
            connection.execute("DELETE FROM purges")

    def checkpoint(self) -> None:
        """Bring the log into the file when it has grown large."""
        if self._log_bytes() > _CHECKPOINT_BYTES:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def expire(self, limits: HistoryLimits, now_ns: int | None) -> None:
        """Forget what is beyond the limits.

        Args:
            now_ns: wall clock; None while it is not set: then nothing has an age.
        """
        connection = self._connection
        with transaction(connection):
            if now_ns is not None:
                _forget_old(connection, now_ns - limits.days * _DAY_NS)
            if used_bytes(connection) > limits.max_bytes:
                for table in ("events", "totals"):
                    connection.execute(
                        f"DELETE FROM {table} WHERE number IN (SELECT number FROM {table} ORDER BY number "
                        f"LIMIT (SELECT count(*) / {_SHRINK_BY} + 1 FROM {table}))"
                    )

    def close(self) -> None:
        """SQLite brings the log into the file, unless somebody else has it open."""
        self._connection.close()

    def _log_bytes(self) -> int:
        try:
            return self._log.stat().st_size
        except OSError:  # not there yet, or the disk is broken, which the next write will find
            return 0


def connect(path: Path) -> sqlite3.Connection:
    """A connection for reading and writing to a file that is there; it may be handed to another thread."""
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
    )


def check_version(connection: sqlite3.Connection, path: Path) -> None:
    """Raises StoreError for a file of a newer version, DamagedError for one that is none of ours."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application == _APPLICATION_ID and version > _VERSION:
        raise StoreError(
            f"a newer version of the program wrote this history (format {version}, this one knows {_VERSION})",
            where=str(path),
            fix="install that version again, or move the file away",
        )
    if application != _APPLICATION_ID or version != _VERSION:
        raise DamagedError(f"format {version} of application {application:#x}")


def delete(connection: sqlite3.Connection, camera: str | None, before_ns: int | None) -> int:
    """Delete events and hours that began before a time, of one camera or of all. Returns how many.

    Without a time everything goes: also what an unset clock has dated into the future.
    """
    where, values = _chosen(camera, before_ns)
    return sum(connection.execute(f"DELETE FROM {table} WHERE {where[table]}", values).rowcount for table in where)


def count(connection: sqlite3.Connection, camera: str | None, before_ns: int | None) -> int:
    """How many events and totals `delete` would delete."""
    where, values = _chosen(camera, before_ns)
    queries = (f"SELECT count(*) FROM {table} WHERE {where[table]}" for table in where)
    return sum(int(connection.execute(query, values).fetchone()[0]) for query in queries)


def used_bytes(connection: sqlite3.Connection) -> int:
    """What the rows take, without free pages."""
    size, pages, free = (
        int(connection.execute(f"PRAGMA {what}").fetchone()[0])
        for what in ("page_size", "page_count", "freelist_count")
    )
    return size * (pages - free)


def _chosen(camera: str | None, before_ns: int | None) -> tuple[dict[str, str], dict[str, object]]:
    where = {}
    for table, start in _START.items():
        wanted = [f"{start} < :before"] if before_ns is not None else []
        wanted += ["camera = :camera"] if camera is not None else []
        where[table] = " AND ".join(wanted) or "1"
    return where, {"camera": camera, "before": before_ns}


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    found = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != ("ok",):
        raise DamagedError(str(found))
    (objects,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if objects:
        check_version(connection, path)
        return
    for statement in _TABLES.split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {_VERSION}")
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")


def _forget_old(connection: sqlite3.Connection, limit_ns: int) -> None:
    """What an unset clock has dated has no age: it goes with its neighbours, by the order in which rows came."""
    for table, end in _END.items():
        newest = f"SELECT coalesce(max(number), 0) FROM {table} WHERE clock_synced AND {end} < ?"
        (number,) = connection.execute(newest, (limit_ns,)).fetchone()
        is_old = f"CASE WHEN clock_synced THEN {end} < ? ELSE number < ? END"
        connection.execute(f"DELETE FROM {table} WHERE {is_old}", (limit_ns, number))


def _event_columns(row: PastEvent) -> tuple[object, ...]:
    return (
        row.boot_id,
        row.id,
        row.camera,
        row.label,
        row.start_ns,
        row.end_ns,
        row.presence_ns,
        row.top_score,
        json.dumps(row.zones),
        json.dumps({line: way.value for line, way in row.lines}),
        row.end_reason.value if row.end_reason is not None else None,
        row.has_snapshot,
        row.has_clip,
        row.clock_synced,
    )


def _total_columns(key: TotalKey, tally: Tally) -> tuple[object, ...]:
    place = (key.hour, key.clock_synced, key.camera, key.place.value, key.name, key.label)
    return (*place, tally.events, tally.presence_ns, tally.went_in, tally.went_out)

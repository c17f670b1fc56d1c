"""The history for other processes than the one that writes it, which may do so meanwhile: to be read, and to be purged.

What the daemon has seen in the last minute may not be there yet.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from zhcedge.core.errors import NotNowError, SourceMissingError, StoreError
from zhcedge.core.events import Direction, EndReason
from zhcedge.store.database import Fault, fault_of, transaction
from zhcedge.store.history_batch import HOUR_NS, PastEvent, Place, Tally, TotalKey
from zhcedge.store.history_file import FILE_NAME, check_version, connect, count, delete, used_bytes
from zhcedge.store.purging import Amount, Selection, measure_aside, purge_aside

_EVENT = (
    "boot_id, id, camera, label, start_ns, end_ns, presence_ns, top_score, zones, lines, end_reason, has_snapshot, "
    "has_clip, clock_synced"
)
_TOTAL = "hour, clock_synced, camera, place, name, label, events, presence_ns, went_in, went_out"
_WAIT_S = 10.0  # for a checkpoint of the writer


@dataclass(frozen=True)
class Wanted:
    """Which part of the history.

    Attributes:
        since_ns, until_ns: wall clock, the second one excluded; None leaves a side open.
        camera, label: None for all.
        limit: the newest so many; 0 for all.
    """

    since_ns: int | None = None
    until_ns: int | None = None
    camera: str | None = None
    label: str | None = None
    limit: int = 0


def read_events(folder: Path, wanted: Wanted) -> list[PastEvent]:
    """Events that lie in the time, at least in part, in order of their end; those that go on have no end_reason.

    Raises SourceMissingError when there is no history, StoreError when it can't be read.
    """
    with _reading(folder) as connection:
        conditions = {"end_ns >= ?": wanted.since_ns, "start_ns < ?": wanted.until_ns}
        rows = _select(connection, f"SELECT {_EVENT} FROM events", conditions, "end_ns, number", wanted)
        return [_event(*row) for row in rows]


def read_totals(folder: Path, wanted: Wanted) -> list[tuple[TotalKey, Tally]]:
    """Totals of the hours that lie in the time, at least in part, in order of hour, camera, place, name and label.

    Raises SourceMissingError when there is no history, StoreError when it can't be read.
    """
    with _reading(folder) as connection:
        conditions = {f"(hour + 1) * {HOUR_NS} > ?": wanted.since_ns, f"hour * {HOUR_NS} < ?": wanted.until_ns}
        order = "hour, clock_synced, camera, place, name, label"
        rows = _select(connection, f"SELECT {_TOTAL} FROM totals", conditions, order, wanted)
        return [_total(*row) for row in rows]


class PurgeableHistory:
    """Events and hourly totals, those that the daemon holds in memory included. Implements store.purging.Purgeable.

    The hour in which the moment lies goes too. An event that goes on is remembered again with its next message.

    Args:
        folder: of the history; there may be none in it.
    """

    things = "events and hourly totals of the history"

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME

    def measure(self, selection: Selection) -> Amount:
        """See Purgeable. The bytes are a share of the file."""
        aside = measure_aside(self._path)
        if not self._path.exists():
            return aside
        with _translated(self._path), closing(_connect_to_read(self._path)) as connection:
            return aside + _amount(connection, count(connection, selection.camera, selection.before_ns))

    def purge(self, selection: Selection) -> Amount:
        """See Purgeable. Waits for a daemon that is writing; raises NotNowError when the file stays busy."""
        aside = purge_aside(self._path)
        if not self._path.exists():
            return aside
        with _translated(self._path), closing(connect(self._path)) as connection:
            check_version(connection, self._path)
            amount = _amount(connection, count(connection, selection.camera, selection.before_ns))
            connection.execute("PRAGMA secure_delete = ON")
            with transaction(connection):
                deleted = delete(connection, selection.camera, selection.before_ns)
                # The daemon takes it out of what it is about to write.
                order = (selection.camera, selection.before_ns)
                connection.execute("INSERT INTO purges (camera, before_ns) VALUES (?, ?)", order)
            with suppress(sqlite3.Error):  # somebody is reading: the writer does it later
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return aside + Amount(deleted, amount.size_bytes)


def _amount(connection: sqlite3.Connection, chosen: int) -> Amount:
    return Amount(chosen, used_bytes(connection) * chosen // max(count(connection, None, None), 1))


@contextmanager
def _reading(folder: Path) -> Iterator[sqlite3.Connection]:
    path = folder / FILE_NAME
    if not path.exists():
        fix = "run the daemon with this outbox.dir first, or name the right one"
        raise SourceMissingError("there is no history here", where=str(folder), fix=fix)
    with _translated(path), closing(_connect_to_read(path)) as connection:
        yield connection


def _connect_to_read(path: Path) -> sqlite3.Connection:
    """SQLite reads a file with a write-ahead log only where it may make files beside it, or where they are there."""
    address = f"{path.absolute().as_uri()}?mode=ro"
    connection = sqlite3.connect(address, uri=True, timeout=_WAIT_S, isolation_level=None)
    try:
        try:
            check_version(connection, path)
        except sqlite3.OperationalError:
            if path.with_name(f"{path.name}-wal").exists():
                raise
            connection.close()
            # No log and no right to make one: nobody is writing.
            connection = sqlite3.connect(f"{address}&immutable=1", uri=True, isolation_level=None)
            check_version(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        fault = fault_of(error)
        if fault is Fault.TAKEN:
            raise NotNowError("the history is busy", where=str(path), fix="try again") from error
        if fault is Fault.DAMAGED:
            fix = "start the daemon, which sets it aside, or move it away"
            raise StoreError(f"the history is damaged: {error}", where=str(path), fix=fix) from error
        fix = "check who may read and write it, and the disk"
        raise StoreError(f"the history can't be used: {error}", where=str(path), fix=fix) from error
    except ValueError as error:  # JSON, or a word of an enumeration
        raise StoreError(f"the history is damaged: {error}", where=str(path), fix="move it away") from error


def _select(
    connection: sqlite3.Connection, select: str, conditions: dict[str, int | None], order: str, wanted: Wanted
) -> list[tuple[object, ...]]:
    """The last `wanted.limit` rows in this order."""
    every: dict[str, int | str | None] = {**conditions, "camera = ?": wanted.camera, "label = ?": wanted.label}
    given = {condition: value for condition, value in every.items() if value is not None}
    where = f" WHERE {' AND '.join(given)}" if given else ""
    backwards = ", ".join(f"{column.strip()} DESC" for column in order.split(","))
    limit = (wanted.limit or -1,)
    rows = connection.execute(f"{select}{where} ORDER BY {backwards} LIMIT ?", (*given.values(), *limit)).fetchall()
    return rows[::-1]


def _event(*columns: object) -> PastEvent:
    boot_id, event_id, camera, label, start_ns, end_ns, presence_ns, top_score = columns[:8]
    zones, lines, end_reason, has_snapshot, has_clip, clock_synced = columns[8:]
    return PastEvent(
        boot_id=str(boot_id),
        id=str(event_id),
        camera=str(camera),
        label=str(label),
        start_ns=int(str(start_ns)),
        end_ns=int(str(end_ns)),
        presence_ns=int(str(presence_ns)),
        top_score=float(str(top_score)),
        zones=tuple(json.loads(str(zones))),
        lines=tuple((line, Direction(way)) for line, way in json.loads(str(lines)).items()),
        end_reason=EndReason(str(end_reason)) if end_reason is not None else None,
        has_snapshot=bool(has_snapshot),
        has_clip=bool(has_clip),
        clock_synced=bool(clock_synced),
    )


def _total(*columns: object) -> tuple[TotalKey, Tally]:
    hour, clock_synced, camera, place, name, label = columns[:6]
    key = TotalKey(int(str(hour)), bool(clock_synced), str(camera), Place(str(place)), str(name), str(label))
    return key, Tally(*(int(str(value)) for value in columns[6:]))

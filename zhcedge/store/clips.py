"""The index of clips and snapshots: which file shows which camera when, and which event belongs to which file.

The files are the truth; the index can be lost and is made again from them (store.media_scan), but for the events.
Several processes may use it at once: the daemon, and whoever deletes for privacy.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from zhcedge.core.errors import StoreError
from zhcedge.store.database import Fault, fault_of, set_aside, transaction
from zhcedge.store.media_files import CLIP

INDEX_NAME = "index.sqlite"

_VERSION = 1
_APPLICATION_ID = 0x7A68636D  # "zhcm"
_BUSY_S = 10.0  # another process deletes its files in pieces that take less
_TABLES = """
CREATE TABLE files (path TEXT PRIMARY KEY, kind TEXT NOT NULL, camera TEXT NOT NULL, start_ns INTEGER NOT NULL,
    end_ns INTEGER NOT NULL, bytes INTEGER NOT NULL);
CREATE INDEX files_by_time ON files (start_ns);
CREATE TABLE uses (event TEXT NOT NULL, path TEXT NOT NULL, from_s REAL NOT NULL, to_s REAL NOT NULL,
    PRIMARY KEY (event, path));
CREATE INDEX uses_by_path ON uses (path);
CREATE TABLE wanted (event TEXT PRIMARY KEY, camera TEXT NOT NULL, from_ns INTEGER NOT NULL, to_ns INTEGER);
"""
_PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=NORMAL",  # a power cut may cost the last rows, which the next scan finds again
    "secure_delete=ON",  # what was deleted for privacy is not to be found in the file either
    f"busy_timeout={round(_BUSY_S * 1000)}",
)


@dataclass(frozen=True)
class IndexedFile:
    """A finished file.

    Attributes:
        path: absolute, in the storage folder.
        kind: CLIP or SNAPSHOT (store.media_files).
        start_ns, end_ns: wall clock of its first picture and of its end.
    """

    path: Path
    kind: str
    camera: str
    start_ns: int
    end_ns: int
    size_bytes: int


@dataclass(frozen=True)
class Use:
    """The range of a file that belongs to an event, in seconds from its beginning.

    Attributes:
        event: key of the event, unique over all runs of the daemon.
    """

    event: str
    path: Path
    from_s: float
    to_s: float


@dataclass(frozen=True)
class Wanted:
    """A clip that was asked for and has not come.

    Attributes:
        from_ns, to_ns: wall clock of what it should show; to_ns None while its event goes on.
    """

    event: str
    camera: str
    from_ns: int
    to_ns: int | None


class MediaIndex:
    """The index in a storage folder, made where it is missing. Owned by one thread.

    One that is damaged is renamed and an empty one takes its place. Every method raises StoreError.
    """

    def __init__(self, storage: Path) -> None:
        self._storage = storage
        self._path = storage / INDEX_NAME
        try:
            storage.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"this folder can't be made: {error.strerror}", where=str(storage), fix="correct storage.dir"
            ) from error
        try:
            self._connection = self._open()
        except sqlite3.Error as error:
            if fault_of(error) is not Fault.DAMAGED:
                raise _translated(error, self._path) from error
            self._connection = self._open_anew(error)

    def close(self) -> None:
        """Twice is fine."""
        self._connection.close()

    def is_in_place(self) -> bool:
        """Whether the file is still the one in the folder: SQLite notices nothing when it was deleted or replaced, and
        whoever opens it then gets another one."""
        try:
            found = self._path.stat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    # -- files -------------------------------------------------------------------------------------------------
    def add(self, file: IndexedFile, uses: Sequence[Use] = ()) -> None:
        """Note a file, and whose it is. One that is known is noted anew."""
        path = self._relative(file.path)
        with self._writing() as connection:
            row = (path, file.kind, file.camera, file.start_ns, file.end_ns, file.size_bytes)
            connection.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", row)
            rows = [(use.event, path, use.from_s, use.to_s) for use in uses]
            connection.executemany("INSERT OR REPLACE INTO uses VALUES (?, ?, ?, ?)", rows)

    def remove(self, path: Path) -> None:
        """Forget a file that has been deleted."""
        relative = self._relative(path)
        with self._writing() as connection:
            connection.execute("DELETE FROM files WHERE path = ?", (relative,))
            connection.execute("DELETE FROM uses WHERE path = ?", (relative,))

    def files(self) -> list[IndexedFile]:
        """All of them, the oldest first."""
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT path, kind, camera, start_ns, end_ns, bytes FROM files ORDER BY start_ns, path"
            ).fetchall()
        return [IndexedFile(self._storage / path, *rest) for path, *rest in rows]

    def clip_of(self, event: str) -> list[tuple[IndexedFile, Use]]:
        """The files of an event's clip, in order."""
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT files.path, kind, camera, start_ns, end_ns, bytes, from_s, to_s FROM files "
                "JOIN uses ON uses.path = files.path WHERE event = ? AND kind = ? ORDER BY start_ns",
                (event, CLIP),
            ).fetchall()
        found = []
        for path, kind, camera, start_ns, end_ns, size, from_s, to_s in rows:
            file = IndexedFile(self._storage / path, kind, camera, start_ns, end_ns, size)
            found.append((file, Use(event, file.path, from_s, to_s)))
        return found

    # -- clips that were asked for -----------------------------------------------------------------------------
    def want(self, wanted: Wanted) -> None:
        """Note that a clip was asked for: if nobody answers, it is looked for among the files."""
        with self._writing() as connection:
            row = (wanted.event, wanted.camera, wanted.from_ns, wanted.to_ns)
            connection.execute("INSERT OR REPLACE INTO wanted VALUES (?, ?, ?, ?)", row)

    def wanted(self) -> list[Wanted]:
        """Clips that have not come."""
        with self._reading() as connection:
            return [Wanted(*row) for row in connection.execute("SELECT event, camera, from_ns, to_ns FROM wanted")]

    def unwant(self, event: str) -> None:
        """The clip has come, or never will."""
        with self._writing() as connection:
            connection.execute("DELETE FROM wanted WHERE event = ?", (event,))

    def unwant_where(self, camera: str | None, before_ns: int | None) -> None:
        """Forget clips of a camera (None: of all) that begin before a time (None: at any time)."""
        with self._writing() as connection:
            connection.execute(
                "DELETE FROM wanted WHERE (?1 IS NULL OR camera = ?1) AND (?2 IS NULL OR from_ns < ?2)",
                (camera, before_ns),
            )

    def tidy(self) -> None:
        """Empty the log beside the index, so that what was deleted is nowhere; where nobody else is just reading."""
        with self._reading() as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    # -- inside ------------------------------------------------------------------------------------------------
    def _relative(self, path: Path) -> str:
        return str(path.relative_to(self._storage))

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            yield self._connection
        except sqlite3.Error as error:
            raise _translated(error, self._path) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        try:
            with transaction(self._connection):
                yield self._connection
        except sqlite3.Error as error:
            raise _translated(error, self._path) from error

    def _open(self) -> sqlite3.Connection:
        with suppress(OSError):  # SQLite says better what is wrong
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o640))
        connection = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
        try:
            for pragma in _PRAGMAS:
                connection.execute(f"PRAGMA {pragma}")
            with transaction(connection):
                _prepare(connection, self._path)
            found = self._path.stat()
            self._identity = found.st_dev, found.st_ino
        except OSError as error:
            connection.close()
            raise sqlite3.OperationalError(f"unable to open database file: {error.strerror}") from error
        except BaseException:  # whoever gets an error gets no connection
            connection.close()
            raise
        return connection

    def _open_anew(self, fault: sqlite3.Error) -> sqlite3.Connection:
        try:
            set_aside(self._path)
            return self._open()
        except OSError as error:
            raise StoreError(f"is damaged ({fault}) and can't be renamed", where=str(self._path)) from error
        except sqlite3.Error as error:
            raise _translated(error, self._path) from error


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    found = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != ("ok",):
        raise sqlite3.DatabaseError(f"malformed: {found}")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (objects,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not objects and not version:
        for statement in _TABLES.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {_VERSION}")
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    elif application == _APPLICATION_ID and version > _VERSION:
        raise StoreError(
            f"a newer version of the program wrote this index (format {version}, this one knows {_VERSION})",
            where=str(path),
            fix="install that version again, or move the file away",
        )
    elif application != _APPLICATION_ID or version != _VERSION:
        raise sqlite3.DatabaseError(f"malformed: format {version} of application {application:#x}")


def _translated(error: sqlite3.Error, path: Path) -> StoreError:
    fixes = {Fault.FULL: "make room on the disk", Fault.TAKEN: "try again when nobody else uses it"}
    return StoreError(f"the index can't be used: {error}", where=str(path), fix=fixes.get(fault_of(error), ""))

"""Opening an SQLite file that may be damaged, taken, or of another version; what its errors mean."""

from __future__ import annotations

import enum
import glob
import json
import os
import sqlite3
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from zhcedge.core.errors import StoreError

VERSION = 1
"""Of the tables: the file's user_version."""

_APPLICATION_ID = 0x7A686345  # "zhcE", so that a damaged header is not taken for a newer version
_NEWEST_VERSION = 9_999
_ASIDE_KEPT = 3  # damaged files for inspection; more of them would fill the disk
_COMPANIONS = ("", "-wal", "-journal", "-shm")


class Fault(enum.Enum):
    """What an error of SQLite means for us."""

    FULL = "full"
    TAKEN = "taken"
    DAMAGED = "damaged"
    OTHER = "other"


def fault_of(error: sqlite3.Error) -> Fault:
    """By the text, because sqlite_errorcode needs Python 3.11. The texts are those of sqlite3ErrStr()."""
    text = str(error)
    if "disk is full" in text:
        return Fault.FULL
    if "is locked" in text:
        return Fault.TAKEN
    is_damage = any(word in text for word in ("malformed", "not a database", "no such", "has no column", "too big"))
    return Fault.DAMAGED if is_damage else Fault.OTHER


class DamagedError(sqlite3.DatabaseError):
    """Our own finding that a file is damaged; `fault_of` says so by its text."""

    def __init__(self, what: str) -> None:
        super().__init__(f"malformed: {what}")


@dataclass(frozen=True)
class Meta:
    """What a file says of itself.

    Attributes:
        outbox_id: of the outbox; empty in a new file.
        reserved: no id above it was used when this was written.
        flushed: every row up to this id has left the memory: it is on flash, or gone.
    """

    outbox_id: str = ""
    reserved: int = 0
    flushed: int = 0


META_TABLE = "CREATE TABLE meta (place INTEGER PRIMARY KEY, value BLOB, crc INTEGER);"


def write_meta(connection: sqlite3.Connection, meta: Meta) -> None:
    value = json.dumps(vars(meta)).encode()
    connection.execute("INSERT OR REPLACE INTO meta VALUES (1, ?, ?)", (value, zlib.crc32(value)))


def read_meta(connection: sqlite3.Connection) -> Meta:
    """Raises DamagedError: a reserved id that was changed would let ids come twice."""
    found = connection.execute("SELECT value, crc FROM meta").fetchone()
    if found is None:
        return Meta()
    value, crc = found
    if not isinstance(value, bytes) or zlib.crc32(value) != crc:
        raise DamagedError("meta")
    return Meta(**json.loads(value))


def check_folder(folder: Path, key: str) -> None:
    """Raises StoreError, naming the configuration key, for a folder that nothing can be written to."""
    if not folder.is_dir():
        raise StoreError("this folder is not there", where=str(folder), fix=f"create it, or correct {key}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreError(
            "this folder can't be written to", where=str(folder), fix=f"change its owner or mode, or correct {key}"
        )


def open_checked(path: Path, pragmas: Sequence[str], tables: str) -> sqlite3.Connection:
    """Open or create the file for this process alone, and look through it.

    The connection may be handed to another thread. Nothing is left open when it fails.

    Raises:
        StoreError: another process has it, or a newer version of the program wrote it.
        sqlite3.Error: anything else; see fault_of.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))  # messages are not for everyone
    except OSError as error:
        raise sqlite3.OperationalError(f"unable to open database file: {error.strerror}") from error
    connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        # Exclusive before the first access: then SQLite needs no shared memory file beside the log.
        for pragma in ("locking_mode=EXCLUSIVE", *pragmas, "temp_store=MEMORY"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("BEGIN IMMEDIATE")  # takes the lock, and keeps it
        _prepare(connection, path, tables)
        connection.execute("COMMIT")
    except BaseException as error:  # also an interrupt: whoever gets an error gets no connection
        with suppress(sqlite3.Error):
            connection.close()
        if isinstance(error, sqlite3.Error) and fault_of(error) is Fault.TAKEN:
            raise StoreError(
                "another process uses this outbox", where=str(path), fix="stop it, or give this one folders of its own"
            ) from None
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, tables: str) -> None:
    found = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != ("ok",):
        raise DamagedError(str(found))
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (objects,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if objects == 0 and version == 0:
        for statement in tables.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    elif application == _APPLICATION_ID and VERSION < version <= _NEWEST_VERSION:
        raise StoreError(
            f"a newer version of the program wrote this outbox (format {version}, this one knows {VERSION})",
            where=str(path),
            fix="install that version again, or move the file away",
        )
    elif application != _APPLICATION_ID or version != VERSION:
        raise DamagedError(f"format {version} of application {application:#x}")


def set_aside(path: Path) -> Path:
    """Rename a damaged file and what SQLite keeps beside it; only the newest few such files are kept.

    Raises OSError when it can't be renamed.
    """
    stamp = time.strftime("%Y%m%dT%H%M%S")
    number = 0
    while (aside := path.with_name(f"{path.name}.broken-{stamp}-{number}")).exists():
        number += 1
    for companion in _COMPANIONS:
        with suppress(FileNotFoundError):
            Path(f"{path}{companion}").replace(f"{aside}{companion}")
    broken = sorted(path.parent.glob(f"{path.name}.broken-*-*[0-9]"))
    for old in broken[:-_ASIDE_KEPT]:
        for companion in _COMPANIONS:
            Path(f"{old}{companion}").unlink(missing_ok=True)
    return aside


def files_aside(path: Path) -> list[Path]:
    """What `set_aside` has kept of a file, and what SQLite keeps beside it. A folder that can't be read has none."""
    return sorted(path.parent.glob(f"{glob.escape(path.name)}.broken-*"))


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """What is done in the block is committed as a whole or not at all; the next transaction can begin either way.

    Raises sqlite3.Error, also when another process keeps writing, and whatever the block raises.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:  # also an interrupt: nothing half done is left open
        roll_back(connection)
        raise


def roll_back(connection: sqlite3.Connection) -> None:
    """End a transaction that has failed, where SQLite has not done so itself."""
    if connection.in_transaction:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")

"""Rows as they wait in memory, and as columns of a database."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from zhcedge.core.delivery import Message, Row

TABLE = """
CREATE TABLE rows (
    id INTEGER PRIMARY KEY, topic BLOB, payload BLOB, correlation BLOB, expiry_s INTEGER, flags INTEGER,
    created_ns INTEGER, crc INTEGER
);
"""
INSERT = "INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
REPLACE = "INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
SELECT = "SELECT id, topic, payload, correlation, expiry_s, flags, created_ns, crc FROM rows"

EXPENDABLE, DATED = 1, 2
"""Bits of `flags`: see Held."""
_RETAIN, _QOS_SHIFT = 4, 3
_NUMBERS = struct.Struct("<6q")
OVERHEAD_BYTES = 100
"""Of a row in a database, beside its text."""

Columns = tuple[int, bytes, bytes, bytes, "int | None", int, int, int]


@dataclass(slots=True)
class Held:
    """A row that waits, and what its outbox knows of it.

    Attributes:
        is_expendable: given up first.
        is_dated: the wall clock was set when it was appended, so `row.created_ns` says its age.
        at_ns: monotonic time when this process saw it first.
        size: bytes, as the limits count them.
    """

    row: Row
    is_expendable: bool
    is_dated: bool
    at_ns: int
    size: int


def size_of(message: Message) -> int:
    """Bytes that a message takes, nearly: what the limits count."""
    return len(message.payload) + len(message.topic) + len(message.correlation) + OVERHEAD_BYTES


def to_columns(held: Held) -> Columns:
    """The row for INSERT and REPLACE. Text goes in as bytes: SQLite raises where a damaged text is no UTF-8."""
    message = held.row.message
    flags = (
        (EXPENDABLE if held.is_expendable else 0)
        | (DATED if held.is_dated else 0)
        | (_RETAIN if message.retain else 0)
        | message.qos << _QOS_SHIFT
    )
    values = held.row.id, message.topic.encode(), message.payload, message.correlation, message.expiry_s, flags
    return (*values, held.row.created_ns, _crc(*values, held.row.created_ns))


def from_columns(columns: tuple[object, ...], at_ns: int) -> Held | None:
    """The row of a SELECT; None when its checksum says that something has changed it: SQLite has none of its own."""
    row_id, topic, payload, correlation, expiry_s, flags, created_ns, crc = columns
    if not (
        isinstance(row_id, int)
        and isinstance(topic, bytes)
        and isinstance(payload, bytes)
        and isinstance(correlation, bytes)
        and (expiry_s is None or isinstance(expiry_s, int))
        and isinstance(flags, int)
        and isinstance(created_ns, int)
    ):
        return None
    if crc != _crc(row_id, topic, payload, correlation, expiry_s, flags, created_ns):
        return None
    is_retained = bool(flags & _RETAIN)
    message = Message(topic.decode(), payload, flags >> _QOS_SHIFT, is_retained, expiry_s, correlation)
    row = Row(row_id, message, created_ns)
    return Held(row, bool(flags & EXPENDABLE), bool(flags & DATED), at_ns, size_of(message))


def _crc(
    row_id: int, topic: bytes, payload: bytes, correlation: bytes, expiry_s: int | None, flags: int, created_ns: int
) -> int:
    numbers = _NUMBERS.pack(
        row_id, len(topic), len(correlation), -1 if expiry_s is None else expiry_s, flags, created_ns
    )
    return zlib.crc32(payload, zlib.crc32(b"".join((numbers, topic, correlation))))

"""Events that have begun and not ended, as an outbox notes them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from zhcedge.core.delivery import OpenEvent

# By number, not by name: an update then overwrites its row in place, which takes a third of the time.
TABLE = "CREATE TABLE events (begun INTEGER PRIMARY KEY, id BLOB, payload BLOB, crc INTEGER);"
UPSERT = (
    "INSERT INTO events VALUES (?, ?, ?, ?) "
    "ON CONFLICT (begun) DO UPDATE SET id = excluded.id, payload = excluded.payload, crc = excluded.crc"
)
SELECT = "SELECT begun, id, payload, crc FROM events ORDER BY begun"
DELETE = "DELETE FROM events WHERE begun = ?"

EventColumns = tuple[int, bytes, bytes, int]


@dataclass(frozen=True, slots=True)
class OpenEntry:
    """An open event.

    Attributes:
        begun: id of the row that opened it: no other event's.
    """

    event: OpenEvent
    begun: int


def to_columns(entry: OpenEntry) -> EventColumns:
    event_id = entry.event.id.encode()
    return entry.begun, event_id, entry.event.payload, _crc(event_id, entry.begun, entry.event.payload)


def from_columns(columns: tuple[object, ...]) -> OpenEntry | None:
    """None when the checksum says that something has changed it."""
    begun, event_id, payload, crc = columns
    if not (isinstance(event_id, bytes) and isinstance(begun, int) and isinstance(payload, bytes)):
        return None
    if crc != _crc(event_id, begun, payload):
        return None
    return OpenEntry(OpenEvent(event_id.decode(), payload), begun)


def _crc(event_id: bytes, begun: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(event_id, begun & 0xFFFFFFFF))

"""Rows that the broker will never take, kept for inspection: the table `refused`."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from zhcedge.core.delivery import Row

KEPT = 1_000
TABLE = "CREATE TABLE refused (id INTEGER PRIMARY KEY, topic BLOB, payload BLOB, reason TEXT, refused_ns INTEGER);"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Attributes: row is None for one that is in the table `rows` of the same file."""

    row_id: int
    row: Row | None
    reason: str
    at_ns: int


def write(connection: sqlite3.Connection, refusals: list[Refusal]) -> None:
    """Add them, and forget the oldest ones beyond KEPT. Before their rows are deleted."""
    for refusal in refusals:
        if refusal.row is None:
            connection.execute(
                "INSERT OR REPLACE INTO refused SELECT id, topic, payload, ?, ? FROM rows WHERE id = ?",
                (refusal.reason, refusal.at_ns, refusal.row_id),
            )
        else:
            message = refusal.row.message
            values = refusal.row_id, message.topic.encode(), message.payload, refusal.reason, refusal.at_ns
            connection.execute("INSERT OR REPLACE INTO refused VALUES (?, ?, ?, ?, ?)", values)
    connection.execute(
        f"DELETE FROM refused WHERE id <= (SELECT id FROM refused ORDER BY id DESC LIMIT 1 OFFSET {KEPT})"
    )

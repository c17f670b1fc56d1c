"""A transaction is kept as a whole or not at all, whatever ends it, and the next one can begin."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from zhcedge.store.database import transaction


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as made:
        made.execute("CREATE TABLE t (n INTEGER PRIMARY KEY)")
        yield made


def numbers(connection: sqlite3.Connection) -> list[int]:
    return [number for (number,) in connection.execute("SELECT n FROM t ORDER BY n")]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, sqlite3.OperationalError])
def test_what_fails_half_way_leaves_nothing_and_the_next_one_is_kept(
    connection: sqlite3.Connection, error: type[BaseException]
) -> None:
    def fail() -> None:
        with transaction(connection):
            connection.execute("INSERT INTO t VALUES (1)")
            raise error

    with pytest.raises(error):
        fail()
    with transaction(connection):
        connection.execute("INSERT INTO t VALUES (2)")
    assert numbers(connection) == [2]

"""An outbox in memory: survives a broker that is away, not the end of the process."""

from __future__ import annotations

import itertools
import uuid
from collections import OrderedDict

from zhcedge.core.ports import Message


class MemoryOutbox:
    """Implements core.ports.Outbox with at most `limit` rows.

    When it is full, a new row takes the place of the oldest expendable row (an event's `update`), or of the oldest row
    when none is expendable. Both are counted in `dropped`. Belongs to the control loop's thread.

    Raises:
        ValueError: for a limit below 1.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError("an outbox needs room for at least one row")
        self._limit = limit
        self._outbox_id = uuid.uuid4().hex
        self._next_id = 1
        # In order of id. A plain dict would walk over its deleted entries to find the oldest one.
        self._rows: OrderedDict[int, Message] = OrderedDict()
        self._expendable: OrderedDict[int, None] = OrderedDict()
        self._dropped = self._lost = 0

    def append(self, message: Message, is_expendable: bool = False) -> int:
        if len(self._rows) >= self._limit:
            self._lost += not self._expendable
            self.ack(next(iter(self._expendable or self._rows)))
            self._dropped += 1
        row_id = self._next_id
        self._next_id += 1
        self._rows[row_id] = message
        if is_expendable:
            self._expendable[row_id] = None
        return row_id

    def pending(self, after_id: int, limit: int) -> list[tuple[int, Message]]:
        """At most `limit` rows above `after_id`. Rows at or below it are skipped one by one: keep them few."""
        newer = itertools.dropwhile(lambda row: row[0] <= after_id, self._rows.items())
        return list(itertools.islice(newer, limit))

    def ack(self, row_id: int) -> None:
        self._rows.pop(row_id, None)
        self._expendable.pop(row_id, None)

    @property
    def outbox_id(self) -> str:
        return self._outbox_id

    @property
    def depth(self) -> int:
        return len(self._rows)

    @property
    def lost(self) -> int:
        return self._lost

    @property
    def dropped(self) -> int:
        return self._dropped

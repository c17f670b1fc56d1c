"""Rows that wait in memory, in order."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping

from zhcedge.core.delivery import Row
from zhcedge.store.rows import Held


class Waiting:
    """Rows in order of their ids. One thread."""

    def __init__(self) -> None:
        # A plain dict would walk over its deleted entries to find the oldest one.
        self._rows: OrderedDict[int, Held] = OrderedDict()
        self._expendable: OrderedDict[int, None] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def by_id(self) -> Mapping[int, Held]:
        return self._rows

    def add(self, held: Held) -> None:
        """Append a row; its id is above all others."""
        self._rows[held.row.id] = held
        if held.is_expendable:
            self._expendable[held.row.id] = None
        self.bytes += held.size

    def remove(self, row_id: int) -> Held | None:
        held = self._rows.pop(row_id, None)
        if held is not None:
            self._expendable.pop(row_id, None)
            self.bytes -= held.size
        return held

    @property
    def oldest(self) -> Held | None:
        return next(iter(self._rows.values()), None)

    @property
    def oldest_expendable(self) -> int:
        """Id of the oldest expendable row; 0 for none."""
        return next(iter(self._expendable), 0)

    def after(self, after_id: int, limit: int) -> list[Row]:
        """At most `limit` rows above `after_id`. Rows at or below it are skipped one by one: keep them few."""
        newer = itertools.dropwhile(lambda held: held.row.id <= after_id, self._rows.values())
        return [held.row for held in itertools.islice(newer, max(0, limit))]

    def expired(self, is_expired: Callable[[Held], bool]) -> Iterator[int]:
        """Ids of the oldest rows while they have expired; each must be removed before the next is asked for."""
        while (held := self.oldest) is not None and is_expired(held):
            yield held.row.id

"""The rows of the flash that are in memory, because they are next to be delivered."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from zhcedge.core.delivery import Row


class RowWindow:
    """Holds every row above `start` up to `end`, but for those that were removed. One thread."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end
        self._ids: list[int] = []
        self._rows: dict[int, Row] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def reset(self, at_id: int) -> None:
        """Empty, between this id and the next."""
        self.start = self.end = at_id
        self._ids.clear()
        self._rows.clear()

    def extend(self, rows: Iterable[Row], end: int, most: int) -> None:
        """Take rows in order of their ids, all above the old `end`; the oldest ones beyond `most` go."""
        for row in rows:
            self._ids.append(row.id)
            self._rows[row.id] = row
        self.end = end
        excess = len(self._ids) - most
        if excess > 0:
            self.start = self._ids[excess - 1]
            for row_id in self._ids[:excess]:
                del self._rows[row_id]
            del self._ids[:excess]

    def remove(self, row_id: int) -> None:
        if self._rows.pop(row_id, None) is not None:
            del self._ids[bisect.bisect_left(self._ids, row_id)]

    def after(self, after_id: int, limit: int) -> list[Row]:
        first = bisect.bisect_right(self._ids, after_id)
        return [self._rows[row_id] for row_id in self._ids[first : first + limit]]

    def count_after(self, after_id: int) -> int:
        return len(self._ids) - bisect.bisect_right(self._ids, after_id)

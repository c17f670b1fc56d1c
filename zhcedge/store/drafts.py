"""What is appended together is kept together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from zhcedge.core.delivery import Message, OpenEvent, Row
from zhcedge.core.ports import Clock
from zhcedge.store.rows import Held, size_of


@dataclass(slots=True)
class Draft:
    """The rows of one batch, and what they say of events.

    Attributes:
        events: by id, the last row that speaks of it, and its state then; None where that row ends it.
    """

    rows: list[Held] = field(default_factory=list)
    events: dict[str, tuple[int, OpenEvent | None]] = field(default_factory=dict)


class Drafter:
    """Numbers rows and gathers them into drafts. One thread.

    Args:
        next_id: of the first row.
        commit: takes a finished draft.
    """

    def __init__(self, clock: Clock, next_id: int, commit: Callable[[Draft], None]) -> None:
        self._clock, self._commit = clock, commit
        self.next_id = next_id
        self._draft: Draft | None = None

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Everything that is appended in the block is one draft; none of it is kept when the block raises."""
        if self._draft is not None:
            raise RuntimeError("batches of an outbox can't be nested")
        draft = self._draft = Draft()
        try:
            yield
        finally:
            self._draft = None
        if draft.rows:
            self._commit(draft)

    def append(self, message: Message, is_expendable: bool, opens: OpenEvent | None, closes: str) -> int:
        draft = self._draft or Draft()
        row_id, clock = self.next_id, self._clock
        self.next_id += 1
        row = Row(row_id, message, clock.wall_ns())
        draft.rows.append(Held(row, is_expendable, clock.is_synced(), clock.monotonic_ns(), size_of(message)))
        if closes:
            draft.events[closes] = row_id, None
        if opens is not None:
            draft.events[opens.id] = row_id, opens
        if draft is not self._draft:
            self._commit(draft)
        return row_id

"""An outbox in memory: survives a broker that is away, not the end of the process."""

from __future__ import annotations

import time
import uuid
from contextlib import AbstractContextManager

from zhcedge.core.delivery import Alert, Message, OnAlert, OpenEvent, Row
from zhcedge.core.ports import Clock
from zhcedge.store.alerts import Alerts, Drops
from zhcedge.store.drafts import Draft, Drafter
from zhcedge.store.settings import OutboxLimits
from zhcedge.store.waiting import Waiting


class MemoryOutbox:
    """Implements core.delivery.Outbox within the limits. Belongs to the control loop's thread.

    Args:
        limit: most rows, or all the limits.
        clock: None takes the system's clocks, and takes the wall clock for one that was never set.
    """

    def __init__(self, limit: int | OutboxLimits, clock: Clock | None = None, on_alert: OnAlert | None = None) -> None:
        self._limits = OutboxLimits(limit) if isinstance(limit, int) else limit
        self._clock = clock or _UnsetClock()
        self._alerts = Alerts(on_alert or _ignore)
        self._drops = Drops(self._alerts)
        self._outbox_id = uuid.uuid4().hex
        self._drafter = Drafter(self._clock, 1, self._keep)
        self._waiting = Waiting()
        self._events: dict[str, OpenEvent] = {}
        self._refused = 0

    @property
    def outbox_id(self) -> str:
        return self._outbox_id

    @property
    def is_durable(self) -> bool:
        return False

    @property
    def next_id(self) -> int:
        return self._drafter.next_id

    def batch(self) -> AbstractContextManager[None]:
        return self._drafter.batch()

    def append(
        self, message: Message, is_expendable: bool = False, *, opens: OpenEvent | None = None, closes: str = ""
    ) -> int:
        return self._drafter.append(message, is_expendable, opens, closes)

    def _keep(self, draft: Draft) -> None:
        for held in draft.rows:
            self._waiting.add(held)
            self._trim()
        for event_id, (_, event) in draft.events.items():
            if event is None:
                self._events.pop(event_id, None)
            else:
                self._events[event_id] = event

    def _trim(self) -> None:
        limits, waiting = self._limits, self._waiting
        while len(waiting) > limits.max_messages or (waiting.bytes > limits.max_bytes and len(waiting) > 1):
            victim = waiting.oldest_expendable or next(iter(waiting.by_id))
            self._drop(victim)

    def _drop(self, row_id: int) -> None:
        held = self._waiting.remove(row_id)
        if held is not None:
            self._drops.note(held.is_expendable)

    def open_events(self) -> list[OpenEvent]:
        return list(self._events.values())

    def pending(self, after_id: int, limit: int) -> list[Row]:
        return self._waiting.after(after_id, limit)

    def ack(self, row_id: int) -> None:
        self._waiting.remove(row_id)

    def refuse(self, row_id: int, reason: str) -> None:
        """Forget the row: there is nowhere to keep it."""
        self._refused += self._waiting.remove(row_id) is not None

    def tick(self) -> None:
        now_ns, max_age_ns = self._clock.monotonic_ns(), self._limits.max_age_s * 1e9
        for row_id in self._waiting.expired(lambda held: now_ns - held.at_ns > max_age_ns):
            self._drop(row_id)
        self._drops.tick(now_ns)
        self._alerts.deliver()

    def close(self) -> None:
        """Nothing: it ends with the process."""

    @property
    def depth(self) -> int:
        return len(self._waiting)

    @property
    def dropped(self) -> int:
        return self._drops.dropped

    @property
    def lost(self) -> int:
        return self._drops.lost

    @property
    def refused(self) -> int:
        return self._refused

    @property
    def flash_bytes(self) -> int:
        return 0


class _UnsetClock:
    """Implements Clock for rows that nobody will read after this process."""

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        return time.time_ns()

    def is_synced(self) -> bool:
        return False


def _ignore(alert: Alert) -> None:
    """For an outbox whose alerts nobody wants."""

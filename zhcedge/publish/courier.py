"""Carries messages from the outbox to the broker, in order, and takes them out of it once it has answered."""

from __future__ import annotations

import queue
import time
from collections import deque

from zhcedge.core.delivery import Broker, Outbox, Row
from zhcedge.core.errors import BrokerError
from zhcedge.core.ports import Clock
from zhcedge.publish.payloads import as_historical

WINDOW = 100
"""Most messages handed over and not yet acknowledged; a broker that takes fewer says so itself."""

HISTORICAL_S = 10.0
"""An event that has waited longer is one of the past: receivers should not act as if it happened now."""

_CHUNK = 64
"""Rows read from the outbox at once: a query for each one would cost more than sending it."""


class Courier:
    """Belongs to the control loop's thread, `on_ack` and `on_refused` excepted.

    What is in flight when a session ends is handed over again in the next one, so a message can arrive twice (QoS 1);
    it never overtakes another one, but for one that the broker refuses for a moment.

    Args:
        outbox: where the messages are.
        clock: its wall clock tells how long a message has waited; None takes the system's.
        window: most messages in flight.
    """

    def __init__(self, outbox: Outbox, clock: Clock | None = None, window: int = WINDOW) -> None:
        self._outbox, self._window = outbox, window
        self._wall_ns = clock.wall_ns if clock is not None else time.time_ns
        self._answers: queue.SimpleQueue[tuple[int, str | None]] = queue.SimpleQueue()
        self._is_roused = False  # an answer has come since the last pump
        self._in_flight: set[int] = set()
        self._ahead: deque[Row] = deque()  # read and not handed over
        self._session = 0
        self._last_id = 0  # of the newest row read in this session

    def on_ack(self, token: int) -> bool:
        """For the broker's constructor. Any thread. Whether the loop must be woken for it: not if it was already."""
        return self._note(token, None)

    def on_refused(self, token: int, reason: str) -> bool:
        """For the broker's constructor. Any thread. Whether the loop must be woken for it, as for `on_ack`."""
        return self._note(token, reason)

    def _note(self, token: int, reason: str | None) -> bool:
        self._answers.put((token, reason))
        if self._is_roused:
            return False
        # Two threads can get here at once: then the loop is woken twice.
        self._is_roused = True
        return True

    def pump(self, broker: Broker) -> None:
        """Take in answers and hand over what fits. Never waits; call it on every turn of the loop."""
        self._is_roused = False  # before the answers are taken: one that comes now wakes the loop again
        while not self._answers.empty():  # only this thread takes from it
            self._take(*self._answers.get())
        session = broker.session
        if session != self._session:
            self._session, self._last_id = session, 0
            self._in_flight.clear()
            self._ahead.clear()
        if session == 0:
            return
        while len(self._in_flight) < self._window and self._read():
            if not self._hand_over(broker, self._ahead[0]):
                return
            self._ahead.popleft()

    def drain(self, broker: Broker, timeout_s: float) -> bool:
        """Pump until the outbox is empty; False when it isn't after `timeout_s`. For the end of the daemon."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.pump(broker)
            if self._outbox.depth == 0:
                return True
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                return False
            try:
                # Wakes at the next answer; the short limit is for a session that begins meanwhile.
                self._take(*self._answers.get(timeout=min(remaining_s, 0.05)))
            except queue.Empty:
                continue

    def _read(self) -> bool:
        """See that a row is at hand; False when there is none."""
        if not self._ahead:
            self._ahead.extend(self._outbox.pending(self._last_id, _CHUNK))
            if self._ahead:
                self._last_id = self._ahead[-1].id
        return bool(self._ahead)

    def _hand_over(self, broker: Broker, row: Row) -> bool:
        """False when the broker does not take it now."""
        message = row.message
        if self._wall_ns() - row.created_ns > HISTORICAL_S * 1e9:
            message = as_historical(message)
        try:
            if not broker.publish(message, row.id, self._session):
                return False
        except BrokerError as error:  # MQTT can't carry it: no other try would help
            self._outbox.refuse(row.id, str(error))
            return True
        self._in_flight.add(row.id)
        return True

    def _take(self, token: int, reason: str | None) -> None:
        self._in_flight.discard(token)
        if reason is None:
            self._outbox.ack(token)
        else:
            self._outbox.refuse(token, reason)

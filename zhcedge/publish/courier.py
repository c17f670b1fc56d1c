"""Carries messages from the outbox to the broker, in order, and takes them out of it once acknowledged."""

from __future__ import annotations

import queue
import time

from zhcedge.core.ports import Broker, Outbox

WINDOW = 20
"""Most messages handed over and not yet acknowledged."""


class Courier:
    """Belongs to the control loop's thread, `on_ack` excepted.

    What is in flight when a session ends is handed over again in the next one, so a message can arrive twice (QoS 1);
    it never overtakes another one.

    Args:
        outbox: where the messages are.
        window: most messages in flight.
    """

    def __init__(self, outbox: Outbox, window: int = WINDOW) -> None:
        self._outbox, self._window = outbox, window
        self._acks: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._in_flight: set[int] = set()
        self._session = 0
        self._last_id = 0  # of the newest row handed over in this session

    def on_ack(self, token: int) -> None:
        """For the broker's constructor. Any thread."""
        self._acks.put(token)

    def pump(self, broker: Broker) -> None:
        """Take in acknowledgements and hand over what fits. Never waits; call it on every turn of the loop."""
        while not self._acks.empty():  # only this thread takes from it
            self._take(self._acks.get())
        session = broker.session
        if session == 0:
            return
        if session != self._session:
            self._session, self._last_id = session, 0
            self._in_flight.clear()
        room = self._window - len(self._in_flight)
        if room <= 0:
            return
        for row_id, message in self._outbox.pending(self._last_id, room):
            if not broker.publish(message, row_id, session):
                return
            self._in_flight.add(row_id)
            self._last_id = row_id

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
                # Wakes at the next ack; the short limit is for a session that begins meanwhile.
                self._take(self._acks.get(timeout=min(remaining_s, 0.05)))
            except queue.Empty:
                continue

    def _take(self, token: int) -> None:
        self._in_flight.discard(token)
        self._outbox.ack(token)

"""Messages that the broker refuses for the moment (MQTT 5: quota exceeded, unspecified error)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from zhcedge.publish.agenda import Agenda
from zhcedge.publish.in_flight import Outgoing

PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Before each new try of a message; after the last one it is refused for good."""


class Deferral:
    """Holds them back and sends them again, in the order of their tokens. Any thread.

    As long as one of them is not settled, its session takes nothing new from the outbox, so that among the refused
    ones order is kept. What was already on its way behind them has arrived before them.

    Args:
        again: sends these before all others.
    """

    def __init__(self, agenda: Agenda, again: Callable[[Sequence[Outgoing]], None]) -> None:
        self._agenda, self._again = agenda, again
        self._lock = threading.Lock()
        self._held: list[Outgoing] = []
        self._unsettled = 0  # those that are held, and those that are tried again at this moment

    @property
    def is_empty(self) -> bool:
        return not self._unsettled

    def take(self, entry: Outgoing) -> bool:
        """Hold it for a pause; False when it was tried often enough."""
        if entry.tries >= len(PAUSES_S):
            return False
        pause_s = PAUSES_S[entry.tries]
        with self._lock:
            self._unsettled += not entry.tries
            entry.tries += 1
            self._held.append(entry)
            is_first = len(self._held) == 1
        if is_first:
            self._agenda.after(pause_s, self._send_again)
        return True

    def settled(self, entry: Outgoing) -> None:
        """The broker's last word on a message, whether or not it was ever held."""
        if entry.tries:
            with self._lock:
                self._unsettled -= 1

    def _send_again(self) -> None:
        with self._lock:
            held, self._held = self._held, []
        self._again(sorted(held, key=lambda entry: entry.token))

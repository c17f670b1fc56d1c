"""Recognises that another client uses our client id: each of the two is thrown out when the other one connects."""

from __future__ import annotations

from collections import deque

WITHIN_S = 60.0
TIMES = 3
SHORT_S = 20.0
"""A session that the broker ends sooner and without a reason counts as one that was taken over: MQTT 3.1.1 knows no
reasons, and mosquitto 2.0.11 (Debian 12) tells none here on MQTT 5 either."""

OVER_S = 300.0
"""A session that lasts this long shows that there is no clone any more."""


class CloneWatch:
    """Pure; owned by one thread. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=TIMES)

    def note_end(self, at_s: float, lasted_s: float, *, was_taken_over: bool, was_closed: bool) -> bool:
        """A session that had been accepted has ended; whether that makes a clone likely.

        Args:
            was_taken_over: the broker said so (MQTT 5).
            was_closed: the broker closed the connection, for no reason that we know.
        """
        if not (was_taken_over or (was_closed and lasted_s < SHORT_S)):
            return False
        self._ends.append(at_s)
        return len(self._ends) == TIMES and at_s - self._ends[0] <= WITHIN_S

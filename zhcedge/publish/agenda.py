"""Things that one thread has to do later, and its sleep until then."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable


class Agenda:
    """Runs actions when they are due, in the thread that calls `run`; `after` and `end` may be called by any."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._entries: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()  # of two that are due at once, the older one goes first
        self._has_ended = False

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do it in `seconds` from now; never when `end` comes first. It must not raise."""
        with self._changed:
            heapq.heappush(self._entries, (time.monotonic() + seconds, next(self._numbers), action))
            self._changed.notify()

    def end(self) -> None:
        """Make `run` return; what is not done yet is forgotten."""
        with self._changed:
            self._has_ended = True
            self._changed.notify()

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    def run(self) -> None:
        """Until `end`."""
        while (action := self._next()) is not None:
            action()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._has_ended:
                wait_s = self._entries[0][0] - time.monotonic() if self._entries else None
                if wait_s is not None and wait_s <= 0:
                    return heapq.heappop(self._entries)[2]
                self._changed.wait(wait_s)
            return None

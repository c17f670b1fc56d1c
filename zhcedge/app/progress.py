"""One line on a terminal that says how far the work is and how long it will still take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

_INTERVAL_S = 0.2  # between two drawings: often enough for the eye, rare enough to cost nothing
_BAR = 20


class Progress:
    """Draws on `stream` where that is a terminal; elsewhere nothing. One thread at a time.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._is_shown = stream.isatty()
        self._width = 0  # of what stands on the line now
        self.begin("", 0)

    def begin(self, name: str, total: int) -> None:
        """The next piece of work; `total` 0 where nobody knows how much it is."""
        self._name, self._total, self._done = name, total, 0
        self._started_s = self._clock()
        self._next_s = self._started_s

    def advance(self, count: int = 1) -> None:
        """So much more is done."""
        self._done += count
        if self._is_shown and (now_s := self._clock()) >= self._next_s:
            self._next_s = now_s + _INTERVAL_S
            self._draw(self.text(now_s))

    def clear(self) -> None:
        """Take the line away, so that something else can be written."""
        if self._width:
            self._draw("")

    def text(self, now_s: float) -> str:
        """What the line says."""
        rate = self._done / max(now_s - self._started_s, 1e-6)
        if not self._total:
            return f"{self._name}  {self._done} frames  {rate:.1f}/s"
        filled = min(self._done * _BAR // self._total, _BAR)
        left_s = max(self._total - self._done, 0) / rate if rate else 0.0
        bar = "#" * filled + "." * (_BAR - filled)
        return f"{self._name}  [{bar}] {self._done}/{self._total}  {rate:.1f}/s  ETA {_minutes(left_s)}"

    def _draw(self, text: str) -> None:
        self._stream.write("\r" + text.ljust(self._width) + ("" if text else "\r"))
        self._stream.flush()
        self._width = len(text)


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

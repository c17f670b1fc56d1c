"""The system's clocks behind the Clock port."""

from __future__ import annotations

import ctypes
import time

_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised
_SYNC_CHECK_NS = 1_000_000_000


class SystemClock:
    """CLOCK_MONOTONIC for durations, CLOCK_REALTIME for time stamps. Any thread.

    `is_synced` asks the kernel (adjtimex(2), without changing anything) at most once a second, because a board
    without a battery starts with a wrong clock and is set later. False where the kernel can't say.
    """

    def __init__(self) -> None:
        self._is_synced = False
        self._checked_ns = -_SYNC_CHECK_NS

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        return time.time_ns()

    def is_synced(self) -> bool:
        now_ns = time.monotonic_ns()
        if now_ns - self._checked_ns >= _SYNC_CHECK_NS:
            self._checked_ns = now_ns
            self._is_synced = _kernel_says_synced()
        return self._is_synced


def _kernel_says_synced() -> bool:
    try:
        adjtimex = ctypes.CDLL(None).adjtimex
    except (AttributeError, OSError):  # not Linux
        return False
    state: int = adjtimex(ctypes.create_string_buffer(512))  # struct timex is 208 bytes; modes 0 only reads
    return state not in (-1, _TIME_ERROR)

"""Logging: to systemd's journal with fields where stderr leads there, else to stderr, one line a record."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable

from zhcedge.core.errors import UsageError
from zhcedge.core.printing import printable
from zhcedge.service.journal import JournalHandler, is_our_stderr

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

BURST, INTERVAL_S = 200, 30.0
"""How often one place in the code may log within a time. The journal has a limit for the whole service, above which it
drops anything: one place that says the same again and again must not silence the others."""


def set_up_logging(level: str, process: str = "control") -> None:
    """Set the root logger up once, for this process. Times only where no journal adds them.

    Args:
        process: its name in the journal's field ZHC_PROCESS.
    """
    is_journal = "JOURNAL_STREAM" in os.environ
    text = "%(levelname)s %(name)s: %(message)s" if is_journal else "%(asctime)s %(levelname)-7s %(message)s"
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(text, "%H:%M:%S"))
    if is_our_stderr(os.environ):
        try:
            journal = JournalHandler(process, handler)
        except OSError:  # a container without one: its lines are lines of stderr
            pass
        else:
            journal.setFormatter(_Formatter("%(message)s"))
            handler = journal
    handler.addFilter(RateLimit())
    logging.basicConfig(handlers=[handler], level=level, force=True)


def set_log_level(level: str) -> None:
    """From now on, for this process. Any thread. Raises UsageError for a word that is none of LEVELS."""
    if level not in LEVELS:
        raise UsageError(f"there is no log level {level!r}", fix=f"use one of {', '.join(LEVELS)}")
    logging.getLogger().setLevel(level)


class RateLimit(logging.Filter):
    """Lets BURST records of one place in the code through in INTERVAL_S, then the first one after it says how many were
    left out. Any thread."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_s, self._lock = now_s, threading.Lock()
        self._seen: dict[tuple[str, int], tuple[float, int]] = {}  # place: when its interval began, records since

    def filter(self, record: logging.LogRecord) -> bool:
        """See logging.Filter."""
        place, now_s = (record.pathname, record.lineno), self._now_s()
        with self._lock:
            began_s, count = self._seen.get(place, (now_s, 0))
            if now_s - began_s < INTERVAL_S:
                self._seen[place] = began_s, count + 1
                return count < BURST
            self._seen[place] = now_s, 1
        if count > BURST:
            # Without formatting it: a record that can't be formatted is for the handler to tell of, not for its caller.
            record.msg = f"{record.msg} ({count - BURST} more like this were left out)"
        return True


class _Formatter(logging.Formatter):
    """Escapes control characters: file names and the words of servers and libraries are in many messages."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record), keep="\n")

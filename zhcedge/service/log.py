"""Logging to stderr, one line a record: systemd's journal adds time and unit by itself."""

from __future__ import annotations

import logging
import os
import sys

from zhcedge.core.errors import UsageError
from zhcedge.core.printing import printable

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def set_up_logging(level: str) -> None:
    """Set the root logger up once, for this process. Times only where no journal adds them."""
    is_journal = "JOURNAL_STREAM" in os.environ
    text = "%(levelname)s %(name)s: %(message)s" if is_journal else "%(asctime)s %(levelname)-7s %(message)s"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(text, "%H:%M:%S"))
    logging.basicConfig(handlers=[handler], level=level, force=True)


def set_log_level(level: str) -> None:
    """From now on, for this process. Any thread. Raises UsageError for a word that is none of LEVELS."""
    if level not in LEVELS:
        raise UsageError(f"there is no log level {level!r}", fix=f"use one of {', '.join(LEVELS)}")
    logging.getLogger().setLevel(level)


class _Formatter(logging.Formatter):
    """Escapes control characters: file names and the words of servers and libraries are in many messages."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record), keep="\n")

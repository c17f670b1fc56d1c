"""Logging to stderr, one line a record: systemd's journal adds time and unit by itself."""

from __future__ import annotations

import logging
import os
import sys


def set_up_logging(level: str) -> None:
    """Set the root logger up once, for this process. Times only where no journal adds them."""
    is_journal = "JOURNAL_STREAM" in os.environ
    text = "%(levelname)s %(name)s: %(message)s" if is_journal else "%(asctime)s %(levelname)-7s %(message)s"
    logging.basicConfig(stream=sys.stderr, level=level, format=text, datefmt="%H:%M:%S", force=True)

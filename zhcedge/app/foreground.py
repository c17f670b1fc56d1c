"""What commands need that run the pipeline in their own process, in front of a terminal."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def raised_not_logged() -> Iterator[None]:
    """What the pipeline logs about a broken channel it also raises when that is the only one: said once, not twice."""

    def is_not_raised(record: logging.LogRecord) -> bool:
        return record.levelno != logging.ERROR

    loggers = [logging.getLogger(f"zhcedge.pipeline.{name}") for name in ("roster", "reader", "collecting")]
    for logger in loggers:
        logger.addFilter(is_not_raised)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_not_raised)


@contextlib.contextmanager
def stopped_by_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C inside calls `stop`, and raises KeyboardInterrupt at the end, when what was running has ended.

    In a thread other than the main one: nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    was_interrupted = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal was_interrupted
        was_interrupted = True
        stop()

    previous = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if was_interrupted:
        raise KeyboardInterrupt

"""What a block of a test leaves behind in its process: threads and open files.

Counts alone mislead: threads of an earlier test may end meanwhile, and one that is told to end takes a moment.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE_S = 10.0
"""How long what is about to end may take, on a busy machine."""


def open_files() -> int:
    """Descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


@contextmanager
def nothing_left(*, counts_files: bool = True) -> Iterator[None]:
    """Around a block that must leave no thread of its own and no more open files than there were."""
    gc.collect()  # what tests before this one have left would go meanwhile
    files, threads = open_files() if counts_files else sys.maxsize, set(threading.enumerate())
    yield
    deadline_s = time.monotonic() + PATIENCE_S
    while left := _left(files, threads):
        assert time.monotonic() < deadline_s, f"left behind: {left}"
        gc.collect()  # tracebacks of caught errors hold what they saw
        time.sleep(0.02)


def _left(files: int, threads: set[threading.Thread]) -> str:
    more = [thread.name for thread in threading.enumerate() if thread not in threads]
    return " ".join(more) or ("" if (now := open_files()) <= files else f"{now - files} open files")

"""Leases that belong to a thread: while it holds one, it may do what the seal forbids."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

Rewarm = Callable[[str], AbstractContextManager[None]]
"""Opens a re-warm lease for the calling thread; the argument says why, for the log."""


def no_rewarm(reason: str) -> AbstractContextManager[None]:
    """For runs that nobody watches: a lease that changes nothing."""
    return nullcontext()


class ThreadLeases:
    """Which threads hold a lease. Any thread; a thread may nest them, and gives back what it took."""

    def __init__(self) -> None:
        self._depths: dict[int, int] = {}  # each thread changes its own key only, so no lock is needed

    @contextmanager
    def hold(self) -> Iterator[None]:
        """The calling thread holds a lease until the block ends, however it ends."""
        thread = threading.get_ident()
        depth = self._depths.get(thread, 0)
        self._depths[thread] = depth + 1
        try:
            yield
        finally:
            if depth:
                self._depths[thread] = depth
            else:
                del self._depths[thread]

    def holds(self, thread: int) -> bool:
        """Whether the thread of that `threading.get_ident` holds one."""
        return thread in self._depths

    @property
    def is_held(self) -> bool:
        """Whether the calling thread holds one."""
        return threading.get_ident() in self._depths

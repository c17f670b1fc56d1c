"""Pools of frame slots: fixed after initialisation, counted, and able to name who holds what."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Generic

from zhcedge.core.ports import FrameSlot
from zhcedge.core.types import B

IN_HAND = ("lane", "collector")
"""Holders that work on a frame at once: one that keeps it for long has stalled."""


class SlotPool(Generic[B]):
    """The slots of one channel. Any thread may acquire and release; a slot has one holder at a time.

    Attributes:
        exhausted: how often nobody could get a slot in time.
        high_water: most slots in use at once.
    """

    def __init__(self, slots: Sequence[FrameSlot[B]]) -> None:
        self._slots = tuple(slots)
        self._free: queue.SimpleQueue[FrameSlot[B]] = queue.SimpleQueue()
        for slot in self._slots:
            self._free.put(slot)
        self.exhausted = 0
        self.high_water = 0

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def slots(self) -> tuple[FrameSlot[B], ...]:
        return self._slots

    @property
    def in_use(self) -> int:
        return len(self._slots) - self._free.qsize()

    def acquire(self, holder: str, timeout_s: float) -> FrameSlot[B] | None:
        """A free slot, now held by `holder`; None when none came free within the timeout."""
        try:
            slot = self._free.get(timeout=timeout_s) if timeout_s > 0 else self._free.get_nowait()
        except queue.Empty:
            self.exhausted += 1
            return None
        slot.holder = holder
        self.high_water = max(self.high_water, self.in_use)
        return slot

    def release(self, slot: FrameSlot[B]) -> None:
        """Give a slot back, from whichever thread is done with it."""
        slot.holder = "free"
        self._free.put(slot)

    @property
    def in_hand(self) -> int:
        """Slots that a stage works on. Those that wait, for a lane or at a sink, are not among them."""
        return sum(slot.holder in IN_HAND for slot in self._slots)

    def holders(self) -> str:
        """Who holds the slots, for a message about a starved channel: "lane 0: 2, sink mp4: 4"."""
        counts = Counter(slot.holder for slot in self._slots)
        return ", ".join(f"{holder}: {count}" for holder, count in counts.most_common())


class SharedSlot(Generic[B]):
    """Counts the users of one finished slot and gives it back to its pool when the last is done.

    One object a slot, made at initialisation, reused for every frame.
    """

    def __init__(self, pool: SlotPool[B]) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._users = 0

    def begin(self, users: int) -> None:
        """Expect `users` (at least one) calls of `give_back` for this frame. Collector thread."""
        self._users = users

    def give_back(self, slot: FrameSlot[B]) -> None:
        """One user is done. Any thread."""
        with self._lock:
            self._users -= 1
            is_last = self._users == 0
        if is_last:
            self._pool.release(slot)

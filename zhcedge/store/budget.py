"""How often and how much may be written to flash: token buckets."""

from __future__ import annotations

SYNCS_PER_S, SYNC_BURST = 1.0, 4.0
"""eMMC and SD cards wear by the erase block, so a sync of one row costs nearly as much as one of fifty."""

BYTES_PER_DAY = 5_000_000_000
"""Refill of the bytes and their burst. A full bucket and its refill are 10 GB in the first day, 5 GB in the others."""


class TokenBucket:
    """Grows by `rate` a second up to `capacity`; what is spent may exceed it, and is waited for afterwards."""

    def __init__(self, rate: float, capacity: float, now_ns: int) -> None:
        self._rate, self._capacity = rate, capacity
        self._tokens, self._at_ns = capacity, now_ns

    def has(self, amount: float, now_ns: int) -> bool:
        self._tokens = min(self._capacity, self._tokens + (now_ns - self._at_ns) / 1e9 * self._rate)
        self._at_ns = now_ns
        return self._tokens >= amount

    def spend(self, amount: float) -> None:
        self._tokens -= amount

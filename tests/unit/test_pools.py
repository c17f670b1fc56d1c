"""Slot pools: a slot has one holder, nothing grows, a starved pool names who has the slots."""

from __future__ import annotations

import threading

import numpy as np

from zhcedge.core.ports import FrameSlot
from zhcedge.core.types import RESULT_DTYPE, ImageFormat, MemoryDomain, Surface
from zhcedge.pipeline.pools import SharedSlot, SlotPool


def make_pool(count: int) -> SlotPool[int]:
    surface: Surface[int] = Surface((), ImageFormat(2, 2), MemoryDomain.HOST)
    return SlotPool([FrameSlot(index, 0, surface, np.zeros(1, RESULT_DTYPE)) for index in range(count)])


def test_an_exhausted_pool_counts_and_names_its_holders() -> None:
    pool = make_pool(3)
    for holder in ("lane", "sink mp4", "sink mp4"):
        assert pool.acquire(holder, 0.0) is not None
    assert pool.acquire("reader", 0.01) is None
    assert (pool.exhausted, pool.in_use, pool.high_water) == (1, 3, 3)
    assert pool.holders() == "sink mp4: 2, lane: 1"


def test_a_released_slot_can_be_had_again() -> None:
    pool = make_pool(1)
    slot = pool.acquire("a", 0.0)
    assert slot is not None
    pool.release(slot)
    assert slot.holder == "free"
    assert pool.acquire("b", 0.0) is slot


def test_a_shared_slot_returns_once_after_its_last_user_whatever_the_order() -> None:
    pool = make_pool(1)
    shared = SharedSlot(pool)
    for _ in range(300):
        slot = pool.acquire("collector", 0.0)
        assert slot is not None
        shared.begin(3)
        threads = [threading.Thread(target=shared.give_back, args=(slot,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert pool.in_use == 0

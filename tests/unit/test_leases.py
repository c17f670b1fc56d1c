"""Leases belong to the thread that took them, and only as long as it holds them."""

from __future__ import annotations

import threading

import pytest

from zhcedge.core.leases import ThreadLeases, no_rewarm


def elsewhere(leases: ThreadLeases) -> bool:
    """Whether another thread holds one."""
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(leases.is_held))
    thread.start()
    thread.join()
    return seen[0]


def test_it_belongs_to_one_thread_and_ends_with_the_block() -> None:
    leases = ThreadLeases()
    assert not leases.is_held
    with leases.hold():
        assert leases.is_held
        assert leases.holds(threading.get_ident())
        assert not elsewhere(leases)
    assert not leases.is_held


def test_the_outermost_block_ends_it() -> None:
    leases = ThreadLeases()
    with leases.hold():
        with leases.hold():
            pass
        assert leases.is_held
    assert not leases.is_held


def test_an_error_ends_it_too() -> None:
    leases = ThreadLeases()
    with pytest.raises(ValueError, match="oops"), leases.hold():
        raise ValueError("oops")
    assert not leases.is_held


def test_without_a_guard_a_lease_changes_nothing() -> None:
    with no_rewarm("because"):
        pass

"""Waits grow, stay random, and stay below their limit."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.core.backoff import Backoff


def test_the_bound_doubles_up_to_its_limit_and_starts_again() -> None:
    backoff = Backoff(1.0, 120.0)
    bounds = []
    for _ in range(5000):
        bounds.append(backoff.bound_s)
        backoff.next_s()
    assert bounds[:9] == [1, 2, 4, 8, 16, 32, 64, 120, 120]
    assert bounds[-1] == 120
    backoff.reset()
    assert backoff.bound_s == 1


@given(st.integers(0, 100), st.integers(0, 2**32), st.floats(0.01, 20.0))
def test_a_wait_lies_between_nothing_and_its_bound(tries: int, seed: int, at_most_s: float) -> None:
    backoff = Backoff(0.5, 10.0, random.Random(seed))
    for _ in range(tries):
        bound_s = backoff.bound_s
        assert 0 <= backoff.next_s(at_most_s) <= min(bound_s, at_most_s)
    assert 5.0 <= backoff.refused_s() <= 10.0


def test_the_same_seed_gives_the_same_waits_and_others_differ() -> None:
    def waits(seed: int) -> list[float]:
        backoff = Backoff(rng=random.Random(seed))
        return [backoff.next_s() for _ in range(8)]

    assert waits(1) == waits(1)
    assert waits(1) != waits(2)


def test_the_jitter_is_full() -> None:
    backoff = Backoff(10.0, 10.0, random.Random(3))
    waits = [backoff.next_s() for _ in range(2000)]
    assert min(waits) < 0.1
    assert max(waits) > 9.9
    assert sum(waits) / len(waits) == pytest.approx(5.0, abs=0.3)


@pytest.mark.parametrize(("first_s", "most_s"), [(0.0, 1.0), (-1.0, 1.0), (2.0, 1.0), (math.nan, 1.0)])
def test_bounds_that_make_no_sense_are_refused(first_s: float, most_s: float) -> None:
    with pytest.raises(ValueError, match="first_s"):
        Backoff(first_s, most_s)

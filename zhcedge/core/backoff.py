"""Waits between two tries that grow, and are random so that many devices don't come back at once."""

from __future__ import annotations

import math
import random


class Backoff:
    """Exponential backoff with full jitter: each wait is drawn from 0 to a bound that doubles from try to try.

    Source: Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015. Pure; owned by one thread.

    Args:
        first_s, most_s: the bound of the first wait, and the largest.
        rng: a seeded one makes the waits repeatable.
    """

    def __init__(self, first_s: float = 0.5, most_s: float = 10.0, rng: random.Random | None = None) -> None:
        if not 0 < first_s <= most_s:
            raise ValueError("first_s must be above 0 and no more than most_s")
        self._first_s, self._most_s = first_s, most_s
        self._rng = rng or random.Random()
        self._attempt = 0

    @property
    def bound_s(self) -> float:
        """The longest that the next wait can be."""
        # No more doublings than 60: the largest wait holds long before, and 2.0 ** 1024 would overflow.
        return float(min(self._first_s * 2.0 ** min(self._attempt, 60), self._most_s))

    def next_s(self, at_most_s: float = math.inf) -> float:
        """Draw the next wait, no longer than `at_most_s`; the bound doubles."""
        wait_s = self._rng.uniform(0.0, min(self.bound_s, at_most_s))
        self._attempt += 1
        return wait_s

    def refused_s(self) -> float:
        """Draw the wait after an answer that will hardly change, a wrong password: a long one from the first try on.

        Many cameras lock an account after a few wrong tries in a row.
        """
        return self._rng.uniform(self._most_s / 2, self._most_s)

    def reset(self) -> None:
        """It worked: the next wait is a short one again."""
        self._attempt = 0

"""Means with 95 % intervals, for a handful of blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Two-sided 95 % points of Student's t for 1, 2, ... degrees of freedom; 1.96 beyond the table's end is close enough.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval; the ends equal the mean where there is one value only."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3g} [{self.low:.3g}, {self.high:.3g}]"


def interval(values: Sequence[float]) -> Interval:
    """Student's interval of the mean of independent values. Raises ValueError for none."""
    if not values:
        raise ValueError("no values")
    mean = float(np.mean(values))
    if len(values) == 1:
        return Interval(mean, mean, mean)
    return _around(mean, float(np.std(values, ddof=1)) / math.sqrt(len(values)), len(values) - 1)


def slope(x: Sequence[float], y: Sequence[float]) -> Interval:
    """Least-squares slope of y over x with its interval; neighbours that depend on each other make it too narrow."""
    xs, ys = np.asarray(x, float), np.asarray(y, float)
    gradient, offset = np.polyfit(xs, ys, 1)
    residual = ys - (gradient * xs + offset)
    spread = float(np.sqrt((residual**2).sum() / (len(xs) - 2) / ((xs - xs.mean()) ** 2).sum()))
    return _around(float(gradient), spread, len(xs) - 2)


def _around(mean: float, error: float, degrees: int) -> Interval:
    t = _T95[degrees - 1] if degrees <= len(_T95) else 1.96
    return Interval(mean, mean - t * error, mean + t * error)

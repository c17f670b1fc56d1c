"""What range an activation has, from sample pictures: how int8 scales are chosen. Pure numpy.

A scale is `threshold / 127`: quantisation is symmetric, because TensorRT takes no other (zero points are 0).
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zhcedge.core.errors import ModelError

LEVELS = 127
"""Positive values of a symmetric int8."""

MIN_SAMPLES, ENOUGH_SAMPLES = 10, 100
"""Fewer pictures than the first are refused, fewer than the second make a warning."""

_BINS = 4096
_PERCENTILE = 99.99
_CANDIDATES = 240  # thresholds that a search tries; more change the result by less than a level
_NOTHING = 1e-12  # smaller values are zeros: their scale would be too small for float32 to divide by
_LEAST_SHARE = 1 / 32  # of the largest value: no method means to cut off more than that

Floats = npt.NDArray[np.float32]
Counts = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]


class Method(str, enum.Enum):
    """How a threshold is chosen from the values that were seen."""

    MINMAX = "minmax"
    """The largest one. Cuts off nothing; one outlier makes every step coarse."""

    PERCENTILE = "percentile"
    """That which 99.99 % stay below."""

    ENTROPY = "entropy"
    """The least loss of information, as TensorRT's calibrator did it."""

    MSE = "mse"
    """The least mean square error."""

    L4 = "l4"
    """The least mean fourth power of the error: as mse, but it spares the large values, which are what was detected."""


@dataclass(frozen=True)
class Sample:
    """One picture for calibration.

    Attributes:
        digest: sha256 of the decoded picture, hexadecimal.
        values: the model's input, float32 [1, 3, height, width]; its owner may overwrite it after the next one is
            asked for.
    """

    digest: str
    values: Floats


Samples = Callable[[], Iterator[Sample]]
"""The port that pictures come through: every call gives the same ones again, by the product's own preprocessing."""


def check_count(count: int, where: str) -> str:
    """What to warn of about so many pictures; empty for enough of them. Raises ModelError for too few."""
    if count < MIN_SAMPLES:
        raise ModelError(
            f"{count} pictures are too few to calibrate with, {MIN_SAMPLES} are the least",
            where=where,
            fix="give a hundred or more that look like what the camera sees",
        )
    if count < ENOUGH_SAMPLES:
        return f"{count} pictures are few to calibrate with: {ENOUGH_SAMPLES} or more give steady ranges"
    return ""


def digest_of_all(digests: Iterable[str]) -> str:
    """One sha256 for a set of pictures, whatever their order."""
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()


class Histogram:
    """How often each magnitude occurred, in 4096 equal bins from 0. Its range doubles when a larger value comes.

    Memory stays the same however many pictures are seen. Zeros are not counted: every scale represents them exactly.
    """

    def __init__(self) -> None:
        self._counts: Counts = np.zeros(_BINS, np.int64)
        self._limit = 0.0
        self._largest = 0.0

    @property
    def count(self) -> int:
        """How many values were seen that are not zero."""
        return int(self._counts.sum())

    def add(self, values: npt.NDArray[np.floating]) -> None:
        """Count the magnitudes of an array of any shape. Raises ModelError for values that are not finite."""
        sizes = np.abs(values, dtype=np.float32).ravel()
        largest = float(sizes.max(initial=0.0))
        if not np.isfinite(largest):
            raise ModelError("the model computes values that are not finite", where="calibration")
        if largest <= _NOTHING:
            return
        self._largest = max(self._largest, largest)
        if self._limit == 0.0:
            self._limit = largest
        while largest > self._limit:
            self._counts = np.concatenate([self._counts.reshape(-1, 2).sum(axis=1), np.zeros(_BINS // 2, np.int64)])
            self._limit *= 2.0
        sizes = sizes[sizes > _NOTHING]
        bins = np.minimum((sizes * np.float32(_BINS / self._limit)).astype(np.int64), _BINS - 1)
        self._counts += np.bincount(bins, minlength=_BINS)

    def threshold(self, method: Method) -> float:
        """The largest magnitude that is to be represented, > 0."""
        if self._largest == 0.0:
            return 1.0  # any scale represents zero
        counts = self._counts[: int(np.nonzero(self._counts)[0][-1]) + 1].astype(np.float64)
        width = self._limit / _BINS
        if method is Method.MINMAX:
            return self._largest
        if method is Method.PERCENTILE:
            below = np.cumsum(counts) / counts.sum()
            return min(width * (int(np.searchsorted(below, _PERCENTILE / 100)) + 1), self._largest)
        if method is Method.ENTROPY:
            return min(width * _least_divergence(counts), self._largest)
        return _least_error(counts, width, self._largest, 2 if method is Method.MSE else 4)


def _least_error(counts: Reals, width: float, largest: float, power: int) -> float:
    """The threshold with the least mean |x - quantised(x)| ** power over the histogram.

    With power 2 this is the search of Sung et al. 2015, "Resiliency of Deep Neural Networks under Quantization", and
    of NVIDIA's pytorch-quantization (calib/histogram.py, _compute_amax_mse).
    """
    values = (np.arange(len(counts)) + 0.5) * width
    best, best_error = largest, np.inf
    for threshold in np.linspace(largest * _LEAST_SHARE, largest, _CANDIDATES):
        scale = threshold / LEVELS
        quantised = np.minimum(np.rint(values / scale), LEVELS) * scale
        error = float(np.dot(counts, np.abs(values - quantised) ** power))
        if error < best_error:
            best, best_error = float(threshold), error
    return best


def _least_divergence(counts: Reals) -> int:
    """How many bins to keep so that the Kullback-Leibler divergence of the quantised from the true distribution is
    least (Migacz 2017, "8-bit inference with TensorRT", GTC session S7310)."""
    groups = LEVELS + 1
    if len(counts) <= groups:
        return len(counts)
    best, best_divergence = len(counts), np.inf
    for kept in np.unique(np.linspace(groups, len(counts), _CANDIDATES).astype(int)):
        true = counts[:kept].copy()
        true[-1] += counts[kept:].sum()
        group = np.arange(kept) * groups // kept
        is_used = counts[:kept] > 0
        sums = np.bincount(group, counts[:kept], groups)
        used = np.bincount(group, is_used, groups)
        spread = np.where(is_used, (sums / np.maximum(used, 1))[group], 0.0)
        p, q = true / true.sum(), spread / max(spread.sum(), 1.0)
        where = p > 0
        # A bin that only the cut-off values fill has no quantised counterpart: a tiny one, not an infinite loss.
        divergence = float(np.sum(p[where] * np.log(p[where] / np.maximum(q[where], 1e-9))))
        if divergence < best_divergence:
            best, best_divergence = int(kept), divergence
    return best

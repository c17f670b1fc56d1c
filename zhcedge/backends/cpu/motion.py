"""How much of a picture moves, on the CPU: the numpy twin of the GPU kernel.

The luma is sampled on a grid of 64 x 36 points, at the centres of equal cells (nearest sample). Each point keeps a
running mean of what it showed (an exponential one with weight 1/8, the method of background subtraction by a running
average); a point that differs from its mean by more than 12 of 255 moves. The first picture sets the mean.
"""

from __future__ import annotations

import numpy as np

from zhcedge.backends.cpu.arena import CpuArena, CpuBuffer
from zhcedge.core.ports import FrameSlot
from zhcedge.core.types import ImageFormat

COLUMNS, ROWS = 64, 36
WEIGHT = 0.125
THRESHOLD = 12.0


def grid(pixels: int, points: int) -> np.ndarray:
    """Positions of the centres of `points` equal cells over `pixels` samples."""
    return ((2 * np.arange(points) + 1) * pixels // (2 * points)).astype(np.intp)


class LumaMotion:
    """Implements core.ports.MotionMeter. Measures in the reader's thread; there is nothing to wait for."""

    def __init__(self, image: ImageFormat, slots: int, arena: CpuArena, owner: str) -> None:
        self._rows, self._columns = grid(image.height_px, ROWS)[:, None], grid(image.width_px, COLUMNS)[None, :]
        self._mean = arena.array((ROWS, COLUMNS), np.float32, owner)
        self._changed = [0.0] * slots
        self._is_first = True

    def measure(self, slot: FrameSlot[CpuBuffer]) -> None:
        """Compare the slot's picture with the mean, then move the mean towards it. Reader thread."""
        points = slot.surface.planes[0].buffer[self._rows, self._columns].astype(np.float32)
        if self._is_first:
            self._mean[:], self._is_first = points, False
        points -= self._mean
        self._changed[slot.index] = np.count_nonzero(np.abs(points) > THRESHOLD) / points.size
        self._mean += points * np.float32(WEIGHT)

    def changed(self, slot: FrameSlot[CpuBuffer]) -> float:
        """Share of the points that moved. Any thread, once measured."""
        return self._changed[slot.index]

"""Privacy masks: polygons of the configuration -> which 2 x 2 pixels of a picture are hidden. Pure.

Resolution is that of NV12's chroma, so that a hidden block takes its colour with it. A block is hidden when it touches
a polygon at all, its edge included: rounding always hides more, never less. Inside and outside follow the even-odd
rule, so a polygon may cross itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Polygon = Sequence[tuple[float, float]]
"""At least 3 corners (x, y) as fractions 0..1 of the picture's width and height; the last joins the first."""

_SLACK = 1e-6
"""Blocks. Wider than what float64 loses on a picture's coordinates: an edge along a border hides both sides of it."""


def rasterise(polygons: Sequence[Polygon], width_px: int, height_px: int) -> npt.NDArray[np.uint8]:
    """The mask of a picture: uint8 [ceil(height / 2), ceil(width / 2)], 1 where a block touches a polygon.

    What lies outside the picture is cut off. Initialising: it takes arrays as large as the mask.
    """
    rows, columns = (height_px + 1) // 2, (width_px + 1) // 2
    mask = np.zeros((rows, columns), np.uint8)
    for polygon in polygons:
        corners = np.asarray(polygon, np.float64) * (width_px / 2, height_px / 2)  # in blocks
        edges = np.stack([corners, np.roll(corners, -1, axis=0)], axis=1)
        _fill(mask, edges)
        for start, end in edges:
            _trace(mask, start, end)
    return mask


def _fill(mask: npt.NDArray[np.uint8], edges: npt.NDArray[np.float64]) -> None:
    """Hide the blocks whose centre lies inside. A block that no edge touches lies inside as a whole or not at all."""
    columns = np.arange(mask.shape[1]) + 0.5
    x0, y0, x1, y1 = edges[:, 0, 0], edges[:, 0, 1], edges[:, 1, 0], edges[:, 1, 1]
    for row in range(mask.shape[0]):
        y = row + 0.5
        is_crossed = (y0 <= y) != (y1 <= y)
        crossings = (x0 + (y - y0) * (x1 - x0) / np.where(is_crossed, y1 - y0, 1.0))[is_crossed]
        is_inside = np.searchsorted(np.sort(crossings), columns) % 2 == 1
        mask[row, is_inside] = 1


def _trace(mask: npt.NDArray[np.uint8], start: npt.NDArray[np.float64], end: npt.NDArray[np.float64]) -> None:
    """Hide every block that an edge touches: in each row of blocks, those between the ends of the edge's part in it."""
    (x0, y0), (x1, y1) = (start, end) if start[1] <= end[1] else (end, start)
    first, last = max(int(np.floor(y0 - _SLACK)), 0), min(int(np.floor(y1 + _SLACK)), mask.shape[0] - 1)
    for row in range(first, last + 1):
        if y1 - y0 <= _SLACK:
            ends = (x0, x1)
        else:
            tops = np.clip((np.array([row, row + 1]) - y0) / (y1 - y0), 0.0, 1.0)
            ends = tuple(x0 + tops * (x1 - x0))
        left, right = int(np.floor(min(ends) - _SLACK)), int(np.floor(max(ends) + _SLACK))
        mask[row, max(left, 0) : max(right + 1, 0)] = 1

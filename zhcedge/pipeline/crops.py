"""Which pixels a crop of a picture takes."""

from __future__ import annotations

import math

from zhcedge.pipeline.tiles import Rectangle

STEP_PX = 64
"""Sizes of crops are multiples of this, so that few different ones occur: an encoder may be for one size."""


def around(area: tuple[float, float, float, float], width_px: int, height_px: int) -> Rectangle:
    """The crop that shows an area of a picture of this size: as large as STEP_PX wants it, moved inside the picture.

    Args:
        area: left, top, right, bottom as shares of the picture, 0..1, left below right and top below bottom.
    """
    left_px, crop_width_px = _span(area[0], area[2], width_px)
    top_px, crop_height_px = _span(area[1], area[3], height_px)
    return Rectangle(left_px, top_px, crop_width_px, crop_height_px)


def _span(first: float, last: float, size_px: int) -> tuple[int, int]:
    """Where it begins, an even number, and how long it is."""
    begin = math.floor(first * size_px) // 2 * 2
    wanted = max(math.ceil(last * size_px) - begin, 1)
    length = min(-(-wanted // STEP_PX) * STEP_PX, size_px)
    spare = length - wanted  # shown on both sides of it, as far as there is a picture
    begin = min(max(begin - spare // 2, 0), size_px - length)
    return begin // 2 * 2, length

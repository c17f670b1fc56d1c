"""Privacy masks: the rasteriser against exact geometry, and what its callers rely on."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.pipeline.masks import Polygon, rasterise

Point = tuple[Fraction, Fraction]

# Sixteenths, also outside the picture: fine enough for every case, coarse enough that nothing nearly touches.
places = st.integers(-8, 24).map(lambda n: n / 16)
polygons = st.lists(st.tuples(places, places), min_size=3, max_size=7)
sides_px = st.integers(1, 19)


def in_blocks(polygon: Polygon, width: int, height: int) -> list[Point]:
    return [(Fraction(x) * width / 2, Fraction(y) * height / 2) for x, y in polygon]


def edges_of(corners: Sequence[Point]) -> list[tuple[Point, Point]]:
    return list(zip(corners, [*corners[1:], corners[0]], strict=True))


def is_inside(corners: Sequence[Point], x: Fraction, y: Fraction) -> bool:
    """Even-odd rule: a ray to the right crosses an odd number of edges."""
    crossings = 0
    for (x0, y0), (x1, y1) in edges_of(corners):
        if (y0 <= y) != (y1 <= y):
            crossings += x0 + (y - y0) * (x1 - x0) / (y1 - y0) > x
    return crossings % 2 == 1


def edge_touches(edge: tuple[Point, Point], column: int, row: int) -> bool:
    """Whether a segment has a point in a closed block (Liang and Barsky's clipping)."""
    (x0, y0), (x1, y1) = edge
    low, high = Fraction(0), Fraction(1)
    for start, step, least in ((x0, x1 - x0, column), (y0, y1 - y0, row)):
        if step == 0:
            if not least <= start <= least + 1:
                return False
            continue
        ends = sorted(((least - start) / step, (least + 1 - start) / step))
        low, high = max(low, ends[0]), min(high, ends[1])
    return low <= high


def touched(polygon: Polygon, width: int, height: int) -> npt.NDArray[np.uint8]:
    corners = in_blocks(polygon, width, height)
    mask = np.zeros(((height + 1) // 2, (width + 1) // 2), np.uint8)
    for row, column in np.ndindex(*mask.shape):
        is_hit = any(edge_touches(edge, column, row) for edge in edges_of(corners))
        mask[row, column] = is_hit or is_inside(corners, column + Fraction(1, 2), row + Fraction(1, 2))
    return mask


@given(polygon=polygons, width=sides_px, height=sides_px)
def test_a_block_is_hidden_exactly_when_it_touches_the_polygon(polygon: Polygon, width: int, height: int) -> None:
    mask = rasterise([polygon], width, height)
    assert mask.dtype == np.uint8
    np.testing.assert_array_equal(mask, touched(polygon, width, height))


@given(polygon=polygons, width=sides_px, height=sides_px)
def test_every_pixel_whose_centre_is_inside_is_hidden(polygon: Polygon, width: int, height: int) -> None:
    mask = rasterise([polygon], width, height)
    corners = in_blocks(polygon, width, height)
    for y in range(height):
        for x in range(width):
            if is_inside(corners, Fraction(2 * x + 1, 4), Fraction(2 * y + 1, 4)):
                assert mask[y // 2, x // 2]


@given(st.lists(polygons, max_size=4), sides_px, sides_px)
def test_several_polygons_hide_what_any_of_them_hides(shapes: list[Polygon], width: int, height: int) -> None:
    together = rasterise(shapes, width, height)
    alone = [rasterise([shape], width, height) for shape in shapes]
    np.testing.assert_array_equal(together, np.maximum.reduce([np.zeros_like(together), *alone]))


@given(polygon=polygons, turn=st.integers(0, 6), is_reversed=st.booleans())
def test_neither_the_first_corner_nor_the_direction_matters(
    polygon: list[tuple[float, float]], turn: int, is_reversed: bool
) -> None:
    turned = polygon[turn % len(polygon) :] + polygon[: turn % len(polygon)]
    other = turned[::-1] if is_reversed else turned
    np.testing.assert_array_equal(rasterise([other], 40, 30), rasterise([polygon], 40, 30))


def test_the_whole_picture_can_be_hidden() -> None:
    for width, height in ((1, 1), (3, 5), (1920, 1080), (1919, 1079)):
        assert rasterise([[(0, 0), (1, 0), (1, 1), (0, 1)]], width, height).all()


def test_what_lies_beyond_the_picture_hides_nothing() -> None:
    far = [(1.2, 1.2), (1.4, 1.2), (1.4, 1.4)]
    assert not rasterise([far, [(-x, y) for x, y in far], [(x, -y) for x, y in far]], 64, 48).any()


def test_a_polygon_that_crosses_itself_leaves_its_even_parts_open() -> None:
    star = [(0.5, 0.0), (0.8, 1.0), (0.0, 0.4), (1.0, 0.4), (0.2, 1.0)]
    mask = rasterise([star], 200, 200)
    assert not mask[55, 50]  # the pentagon in the middle
    assert mask[30, 50]  # a point of the star


@pytest.mark.parametrize("shape", [[(0.5, 0.5)] * 3, [(0.2, 0.5), (0.8, 0.5), (0.2, 0.5)]], ids=["point", "line"])
def test_a_polygon_without_an_inside_still_hides_where_it_is(shape: Polygon) -> None:
    mask = rasterise([shape], 62, 62)
    assert mask[15, 15]
    assert mask.sum() < 40

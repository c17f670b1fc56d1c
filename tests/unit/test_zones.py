"""Zones: what is inside, whatever the polygon; and since when, whatever the frame rate."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from zhcedge.analytics.zones import Anchor, Point, Sightings, ZoneMap, ZoneSettings, ZoneTimes

SQUARE = ((0.25, 0.25), (0.75, 0.25), (0.75, 0.75), (0.25, 0.75))
LABELS = ("person", "car")


def at(*points: Point, label: int = 0, side: float = 0.02) -> Sightings:
    """Objects whose boxes' lower edges have these middles."""
    boxes = np.array([(x - side / 2, y - side, x + side / 2, y) for x, y in points], float).reshape(-1, 4)
    return Sightings(boxes, np.full(len(points), label))


def inside(points: Sequence[Point], *objects: Point) -> list[bool]:
    answer = ZoneMap((ZoneSettings("z", tuple(points)),), LABELS).inside(at(*objects))
    return [bool(row[0]) for row in answer]


def test_a_point_is_inside_or_outside() -> None:
    assert inside(SQUARE, (0.5, 0.5), (0.1, 0.5), (0.9, 0.5), (0.5, 0.1), (0.5, 0.9)) == [True] + [False] * 4


def test_a_bay_of_a_concave_zone_is_outside() -> None:
    bay = ((0.1, 0.1), (0.9, 0.1), (0.9, 0.9), (0.6, 0.9), (0.6, 0.4), (0.4, 0.4), (0.4, 0.9), (0.1, 0.9))
    assert inside(bay, (0.5, 0.7), (0.2, 0.7), (0.8, 0.7), (0.5, 0.2)) == [False, True, True, True]


def test_what_a_zone_encloses_twice_is_outside() -> None:
    bow = ((0.2, 0.2), (0.8, 0.8), (0.8, 0.2), (0.2, 0.8))
    assert inside(bow, (0.3, 0.5), (0.7, 0.5), (0.5, 0.3), (0.5, 0.7)) == [True, True, False, False]


@pytest.mark.parametrize(
    "flat", [((0.2, 0.5), (0.8, 0.5), (0.5, 0.5)), ((0.5, 0.5),) * 3, ((0.5, 0.2), (0.5, 0.8), (0.5, 0.4), (0.5, 0.2))]
)
def test_nothing_is_in_a_zone_without_an_area(flat: tuple[Point, ...]) -> None:
    assert inside(flat, (0.5, 0.5), (0.4, 0.5), (0.5, 0.4)) == [False] * 3


@given(st.integers(1, 719), st.floats(0.2, 0.4), st.floats(0.6, 0.8), st.sampled_from([0.0, 1.0]))
def test_an_edge_that_is_level_but_for_the_last_digit_reaches_no_further_than_its_ends(
    row: int, left: float, right: float, other_y: float
) -> None:
    y = row / 720
    zone = ((left, y), (right, float(np.nextafter(y, 1 - other_y))), (0.5, other_y))
    assert inside(zone, (0.1, y), (0.15, y), (0.85, y), (0.9, y)) == [False] * 4


def test_repeated_corners_change_nothing() -> None:
    assert inside([point for point in SQUARE for _ in range(3)], (0.5, 0.5), (0.1, 0.1)) == [True, False]


def test_an_object_at_or_beyond_the_picture_s_border_is_in_a_zone_that_reaches_it() -> None:
    whole = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0))
    assert inside(whole, (0.5, 1.0), (0.5, 1.2), (0.0, 0.5), (-0.1, 0.5), (1.0, 0.5), (1.1, 1.1)) == [True] * 6


def test_a_border_that_two_zones_share_belongs_to_one_of_them() -> None:
    left = ((0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0))
    right = ((0.5, 0.0), (1.0, 0.0), (1.0, 1.0), (0.5, 1.0))
    both = ZoneMap((ZoneSettings("l", left), ZoneSettings("r", right)), LABELS)
    assert both.inside(at((0.5, 0.5))).sum() == 1


def test_each_zone_has_its_own_filters() -> None:
    zones = (
        ZoneSettings("cars", SQUARE, labels=("car",)),
        ZoneSettings("large", SQUARE, min_area=0.01),
        ZoneSettings("small", SQUARE, max_area=0.01),
        ZoneSettings("centre", SQUARE, anchor=Anchor.CENTRE),
    )
    rows = [at((0.5, 0.6)), at((0.5, 0.6), label=1), at((0.5, 0.6), side=0.2), at((0.5, 0.8), side=0.2)]
    answers = [ZoneMap(zones, LABELS).inside(row)[0].tolist() for row in rows]
    assert answers == [
        [False, False, True, True],
        [True, False, True, True],
        [False, True, False, True],
        [False, False, False, True],
    ]


grid = st.integers(0, 16)
polygons = st.lists(st.tuples(grid, grid), min_size=3, max_size=9)


@given(polygons, st.tuples(st.integers(0, 31), st.integers(0, 31)))
def test_any_polygon_agrees_with_exact_arithmetic(corners: list[tuple[int, int]], spot: tuple[int, int]) -> None:
    # Odd 32nds lie on no corner's row or column; a border may still run through them.
    x, y = Fraction(2 * spot[0] + 1, 64), Fraction(2 * spot[1] + 1, 64)
    points = [(Fraction(px, 16), Fraction(py, 16)) for px, py in corners]
    crossings = 0
    for (ax, ay), (bx, by) in zip(points, points[1:] + points[:1], strict=True):
        if (ay > y) != (by > y):
            at_x = ax + (bx - ax) * (y - ay) / (by - ay)
            assume(at_x != x)
            crossings += x < at_x
    found = inside([(float(px), float(py)) for px, py in points], (float(x), float(y)))
    assert found == [crossings % 2 == 1]


@given(polygons, st.integers(0, 63), st.integers(0, 63), st.sampled_from([(640, 480), (1920, 1080), (3840, 2160)]))
def test_membership_is_independent_of_the_picture_s_size(
    corners: list[tuple[int, int]], column: int, row: int, size: tuple[int, int]
) -> None:
    points = [(x / 16, y / 16) for x, y in corners]
    x, y = (2 * column + 1) / 128, (2 * row + 1) / 128
    shift = 1e-5  # off any border, by less than any pixel
    in_pixels = np.float32((x + shift) * size[0]), np.float32((y + 2 * shift) * size[1])
    from_pixels = (float(in_pixels[0]) / size[0], float(in_pixels[1]) / size[1])
    assert inside(points, from_pixels) == inside(points, (x + shift, y + 2 * shift))


def times(stay: Sequence[bool], fps: float, **settings: float) -> list[tuple[bool, bool]]:
    """Whether an object is in the zone and loiters there, frame by frame."""
    zone = ZoneTimes((ZoneSettings("z", SQUARE, **settings),))  # type: ignore[arg-type]
    zone.grow(1)
    answers = []
    for number, is_in in enumerate(stay):
        zone.step(np.array([0]), np.array([[is_in]]), np.array([True]), round(number / fps * 1e9))
        answers.append((bool(zone.current[0, 0]), bool(zone.loiters[0, 0])))
    return answers


@given(st.sampled_from([2, 5, 10, 25, 50]), st.integers(0, 4), st.integers(1, 8), st.integers(1, 12))
def test_dwelling_and_loitering_are_independent_of_the_frame_rate(
    fps: int, dwell_s: int, loiter_s: int, stay_s: int
) -> None:
    stay = [True] * (stay_s * fps + 1) + [False] * (2 * fps)
    answers = times(stay, fps, min_dwell_s=float(dwell_s), loiter_s=float(loiter_s))
    seconds_in = sum(is_in for is_in, _ in answers) / fps
    seconds_loitering = sum(loiters for _, loiters in answers) / fps
    # It leaves when it was outside for half a second, which a slow camera sees with its next frame.
    assert abs(seconds_in - max(stay_s - dwell_s + 0.5, 0 if stay_s < dwell_s else 0.5)) <= 2 / fps
    limit = max(dwell_s, loiter_s)
    assert abs(seconds_loitering - (stay_s - limit + 0.5 if stay_s >= limit else 0)) <= 2 / fps


def test_one_box_outside_does_not_end_a_stay() -> None:
    answers = times([True] * 20 + [False] + [True] * 20, 10, min_dwell_s=1.0, loiter_s=3.0)
    assert [is_in for is_in, _ in answers] == [False] * 10 + [True] * 31
    assert [loiters for _, loiters in answers].index(True) == 30


def test_an_object_enters_only_while_it_is_inside() -> None:
    # Inside for 0.9 s, then gone: within the half second that it may be outside a second would be over.
    assert not any(is_in for is_in, _ in times([True] * 10 + [False] * 10, 10, min_dwell_s=1.0))


def test_a_closed_zone_is_empty_at_once() -> None:
    zone = ZoneTimes((ZoneSettings("z", SQUARE),))
    zone.grow(1)
    row, inside_it = np.array([0]), np.array([[True]])
    assert zone.step(row, inside_it, np.array([True]), 0).tolist() == [True]
    assert zone.step(row, inside_it, np.array([False]), 1).tolist() == [True]
    assert not zone.current.any()

"""Lines: every crossing counts once, and the counts are what the path says."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from zhcedge.analytics.lines import LineMap, LineSettings
from zhcedge.analytics.zones import Anchor, Point, Sightings

UP = LineSettings("up", ((0.5, 0.8), (0.5, 0.2)))  # walking upwards: the left hand is on the left
SIDE = 0.02


def walk(path: Sequence[Point], line: LineSettings = UP, label: int = 0, side: float = SIDE) -> list[int]:
    """Crossings counted in each frame; the path is that of the boxes' lower edges."""
    lines = LineMap((line,), ("person", "car"))
    lines.grow(1)
    told = []
    for x, y in path:
        boxes = np.array([(x - side / 2, y - side, x + side / 2, y)])
        told.append(int(lines.step(np.array([0]), Sightings(boxes, np.array([label])))[0, 0]))
    return told


def test_from_the_left_hand_to_the_right_is_in_and_back_is_out() -> None:
    assert walk([(0.3, 0.5), (0.7, 0.5), (0.8, 0.5), (0.3, 0.5)]) == [0, 1, 0, -1]
    backwards = LineSettings("down", (UP.points[1], UP.points[0]))
    assert walk([(0.3, 0.5), (0.7, 0.5), (0.8, 0.5), (0.3, 0.5)], backwards) == [0, -1, 0, 1]


def test_a_level_line_that_goes_to_the_right_counts_what_comes_from_above_as_in() -> None:
    level = LineSettings("level", ((0.2, 0.5), (0.8, 0.5)))
    assert walk([(0.5, 0.3), (0.5, 0.7)], level) == [0, 1]


def test_a_way_round_the_line_does_not_count() -> None:
    assert walk([(0.3, 0.5), (0.3, 0.1), (0.7, 0.1), (0.7, 0.5)]) == [0, 0, 0, 0]


def test_dithering_on_the_line_counts_once() -> None:
    path = [(0.3, 0.5), *[(0.5 + 0.001 * (-1) ** i, 0.5) for i in range(21)], (0.6, 0.5)]
    assert [told for told in walk(path) if told] == [1]
    back = [(0.3, 0.5), *[(0.5 + 0.001 * (-1) ** i, 0.5) for i in range(21)], (0.4, 0.5)]
    assert not any(walk(back))


def test_a_crossing_counts_when_the_object_is_clear_of_the_line() -> None:
    large = [(0.3, 0.5), (0.51, 0.5), (0.53, 0.5), (0.55, 0.5)]
    assert walk(large, side=0.4) == [0, 0, 0, 1]
    assert walk(large, side=0.02) == [0, 1, 0, 0]


def test_other_labels_do_not_count() -> None:
    line = LineSettings("cars", UP.points, labels=("car",))
    path = [(0.3, 0.5), (0.7, 0.5)]
    assert (walk(path, line), walk(path, line, label=1)) == ([0, 0], [0, 1])


def test_the_anchor_is_the_foot_or_the_centre() -> None:
    level = ((0.2, 0.5), (0.8, 0.5))
    path = [(0.5, 0.45), (0.5, 0.55)]  # of the lower edge; the centre stays above the line
    assert walk(path, LineSettings("foot", level), side=0.2) == [0, 1]
    assert walk(path, LineSettings("centre", level, anchor=Anchor.CENTRE), side=0.2) == [0, 0]


grid = st.integers(0, 40)
spots = st.tuples(grid, grid)


@given(st.lists(spots, min_size=2, max_size=30), spots, spots)
def test_any_path_is_counted_as_often_as_it_crosses(
    path: list[tuple[int, int]], first: tuple[int, int], last: tuple[int, int]
) -> None:
    assume(first != last)
    # The path runs on odd 80ths, the line on even ones; what meets an end of the line exactly is left to chance.
    points = [(Fraction(2 * x + 1, 80), Fraction(2 * y + 1, 80)) for x, y in path]
    ends = (Fraction(first[0], 40), Fraction(first[1], 40)), (Fraction(last[0], 40), Fraction(last[1], 40))
    ins = outs = 0
    for before, now in itertools.pairwise(points):
        way = signed_crossing(before, now, *ends)
        ins, outs = ins + (way > 0), outs + (way < 0)
    line = LineSettings("any", ((float(ends[0][0]), float(ends[0][1])), (float(ends[1][0]), float(ends[1][1]))))
    path_of_floats = [(float(x), float(y)) for x, y in points]
    told = walk(path_of_floats, line, side=1e-9)
    assert (sum(n for n in told if n > 0), -sum(n for n in told if n < 0)) == (ins, outs)


@given(st.lists(spots, min_size=2, max_size=30), spots, spots, st.sampled_from([0.01, 0.1, 0.5]))
def test_in_minus_out_is_what_the_path_says_however_large_the_object(
    path: list[tuple[int, int]], first: tuple[int, int], last: tuple[int, int], side: float
) -> None:
    assume(first != last)
    line = LineSettings("any", ((first[0] / 40, first[1] / 40), (last[0] / 40, last[1] / 40)))
    points = [((2 * x + 1) / 80, (2 * y + 1) / 80) for x, y in path]
    clear = (0.5, 9.0)  # far from every line; both ways end there
    assert sum(walk([*points, clear], line, side=side)) == sum(walk([*points, clear], line, side=1e-9))


Exact = tuple[Fraction, Fraction]


def signed_crossing(before: Exact, now: Exact, first: Exact, last: Exact) -> int:
    """1 from the left hand of first -> last to its right, -1 the other way, 0 for none. Exact."""

    def turn(a: Exact, b: Exact, c: Exact) -> Fraction:
        return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])

    sides = turn(first, last, before), turn(first, last, now)
    across = turn(before, now, first), turn(before, now, last)
    assume(0 not in across or before == now or 0 in sides)
    assume(0 not in sides)
    if (sides[0] > 0) == (sides[1] > 0) or (across[0] > 0) == (across[1] > 0):
        return 0
    return 1 if sides[1] > 0 else -1

"""Tiles: they cover their part of the picture, and one object seen by several of them is one detection."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from zhcedge.core.types import DETECTION_DTYPE, MAX_DETECTIONS, RESULT_DTYPE, DetectionArray
from zhcedge.pipeline.tiles import Rectangle, Regions, TileMerger

Box = tuple[float, float, float, float]


@st.composite
def regions(draw: st.DrawFn) -> Regions:
    left, right = sorted(draw(st.lists(st.floats(0, 1), min_size=2, max_size=2, unique=True)))
    top, bottom = sorted(draw(st.lists(st.floats(0, 1), min_size=2, max_size=2, unique=True)))
    return Regions(
        (left, top, right, bottom), draw(st.integers(1, 8)), draw(st.integers(1, 8)), draw(st.floats(0, 0.5))
    )


@given(regions(), st.integers(16, 2000), st.integers(16, 2000))
def test_tiles_are_even_lie_inside_the_picture_and_cover_the_crop(chosen: Regions, width: int, height: int) -> None:
    found = chosen.rectangles(width, height)
    assert len(found) == chosen.columns * chosen.rows
    left, top, right, bottom = chosen.crop
    for tile in found:
        assert tile.left_px % 2 == tile.top_px % 2 == 0
        assert tile.width_px > 0
        assert tile.height_px > 0
        assert tile.left_px + tile.width_px <= width
        assert tile.top_px + tile.height_px <= height
    columns, rows = np.zeros(width, bool), np.zeros(height, bool)
    for tile in found:
        columns[tile.left_px : tile.left_px + tile.width_px] = True
        rows[tile.top_px : tile.top_px + tile.height_px] = True
    assert columns[int(left * width) : int(right * width)].all()
    assert rows[int(top * height) : int(bottom * height)].all()


def test_neighbours_overlap_by_the_share_that_was_asked_for() -> None:
    first, second = Regions(columns=2, overlap=0.25).rectangles(1000, 100)
    shared = first.left_px + first.width_px - second.left_px
    assert shared == pytest.approx(0.25 * first.width_px, abs=4)


def detections(*rows: tuple[Box, float, int]) -> DetectionArray:
    array = np.zeros(len(rows), DETECTION_DTYPE)
    for index, (box, score, label) in enumerate(rows):
        array[index] = (box, score, label)
    return array


def merged(parts: list[DetectionArray], tiles: list[Rectangle], size: tuple[int, int]) -> DetectionArray:
    into = np.zeros(1, RESULT_DTYPE)
    TileMerger(tiles, *size, nms_iou=0.5).merge(parts, into)
    result: DetectionArray = into["detections"][0, : int(into["count"][0])]
    return result


TWO = [Rectangle(0, 0, 120, 100), Rectangle(80, 0, 120, 100)]


def test_an_object_in_the_overlap_is_one_detection() -> None:
    seen = detections(((85, 10, 115, 50), 0.8, 0))
    same = detections(((5, 10, 35, 50), 0.9, 0))
    found = merged([seen, same], TWO, (200, 100))
    assert found["box"].tolist() == [[85, 10, 115, 50]]
    assert found["score"][0] == pytest.approx(0.9)


def test_the_whole_object_wins_over_the_piece_that_the_edge_cut_off_even_with_a_lower_score() -> None:
    piece = detections(((100, 10, 120, 50), 0.95, 0))
    whole = detections(((20, 10, 60, 50), 0.6, 0))
    found = merged([piece, whole], TWO, (200, 100))
    assert found["box"].tolist() == [[100, 10, 140, 50]]


def test_other_classes_and_neighbours_within_one_tile_are_left_alone() -> None:
    first = detections(((85, 10, 115, 50), 0.8, 0), ((85, 12, 115, 52), 0.7, 0))
    second = detections(((5, 10, 35, 50), 0.9, 1))
    assert len(merged([first, second], TWO, (200, 100))) == 3


def test_an_objects_edge_at_the_pictures_border_is_no_cut() -> None:
    at_border = detections(((0, 10, 30, 50), 0.5, 0))
    assert len(merged([at_border, detections()], TWO, (200, 100))) == 1


@given(st.integers(0, 200), st.integers(0, 200))
def test_no_more_than_a_result_holds_is_kept_and_the_best_first(first: int, second: int) -> None:
    assume(first + second > 0)
    rng = np.random.default_rng(first * 1000 + second)

    def many(count: int) -> DetectionArray:
        scores = rng.uniform(0.1, 1.0, count)
        return detections(*(((i * 400.0, 5, i * 400.0 + 10, 9), float(s), 0) for i, s in enumerate(scores)))

    tiles = [Rectangle(0, 0, 100_000, 50), Rectangle(0, 50, 100_000, 50)]
    found = merged([many(first), many(second)], tiles, (100_000, 100))
    assert len(found) == min(first + second, MAX_DETECTIONS)
    assert (np.diff(found["score"]) <= 0).all()

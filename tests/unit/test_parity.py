"""Comparing what two profiles found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.app.parity import compare, parity
from zhcedge.core.errors import UsageError
from zhcedge.core.types import DETECTION_DTYPE, DetectionArray

Row = tuple[tuple[float, float, float, float], float, int]


def detections(*rows: Row) -> DetectionArray:
    return np.array(list(rows), DETECTION_DTYPE)


BOX: Row = ((10, 10, 30, 40), 0.8, 0)
OTHER: Row = ((100, 100, 160, 140), 0.6, 1)


def test_equal_detections_agree_completely() -> None:
    frames = {0: detections(BOX, OTHER), 1: detections(), 2: detections(OTHER)}
    report = compare(("a", "b"), frames, {number: found.copy() for number, found in frames.items()})
    assert report.agrees
    assert (report.frames, report.matched, report.boxes) == (3, 3, [3, 3])
    assert (report.matched_share, report.median_iou, report.score_p95) == (1.0, 1.0, 0.0)


def test_a_box_of_another_label_or_place_has_no_partner() -> None:
    moved: Row = ((200, 10, 220, 40), 0.8, 0)
    relabelled: Row = (BOX[0], 0.8, 1)
    for changed in (moved, relabelled):
        report = compare(("a", "b"), {0: detections(BOX, OTHER)}, {0: detections(changed, OTHER)})
        assert report.matched == 1
        assert not report.agrees


def test_one_box_is_nobodys_second_partner() -> None:
    report = compare(("a", "b"), {0: detections(BOX)}, {0: detections(BOX, ((11, 10, 31, 40), 0.7, 0))})
    assert report.matched == 1
    assert report.ious == [1.0]
    assert report.matched_share == 0.5


def test_scores_that_differ_disagree() -> None:
    report = compare(("a", "b"), {0: detections(BOX)}, {0: detections((BOX[0], 0.7, 0))})
    assert report.score_p95 == pytest.approx(0.1)
    assert not report.agrees


def test_a_frame_that_one_profile_lost_disagrees() -> None:
    report = compare(("a", "b"), {0: detections(BOX), 1: detections()}, {0: detections(BOX)})
    assert report.missing_frames == 1
    assert not report.agrees


def test_nothing_at_all_is_no_agreement() -> None:
    assert not compare(("a", "b"), {}, {}).agrees


coordinate = st.integers(0, 200)
row = st.tuples(
    st.tuples(coordinate, coordinate, st.integers(1, 50), st.integers(1, 50)).map(
        lambda r: (float(r[0]), float(r[1]), float(r[0] + r[2]), float(r[1] + r[3]))
    ),
    st.floats(0, 1, width=32),
    st.integers(0, 2),
)


@given(st.lists(row, max_size=12), st.lists(row, max_size=12))
def test_matching_is_the_same_from_both_sides_and_pairs_each_box_once(first: list[Row], second: list[Row]) -> None:
    there = compare(("a", "b"), {0: detections(*first)}, {0: detections(*second)})
    back = compare(("b", "a"), {0: detections(*second)}, {0: detections(*first)})
    assert there.matched <= min(len(first), len(second))
    assert sorted(there.ious) == pytest.approx(sorted(back.ious))
    assert all(0.5 <= iou <= 1 + 1e-9 for iou in there.ious)


@pytest.mark.parametrize("profiles", [["cpu"], ["cpu", "cpu"], ["cpu", "rtx", "jetson"], ["cpu", "cqu"]])
def test_anything_but_two_known_profiles_is_a_usage_error(profiles: list[str]) -> None:
    with pytest.raises(UsageError):
        parity(profiles, "clip:walkers", lambda line: None)

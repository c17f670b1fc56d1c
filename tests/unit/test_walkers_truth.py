"""The drawn truth of the bundled clip: complete, consistent, and in agreement with a larger detector."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path

import pytest

from zhcedge.analytics.overlap import iou
from zhcedge.core.events import Box

DATA = Path(__file__).parents[1] / "data"
WIDTH, HEIGHT = 768, 576


@pytest.fixture(scope="module")
def people() -> dict[int, dict[int, Box]]:
    """Boxes by id and frame."""
    found: dict[int, dict[int, Box]] = defaultdict(dict)
    for frame, person, x1, y1, x2, y2, _ in json.loads((DATA / "walkers_truth.json").read_text("utf-8"))["rows"]:
        assert frame not in found[person]
        found[person][frame] = (x1, y1, x2, y2)
    return found


def test_nobody_is_away_in_between(people: dict[int, dict[int, Box]]) -> None:
    assert sorted(people) == list(range(1, 8))
    for boxes in people.values():
        assert sorted(boxes) == list(range(min(boxes), 100))


def test_boxes_lie_in_the_picture_and_move_little(people: dict[int, dict[int, Box]]) -> None:
    for boxes in people.values():
        assert all(-1 <= x1 < x2 <= WIDTH + 1 and -1 <= y1 < y2 <= HEIGHT + 1 for x1, y1, x2, y2 in boxes.values())
        steps = itertools.pairwise([boxes[frame] for frame in sorted(boxes)])
        assert all(iou(before, now) > 0.2 for before, now in steps)


def test_a_larger_detector_agrees(people: dict[int, dict[int, Box]]) -> None:
    reference = json.loads((DATA / "walkers.reference.json").read_text("utf-8"))
    missing = [
        (frame["frame"], item["box"])
        for frame in reference["frames"]
        if frame["frame"] < 100
        for item in frame["objects"]
        if item["label"] == "person"
        and not any(
            iou(tuple(item["box"]), boxes[frame["frame"]]) >= 0.5
            for boxes in people.values()
            if frame["frame"] in boxes
        )
    ]
    assert missing == []

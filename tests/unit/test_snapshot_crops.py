"""Crops of a snapshot: which pixels they take, and that they come from the very frame of the whole picture."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_live_channels import EVERYWHERE, SimJpeg, daemon_of, is_hidden
from tests.unit.test_roster import Camera, part
from zhcedge.app.frame_commands import _as_areas
from zhcedge.core.errors import UsageError
from zhcedge.pipeline import crops
from zhcedge.pipeline.crops import STEP_PX, around
from zhcedge.pipeline.ledger import Verdict
from zhcedge.pipeline.snapshots import MAX_CROPS

SIZES = st.integers(2, 4000)
EDGES = st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted).filter(lambda pair: pair[0] < pair[1])


@given(SIZES, SIZES, EDGES, EDGES)
def test_a_crop_shows_its_area_lies_inside_and_has_one_of_few_sizes(
    width: int, height: int, across: list[float], down: list[float]
) -> None:
    crop = around((across[0], down[0], across[1], down[1]), width, height)
    spans = (
        (crop.left_px, crop.width_px, across, width),
        (crop.top_px, crop.height_px, down, height),
    )
    for begin, length, (first, last), size in spans:
        assert begin % 2 == 0
        assert 0 <= begin < begin + length <= size
        assert length % STEP_PX == 0 or length == size
        assert begin <= first * size
        assert begin + length >= last * size - size % 2  # an odd picture's last column may be left out


def test_a_crop_is_a_part_of_the_same_frames_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crops, "STEP_PX", 8)  # these pictures are hardly larger than one step
    areas = [(0.0, 0.0, 0.5, 0.5), (0.2, 0.1, 0.9, 0.8)]
    with daemon_of([part("a", Camera(), 0)]) as daemon:
        snapshot = daemon.runtime.live.snapshot("a", areas)
    whole = np.frombuffer(snapshot.jpeg, np.uint8).reshape(48, 64)
    assert len(snapshot.crops) == 2
    for crop in snapshot.crops:
        assert crop is not None
        at = crop.rectangle
        shown = np.frombuffer(crop.jpeg, np.uint8).reshape(at.height_px, at.width_px)
        region = whole[at.top_px : at.top_px + at.height_px, at.left_px : at.left_px + at.width_px]
        np.testing.assert_array_equal(shown, region)
    assert daemon.report is not None
    assert daemon.report.ledger.verdict is Verdict.PASS


def test_what_is_masked_is_black_in_crops_too() -> None:
    with daemon_of([part("a", Camera(), 0, masks=EVERYWHERE)]) as daemon:
        (crop,) = daemon.runtime.live.snapshot("a", [(0.1, 0.1, 0.9, 0.9)]).crops
    assert crop is not None
    assert is_hidden(np.frombuffer(crop.jpeg, np.uint8))


def test_crops_that_are_too_large_together_are_left_out() -> None:
    encoder = SimJpeg(size_bytes=900_000)
    with daemon_of([part("a", Camera(), 0)], encoder) as daemon:
        found = daemon.runtime.live.snapshot("a", [(0.0, 0.0, 0.5, 0.5)] * 4).crops
    assert [crop is not None for crop in found] == [True, True, False, False]


@pytest.mark.parametrize(
    "areas",
    [
        [(0.0, 0.0, 0.5, 0.5)] * (MAX_CROPS + 1),
        [(0.5, 0.0, 0.5, 1.0)],
        [(0.0, -0.1, 0.5, 1.0)],
        [(0.0, 0.0, 1.1, 1.0)],
        [(float("nan"), 0.0, 1.0, 1.0)],
    ],
    ids=["too-many", "empty", "above", "beside", "nan"],
)
def test_what_is_no_part_of_a_picture_is_refused(areas: list[tuple[float, float, float, float]]) -> None:
    with daemon_of([part("a", Camera(), 0)]) as daemon, pytest.raises(UsageError):
        daemon.runtime.live.snapshot("a", areas)


@pytest.mark.parametrize("wanted", ["all", [1], [[0, 0, 1]], [[0, 0, 1, "1"]], [[0, 0, 1, True]], {"left": 0}], ids=str)
def test_a_command_that_asks_for_nonsense_is_refused(wanted: object) -> None:
    with pytest.raises(UsageError):
        _as_areas({"crops": wanted}, "gate")


def test_a_command_without_crops_asks_for_none() -> None:
    assert _as_areas(None, "gate") == _as_areas({}, "gate") == []

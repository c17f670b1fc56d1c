"""The tracker: ids stay with their objects, and nothing depends on anything but the input."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.analytics.tracker import IouTracker, TrackerSettings, TrackUpdate
from zhcedge.core.types import DETECTION_DTYPE, DetectionArray, FrameInfo

Item = tuple[float, float, float, float, float, int]


def frame(sequence: int, fps: float = 25.0, media: bool = True) -> FrameInfo:
    at_s = sequence / fps
    return FrameInfo(0, sequence, 10**18 + int(at_s * 1e9), int(at_s * 1e9), at_s if media else -1.0)


def detections(items: Sequence[Item]) -> DetectionArray:
    return np.array([((x1, y1, x2, y2), score, label) for x1, y1, x2, y2, score, label in items], DETECTION_DTYPE)


def person(x: float, y: float = 100.0, score: float = 0.8, label: int = 0) -> Item:
    return (x, y, x + 40.0, y + 90.0, score, label)


def play(tracker: IouTracker, frames: Sequence[Sequence[Item]], start: int = 0) -> list[TrackUpdate]:
    return [tracker.update(detections(items), frame(start + index)) for index, items in enumerate(frames)]


def test_a_track_counts_from_the_frame_that_confirms_it_and_starts_at_the_first_one() -> None:
    updates = play(IouTracker(TrackerSettings(confirm_frames=3)), [[person(10 + 3 * i)] for i in range(4)])
    assert [len(update.seen) for update in updates] == [0, 0, 1, 1]
    assert [len(update.confirmed) for update in updates] == [0, 0, 1, 0]
    assert updates[2].confirmed[0].first.sequence == 0
    assert updates[2].confirmed[0].last.sequence == 2


def test_one_frame_is_enough_where_it_is_configured_so() -> None:
    (update,) = play(IouTracker(TrackerSettings(confirm_frames=1)), [[person(10)]])
    assert [track.id for track in update.confirmed] == [1]


def test_a_flicker_is_never_confirmed() -> None:
    updates = play(IouTracker(TrackerSettings(confirm_frames=2)), [[person(10)], [], [person(10)], [], [person(10)]])
    assert not any(update.seen for update in updates)


def test_the_id_survives_a_gap_that_prediction_bridges() -> None:
    # 12 px a frame over 8 unseen frames: more than two widths from the last box, none from the predicted one.
    walk = [[person(10.0 + 12 * i)] if not 10 <= i < 18 else [] for i in range(30)]
    updates = play(IouTracker(), walk)
    assert {track.id for update in updates for track in update.seen} == {1}
    assert not any(update.lost for update in updates)


def test_two_people_who_cross_keep_their_ids() -> None:
    frames = [[person(10.0 + 8 * i, 100), person(330.0 - 8 * i, 130)] for i in range(40)]
    updates = play(IouTracker(), frames)
    for index, update in enumerate(updates[3:], start=3):
        assert {track.id: track.box[0] for track in update.seen} == {1: 10.0 + 8 * index, 2: 330.0 - 8 * index}


def test_a_track_takes_the_box_that_fits_best_and_the_other_one_is_new() -> None:
    tracker = IouTracker(TrackerSettings(confirm_frames=1))
    play(tracker, [[person(10)]])
    (update,) = play(tracker, [[person(20), person(12), person(5)]], start=1)
    assert {track.id: track.box[0] for track in update.seen} == {1: 12.0, 2: 20.0, 3: 5.0}


def test_labels_never_mix() -> None:
    updates = play(IouTracker(), [[person(10)]] * 5 + [[person(10, label=2)]] * 5)
    assert {(track.id, track.label) for update in updates for track in update.seen} == {(1, 0), (2, 2)}


def test_an_object_gone_for_too_many_frames_is_lost_once_and_comes_back_as_another() -> None:
    settings = TrackerSettings(max_lost_frames=5, max_lost_ms=60_000)
    updates = play(IouTracker(settings), [[person(10)]] * 5 + [[]] * 8 + [[person(10)]] * 5)
    assert [index for index, update in enumerate(updates) if update.lost] == [10]
    assert updates[10].lost[0].last.sequence == 4
    assert [track.id for track in updates[-1].seen] == [2]


@pytest.mark.parametrize("has_media_time", [True, False])
def test_an_object_gone_for_too_long_is_lost_however_few_frames_there_were(has_media_time: bool) -> None:
    tracker = IouTracker(TrackerSettings(max_lost_ms=1000))
    for sequence in range(5):
        tracker.update(detections([person(10)]), frame(sequence, media=has_media_time))
    assert tracker.update(detections([]), frame(4 + 25, media=has_media_time)).lost == ()
    assert len(tracker.update(detections([]), frame(4 + 26, media=has_media_time)).lost) == 1


def test_a_presentation_time_that_jumps_back_does_not_stop_the_clock() -> None:
    tracker = IouTracker()
    times = [tracker.update(detections([]), FrameInfo(0, i, 0, 0, t)).time_ns for i, t in enumerate([5, 6, 0, 1])]
    assert times == [0, 10**9, 10**9, 2 * 10**9]


def test_trackers_that_share_an_id_source_never_share_an_id() -> None:
    ids = itertools.count(1)
    first, second = IouTracker(ids=ids), IouTracker(ids=ids)
    seen = [play(tracker, [[person(10)]] * 3)[-1].seen[0].id for tracker in (first, second)]
    assert seen == [1, 2]


@pytest.mark.parametrize("bad", [(np.nan, 0, 1, 1), (0, 0, np.inf, 1), (5, 5, 5, 9), (9, 9, 1, 1)])
def test_a_box_that_is_none_is_ignored(bad: tuple[float, float, float, float]) -> None:
    items: list[Item] = [(*bad, 0.9, 0), person(10)]
    updates = play(IouTracker(TrackerSettings(confirm_frames=1)), [items, items])
    assert [track.box[0] for track in updates[-1].seen] == [10.0]


@pytest.mark.parametrize("values", [{"match_iou": 0.0}, {"match_iou": 1.5}, {"confirm_frames": 0}, {"max_lost_ms": -1}])
def test_impossible_settings_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        TrackerSettings(**values)  # type: ignore[arg-type]


coordinate = st.floats(-50, 400, width=32)
box = st.tuples(coordinate, coordinate, st.floats(0, 200, width=32), st.floats(0, 200, width=32))
item = st.builds(
    lambda b, score, label: (b[0], b[1], b[0] + b[2], b[1] + b[3], score, label),
    box,
    st.floats(0, 1, width=32),
    st.integers(0, 1),
)
film = st.lists(st.lists(item, max_size=5), max_size=25)


@given(film)
def test_any_film_gives_each_id_one_confirmation_and_at_most_one_loss(frames: list[list[Item]]) -> None:
    settings = TrackerSettings(confirm_frames=2, max_lost_frames=2)
    confirmed: set[int] = set()
    lost: set[int] = set()
    for update in play(IouTracker(settings), frames):
        born = {track.id for track in update.confirmed}
        seen = [track.id for track in update.seen]
        gone = {track.id for track in update.lost}
        assert not born & confirmed
        confirmed |= born
        assert seen == sorted(set(seen))
        assert set(seen) <= confirmed - lost
        assert gone <= confirmed - lost - set(seen)
        lost |= gone


@given(film)
def test_any_track_s_box_and_score_are_the_detector_s_own_bit_for_bit(frames: list[list[Item]]) -> None:
    tracker = IouTracker(TrackerSettings(confirm_frames=1))
    for index, items in enumerate(frames):
        array = detections(items)
        given_rows = {row.tobytes() for row in array}
        for track in tracker.update(array, frame(index)).seen:
            assert np.array([(track.box, track.score, track.label)], DETECTION_DTYPE)[0].tobytes() in given_rows


@given(film)
def test_the_same_film_gives_the_same_tracks(frames: list[list[Item]]) -> None:
    assert play(IouTracker(), frames) == play(IouTracker(), frames)

"""The tracker: ids stay with their objects, and nothing depends on anything but the input."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.analytics.overlap import neighbours
from zhcedge.analytics.tracker import Tracker, TrackerSettings, TrackUpdate
from zhcedge.core.types import DETECTION_DTYPE, DetectionArray, FrameInfo

Item = tuple[float, float, float, float, float, int]


def frame(sequence: int, fps: float = 25.0, media: bool = True) -> FrameInfo:
    at_s = sequence / fps
    return FrameInfo(0, sequence, 10**18 + int(at_s * 1e9), int(at_s * 1e9), at_s if media else -1.0)


def detections(items: Sequence[Item]) -> DetectionArray:
    return np.array([((x1, y1, x2, y2), score, label) for x1, y1, x2, y2, score, label in items], DETECTION_DTYPE)


def person(x: float, y: float = 100.0, score: float = 0.8, label: int = 0) -> Item:
    return (x, y, x + 40.0, y + 90.0, score, label)


def play(tracker: Tracker, frames: Sequence[Sequence[Item]], start: int = 0) -> list[TrackUpdate]:
    return [tracker.update(detections(items), frame(start + index)) for index, items in enumerate(frames)]


def test_a_track_counts_from_the_frame_that_confirms_it_and_starts_at_the_first_one() -> None:
    updates = play(Tracker(TrackerSettings(confirm_frames=3)), [[person(10 + 3 * i)] for i in range(4)])
    assert [len(update.seen) for update in updates] == [0, 0, 1, 1]
    assert [len(update.confirmed) for update in updates] == [0, 0, 1, 0]
    assert updates[2].confirmed[0].first.sequence == 0
    assert updates[2].confirmed[0].last.sequence == 2


def test_one_frame_is_enough_where_it_is_configured_so() -> None:
    (update,) = play(Tracker(TrackerSettings(confirm_frames=1)), [[person(10)]])
    assert [track.id for track in update.confirmed] == [1]


def test_a_flicker_is_never_confirmed() -> None:
    updates = play(Tracker(TrackerSettings(confirm_frames=2)), [[person(10)], [], [person(10)], [], [person(10)]])
    assert not any(update.seen for update in updates)


def test_the_id_survives_a_gap_that_prediction_bridges() -> None:
    # 12 px a frame over 8 unseen frames: more than two widths from the last box, none from the predicted one.
    walk = [[person(10.0 + 12 * i)] if not 10 <= i < 18 else [] for i in range(30)]
    updates = play(Tracker(), walk)
    assert {track.id for update in updates for track in update.seen} == {1}
    assert not any(update.lost for update in updates)


def test_two_people_who_cross_keep_their_ids() -> None:
    frames = [[person(10.0 + 8 * i, 100), person(330.0 - 8 * i, 130)] for i in range(40)]
    updates = play(Tracker(), frames)
    for index, update in enumerate(updates[3:], start=3):
        assert {track.id: track.box[0] for track in update.seen} == {1: 10.0 + 8 * index, 2: 330.0 - 8 * index}


def test_a_track_takes_the_box_that_fits_best_and_the_other_one_is_new() -> None:
    tracker = Tracker(TrackerSettings(confirm_frames=1))
    play(tracker, [[person(10)]])
    (update,) = play(tracker, [[person(20), person(12), person(5)]], start=1)
    assert {track.id: track.box[0] for track in update.seen} == {1: 12.0, 2: 20.0, 3: 5.0}


def test_labels_never_mix() -> None:
    updates = play(Tracker(), [[person(10)]] * 5 + [[person(10, label=2)]] * 5)
    assert {(track.id, track.label) for update in updates for track in update.seen} == {(1, 0), (2, 2)}


def test_an_object_gone_for_too_many_frames_is_lost_once_and_comes_back_as_another() -> None:
    settings = TrackerSettings(max_lost_frames=5, max_lost_ms=60_000)
    updates = play(Tracker(settings), [[person(10)]] * 5 + [[]] * 8 + [[person(10)]] * 5)
    assert [index for index, update in enumerate(updates) if update.lost] == [10]
    assert updates[10].lost[0].last.sequence == 4
    assert [track.id for track in updates[-1].seen] == [2]


@pytest.mark.parametrize("has_media_time", [True, False])
def test_an_object_gone_for_too_long_is_lost_however_few_frames_there_were(has_media_time: bool) -> None:
    tracker = Tracker(TrackerSettings(max_lost_ms=1000))
    for sequence in range(5):
        tracker.update(detections([person(10)]), frame(sequence, media=has_media_time))
    assert tracker.update(detections([]), frame(4 + 25, media=has_media_time)).lost == ()
    assert len(tracker.update(detections([]), frame(4 + 26, media=has_media_time)).lost) == 1


def test_a_presentation_time_that_jumps_back_does_not_stop_the_clock() -> None:
    tracker = Tracker()
    times = [tracker.update(detections([]), FrameInfo(0, i, 0, 0, t)).time_ns for i, t in enumerate([5, 6, 0, 1])]
    assert times == [0, 10**9, 10**9, 2 * 10**9]


def test_trackers_that_share_an_id_source_never_share_an_id() -> None:
    ids = itertools.count(1)
    first, second = Tracker(ids=ids), Tracker(ids=ids)
    seen = [play(tracker, [[person(10)]] * 3)[-1].seen[0].id for tracker in (first, second)]
    assert seen == [1, 2]


@pytest.mark.parametrize("bad", [(np.nan, 0, 1, 1), (0, 0, np.inf, 1), (5, 5, 5, 9), (9, 9, 1, 1)])
def test_a_box_that_is_none_is_ignored(bad: tuple[float, float, float, float]) -> None:
    items: list[Item] = [(*bad, 0.9, 0), person(10)]
    updates = play(Tracker(TrackerSettings(confirm_frames=1)), [items, items])
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
    for update in play(Tracker(settings), frames):
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
    tracker = Tracker(TrackerSettings(confirm_frames=1))
    for index, items in enumerate(frames):
        array = detections(items)
        given_rows = {row.tobytes() for row in array}
        for track in tracker.update(array, frame(index)).seen:
            assert np.array([(track.box, track.score, track.label)], DETECTION_DTYPE)[0].tobytes() in given_rows


@given(film)
def test_the_same_film_gives_the_same_tracks(frames: list[list[Item]]) -> None:
    assert play(Tracker(), frames) == play(Tracker(), frames)


def test_a_weak_box_continues_a_track_and_begins_none() -> None:
    settings = TrackerSettings(confirm_frames=2, new_score=0.6)
    weak = [[person(10.0 + 3 * i, score=0.5)] for i in range(5)]
    assert not any(update.seen for update in play(Tracker(settings), weak))
    updates = play(Tracker(settings), [[person(1.0, score=0.7)], [person(4.0, score=0.65)], *weak])
    assert [[track.id for track in update.seen] for update in updates[1:]] == [[1]] * 6


def test_a_weak_box_does_not_bring_a_lost_track_back() -> None:
    settings = TrackerSettings(confirm_frames=2, new_score=0.6)
    strong, weak = [person(10, score=0.8)], [person(10, score=0.5)]
    updates = play(Tracker(settings), [strong, strong, [], weak, strong])
    assert [[track.id for track in update.seen] for update in updates] == [[], [1], [], [], [1]]


def test_strong_boxes_choose_before_weak_ones() -> None:
    tracker = Tracker(TrackerSettings(confirm_frames=1, new_score=0.6))
    play(tracker, [[person(10)]])
    (update,) = play(tracker, [[person(10, score=0.5), person(18, score=0.8)]], start=1)
    assert [(track.id, track.box[0]) for track in update.seen] == [(1, 18.0)]


def test_an_object_that_turns_round_between_two_distant_frames_keeps_its_id() -> None:
    # 30 px a frame and 40 px wide: after the turn neither the predicted nor the last box overlaps by a quarter.
    walk = [10, 40, 70, 100, 130, 160, 128, 98, 68]
    updates = play(Tracker(TrackerSettings(confirm_frames=2)), [[person(x)] for x in walk])
    assert {track.id for update in updates for track in update.seen} == {1}


@pytest.mark.parametrize("step", [1, 2, 5])
def test_speed_is_measured_in_time_and_not_in_frames(step: int) -> None:
    tracker = Tracker(TrackerSettings(confirm_frames=2))
    places = [sequence for sequence in range(0, 61, step) if not 30 <= sequence < 40]
    for sequence in places:
        update = tracker.update(detections([person(10.0 + 4 * sequence)]), frame(sequence))
    assert [track.id for track in update.seen] == [1]


def stand(tracker: Tracker, seconds: float, start: int = 0, jitter: float = 0.0) -> TrackUpdate:
    chance = np.random.default_rng(1)
    for sequence in range(start, start + round(25 * seconds) + 1):
        dx, dy = chance.normal(0, jitter, 2) if jitter else (0.0, 0.0)
        update = tracker.update(detections([person(100 + dx, 100 + dy)]), frame(sequence))
    return update


def test_an_object_that_stays_where_it_is_becomes_stationary_after_a_while() -> None:
    assert not stand(Tracker(), 9.9).seen[0].is_stationary
    assert stand(Tracker(), 10).seen[0].is_stationary
    assert stand(Tracker(TrackerSettings(stationary_s=3)), 3, jitter=2.0).seen[0].is_stationary


def test_one_bad_box_does_not_wake_a_stationary_object_and_walking_on_does() -> None:
    tracker = Tracker(TrackerSettings(stationary_s=2))
    stand(tracker, 3)
    assert tracker.update(detections([person(112, 118)]), frame(76)).seen[0].is_stationary
    assert stand(tracker, 1, start=77).seen[0].is_stationary
    walk = [tracker.update(detections([person(100 + 2.0 * i)]), frame(103 + i)) for i in range(40)]
    states = [update.seen[0].is_stationary for update in walk]
    assert (states[0], states[-1]) == (True, False)
    assert states == sorted(states, reverse=True)
    assert {track.id for update in walk for track in update.seen} == {1}


def test_a_stationary_object_may_be_hidden_for_longer() -> None:
    settings = TrackerSettings(stationary_s=2, max_lost_ms=1000, max_lost_frames=10, max_lost_stationary_ms=4000)
    for seconds, lost_after in ((1.0, 11), (3.0, 101)):
        tracker = Tracker(settings)
        stand(tracker, seconds)
        start = round(25 * seconds) + 1
        gone = [index for index in range(120) if tracker.update(detections([]), frame(start + index)).lost]
        assert gone == [lost_after - 1]


def test_time_goes_on_for_what_is_still_and_not_detected() -> None:
    tracker = Tracker(TrackerSettings(stationary_s=2))
    stand(tracker, 0.5)
    updates = [tracker.coast(frame(13 + index)) for index in range(40)]
    assert all([track.id for track in update.seen] == [1] for update in updates)
    assert not any(update.confirmed or update.lost for update in updates)
    assert [update.seen[0].is_stationary for update in updates].index(True) == 50 - 13
    assert {update.seen[0].last.sequence for update in updates} == {12}


def test_other_settings_keep_the_tracks() -> None:
    tracker = Tracker(TrackerSettings(max_lost_ms=1000))
    stand(tracker, 3)
    tracker.replace(TrackerSettings(max_lost_ms=100, stationary_s=2))
    update = tracker.update(detections([person(100)]), frame(76))
    assert [(track.id, track.is_stationary) for track in update.seen] == [(1, True)]
    tracker.replace(TrackerSettings(max_lost_ms=100, max_lost_stationary_ms=100, stationary_s=2))
    assert [len(tracker.update(detections([]), frame(77 + index)).lost) for index in range(3)] == [0, 0, 1]


def test_a_crowd_of_a_thousand_is_tracked() -> None:
    tracker = Tracker(TrackerSettings(confirm_frames=2))
    crowd = [person(25.0 * (i % 70), 45.0 * (i // 70)) for i in range(1000)]
    for step in range(4):
        update = tracker.update(detections([(x + step, y, x2 + step, *rest) for x, y, x2, *rest in crowd]), frame(step))
    assert [track.id for track in update.seen] == list(range(1, 1001))


boxes_with_labels = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(1, 80), st.integers(0, 2)))


@given(boxes_with_labels, boxes_with_labels)
def test_neighbours_are_all_that_overlap(
    some: list[tuple[int, int, int, int]], others: list[tuple[int, int, int, int]]
) -> None:
    a, b = (np.array([(x, y, x + side, y + 5) for x, y, side, _ in part]).reshape(-1, 4) for part in (some, others))
    labels_a, labels_b = (np.array([label for *_, label in part], np.int64) for part in (some, others))
    rows, columns = neighbours(a.astype(float), labels_a, b.astype(float), labels_b)
    found = set(zip(rows.tolist(), columns.tolist(), strict=True))
    assert len(found) == len(rows)
    assert all(labels_a[row] == labels_b[column] for row, column in found)
    overlap = {
        (row, column)
        for row, column in itertools.product(range(len(a)), range(len(b)))
        if labels_a[row] == labels_b[column]
        and min(a[row, 2], b[column, 2]) > max(a[row, 0], b[column, 0])
        and min(a[row, 3], b[column, 3]) > max(a[row, 1], b[column, 1])
    }
    assert overlap <= found

"""The same object over frames: ByteTrack (Zhang et al. 2022, https://arxiv.org/abs/2110.06864).

Boxes with a high score are matched to tracks by their overlap with where the tracks should be (motion.py); boxes with a
low score may then continue a track that was in sight, but begin none. Tracks and good boxes that are left are matched
once more, enlarged (C-BIoU: Yang et al. 2023, https://arxiv.org/abs/2211.14317): for what turns round, and for few
frames a second. A track that nothing matches is lost, goes on by its velocity and is taken up again if a box appears
there in time. Pure: no I/O, no clock of its own, the same input gives the same output. Why this is not a library, and
where it differs from the paper: zhcedge/DESIGN.md, "Tracking".
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from zhcedge.analytics.clock import ChannelClock
from zhcedge.analytics.motion import Motion
from zhcedge.analytics.overlap import Floats, Ints, neighbours, pair_up, pairwise_iou
from zhcedge.analytics.stillness import Stillness
from zhcedge.core.events import Box
from zhcedge.core.types import DetectionArray, FrameInfo

_LOW_SCORE_IOU = 0.5
"""Least overlap of a box with a low score: the paper's value. Such a box may well be something else."""

_BUFFER = 0.5
"""By how much boxes are enlarged, in their own sides, for tracks that found nothing: C-BIoU's second buffer."""

_STOPPED = 0.9
"""What an overlap with the last box counts beside one with the predicted box: of two that cross, each goes on."""

_MS_NS = 1_000_000


@dataclass(frozen=True)
class TrackerSettings:
    """Values of one channel.

    Attributes:
        match_iou: least overlap, above 0 and up to 1, of a box with a track's predicted or last box.
        confirm_frames: a track counts once it was seen in this many frames in a row.
        max_lost_frames: a confirmed track is given up after this many frames in a row without it...
        max_lost_ms: ...or this long after it was last seen, whichever comes first.
        new_score: a track begins with a box of this score or more; boxes below only continue tracks. 0..1.
        stationary_s: an object that stays in one place for this long is stationary.
        max_lost_stationary_ms: a stationary object is given up this long after it was last seen, however many frames
            that were; at least max_lost_ms counts.
    """

    match_iou: float = 0.25
    confirm_frames: int = 3
    max_lost_frames: int = 45
    max_lost_ms: int = 2000
    new_score: float = 0.0
    stationary_s: float = 10.0
    max_lost_stationary_ms: int = 10_000

    def __post_init__(self) -> None:
        if not 0 < self.match_iou <= 1:
            raise ValueError("match_iou must be above 0 and at most 1")
        if self.confirm_frames < 1:
            raise ValueError("confirm_frames must be at least 1")
        if self.max_lost_frames < 0 or self.max_lost_ms < 0 or self.max_lost_stationary_ms < 0:
            raise ValueError("max_lost_frames, max_lost_ms and max_lost_stationary_ms must not be negative")
        if not 0 <= self.new_score <= 1:
            raise ValueError("new_score must be from 0 to 1")
        if not self.stationary_s > 0:
            raise ValueError("stationary_s must be above 0")


class Track(NamedTuple):
    """A confirmed track as of the last frame in which it was seen. A tuple, because many are made for every frame.

    Attributes:
        id: never given to another track of the same id source.
        label: index into the model's labels.
        box: the detector's own box of that frame, bit for bit.
        score, top_score: of that frame, and the best so far.
        first, last: the first and the last frame in which it was seen.
        is_stationary: it has stayed where it is for a while.
    """

    id: int
    label: int
    box: Box
    score: float
    top_score: float
    first: FrameInfo
    last: FrameInfo
    is_stationary: bool = False


@dataclass(frozen=True, slots=True)
class TrackUpdate:
    """What one frame changed.

    Attributes:
        time_ns: the tracker's clock, nanoseconds since the channel's first frame; never goes back.
        seen: confirmed tracks that this frame shows, in order of id; after `coast` those that the last frame showed.
        confirmed: those of `seen` that were confirmed by this frame.
        lost: confirmed tracks given up at this frame; they never come back.
    """

    time_ns: int
    seen: tuple[Track, ...]
    confirmed: tuple[Track, ...]
    lost: tuple[Track, ...]


class _Candidate:
    """What the tracker remembers of one object besides its rows of numbers; `track.id` is 0 until it is confirmed."""

    __slots__ = ("hits", "missed", "seen_ns", "track")

    def __init__(self, label: int, box: Box, score: float, info: FrameInfo, time_ns: int) -> None:
        self.track = Track(0, label, box, score, score, info, info)
        self.seen_ns = time_ns
        self.hits = 1
        self.missed = 0

    def see(self, box: Box, score: float, info: FrameInfo, time_ns: int) -> None:
        old = self.track
        top_score = max(old.top_score, score)
        self.track = Track(old.id, old.label, box, score, top_score, old.first, info, old.is_stationary)
        self.seen_ns = time_ns
        self.hits += 1
        self.missed = 0


@dataclass(frozen=True)
class _Boxes:
    """The detections of a frame that can be matched, n of them."""

    boxes: Floats  # [n, 4], exact for float32 values
    scores: Floats
    labels: Ints

    def rows(self) -> list[tuple[Box, float, int]]:
        boxes: list[Box] = [(x1, y1, x2, y2) for x1, y1, x2, y2 in self.boxes.tolist()]
        return list(zip(boxes, self.scores.tolist(), self.labels.tolist(), strict=True))


class _Pairs(NamedTuple):
    """Pairs of a candidate and a box that overlap, k of them: the rows of each [k], and by how much [k]."""

    rows: Ints
    columns: Ints
    overlap: Floats


class _Matching:
    """Who belongs to whom, found in stages: what one stage has paired is not there for the next."""

    def __init__(self, rows: int, columns: int) -> None:
        self.pairs: dict[int, int] = {}
        self.free_rows = np.ones(rows, bool)
        self.free_columns = np.ones(columns, bool)

    def take(self, pairs: _Pairs, allowed: npt.NDArray[np.bool_], least: float) -> None:
        """Pair up what is free and allowed [k] and overlaps by at least so much."""
        allowed = allowed & self.free_rows[pairs.rows] & self.free_columns[pairs.columns] & (pairs.overlap >= least)
        if not allowed.any():
            return
        for row, column in pair_up(pairs.rows[allowed], pairs.columns[allowed], pairs.overlap[allowed]):
            self.pairs[row] = column
            self.free_rows[row] = self.free_columns[column] = False


class Tracker:
    """Tracks the objects of one channel. Belongs to one thread.

    Args:
        settings: thresholds.
        ids: where confirmed tracks get their ids; share one source among trackers whose ids must not collide, and
            keep it when a channel is opened again.
    """

    def __init__(self, settings: TrackerSettings | None = None, ids: Iterator[int] | None = None) -> None:
        self._settings = settings or TrackerSettings()
        self._ids = itertools.count(1) if ids is None else ids
        self._clock = ChannelClock()
        self._time_ns = 0
        # Row i of each of these is the same object, the oldest first.
        self._candidates: list[_Candidate] = []
        self._labels: Ints = np.empty(0, np.int64)
        self._last: Floats = np.empty((0, 4))  # the detector's boxes when it was last seen
        self._motion = Motion()
        self._stillness = Stillness(round(self._settings.stationary_s * 1e9))

    def replace(self, settings: TrackerSettings) -> None:
        """Other thresholds from the next frame on; every track goes on."""
        self._settings = settings
        self._stillness.after_ns = round(settings.stationary_s * 1e9)

    def update(self, detections: DetectionArray, info: FrameInfo) -> TrackUpdate:
        """Take the detections of the next frame, shape [count]; frames come in the order of their sequence.

        Boxes that are not finite or have no area are ignored. A track that was not confirmed yet is forgotten at the
        first frame without it.
        """
        time_ns = self._clock.advance(info)
        self._motion.predict((time_ns - self._time_ns) / 1e9)
        self._time_ns = time_ns
        found = _usable(detections)
        pairs = self._match(found)
        items = found.rows()
        for row, column in pairs.items():
            self._candidates[row].see(items[column][0], items[column][1], info, time_ns)
        self._move(pairs, found.boxes)
        unmatched = set(range(len(items))).difference(pairs.values())
        born = [column for column in sorted(unmatched) if items[column][1] >= self._settings.new_score]
        lost = self._give_up(pairs)
        self._begin(born, found, [_Candidate(items[i][2], items[i][0], items[i][1], info, time_ns) for i in born])
        confirmed = self._confirm()
        self._tell_stationary()
        seen = self._in_sight()
        return TrackUpdate(time_ns, seen, tuple(track for track in seen if track.id in confirmed), lost)

    def coast(self, info: FrameInfo) -> TrackUpdate:
        """A frame that was not detected in, because nothing moved: what was seen last is still there.

        Tracks that the last frame showed count as seen; they don't grow older, are not confirmed and keep their box
        and their last frame, but they may become stationary.
        """
        # The filter is not moved on: the next `update` predicts over the whole pause at once.
        time_ns = self._clock.advance(info)
        for candidate in self._candidates:
            if not candidate.missed:
                candidate.seen_ns = time_ns
        self._tell_stationary(time_ns)
        return TrackUpdate(time_ns, self._in_sight(), (), ())

    def _match(self, found: _Boxes) -> dict[int, int]:
        """Row of each candidate that this frame shows -> row of its box."""
        least = self._settings.match_iou
        is_confirmed = np.array([one.track.id > 0 for one in self._candidates], bool)
        in_sight = np.array([one.missed == 0 for one in self._candidates], bool)
        is_high = found.scores >= self._settings.new_score
        matching = _Matching(len(self._candidates), len(found.boxes))
        pairs = self._overlaps(found, np.ones(len(self._candidates), bool), 0.0)
        high, rows = is_high[pairs.columns], pairs.rows
        matching.take(pairs, is_confirmed[rows] & high, least)
        matching.take(pairs, is_confirmed[rows] & in_sight[rows] & ~high, max(_LOW_SCORE_IOU, least))
        matching.take(pairs, ~is_confirmed[rows], least)
        # Most frames have nobody left for it.
        if matching.free_rows.any() and (is_high & matching.free_columns).any():
            pairs = self._overlaps(found, matching.free_rows, _BUFFER)
            matching.take(pairs, is_high[pairs.columns], least)
        return matching.pairs

    def _overlaps(self, found: _Boxes, wanted: npt.NDArray[np.bool_], buffer: float) -> _Pairs:
        """How well the `wanted` candidates [n] and the boxes fit, both larger by `buffer` of their sides all around.

        An object has gone on or has stopped: either place will do, the first one rather.
        """
        candidates = np.flatnonzero(wanted)
        predicted, last = _larger(self._motion.boxes()[candidates], buffer), _larger(self._last[candidates], buffer)
        boxes = _larger(found.boxes, buffer)
        reach = np.concatenate(
            [np.minimum(predicted[:, :2], last[:, :2]), np.maximum(predicted[:, 2:], last[:, 2:])], axis=1
        )
        rows, columns = neighbours(reach, self._labels[candidates], boxes, found.labels)
        there = boxes[columns]
        overlap = np.maximum(pairwise_iou(predicted[rows], there), _STOPPED * pairwise_iou(last[rows], there))
        return _Pairs(candidates[rows], columns, overlap)

    def _move(self, pairs: dict[int, int], boxes: Floats) -> None:
        """Correct the numbers of what was seen."""
        if not pairs:
            return
        rows, columns = np.array(list(pairs), np.int64), np.array(list(pairs.values()), np.int64)
        self._last[rows] = boxes[columns]
        self._motion.correct(rows, boxes[columns])
        self._stillness.see(rows, self._motion.boxes()[rows], self._time_ns)

    def _give_up(self, pairs: dict[int, int]) -> tuple[Track, ...]:
        """Count a miss for all that are not in `pairs`; forget who has none left. Returns the confirmed ones."""
        lost = []
        kept = np.ones(len(self._candidates), bool)
        for row, candidate in enumerate(self._candidates):
            if row in pairs:
                continue
            candidate.missed += 1
            if self._is_gone(candidate):
                kept[row] = False
                if candidate.track.id:
                    lost.append(candidate.track)
        if not kept.all():
            self._candidates = list(itertools.compress(self._candidates, kept.tolist()))
            self._labels, self._last = self._labels[kept], self._last[kept]
            self._motion.keep(kept)
            self._stillness.keep(kept)
        return tuple(sorted(lost, key=lambda track: track.id))

    def _is_gone(self, candidate: _Candidate) -> bool:
        settings = self._settings
        if not candidate.track.id:
            return True
        away_ns = self._time_ns - candidate.seen_ns
        if candidate.track.is_stationary:
            return away_ns > max(settings.max_lost_stationary_ms, settings.max_lost_ms) * _MS_NS
        return away_ns > settings.max_lost_ms * _MS_NS or candidate.missed > settings.max_lost_frames

    def _begin(self, columns: list[int], found: _Boxes, candidates: list[_Candidate]) -> None:
        if not candidates:
            return
        boxes = found.boxes[columns]
        self._candidates += candidates
        self._labels = np.concatenate([self._labels, found.labels[columns]])
        self._last = np.concatenate([self._last, boxes])
        self._motion.add(boxes)
        self._stillness.add(boxes, self._time_ns)

    def _confirm(self) -> set[int]:
        confirmed = set()
        for candidate in self._candidates:
            if not candidate.track.id and candidate.hits >= self._settings.confirm_frames:
                candidate.track = candidate.track._replace(id=next(self._ids))
                confirmed.add(candidate.track.id)
        return confirmed

    def _tell_stationary(self, time_ns: int | None = None) -> None:
        """Note at every track whether it stands still. An unseen one stays what it was."""
        still = self._stillness.stationary(self._time_ns if time_ns is None else time_ns)
        changed = [
            row
            for row, (candidate, is_still) in enumerate(zip(self._candidates, still.tolist(), strict=True))
            if is_still != candidate.track.is_stationary and not candidate.missed
        ]
        for row in changed:
            candidate = self._candidates[row]
            candidate.track = candidate.track._replace(is_stationary=not candidate.track.is_stationary)
        if still.any():
            self._motion.stop(np.flatnonzero(still))

    def _in_sight(self) -> tuple[Track, ...]:
        return tuple(sorted(self._shown(), key=lambda track: track.id))

    def _shown(self) -> Iterable[Track]:
        return (one.track for one in self._candidates if one.track.id and not one.missed)


def _larger(boxes: Floats, buffer: float) -> Floats:
    """Boxes [n, 4] with `buffer` of their sides more on each side."""
    if not buffer:
        return boxes
    margin = buffer * (boxes[:, 2:] - boxes[:, :2])
    return np.concatenate([boxes[:, :2] - margin, boxes[:, 2:] + margin], axis=1)


def _usable(detections: DetectionArray) -> _Boxes:
    boxes = detections["box"].astype(np.float64)
    scores = detections["score"].astype(np.float64)
    has_area = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    good = has_area & np.isfinite(boxes).all(axis=1) & np.isfinite(scores)
    return _Boxes(boxes[good], scores[good], detections["label"][good].astype(np.int64))

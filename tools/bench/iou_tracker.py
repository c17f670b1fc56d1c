"""The tracker before ByteTrack, kept to compare with: boxes are matched by overlap with where tracks should be.

Pure: no I/O, no clock of its own, the same input gives the same output. The method is that of SORT (Bewley et al.
2016, https://arxiv.org/abs/1602.00763) with a smoothed velocity in place of the Kalman filter and the greedy
assignment of the IoU tracker (Bochinski et al. 2017) in place of the Hungarian one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from zhcedge.analytics.clock import ChannelClock
from zhcedge.analytics.tracker import Track, TrackerSettings, TrackUpdate
from zhcedge.core.events import Box
from zhcedge.core.types import DetectionArray, FrameInfo

VELOCITY_WEIGHT = 0.3
"""Weight of the newest displacement in the smoothed velocity."""


class _Candidate:
    """What the tracker remembers of one object; `id` is 0 until it is confirmed."""

    __slots__ = ("box", "first", "hits", "id", "label", "last", "missed", "score", "seen_ns", "top_score", "velocity")

    def __init__(self, label: int, box: Box, score: float, info: FrameInfo, time_ns: int) -> None:
        self.id = 0
        self.label = label
        self.box = box
        self.score = self.top_score = score
        self.first = self.last = info
        self.seen_ns = time_ns
        self.hits = 1
        self.missed = 0
        self.velocity = (0.0, 0.0)  # of the centre, pixels per frame of the source

    def see(self, box: Box, score: float, info: FrameInfo, time_ns: int) -> None:
        steps = max(info.sequence - self.last.sequence, 1)
        old = self.box
        shift_x = (box[0] + box[2] - old[0] - old[2]) / (2 * steps)
        shift_y = (box[1] + box[3] - old[1] - old[3]) / (2 * steps)
        # The first displacement is all there is to know; later ones are averaged with the past.
        weight = 1.0 if self.hits == 1 else VELOCITY_WEIGHT
        self.velocity = (
            self.velocity[0] + weight * (shift_x - self.velocity[0]),
            self.velocity[1] + weight * (shift_y - self.velocity[1]),
        )
        self.box = box
        self.score = score
        self.top_score = max(self.top_score, score)
        self.last = info
        self.seen_ns = time_ns
        self.hits += 1
        self.missed = 0

    def predict(self, sequence: int) -> Box:
        """The last box, moved on with constant velocity to the frame `sequence`."""
        steps = max(sequence - self.last.sequence, 1)
        dx, dy = self.velocity[0] * steps, self.velocity[1] * steps
        x1, y1, x2, y2 = self.box
        return x1 + dx, y1 + dy, x2 + dx, y2 + dy

    def snapshot(self) -> Track:
        return Track(self.id, self.label, self.box, self.score, self.top_score, self.first, self.last)


class IouTracker:
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
        self._candidates: list[_Candidate] = []

    def update(self, detections: DetectionArray, info: FrameInfo) -> TrackUpdate:
        """Take the detections of the next frame, shape [count]; frames come in the order of their sequence.

        Boxes that are not finite or have no area are ignored. A track that was not confirmed yet is forgotten at the
        first frame without it.
        """
        time_ns = self._clock.advance(info)
        boxes, scores, labels = _usable(detections)
        pairs = self._match(boxes, labels, info.sequence)
        rows: list[Box] = [(x1, y1, x2, y2) for x1, y1, x2, y2 in boxes.tolist()]
        seen: list[_Candidate] = []
        for candidate, row in pairs.items():
            candidate.see(rows[row], scores[row], info, time_ns)
            seen.append(candidate)
        matched = set(pairs.values())
        born = [
            _Candidate(labels[row], rows[row], scores[row], info, time_ns)
            for row in range(len(rows))
            if row not in matched
        ]
        lost = self._give_up(pairs, time_ns)
        self._candidates += born
        confirmed = self._confirm(seen + born)
        visible = sorted((one for one in seen + born if one.id), key=lambda one: one.id)
        return TrackUpdate(
            time_ns,
            tuple(one.snapshot() for one in visible),
            tuple(one.snapshot() for one in visible if one in confirmed),
            tuple(one.snapshot() for one in lost),
        )

    def coast(self, info: FrameInfo) -> None:
        """A frame that was not detected in, because nothing moved: what was seen last is still there.

        Tracks that the last frame showed count as seen; they don't grow older, are not confirmed and don't change.
        """
        time_ns = self._clock.advance(info)
        for candidate in self._candidates:
            if not candidate.missed:
                candidate.seen_ns = time_ns

    def _match(self, boxes: npt.NDArray[np.float64], labels: list[int], sequence: int) -> dict[_Candidate, int]:
        """Pairs of candidate and row, the best overlap first; equal overlaps go to the older one, then lower row."""
        if not self._candidates or not len(boxes):
            return {}
        predicted = np.array([one.predict(sequence) for one in self._candidates])
        last = np.array([one.box for one in self._candidates])
        # An unseen object has gone on or has stopped: either place will do.
        overlap = np.maximum(_iou(predicted, boxes), _iou(last, boxes))
        same = np.array([one.label for one in self._candidates])[:, None] == np.array(labels)[None, :]
        overlap[~same] = 0.0
        rows, columns = np.nonzero(overlap >= self._settings.match_iou)
        order = np.argsort(-overlap[rows, columns], kind="stable")
        pairs: dict[_Candidate, int] = {}
        taken: set[int] = set()
        for row, column in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
            candidate = self._candidates[row]
            if candidate not in pairs and column not in taken:
                pairs[candidate] = column
                taken.add(column)
        return pairs

    def _give_up(self, pairs: dict[_Candidate, int], time_ns: int) -> list[_Candidate]:
        """Count a miss for all that are not in `pairs`; forget who has none left. Returns the confirmed ones."""
        kept: list[_Candidate] = []
        lost: list[_Candidate] = []
        for candidate in self._candidates:
            if candidate in pairs:
                kept.append(candidate)
                continue
            candidate.missed += 1
            is_late = time_ns - candidate.seen_ns > self._settings.max_lost_ms * 1_000_000
            if candidate.id and not is_late and candidate.missed <= self._settings.max_lost_frames:
                kept.append(candidate)
            elif candidate.id:
                lost.append(candidate)
        self._candidates = kept
        return lost

    def _confirm(self, candidates: list[_Candidate]) -> set[_Candidate]:
        confirmed = set()
        for candidate in candidates:
            if not candidate.id and candidate.hits >= self._settings.confirm_frames:
                candidate.id = next(self._ids)
                confirmed.add(candidate)
        return confirmed


def _usable(detections: DetectionArray) -> tuple[npt.NDArray[np.float64], list[float], list[int]]:
    """Boxes [n, 4] in float64 (exact for float32 values), scores and labels of the detections that can be matched."""
    boxes = detections["box"].astype(np.float64)
    has_area = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    good = has_area & np.isfinite(boxes).all(axis=1) & np.isfinite(detections["score"])
    return boxes[good], detections["score"][good].tolist(), detections["label"][good].tolist()


def _iou(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Intersection over union of every box of a [n, 4] with every box of b [m, 4]: shape [n, m]."""
    size = np.minimum(a[:, None, 2:], b[None, :, 2:]) - np.maximum(a[:, None, :2], b[None, :, :2])
    shared = np.maximum(size, 0.0).prod(axis=2)
    area_a = (a[:, 2] - a[:, 0]) * (a[:, 3] - a[:, 1])
    area_b = (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
    result: npt.NDArray[np.float64] = shared / (area_a[:, None] + area_b[None, :] - shared)
    return result

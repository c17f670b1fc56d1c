"""Scenes for trackers, made from the exact tracks of zhcedge/media/pattern.py, and what a detector makes of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zhcedge.analytics.tracker import Tracker, TrackerSettings, TrackUpdate
from zhcedge.core.types import DETECTION_DTYPE, DetectionArray, FrameInfo
from zhcedge.media.pattern import Pattern, PatternSpec

Boxes = npt.NDArray[np.float64]
Scene = Callable[[int], dict[int, Boxes]]
"""Frame number -> box [4] by object; an object that can't be seen is not in it."""

SIZE_PX = (1280, 720)
FPS = 30.0


def pattern(channel: int, objects: int = 5, seed: int = 1) -> Scene:
    """The pattern's objects as they are: each bounces about in a cell of its own."""
    shown = Pattern(PatternSpec(objects=objects, seed=seed), channel)

    def scene(frame: int) -> dict[int, Boxes]:
        truth = shown.truth(frame)
        return dict(zip(truth.ids.tolist(), truth.boxes.astype(float), strict=True))

    return scene


def together(*scenes: Scene) -> Scene:
    """Scenes on top of each other: objects of different scenes cross each other's way."""

    def scene(frame: int) -> dict[int, Boxes]:
        return {100 * part + key: box for part, one in enumerate(scenes) for key, box in one(frame).items()}

    return scene


def behind(scene: Scene, post: tuple[float, float, float, float], hidden: float = 0.4) -> Scene:
    """An obstacle x1, y1, x2, y2 in front: what it covers of an object by more than `hidden` is not detected."""

    def shown(frame: int) -> dict[int, Boxes]:
        return {key: box for key, box in scene(frame).items() if covered(box, np.array(post)) <= hidden}

    return shown


def overlapping(scene: Scene, hidden: float = 0.6) -> Scene:
    """Objects hide each other: of two, the one with the lower lower edge is in front."""

    def shown(frame: int) -> dict[int, Boxes]:
        boxes = scene(frame)
        return {
            key: box
            for key, box in boxes.items()
            if all(covered(box, other) <= hidden for name, other in boxes.items() if name != key and other[3] > box[3])
        }

    return shown


def stopping(scene: Scene, first: int, last: int) -> Scene:
    """Everything stands still from one frame to another."""
    return lambda frame: scene(frame if frame < first else max(first, frame - (last - first)))


def window(scene: Scene, area: tuple[float, float, float, float]) -> Scene:
    """What a camera sees of the scene: objects come in and leave, and are cut off at its border."""
    low, high = np.array(area[:2] * 2), np.array(area[2:] * 2)

    def shown(frame: int) -> dict[int, Boxes]:
        cut = {key: np.clip(box, low, high) for key, box in scene(frame).items()}
        return {key: box for key, box in cut.items() if min(box[2] - box[0], box[3] - box[1]) >= 8}

    return shown


def covered(box: Boxes, by: Boxes) -> float:
    """Share of a box that another one covers."""
    size = np.minimum(box[2:], by[2:]) - np.maximum(box[:2], by[:2])
    return float(np.maximum(size, 0).prod() / (box[2:] - box[:2]).prod())


@dataclass(frozen=True)
class Detector:
    """Sees what is there, but not always and not exactly.

    Attributes:
        dropout: share of the boxes that are not found.
        jitter: deviation of each edge, as a share of the object's side.
        scores: lowest and highest score.
    """

    dropout: float = 0.0
    jitter: float = 0.0
    scores: tuple[float, float] = (0.9, 0.9)

    def find(self, boxes: dict[int, Boxes], chance: np.random.Generator) -> tuple[DetectionArray, list[int]]:
        """Detections, and the object of each."""
        keys = [key for key in boxes if chance.random() >= self.dropout]
        found = np.zeros(len(keys), DETECTION_DTYPE)
        for row, key in zip(found, keys, strict=True):
            box = boxes[key]
            side = np.tile(box[2:] - box[:2], 2)
            row["box"] = box + chance.normal(0, 1, 4) * self.jitter * side
            row["score"] = chance.uniform(*self.scores)
        return found, keys


@dataclass
class Outcome:
    """What a tracker made of a scene.

    Attributes:
        updates: of every frame that was detected in.
        ids: ids of each object in the order of time, repetitions left out; 0 for a time without one.
        objects: that were seen at least once.
    """

    updates: list[TrackUpdate]
    ids: dict[int, list[int]]

    @property
    def switches(self) -> int:
        """How often an object got another id."""
        return sum(len({i for i in ids if i}) - 1 for ids in self.ids.values() if any(ids))

    @property
    def shared(self) -> int:
        """How many ids were given to more than one object."""
        owners = defaultdict(set)
        for key, ids in self.ids.items():
            for track_id in ids:
                owners[track_id].add(key)
        return sum(len(keys) > 1 for track_id, keys in owners.items() if track_id)

    @property
    def confirmed(self) -> int:
        return sum(len(update.confirmed) for update in self.updates)


def watch(
    scene: Scene,
    frames: Sequence[int],
    detector: Detector | None = None,
    settings: TrackerSettings | None = None,
    seed: int = 1,
) -> Outcome:
    """Track a scene through the frames that are detected in."""
    chance, eyes, tracker = np.random.default_rng(seed), detector or Detector(), Tracker(settings)
    ids = defaultdict[int, list[int]](list)
    updates = []
    for frame in frames:
        found, keys = eyes.find(scene(frame), chance)
        update = tracker.update(found, info_of(frame))
        updates.append(update)
        owner = {tuple(row["box"].tolist()): key for row, key in zip(found, keys, strict=True)}
        named = {owner[track.box]: track.id for track in update.seen}
        for key in keys:
            if ids[key][-1:] != [named.get(key, 0)]:
                ids[key].append(named.get(key, 0))
    return Outcome(updates, dict(ids))


def info_of(frame: int, fps: float = FPS) -> FrameInfo:
    return FrameInfo(0, frame, 10**18 + round(frame / fps * 1e9), 0, frame / fps)


def crossing(seed: int, middle: int, half: int, shift: float) -> Scene | None:
    """The pattern's objects, and the same objects backwards: each meets itself in frame `middle`.

    Args:
        seed: of the pattern.
        half: frames before and after; objects that turn round meanwhile, or don't get past themselves, are left out.
        shift: how much lower the other one goes, as a share of its height.

    Returns None when no object is left.
    """
    shown = Pattern(PatternSpec(objects=6, seed=seed), 0)
    there = pattern(0, 6, seed)
    kept = [
        key
        for key, track in enumerate(shown.tracks)
        if track.speed_px[0] * 2 * half > 1.2 * track.size_px[0]
        and all(
            not free or (phase + (middle + half) * speed) // free == (phase + (middle - half) * speed) // free
            for phase, speed, free in zip(track.phase_px, track.speed_px, track.free_px, strict=True)
        )
    ]

    def forwards(frame: int) -> dict[int, Boxes]:
        return {key: box for key, box in there(frame).items() if key in kept}

    def backwards(frame: int) -> dict[int, Boxes]:
        lower = np.array([0, shift, 0, shift])
        return {key: box + lower * (box[3] - box[1]) for key, box in forwards(2 * middle - frame).items()}

    return together(forwards, backwards) if kept else None

"""The tracker on scenes whose truth is known: no object changes its id, and none is counted twice."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from tests.unit.support_scenes import (
    Detector,
    Scene,
    behind,
    crossing,
    overlapping,
    pattern,
    stopping,
    watch,
    window,
)
from zhcedge.analytics.motion import Motion
from zhcedge.analytics.tracker import TrackerSettings

PERFECT = Detector()
USUAL = Detector(dropout=0.1, jitter=0.02, scores=(0.46, 0.9))
SETTINGS = TrackerSettings(new_score=0.55)
OBJECTS = 5
HALF = 40  # frames before and after a crossing


def plain(seed: int) -> Scene:
    return pattern(0, OBJECTS, seed)


def post(seed: int) -> Scene:
    return behind(plain(seed), (600, 0, 640, 720))


def stops(seed: int) -> Scene:
    return stopping(plain(seed), 60, 260)


@pytest.mark.parametrize("detector", [PERFECT, USUAL], ids=["perfect", "usual"])
@pytest.mark.parametrize("scene", [plain, post, stops])
@pytest.mark.parametrize("seed", range(1, 6))
def test_every_object_has_one_id_and_every_id_one_object(
    scene: Callable[[int], Scene], seed: int, detector: Detector
) -> None:
    outcome = watch(scene(seed), range(400), detector, SETTINGS, seed)
    assert (outcome.switches, outcome.shared, outcome.confirmed) == (0, 0, OBJECTS)


@pytest.mark.parametrize("detector", [PERFECT, USUAL], ids=["perfect", "usual"])
@pytest.mark.parametrize("interval", [1, 2, 3])
@pytest.mark.parametrize("shift", [0.1, 0.25, 0.4])
def test_objects_that_cross_and_hide_each_other_keep_their_ids(shift: float, interval: int, detector: Detector) -> None:
    met = 0
    for seed, middle in itertools.product(range(1, 7), (75, 200)):
        scene = crossing(seed, middle, HALF, shift)
        if scene is None:
            continue
        objects = scene(middle - HALF)
        frames = range(middle - HALF, middle + HALF + 1, interval)
        outcome = watch(overlapping(scene), frames, detector, SETTINGS, seed)
        assert (outcome.switches, outcome.shared, outcome.confirmed) == (0, 0, len(objects)), (seed, middle)
        met += len(objects) // 2
    assert met >= 5


def test_frames_may_come_at_any_time() -> None:
    # What is left of a camera under load: between one and four frames' time from one to the next.
    chance = np.random.default_rng(3)
    scene = crossing(1, 75, HALF, 0.25)
    assert scene is not None
    frames = [frame for frame in np.cumsum(chance.integers(1, 5, 60)).tolist() if frame < 75 + HALF]
    outcome = watch(overlapping(scene), [75 - HALF + frame for frame in frames if frame < 2 * HALF], USUAL, SETTINGS)
    assert (outcome.switches, outcome.shared) == (0, 0)


@pytest.mark.parametrize("seed", range(1, 6))
def test_an_object_that_leaves_for_longer_than_the_limit_comes_back_as_another(seed: int) -> None:
    scene = window(plain(seed), (300, 0, 900, 720))
    settings = TrackerSettings(max_lost_frames=10_000, max_lost_ms=1000)  # 30 frames
    frames = range(600)
    outcome = watch(scene, frames, PERFECT, settings)
    visits = [stays for key in range(OBJECTS) for stays in stays_of(scene, frames, key)]
    # Where it is out for about a second, or in for about three frames, the last pixel decides.
    assert not any(abs(out - 30) < 3 for _, out in visits)
    assert outcome.shared == 0
    assert outcome.confirmed == sum(out > 30 for stay, out in visits if stay >= 3)


def stays_of(scene: Scene, frames: range, key: int) -> list[tuple[int, int]]:
    """Of every stay in the picture: how long it is, and how long the object was out before; a lot at first."""
    stays: list[tuple[int, int]] = []
    out = 10**6
    stay = 0
    for is_in in [*(key in scene(frame) for frame in frames), False]:
        if is_in:
            stay += 1
            continue
        if stay:
            stays.append((stay, out))
            stay = out = 0
        out += 1
    return stays


def test_a_scene_shows_a_tracker_that_does_not_predict(monkeypatch: pytest.MonkeyPatch) -> None:
    def stand_still(self: Motion, seconds: float) -> None:
        pass

    monkeypatch.setattr(Motion, "predict", stand_still)
    scene = crossing(1, 75, HALF, 0.1)
    assert scene is not None
    outcome = watch(overlapping(scene), range(75 - HALF, 75 + HALF + 1, 3), PERFECT, SETTINGS)
    assert outcome.switches + outcome.shared > 0

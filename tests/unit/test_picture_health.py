"""A camera that is covered, turned, blurred, dark or frozen is found out, and one that is well is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import av
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.analytics.picture_health import Fault, HealthNews, HealthSettings, PictureHealth
from zhcedge.app.channels import clip_path
from zhcedge.backends.cpu.picture import LumaPicture
from zhcedge.core.picture import COLUMNS, POINTS, ROWS, PictureFigures
from zhcedge.core.ports import FrameSlot
from zhcedge.core.types import RESULT_DTYPE, FrameInfo, ImageFormat, MemoryDomain, PixelFormat, Plane, Surface

Luma = npt.NDArray[np.uint8]
Change = Callable[[Luma], Luma]

SECOND_NS = 1_000_000_000


def figures_of(luma: Luma, second: float) -> PictureFigures:
    """By the real cpu stage."""
    height_px, width_px = luma.shape
    image = ImageFormat(width_px, height_px, PixelFormat.NV12)
    chroma = np.zeros((height_px // 2, width_px), np.uint8)
    planes = (Plane(luma, width_px, height_px, width_px), Plane(chroma, width_px, height_px // 2, width_px))
    surface = Surface(planes, image, MemoryDomain.HOST)
    meter = LumaPicture(image)
    meter.measure(FrameSlot(0, 0, surface, np.zeros(1, RESULT_DTYPE)))
    found = meter.figures()
    assert found is not None
    info = FrameInfo(0, int(second * 10), int(second * SECOND_NS), int(second * SECOND_NS))
    return PictureFigures(info, *found)


@pytest.fixture(scope="module")
def scene() -> list[Luma]:
    """A frame a second of the bundled clip."""
    with av.open(str(clip_path("walkers"))) as clip:
        frames = [frame.to_ndarray(format="gray") for frame in clip.decode(video=0)]
    return frames[::10]


def play(scene: list[Luma], *parts: tuple[int, Change], settings: HealthSettings | None = None) -> list[HealthNews]:
    """Seconds of the scene, each part changed in its way; what is told."""
    health, found, second = PictureHealth(settings or HealthSettings()), [], 0
    for seconds, change in parts:
        for _ in range(seconds):
            # Forwards and backwards, so that nothing jumps.
            place = second % (2 * len(scene) - 2)
            luma = scene[place if place < len(scene) else 2 * len(scene) - 2 - place]
            found += health.step(figures_of(np.ascontiguousarray(change(luma)), float(second)))
            second += 1
    return found


def as_it_is(luma: Luma) -> Luma:
    return luma


def covered(luma: Luma) -> Luma:
    noise = np.random.default_rng(int(luma[0, 0]) + int(luma[-1, -1]) + int(luma.sum() % 9973))
    return (80 + noise.integers(0, 3, luma.shape)).astype(np.uint8)


def blurred(luma: Luma) -> Luma:
    smooth = luma.astype(np.float32)
    for _ in range(3):
        for axis in (0, 1):
            total = np.cumsum(np.pad(smooth, [(8, 7) if a == axis else (0, 0) for a in (0, 1)], "edge"), axis)
            ends = np.take(total, range(15, total.shape[axis]), axis)
            starts = np.concatenate([np.zeros_like(np.take(total, [0], axis)), total], axis)
            smooth = (ends - np.take(starts, range(ends.shape[axis]), axis)) / 16
    return smooth.astype(np.uint8)


def moved(luma: Luma) -> Luma:
    return luma[::-1, ::-1]


def dark(luma: Luma) -> Luma:
    return luma // 24


def standing(scene: list[Luma]) -> Change:
    return lambda luma: scene[3]


def test_a_camera_that_is_well_is_never_told_of(scene: list[Luma]) -> None:
    assert play(scene, (120, as_it_is)) == []


@pytest.mark.parametrize(
    ("fault", "change"),
    [(Fault.COVERED, covered), (Fault.BLURRED, blurred), (Fault.MOVED, moved), (Fault.DARK, dark)],
)
def test_a_fault_is_told_once_and_is_over_when_it_is_gone(scene: list[Luma], fault: Fault, change: Change) -> None:
    found = play(scene, (20, as_it_is), (20, change), (20, as_it_is))
    assert [(news.fault, news.is_over) for news in found] == [(fault, False), (fault, True)]
    assert [news.first.read_time_ns // SECOND_NS for news in found] == [20, 40]


def test_a_cover_that_stands_still_is_a_cover(scene: list[Luma]) -> None:
    """Whatever the encoder makes of it: the same picture again and again, or by turns."""
    grey = [np.full_like(scene[0], level) for level in (90, 91)]
    for levels in ([0] * 20, [0, 0, 1, 1, 1, 0] * 4):
        turn = iter(levels)
        found = play(scene, (20, as_it_is), (20, lambda luma, turn=turn: grey[next(turn)]), (20, as_it_is))  # type: ignore[misc]
        assert [(news.fault, news.is_over) for news in found] == [(Fault.COVERED, False), (Fault.COVERED, True)]


def test_faults_that_look_like_each_other_by_turns_are_told_as_one(scene: list[Luma]) -> None:
    turn = iter(range(100))
    found = play(
        scene, (20, as_it_is), (20, lambda luma: (blurred if next(turn) % 3 else covered)(luma)), (20, as_it_is)
    )
    assert [news.is_over for news in found] == [False, True]
    assert found[0].first.read_time_ns == 20 * SECOND_NS


def test_a_standing_picture_is_frozen(scene: list[Luma]) -> None:
    found = play(scene, (20, as_it_is), (20, standing(scene)), (20, as_it_is))
    assert [(news.fault, news.is_over) for news in found] == [(Fault.FROZEN, False), (Fault.FROZEN, True)]


def test_another_view_becomes_the_usual_one_in_time(scene: list[Luma]) -> None:
    settings = HealthSettings(relearn_s=30.0)
    found = play(scene, (20, as_it_is), (80, moved), (30, as_it_is), settings=settings)
    assert [(news.fault, news.is_over) for news in found[:3]] == [
        (Fault.MOVED, False),
        (Fault.MOVED, True),
        (Fault.MOVED, False),
    ]


def test_a_moment_is_no_fault(scene: list[Luma]) -> None:
    assert play(scene, (20, as_it_is), (3, covered), (20, as_it_is), (3, dark), (20, as_it_is)) == []


def test_dusk_is_no_fault(scene: list[Luma]) -> None:
    def dimmed(share: float) -> Change:
        return lambda luma: (luma * share).astype(np.uint8)

    steps = [(4, dimmed(1 - 0.01 * step)) for step in range(70)]
    assert play(scene, (20, as_it_is), *steps) == []


@given(
    st.integers(2 * COLUMNS * POINTS, 700).map(lambda n: n // 2 * 2),
    st.integers(2 * ROWS * POINTS, 500).map(lambda n: n // 2 * 2),
    st.integers(0, 2**32 - 1),
)
def test_brightness_is_the_mean_whatever_the_size(width_px: int, height_px: int, seed: int) -> None:
    level = int(np.random.default_rng(seed).integers(0, 256))
    figures = figures_of(np.full((height_px, width_px), level, np.uint8), 0.0)
    assert (figures.luma == level * POINTS * POINTS).all()
    assert not figures.detail.any()


def looks(seeds: list[int]) -> Iterator[PictureFigures]:
    for second, seed in enumerate(seeds):
        chance = np.random.default_rng(seed)
        sums = chance.integers(0, 36720, (ROWS, COLUMNS)), chance.integers(0, 73440, (ROWS, COLUMNS))
        info = FrameInfo(0, second, second * SECOND_NS, second * SECOND_NS)
        yield PictureFigures(info, *(one.astype(np.int32) for one in sums))


@given(st.lists(st.integers(0, 5), max_size=120), st.floats(0, 8))
def test_whatever_is_seen_every_beginning_has_one_end(seeds: list[int], hold_s: float) -> None:
    health = PictureHealth(HealthSettings(hold_s=hold_s))
    found = [news for figures in looks(seeds) for news in health.step(figures)]
    last = health.close()
    found += [] if last is None else [last]
    assert [news.is_over for news in found] == [bool(index % 2) for index in range(len(found))]
    assert all(begin.fault is end.fault for begin, end in zip(found[::2], found[1::2], strict=True))
    assert health.close() is None

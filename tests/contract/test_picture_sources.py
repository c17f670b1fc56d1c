"""What sources of made pictures (images, patterns) do, beside what files do in test_source.py."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.contract.clips import Bytes, luma
from tests.contract.test_source import ManualClock
from tests.leftovers import nothing_left
from zhcedge.backends.cpu.arena import CpuArena
from zhcedge.backends.cpu.ingest import ingest
from zhcedge.backends.cpu.picture_source import PictureSource
from zhcedge.backends.registry import source_factory
from zhcedge.core.errors import MediaError, PhaseError, SourceMissingError, ZhcEdgeError
from zhcedge.core.lending import SurfaceLease
from zhcedge.core.ports import EndOfStream, Idle
from zhcedge.core.requests import SourceOptions, SourceRequest
from zhcedge.core.types import ImageFormat, MemoryDomain, PixelFormat

COUNT = 6


def folder_of_images(tmp_path: Path) -> str:
    for index in range(COUNT):
        grey = np.full((90, 120, 3), 20 + 30 * index, np.uint8)
        Image.fromarray(grey).save(tmp_path / f"picture{index + 7}.png")
    return str(tmp_path)


def pattern(tmp_path: Path) -> str:
    return f"pattern:boxes?size=120x90&objects=2&fps=25&frames={COUNT}"


@dataclass(frozen=True)
class Case:
    name: str
    make_input: Callable[[Path], str]


CASES = [Case("image", folder_of_images), Case("pattern", pattern)]


@pytest.fixture(params=CASES, ids=lambda case: str(case.name))
def case(request: pytest.FixtureRequest) -> Case:
    chosen: Case = request.param
    return chosen


def make(case: Case, uri: str, *, realtime: bool = False, loop: bool = False, **options: float) -> PictureSource:
    request = SourceRequest(3, "gate", uri, realtime, loop, ManualClock(), SourceOptions(**options))  # type: ignore[arg-type]
    source = source_factory(case.name)(request, None)  # type: ignore[arg-type]
    assert isinstance(source, PictureSource)
    return source


def next_frame(source: PictureSource) -> SurfaceLease[Bytes]:
    lease = source.read(0.0)
    assert not isinstance(lease, Idle | EndOfStream)
    return lease


def play(source: PictureSource, limit: int = 100) -> list[tuple[int, float, bytes]]:
    """(sequence, media time, luma) of every frame to the end."""
    seen = []
    while len(seen) < limit and not isinstance(lease := source.read(0.0), EndOfStream):
        assert not isinstance(lease, Idle)
        seen.append((lease.info.sequence, lease.info.media_time_s, luma(lease.surface).tobytes()))
        lease.release()
    return seen


def test_frames_come_in_order_numbered_timed_and_different(case: Case, tmp_path: Path) -> None:
    source = make(case, case.make_input(tmp_path))
    facts = source.open()
    seen = play(source)
    assert [sequence for sequence, _, _ in seen] == list(range(COUNT))
    assert [media_time for _, media_time, _ in seen] == pytest.approx([index / 25 for index in range(COUNT)])
    assert len({picture for _, _, picture in seen}) == COUNT
    assert isinstance(source.read(0.0), EndOfStream)
    assert (facts.domain, facts.fps, facts.is_live, facts.has_packets) == (MemoryDomain.HOST, 25.0, False, False)
    assert (source.warnings, source.status.is_up) == ((), True)
    source.close()


def test_what_is_lent_is_what_the_facts_say_and_fits_a_slot(case: Case, tmp_path: Path) -> None:
    source = make(case, case.make_input(tmp_path))
    facts = source.open()
    lease = next_frame(source)
    assert lease.surface.format == facts.format
    slot = CpuArena().surface(replace(facts.format, pixel_format=PixelFormat.NV12), "slot")
    ingest(lease.surface, slot)
    assert np.array_equal(luma(slot), luma(lease.surface))
    source.close()


def test_one_frame_is_lent_at_a_time_and_released_for_good(case: Case, tmp_path: Path) -> None:
    source = make(case, case.make_input(tmp_path))
    source.open()
    lease = next_frame(source)
    with pytest.raises(PhaseError):
        source.read(0.0)
    lease.release()
    lease.release()
    with pytest.raises(PhaseError):
        _ = lease.surface
    next_frame(source).release()
    source.close()


def test_a_picture_is_not_painted_over_while_somebody_reads_it(case: Case, tmp_path: Path) -> None:
    class Reader:
        """Work that ends when it is waited for; looks at the picture then."""

        def __init__(self, look: Callable[[], bytes]) -> None:
            self.look, self.seen = look, b""

        def is_done(self) -> bool:
            return bool(self.seen)

        def wait(self, timeout_s: float) -> bool:
            self.seen = self.look()
            return True

    source = make(case, case.make_input(tmp_path))
    source.open()
    lease = next_frame(source)
    picture = luma(lease.surface)
    before = picture.tobytes()
    reader = Reader(picture.tobytes)
    lease.release(after=reader)
    next_frame(source)
    assert reader.seen == before
    source.close()


@pytest.mark.parametrize("frames_before", [0, 2, COUNT])
def test_rewind_gives_the_very_same_frames_again(case: Case, tmp_path: Path, frames_before: int) -> None:
    source = make(case, case.make_input(tmp_path))
    source.open()
    first = play(source)
    source.rewind()
    for _ in range(frames_before):
        next_frame(source).release()
    source.rewind()
    assert play(source) == first
    source.close()


def test_a_loop_goes_on_with_growing_numbers_and_times(case: Case, tmp_path: Path) -> None:
    source = make(case, case.make_input(tmp_path), loop=True)
    source.open()
    seen = play(source, 2 * COUNT + 3)
    assert [sequence for sequence, _, _ in seen] == list(range(2 * COUNT + 3))
    assert [media_time for _, media_time, _ in seen] == pytest.approx([index / 25 for index in range(2 * COUNT + 3)])
    assert [picture for _, _, picture in seen[COUNT : 2 * COUNT]] == [picture for _, _, picture in seen[:COUNT]]
    source.close()


def test_realtime_frames_are_not_given_out_before_they_are_due(case: Case, tmp_path: Path) -> None:
    clock = ManualClock()
    request = SourceRequest(0, "gate", case.make_input(tmp_path), True, False, clock)
    source = source_factory(case.name)(request, None)  # type: ignore[arg-type]
    assert source.open().is_live
    for index in range(COUNT):
        if index:
            assert isinstance(source.read(0.0), Idle)
            clock.now_ns += 40_000_000
        lease = source.read(0.0)
        assert not isinstance(lease, Idle | EndOfStream)
        assert lease.info.sequence == index
        lease.release()
    source.close()


def test_a_start_offset_skips_pictures(case: Case, tmp_path: Path) -> None:
    uri = case.make_input(tmp_path)
    whole, late = make(case, uri), make(case, uri, start_s=0.08)
    whole.open()
    late.open()
    pictures = [picture for _, _, picture in play(whole)]
    assert [(sequence, picture) for sequence, _, picture in play(late)] == list(enumerate(pictures[2:]))
    with pytest.raises(MediaError, match="over before the start"):
        make(case, uri, start_s=5.0).open()


def test_a_pattern_asked_for_fewer_frames_a_second_leaves_some_out_evenly() -> None:
    uri = "pattern:boxes?size=120x90&objects=2&fps=30&frames=30"
    whole, thinned = make(CASES[1], uri), make(CASES[1], uri, fps=10.0)
    whole.open()
    assert thinned.open().fps == 10.0
    pictures = [picture for _, _, picture in play(whole)]
    assert [(time, picture) for _, time, picture in play(thinned)] == [
        (index / 10, pictures[3 * index]) for index in range(10)
    ]


def test_reading_allocates_nothing_of_a_frame(case: Case, tmp_path: Path) -> None:
    source = make(case, case.make_input(tmp_path), loop=True)
    source.open()
    for _ in range(8):
        next_frame(source).release()
    tracemalloc.start()
    try:
        for _ in range(12):
            next_frame(source).release()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 128 * 1024
    source.close()


def test_a_closed_source_gives_its_descriptors_back_and_no_more_frames(case: Case, tmp_path: Path) -> None:
    uri = case.make_input(tmp_path)
    with nothing_left():
        source = make(case, uri)
        source.open()
        next_frame(source).release()
        source.close()
        source.close()
    assert isinstance(source.read(0.0), EndOfStream)


@pytest.mark.parametrize(
    ("name", "uri", "error"),
    [
        ("image", "no/such/picture.png", SourceMissingError),
        ("image", "picture\0.png", SourceMissingError),
        ("image", "x" * 5000 + ".png", SourceMissingError),
        ("image", "/dev/null", MediaError),
        ("pattern", "pattern:nothing", SourceMissingError),
        ("pattern", "pattern:boxes?wheels=4", MediaError),
        ("pattern", "pattern:boxes?size=9x9", MediaError),
        ("pattern", "pattern:boxes?size=huge", MediaError),
        ("pattern", "pattern:boxes?size=9000x9000", MediaError),
        ("pattern", "pattern:boxes?size=8192x64", MediaError),
        ("pattern", "pattern:boxes?fps=nan", MediaError),
        ("pattern", "pattern:boxes?fps=0", MediaError),
        ("pattern", "pattern:boxes?objects=-1", MediaError),
        ("pattern", "pattern:boxes?objects=200&size=160x120", MediaError),
        ("pattern", "pattern:boxes?frames=" + "9" * 5000, MediaError),
    ],
)
def test_what_can_not_be_is_refused_in_one_clear_line(name: str, uri: str, error: type[ZhcEdgeError]) -> None:
    with pytest.raises(error) as caught:
        make(Case(name, pattern), uri).open()
    assert caught.value.fix
    assert "gate" in caught.value.where
    assert "\n" not in str(caught.value)


def test_a_source_that_failed_to_open_may_be_tried_again(tmp_path: Path) -> None:
    source = make(CASES[0], str(tmp_path / "later.png"))
    with pytest.raises(SourceMissingError):
        source.open()
    Image.new("RGB", (30, 20)).save(tmp_path / "later.png")
    assert source.open().format == ImageFormat(30, 20, is_full_range=True)
    assert len(play(source)) == 1

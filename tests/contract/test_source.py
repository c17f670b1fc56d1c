"""What every file source does. A new source joins SOURCES; where its planes are not in host memory, with a copier."""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import av
import numpy as np
import pytest

from tests.contract.clips import (
    Bytes,
    brightness,
    chroma,
    held_packets,
    luma,
    make_clip,
    make_sound,
    mark_as_rotated,
)
from tests.leftovers import nothing_left, open_files
from tests.system.rtsp import Camera, bundled_stream, need_server
from zhcedge.backends.cpu.source import PyAvSource
from zhcedge.core.errors import MediaError, PhaseError, SourceMissingError, ZhcEdgeError
from zhcedge.core.lending import SurfaceLease
from zhcedge.core.ports import EndOfStream, Idle, SourceFacts, SourceStatus
from zhcedge.core.requests import SourceOptions, SourceRequest
from zhcedge.core.types import ColorMatrix, MemoryDomain, Payload, PixelFormat
from zhcedge.media.packets import PacketRing

WALKERS = Path(__file__).resolve().parents[2] / "zhcedge" / "data" / "walkers.mp4"
FREE_RUN_S = 5.0

SOURCES = [PyAvSource]


class ManualClock:
    """Time that the test moves."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_ns(self) -> int:
        return 1_700_000_000_000_000_000 + self.now_ns

    def is_synced(self) -> bool:
        return True


@pytest.fixture(params=SOURCES, ids=lambda source: str(source.__name__))
def kind(request: pytest.FixtureRequest) -> type[PyAvSource]:
    chosen: type[PyAvSource] = request.param
    return chosen


def make(
    kind: type[PyAvSource],
    uri: Path | str,
    *,
    realtime: bool = False,
    loop: bool = False,
    clock: ManualClock | None = None,
    options: SourceOptions | None = None,
    packets: PacketRing | None = None,
) -> PyAvSource:
    options = options or SourceOptions()
    request = SourceRequest(3, "gate", str(uri), realtime, loop, clock or ManualClock(), options, packets=packets)
    return kind(request, None)


@contextmanager
def opened(
    kind: type[PyAvSource], uri: Path | str, loop: bool = False, packets: PacketRing | None = None
) -> Iterator[tuple[PyAvSource, SourceFacts]]:
    source = make(kind, uri, loop=loop, packets=packets)
    try:
        yield source, source.open()
    finally:
        source.close()


def next_frame(source: PyAvSource) -> SurfaceLease[Bytes]:
    lease = source.read(FREE_RUN_S)
    assert not isinstance(lease, Idle | EndOfStream)
    return lease


def play(source: PyAvSource) -> list[tuple[int, float, int]]:
    """(sequence, media time, brightness of the top left pixel) of every frame to the end."""
    seen = []
    while not isinstance(lease := source.read(FREE_RUN_S), EndOfStream):
        assert not isinstance(lease, Idle)
        seen.append((lease.info.sequence, lease.info.media_time_s, int(luma(lease.surface)[0, 0])))
        lease.release()
    return seen


def assert_numbered(seen: list[int], count: int, scale: Callable[[int], float] = float) -> None:
    """The brightness values are those of frames 0, 1, 2, ... after `scale`."""
    assert len(seen) == count
    assert np.abs(np.array(seen) - [scale(brightness(index)) for index in range(count)]).max() <= 3


def limited(value: int) -> float:
    return 16 + value * 219 / 255


@pytest.fixture(params=["file", "rtsp"])
def walkers(request: pytest.FixtureRequest) -> Path | str:
    """The bundled clip, as a file and as a camera's stream."""
    return WALKERS if request.param == "file" else str(request.getfixturevalue("camera_address"))


@pytest.fixture(scope="module")
def camera_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    need_server()
    with Camera(bundled_stream(tmp_path_factory.mktemp("camera") / "walkers.ts", WALKERS, times=1, fps=50)) as camera:
        yield camera.address()


# -- frames ------------------------------------------------------------------------------------------------------
def test_frames_come_in_order_numbered_and_timed(kind: type[PyAvSource], tmp_path: Path) -> None:
    with opened(kind, make_clip(tmp_path / "clip.mp4")) as (source, facts):
        seen = play(source)
        assert [sequence for sequence, _, _ in seen] == list(range(12))
        assert [media_time for _, media_time, _ in seen] == pytest.approx([index / 10 for index in range(12)])
        assert_numbered([value for _, _, value in seen], 12, limited)
        assert isinstance(source.read(FREE_RUN_S), EndOfStream)
        assert (facts.fps, facts.is_live, facts.has_packets) == (10.0, False, True)
        assert source.warnings == ()
        assert source.corrupt_packets == 0


def test_stamps_come_from_the_given_clock(kind: type[PyAvSource]) -> None:
    clock = ManualClock()
    source = make(kind, WALKERS, clock=clock)
    source.open()
    clock.now_ns += 77
    info = next_frame(source).info
    assert (info.channel, info.read_time_ns, info.capture_time_ns) == (3, clock.monotonic_ns(), clock.wall_ns())
    assert info.clock_synced
    source.close()


def test_the_planes_are_the_decoders_own_bytes_and_cannot_be_written(kind: type[PyAvSource]) -> None:
    with av.open(str(WALKERS)) as container, opened(kind, WALKERS) as (source, facts):
        assert (facts.format.pixel_format, facts.domain) == (PixelFormat.I420, MemoryDomain.HOST)
        assert [hop.name for hop in facts.hops] == ["bitstream in", "decode"]
        for expected, _ in zip(container.decode(video=0), range(20), strict=False):
            lease = next_frame(source)
            u, v = chroma(lease.surface)
            packed = np.concatenate([luma(lease.surface).ravel(), u.ravel(), v.ravel()])
            assert np.array_equal(packed, expected.to_ndarray().ravel())
            assert not any(plane.buffer.flags.writeable for plane in lease.surface.planes)
            lease.release()


def test_a_lent_frame_stays_as_it_is_while_others_come_and_go(kind: type[PyAvSource], walkers: Path | str) -> None:
    with opened(kind, walkers) as (source, _):
        kept = [next_frame(source) for _ in range(6)]
        before = [luma(lease.surface).copy() for lease in kept]
        for _ in range(100):
            next_frame(source).release()
        source.close()
        assert all(np.array_equal(luma(lease.surface), copy) for lease, copy in zip(kept, before, strict=True))


def test_a_released_frame_can_no_longer_be_asked_for(kind: type[PyAvSource], walkers: Path | str) -> None:
    with opened(kind, walkers) as (source, _):
        lease = next_frame(source)
        lease.release()
        lease.release()
        with pytest.raises(PhaseError):
            _ = lease.surface


def test_reading_allocates_no_array_of_a_frame(kind: type[PyAvSource], walkers: Path | str) -> None:
    with opened(kind, walkers) as (source, _):
        for _ in range(5):
            next_frame(source).release()
        tracemalloc.start()
        try:
            for _ in range(40):
                next_frame(source).release()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 64 * 1024


# -- rewind, loop, pace --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("frames_before", [0, 5, 12])
def test_rewind_gives_the_very_same_frames_again(kind: type[PyAvSource], tmp_path: Path, frames_before: int) -> None:
    with opened(kind, make_clip(tmp_path / "clip.mp4")) as (source, _):
        first = play(source)
        source.rewind()
        for _ in range(frames_before):
            next_frame(source).release()
        source.rewind()
        assert play(source) == first


@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv", "clip.ts", "clip.h264"])
def test_a_loop_goes_on_with_growing_time(kind: type[PyAvSource], tmp_path: Path, name: str) -> None:
    with opened(kind, make_clip(tmp_path / name), loop=True) as (source, _):
        seen = []
        for _ in range(30):
            lease = next_frame(source)
            seen.append((lease.info.sequence, lease.info.media_time_s, int(luma(lease.surface)[0, 0])))
            lease.release()
        assert [sequence for sequence, _, _ in seen] == list(range(30))
        assert [media_time for _, media_time, _ in seen] == pytest.approx([index / 10 for index in range(30)], abs=1e-6)
        assert [value for _, _, value in seen[12:24]] == [value for _, _, value in seen[:12]]


def test_a_looped_file_that_vanishes_is_reported(kind: type[PyAvSource], tmp_path: Path) -> None:
    path = make_clip(tmp_path / "clip.mp4")
    with opened(kind, path, loop=True) as (source, _):
        for _ in range(12):
            next_frame(source).release()
        path.unlink()
        with pytest.raises(SourceMissingError):
            source.read(FREE_RUN_S)


def test_realtime_frames_are_not_given_out_before_they_are_due(kind: type[PyAvSource], tmp_path: Path) -> None:
    clock = ManualClock()
    source = make(kind, make_clip(tmp_path / "clip.mp4"), realtime=True, clock=clock)
    assert source.open().is_live
    for index in range(12):
        if index:
            assert isinstance(source.read(0.0), Idle)
            clock.now_ns += 60_000_000
            assert isinstance(source.read(0.0), Idle)
            clock.now_ns += 40_000_000
        lease = source.read(0.0)
        assert not isinstance(lease, Idle | EndOfStream)
        assert (lease.info.sequence, lease.info.read_time_ns) == (index, clock.now_ns)
        lease.release()
    assert isinstance(source.read(0.0), EndOfStream)
    source.close()


def test_realtime_waits_on_the_real_clock(kind: type[PyAvSource], tmp_path: Path) -> None:
    class RealClock(ManualClock):
        def monotonic_ns(self) -> int:
            return time.monotonic_ns()

    source = make(kind, make_clip(tmp_path / "clip.mp4", 3), realtime=True, clock=RealClock())
    source.open()
    times = [next_frame(source).info.read_time_ns for _ in range(3)]
    assert times[2] - times[0] >= 200_000_000
    source.close()


# -- where to start, how many ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv", "clip.ts", "clip.h264"])
@pytest.mark.parametrize("start_s", [0.4, 0.7])  # at a key frame, and after one
def test_a_file_starts_where_it_was_asked_to(kind: type[PyAvSource], tmp_path: Path, name: str, start_s: float) -> None:
    source = make(kind, make_clip(tmp_path / name), options=SourceOptions(start_s=start_s))
    source.open()
    first = round(start_s * 10)
    for _ in range(2):
        seen = play(source)
        assert [sequence for sequence, _, _ in seen] == list(range(12 - first))
        assert [time_s for _, time_s, _ in seen] == pytest.approx([index / 10 for index in range(12 - first)], abs=1e-3)
        expected = [limited(brightness(index)) for index in range(first, 12)]
        assert [value for _, _, value in seen] == pytest.approx(expected, abs=3)
        source.rewind()
    source.close()


def test_a_start_beyond_the_end_is_refused(kind: type[PyAvSource], tmp_path: Path) -> None:
    source = make(kind, make_clip(tmp_path / "clip.mp4"), options=SourceOptions(start_s=60.0))
    source.open()
    with pytest.raises(MediaError, match="start_s"):
        play(source)
    source.close()


def test_frames_are_kept_evenly_and_over_the_joints_of_a_loop(kind: type[PyAvSource], tmp_path: Path) -> None:
    source = make(kind, make_clip(tmp_path / "clip.mp4"), loop=True, options=SourceOptions(fps=5.0))
    assert source.open().fps == 5.0
    infos = [next_frame(source).info for _ in range(15)]
    assert [info.sequence for info in infos] == list(range(15))
    assert [info.media_time_s for info in infos] == pytest.approx([index / 5 for index in range(15)], abs=1e-6)
    source.close()


def test_a_file_is_up_whatever_happens(kind: type[PyAvSource], tmp_path: Path) -> None:
    with opened(kind, make_clip(tmp_path / "clip.mp4")) as (source, _):
        assert source.status == SourceStatus(is_up=True)
        play(source)
        assert source.status == SourceStatus(is_up=True)


# -- formats -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("width", "height"), [(2, 2), (33, 17), (48, 64), (642, 362)])
def test_any_size_keeps_its_exact_planes(kind: type[PyAvSource], tmp_path: Path, width: int, height: int) -> None:
    # H.264 itself knows even sizes only; FFV1 has odd ones.
    path = make_clip(tmp_path / "clip.mkv", 3, width, height, codec="ffv1")
    with opened(kind, path) as (source, facts):
        assert (facts.format.width_px, facts.format.height_px) == (width, height)
        lease = next_frame(source)
        assert luma(lease.surface).shape == (height, width)
        assert all(plane.shape == ((height + 1) // 2, (width + 1) // 2) for plane in chroma(lease.surface))


@pytest.mark.parametrize("pixel_format", ["yuv420p10le", "yuv422p", "yuv444p", "gray", "bgr0"])
def test_other_formats_are_converted_to_nv12_and_the_hop_is_declared(
    kind: type[PyAvSource], tmp_path: Path, pixel_format: str
) -> None:
    path = make_clip(tmp_path / "clip.mkv", pixel_format=pixel_format, codec="ffv1")
    with opened(kind, path) as (source, facts):
        assert facts.format.pixel_format is PixelFormat.NV12
        assert [hop.name for hop in facts.hops] == ["bitstream in", "decode", "convert"]
        assert facts.hops[2].payload is Payload.PIXELS
        assert facts.hops[2].bytes_per_frame == 64 * 48 * 3 // 2
        u, v = chroma(next_frame(source).surface)
        assert np.abs(u.astype(int) - 128).max() <= 1
        assert np.abs(v.astype(int) - 128).max() <= 1
        source.rewind()
        scale = float if facts.format.is_full_range else limited
        assert_numbered([value for _, _, value in play(source)], 12, scale)


@pytest.mark.parametrize(
    ("height", "matrix", "color_range", "expected_matrix", "expected_full"),
    [
        (48, 2, 0, ColorMatrix.BT601, False),
        (720, 2, 0, ColorMatrix.BT709, False),
        (720, 6, 1, ColorMatrix.BT601, False),
        (48, 1, 2, ColorMatrix.BT709, True),
        (48, 9, 1, ColorMatrix.BT709, False),
    ],
)
def test_colour_is_read_from_the_stream_or_guessed_from_the_size(
    kind: type[PyAvSource],
    tmp_path: Path,
    height: int,
    matrix: int,
    color_range: int,
    expected_matrix: ColorMatrix,
    expected_full: bool,
) -> None:
    path = make_clip(tmp_path / "clip.mp4", 2, height=height, matrix=matrix, color_range=color_range)
    with opened(kind, path) as (source, facts):
        assert (facts.format.matrix, facts.format.is_full_range) == (expected_matrix, expected_full)
        assert bool(source.warnings) == (matrix == 9)


def test_motion_jpeg_is_full_range_and_lent_without_a_copy(kind: type[PyAvSource], tmp_path: Path) -> None:
    path = make_clip(tmp_path / "clip.mkv", pixel_format="yuvj420p", codec="mjpeg", color_range=2)
    with opened(kind, path) as (source, facts):
        assert (facts.format.pixel_format, facts.format.is_full_range) == (PixelFormat.I420, True)
        assert [hop.name for hop in facts.hops] == ["bitstream in", "decode"]
        assert_numbered([value for _, _, value in play(source)], 12)


@pytest.mark.parametrize("clockwise", [90, 180, 270])
def test_a_rotated_picture_is_turned_upright(kind: type[PyAvSource], tmp_path: Path, clockwise: int) -> None:
    path = mark_as_rotated(make_clip(tmp_path / "clip.mp4"), clockwise)
    with opened(kind, path) as (source, facts):
        upright = np.rot90(np.arange(48 * 64).reshape(48, 64) % 64 >= 43, -clockwise // 90)
        assert (facts.format.height_px, facts.format.width_px) == upright.shape
        assert facts.hops[-1].name == "convert"
        assert str(clockwise) in facts.hops[-1].reason
        assert np.array_equal(luma(next_frame(source).surface) < 30, upright)


def test_a_change_of_size_is_scaled_to_the_opened_size(kind: type[PyAvSource], tmp_path: Path) -> None:
    parts = [make_clip(tmp_path / f"{width}.h264", width=width, height=48) for width in (64, 96)]
    path = tmp_path / "both.h264"
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    with opened(kind, path) as (source, facts):
        seen = play(source)
        assert facts.format.width_px == 64
        assert len(seen) == 24
        assert_numbered([value for _, _, value in seen[12:]], 12, limited)
        assert any("96x48" in warning for warning in source.warnings)


# -- packets -------------------------------------------------------------------------------------------------------
def test_the_kept_packets_are_the_files_own(kind: type[PyAvSource], tmp_path: Path) -> None:
    path = make_clip(tmp_path / "clip.mp4")
    ring = PacketRing()
    with opened(kind, path, packets=ring) as (source, _), av.open(str(path)) as container:
        play(source)
        kept = held_packets(ring)
        expected = [packet for packet in container.demux(video=0) if packet.size]
        assert [payload for _, payload in kept] == [bytes(packet) for packet in expected]
        assert [packet.is_keyframe for packet, _ in kept] == [packet.is_keyframe for packet in expected]
        shown_s = [(packet.show_ns - kept[0][0].show_ns) / 1e9 for packet, _ in kept]
        assert shown_s == pytest.approx([index / 10 for index in range(12)])


def test_kept_packets_know_when_their_pictures_were_taken(kind: type[PyAvSource], tmp_path: Path) -> None:
    ring, clock = PacketRing(), ManualClock()
    source = make(kind, make_clip(tmp_path / "clip.mp4"), clock=clock, packets=ring)
    source.open()
    captured = []
    while not isinstance(lease := source.read(FREE_RUN_S), EndOfStream):
        assert isinstance(lease, SurfaceLease)
        captured.append(lease.info.capture_time_ns)
        lease.release()
        clock.now_ns += 100_000_000
    source.close()
    by_time = sorted((packet.show_ns, packet.captured_ns) for packet, _ in held_packets(ring))
    assert [captured_ns for _, captured_ns in by_time] == captured


def test_kept_packets_do_not_keep_the_demuxers_and_decoders_of_past_passes(
    kind: type[PyAvSource], tmp_path: Path
) -> None:
    def demuxers() -> int:
        gc.collect()
        return sum(isinstance(thing, av.container.InputContainer) for thing in gc.get_objects())

    before = demuxers()
    ring = PacketRing()
    with opened(kind, make_clip(tmp_path / "clip.mp4"), loop=True, packets=ring) as (source, _):
        for _ in range(12 * 6):
            next_frame(source).release()
        assert len(held_packets(ring)) > 12 * 5
        assert demuxers() == before + 1


# -- bad input -----------------------------------------------------------------------------------------------------
def cut(path: Path, share: float) -> Path:
    path.write_bytes(path.read_bytes()[: round(path.stat().st_size * share)])
    return path


def test_a_truncated_file_plays_to_where_it_ends_and_says_so(kind: type[PyAvSource], tmp_path: Path) -> None:
    path = tmp_path / "cut.mp4"
    path.write_bytes(WALKERS.read_bytes())
    with opened(kind, cut(path, 0.5)) as (source, _):
        assert 100 < len(play(source)) < 200
        assert any("ends early" in warning for warning in source.warnings)


def test_a_whole_file_is_not_called_truncated(kind: type[PyAvSource]) -> None:
    with opened(kind, WALKERS) as (source, _):
        assert len(play(source)) == 300
        assert source.warnings == ()


def test_corrupt_packets_are_skipped_and_counted(kind: type[PyAvSource], tmp_path: Path) -> None:
    path = make_clip(tmp_path / "clip.mp4", 40)
    with av.open(str(path)) as container:
        places = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    data = bytearray(path.read_bytes())
    for position, size in places[20:24]:  # one group of pictures, of four
        assert position is not None
        data[position : position + size] = random.Random(1).randbytes(size)
    path.write_bytes(data)
    with opened(kind, path) as (source, _):
        assert [value for _, _, value in play(source)][-16:] == pytest.approx(
            [limited(brightness(index)) for index in range(24, 40)], abs=3
        )
        assert source.corrupt_packets == 4


def nothing(path: Path) -> None:
    path.write_bytes(b"")


def noise(path: Path) -> None:
    path.write_bytes(random.Random(2).randbytes(50_000))


def prose(path: Path) -> None:
    path.write_text("This is not a film.\n" * 100, encoding="utf-8")


def header_only(path: Path) -> None:
    cut(make_clip(path, container="mp4"), 0.02)


def pictures_of_noise(path: Path) -> None:
    data = bytearray(WALKERS.read_bytes())
    start = data.index(b"mdat") + 4
    data[start:] = random.Random(3).randbytes(len(data) - start)
    path.write_bytes(data)


def playlist(path: Path) -> None:
    path.write_text("#EXTM3U\n#EXTINF:10,\nhttp://127.0.0.1:9/secret.ts\n#EXT-X-ENDLIST\n", encoding="utf-8")


@pytest.mark.parametrize("suffix", [".mp4", ".txt", ".m3u8", ".mkv"])
@pytest.mark.parametrize(
    "spoil", [nothing, noise, prose, header_only, pictures_of_noise, playlist], ids=lambda spoil: str(spoil.__name__)
)
def test_what_is_not_a_playable_video_is_refused_in_one_clear_line(
    kind: type[PyAvSource], tmp_path: Path, spoil: Callable[[Path], None], suffix: str
) -> None:
    path = tmp_path / f"file{suffix}"
    spoil(path)
    with nothing_left(), pytest.raises(MediaError) as caught:
        make(kind, path).open()
    assert caught.value.fix
    assert str(path) in caught.value.where
    assert "\n" not in str(caught.value)


def test_a_file_of_sound_is_refused(kind: type[PyAvSource], tmp_path: Path) -> None:
    with pytest.raises(MediaError, match="no video"):
        make(kind, make_sound(tmp_path / "sound.mp4")).open()


@pytest.mark.parametrize(
    ("uri", "error"),
    [
        ("no/such/file.mp4", SourceMissingError),
        ("clip\0.mp4", SourceMissingError),
        ("x" * 5000, SourceMissingError),
        (".", MediaError),
        ("/dev/null", MediaError),
        ("concat:a|b", SourceMissingError),
        ("http://user:secret@localhost:9/a.mp4", SourceMissingError),
        ("rtsp://user:secret@localhost:9/a", SourceMissingError),
        ("rtsp://user:sec/ret@localhost:9/a", MediaError),
        ("v4l2:/dev/video99", SourceMissingError),
        ("v4l2:/dev", MediaError),
    ],
)
def test_what_is_no_file_is_refused(kind: type[PyAvSource], uri: str, error: type[ZhcEdgeError]) -> None:
    with pytest.raises(error) as caught:
        make(kind, uri).open()
    assert caught.value.fix
    assert "gate" in caught.value.where
    assert "sec" not in str(caught.value)


def test_a_closed_source_gives_its_descriptors_back_and_no_more_frames(
    kind: type[PyAvSource], walkers: Path | str
) -> None:
    before = open_files()
    with nothing_left():
        source = make(kind, walkers)
        source.open()
        assert open_files() > before
        next_frame(source).release()
        source.close()
        source.close()
    assert isinstance(source.read(0.0), EndOfStream)

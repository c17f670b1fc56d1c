"""The NVDEC source against libavcodec, picture by picture, and its rules about memory and leases."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import av
import numpy as np
import pytest

from tests.contract.clips import held_packets
from tests.gpu import support_codec as support
from zhcedge.core.errors import BackendUnavailableError, MediaError, PhaseError, SourceMissingError
from zhcedge.core.ports import EndOfStream, Idle
from zhcedge.core.types import MemoryDomain, PixelFormat, ViolationKind
from zhcedge.media.packets import PacketRing

if TYPE_CHECKING:
    from zhcedge.backends.cuda.context import CudaContext
    from zhcedge.backends.nvcodec.source import NvCodecSource

pytestmark = pytest.mark.gpu

Make = Callable[..., "NvCodecSource"]


@pytest.fixture(scope="module")
def context() -> Iterator[CudaContext]:
    opened = support.open_context()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """h264.mp4, hevc.mp4, ... of 640x360, 40 pictures, and some odd ones."""
    folder = tmp_path_factory.mktemp("clips")
    tool = support.clip_tool()
    for name, codec, bits, b_frames in (
        ("h264", "h264", 8, 0),
        ("h264-b", "h264", 8, 3),
        ("h264-10", "h264", 10, 0),
        ("hevc", "hevc", 8, 2),
        ("hevc-10", "hevc", 10, 0),
        ("av1", "av1", 8, 0),
        ("av1-10", "av1", 10, 0),
    ):
        tool.write(folder / f"{name}.mp4", codec, bits, 640, 360, 40, b_frames)
    tool.write(folder / "small.h264", "h264", 8, 320, 180, 20, 0)
    tool.write(folder / "large.h264", "h264", 8, 640, 360, 20, 0)
    return folder


@pytest.fixture
def make(context: CudaContext) -> Iterator[Make]:
    """Opens sources and closes them afterwards."""
    from zhcedge.backends.nvcodec.source import NvCodecSource

    opened: list[NvCodecSource] = []

    def build(uri: Path | str, **options: bool) -> NvCodecSource:
        opened.append(NvCodecSource(support.request(uri, **options), support.GpuDevice(context)))
        return opened[-1]

    yield build
    for source in opened:
        source.close()


@pytest.mark.parametrize(
    ("name", "bits"), [("h264", 8), ("h264-b", 8), ("hevc", 8), ("hevc-10", 10), ("av1", 8), ("av1-10", 10)]
)
def test_pictures_equal_those_of_libavcodec_bit_for_bit(
    make: Make, context: CudaContext, clips: Path, name: str, bits: int
) -> None:
    from zhcedge.backends.nvcodec import _vendor

    source = make(clips / f"{name}.mp4")
    codec = name.split("-")[0]
    if not _vendor.decoder_caps(0, codec, bits).is_supported:
        with pytest.raises(MediaError, match=f"does not decode {codec} of {bits} bits"):
            source.open()
        return
    facts = source.open()
    assert facts.domain is MemoryDomain.DEVICE
    assert facts.format.pixel_format is (PixelFormat.P010 if bits == 10 else PixelFormat.NV12)
    assert (facts.format.width_px, facts.format.height_px) == (640, 360)
    pictures, times = support.read_all(source, context)
    expected = support.cpu_pictures(clips / f"{name}.mp4", bits)
    assert len(pictures) == len(expected) == 40
    assert times == pytest.approx([index / 30 for index in range(40)], abs=1e-3)
    for index, (got, wanted) in enumerate(zip(pictures, expected, strict=True)):
        for plane, reference in zip(got, wanted, strict=True):
            assert np.array_equal(plane, reference), f"picture {index}"


def test_facts_say_where_the_bytes_go(make: Make, clips: Path) -> None:
    facts = make(clips / "h264.mp4").open()
    assert [hop.name for hop in facts.hops if hop.destination is MemoryDomain.HOST] == [
        "bitstream in",
        "bitstream to start codes",
    ]
    assert {hop.bytes_per_frame for hop in facts.hops if hop.source is MemoryDomain.DEVICE} == {640 * 360 * 3 // 2}
    assert "NVDEC" in facts.description
    assert facts.has_packets


def test_kept_packets_are_the_files_own_and_know_when_their_pictures_were_taken(
    context: CudaContext, clips: Path
) -> None:
    from zhcedge.backends.nvcodec.source import NvCodecSource

    ring, path = PacketRing(), clips / "h264-b.mp4"
    request = dataclasses.replace(support.request(path), packets=ring)
    source = NvCodecSource(request, support.GpuDevice(context))
    try:
        source.open()
        captured = []
        while not isinstance(lease := source.read(1.0), EndOfStream):
            assert not isinstance(lease, Idle)
            captured.append(lease.info.capture_time_ns)
            lease.release()
    finally:
        source.close()
    kept = held_packets(ring)
    with av.open(str(path)) as container:
        assert [data for _, data in kept] == [bytes(packet) for packet in container.demux(video=0) if packet.size]
    assert [ns for _, ns in sorted((packet.show_ns, packet.captured_ns) for packet, _ in kept)] == captured


def test_loops_go_on_in_time_and_sequence_and_use_no_other_memory(
    make: Make, context: CudaContext, clips: Path
) -> None:
    source = make(clips / "h264-b.mp4", is_looped=True)
    source.open()
    hashes, addresses, infos = [], set(), []
    for _ in range(100):
        lease = source.read(1.0)
        assert lease.ready.wait(10.0)
        addresses.add(lease.surface.planes[0].buffer)
        hashes.append(hashlib.sha256(support.to_host(context, lease.surface)[0].tobytes()).digest())
        infos.append(lease.info)
        lease.release()
    assert hashes[:40] == hashes[40:80]
    assert hashes[:20] == hashes[80:]
    assert [info.sequence for info in infos] == list(range(100))
    times = [info.media_time_s for info in infos]
    assert times == pytest.approx([index / 30 for index in range(100)], abs=2e-3)
    assert len(addresses) <= 24


def test_rewind_starts_at_the_first_picture_again(make: Make, context: CudaContext, clips: Path) -> None:
    source = make(clips / "h264-b.mp4")
    source.open()
    first, _ = support.read_all(source, context, limit=7)
    source.rewind()
    again, times = support.read_all(source, context)
    assert len(again) == 40
    assert times[0] == 0
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(first, again, strict=False))
    assert isinstance(source.read(0.1), EndOfStream)
    source.rewind()
    assert not isinstance(source.read(0.1), EndOfStream)


def test_one_frame_is_lent_at_a_time(make: Make, clips: Path) -> None:
    source = make(clips / "h264.mp4")
    source.open()
    lease = source.read(1.0)
    with pytest.raises(PhaseError, match="not given back"):
        source.read(1.0)
    lease.release()
    with pytest.raises(PhaseError, match="given back already"):
        _ = lease.surface
    source.read(1.0).release()


def test_a_surface_stays_whole_while_work_that_its_fence_stands_for_is_in_flight(
    make: Make, context: CudaContext, clips: Path
) -> None:
    """The reader's stream is kept busy, so that every copy starts long after `release` and the next `read`."""
    from zhcedge.backends.cuda import _vendor
    from zhcedge.backends.cuda._vendor import pycuda

    source = make(clips / "h264.mp4")
    source.open()
    expected = support.cpu_pictures(clips / "h264.mp4")
    stream, size, busy_bytes = context.create_stream(), 640 * 360, 1 << 30
    with context.push():
        busy = pycuda.mem_alloc(busy_bytes)
        copies = [pycuda.mem_alloc(size) for _ in range(20)]
    for copy in copies:
        lease = source.read(1.0)
        with context.push():
            for value in range(8):  # about 2 ms of work
                pycuda.memset_d8_async(busy, value, busy_bytes, stream.native)
        stream.wait_for(lease.ready)
        luma = lease.surface.planes[0].buffer
        _vendor.Copy2d(luma, 640, int(copy), 640, 640, 360).issue(_vendor.stream_handle(stream.handle))
        fence = context.create_fence("test")
        fence.record(stream)
        lease.release(after=fence)
    stream.synchronize()
    for index, copy in enumerate(copies):
        host = np.empty((360, 640), np.uint8)
        with context.push():
            pycuda.memcpy_dtoh(host, copy)
        assert np.array_equal(host, expected[index][0]), f"picture {index}"
    with context.push():
        for allocation in (busy, *copies):
            allocation.free()


def test_a_stream_that_changes_its_resolution_within_the_maximum_goes_on_in_the_opened_size(
    make: Make, context: CudaContext, clips: Path
) -> None:
    both = clips / "both.h264"
    both.write_bytes((clips / "small.h264").read_bytes() + (clips / "large.h264").read_bytes())
    source = make(both)
    facts = source.open()
    pictures, _ = support.read_all(source, context)
    assert (facts.format.width_px, facts.format.height_px) == (320, 180)
    assert len(pictures) == 40
    assert {picture[0].shape for picture in pictures} == {(180, 320)}
    grown = support.cpu_pictures(clips / "large.h264")[5][0].reshape(180, 2, 320, 2).mean((1, 3))
    assert np.abs(pictures[25][0] - grown).mean() < 6


def test_a_resolution_beyond_the_maximum_re_warms_the_channel_and_loses_no_picture(
    context: CudaContext, clips: Path
) -> None:
    from zhcedge.backends.nvcodec.source import NvCodecSource

    both = clips / "beyond.h264"
    both.write_bytes((clips / "small.h264").read_bytes() * 3 + (clips / "large.h264").read_bytes())
    source = NvCodecSource(support.request(both), support.GpuDevice(context), max_size_px=(320, 192))
    source.open()
    try:
        pictures, _ = support.read_all(source, context)
    finally:
        source.close()
    assert len(pictures) == 80
    assert {picture[0].shape for picture in pictures} == {(180, 320)}
    small = support.cpu_pictures(clips / "small.h264")[5][0]
    assert np.array_equal(pictures[45][0], small)
    grown = support.cpu_pictures(clips / "large.h264")[5][0].reshape(180, 2, 320, 2).mean((1, 3))
    assert np.abs(pictures[65][0] - grown).mean() < 6


@pytest.mark.parametrize("max_size_px", [(320, 192), (1920, 1088)], ids=["beyond", "within"])
def test_what_a_change_of_resolution_allocates_is_booked_to_its_lease(
    context: CudaContext, clips: Path, max_size_px: tuple[int, int]
) -> None:
    from zhcedge.backends.cuda.cupti.instrument import KINDS, CuptiInstrument, Mode
    from zhcedge.backends.nvcodec.source import NvCodecSource
    from zhcedge.pipeline.guard import Guard, GuardPolicy

    both = clips / "booked.h264"
    both.write_bytes((clips / "small.h264").read_bytes() * 3 + (clips / "large.h264").read_bytes() * 6)
    guard = Guard([CuptiInstrument(context, Mode.LIVE)], frozenset(KINDS), GuardPolicy.COUNT)
    request = dataclasses.replace(support.request(both), rewarm=guard.rewarm)
    source = NvCodecSource(request, support.GpuDevice(context), max_size_px=max_size_px)
    try:
        source.open()
        guard.seal()
        assert len(support.read_all(source, context)[0]) == 180
        assert set(guard.violations().values()) == {0}
        assert guard.rewarm_totals()[ViolationKind.DEVICE_ALLOCATION] > 0
        assert all("cam" in reason for reason in guard.rewarms())
    finally:
        source.close()
        guard.stop()


def test_a_loop_and_a_rewind_allocate_nothing(context: CudaContext, clips: Path) -> None:
    from zhcedge.backends.cuda.cupti.instrument import KINDS, CuptiInstrument, Mode
    from zhcedge.backends.nvcodec.source import NvCodecSource
    from zhcedge.pipeline.guard import Guard, GuardPolicy

    guard = Guard([CuptiInstrument(context, Mode.LIVE)], frozenset(KINDS), GuardPolicy.COUNT)
    source = NvCodecSource(support.request(clips / "h264-b.mp4", is_looped=True), support.GpuDevice(context))
    try:
        source.open()
        guard.seal()
        for _ in range(3):
            support.read_all(source, context, limit=95)
            source.rewind()
        assert set(guard.violations().values()) == {0}
    finally:
        source.close()
        guard.stop()


def test_what_nvdec_can_not_decode_is_refused_at_the_open(make: Make, clips: Path, tmp_path: Path) -> None:
    with pytest.raises(MediaError, match="10 bits"):
        make(clips / "h264-10.mp4").open()
    planar = tmp_path / "444.mp4"
    with av.open(str(planar), "w") as container:
        stream = container.add_stream("libx264", rate=30)
        stream.width, stream.height, stream.pix_fmt = 128, 96, "yuv444p"
        container.mux(stream.encode(av.VideoFrame(128, 96, "yuv444p")))
        container.mux(stream.encode())
    with pytest.raises(MediaError, match="yuv444p"):
        make(planar).open()
    motion = tmp_path / "mpeg4.mp4"
    with av.open(str(motion), "w") as container:
        stream = container.add_stream("mpeg4", rate=30)
        stream.width, stream.height, stream.pix_fmt = 128, 96, "yuv420p"
        container.mux(stream.encode(av.VideoFrame(128, 96, "yuv420p")))
        container.mux(stream.encode())
    with pytest.raises(MediaError, match="mpeg4"):
        make(motion).open()
    with pytest.raises(SourceMissingError):
        make(tmp_path / "missing.mp4").open()


def test_a_damaged_file_plays_on_or_ends_but_does_not_hang(
    make: Make, context: CudaContext, clips: Path, tmp_path: Path
) -> None:
    payload = bytearray((clips / "h264.mp4").read_bytes())
    for position in range(len(payload) // 3, len(payload) // 2, 97):
        payload[position] ^= 0xFF
    damaged = tmp_path / "damaged.mp4"
    damaged.write_bytes(payload)
    source = make(damaged)
    source.open()
    pictures, _ = support.read_all(source, context)
    assert 10 <= len(pictures) <= 60


def test_realtime_gives_idle_until_a_frame_is_due(make: Make, clips: Path) -> None:
    source = make(clips / "h264.mp4", is_realtime=True)
    assert source.open().is_live
    source.read(1.0).release()
    assert isinstance(source.read(0.0), Idle)


def test_opening_and_closing_gives_the_memory_back(make: Make, context: CudaContext, clips: Path) -> None:
    source = make(clips / "h264.mp4")
    for _ in range(3):
        source.open()
        source.close()
    free, _ = context.memory_bytes()
    for _ in range(10):
        source.open()
        source.read(1.0).release()
        source.close()
    assert free - context.memory_bytes()[0] < 8 << 20


def test_another_device_is_refused(clips: Path, context: CudaContext) -> None:
    from zhcedge.backends.nvcodec.source import NvCodecSource

    with pytest.raises(BackendUnavailableError, match="cuda device"):
        NvCodecSource(support.request(clips / "h264.mp4"), object())

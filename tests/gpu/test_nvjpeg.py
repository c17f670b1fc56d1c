"""The JPEG sink: colours, sizes, memory, and what it leaves on the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import av
import numpy as np
import pytest

from tests.gpu import support_codec as support
from zhcedge.backends.cuda.cupti.instrument import CuptiInstrument
from zhcedge.backends.cuda.nvjpeg.color import to_jpeg
from zhcedge.core.errors import BackendUnavailableError, OutputError
from zhcedge.core.ports import FrameSlot, SourceFacts
from zhcedge.core.requests import SinkRequest
from zhcedge.core.types import (
    RESULT_DTYPE,
    ColorMatrix,
    FrameInfo,
    ImageFormat,
    MemoryDomain,
    PixelFormat,
    Plane,
    Surface,
)

if TYPE_CHECKING:
    from zhcedge.backends.cuda.context import CudaContext

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def context() -> Iterator[CudaContext]:
    opened = support.open_context()
    yield opened
    opened.close()


class Picture:
    """An NV12 surface with a pitch, and what was put into it."""

    def __init__(self, context: CudaContext, format: ImageFormat, noise: bool = False) -> None:
        from zhcedge.backends.cuda._vendor import pycuda

        width, height = format.width_px, format.height_px
        pitch, rows = -(-width // 256) * 256, (height + 1) // 2
        _, x = np.mgrid[:height, :width]
        self.luma = (40 + 150 * x / width).astype(np.uint8)
        self.chroma = np.empty((rows, (width + 1) // 2, 2), np.uint8)
        self.chroma[..., 0] = (90 + 60 * np.arange(rows) / rows)[:, None]
        self.chroma[..., 1] = (100 + 50 * np.arange((width + 1) // 2) / width)[None]
        if noise:
            random = np.random.default_rng(3)
            self.luma = random.integers(0, 256, self.luma.shape, np.uint8)
            self.chroma = random.integers(0, 256, self.chroma.shape, np.uint8)
        block = np.zeros((height + rows, pitch), np.uint8)
        block[:height, :width] = self.luma
        block[height:, : 2 * ((width + 1) // 2)] = self.chroma.reshape(rows, -1)
        with context.push():
            self._memory = pycuda.to_device(block)
        address = int(self._memory)
        planes = (
            Plane(address, width, height, pitch),
            Plane(address + height * pitch, 2 * ((width + 1) // 2), rows, pitch),
        )
        self.surface = Surface(planes, format, MemoryDomain.DEVICE)

    def slot(self, sequence: int) -> FrameSlot[int]:
        info = FrameInfo(0, sequence, 0, 0, media_time_s=sequence / 30)
        return FrameSlot(0, 0, self.surface, np.zeros(1, RESULT_DTYPE), info)


def facts(format: ImageFormat) -> SourceFacts:
    return SourceFacts(format, MemoryDomain.DEVICE, 30.0, False, False, (), "test")


def encode(context: CudaContext, picture: Picture, path: Path, frames: int) -> None:
    from zhcedge.backends.cuda.nvjpeg.sink import JpegSink

    sink = JpegSink(SinkRequest("cam", path), support.GpuDevice(context), quality=95)
    sink.open(facts(picture.surface.format))
    back: list[FrameSlot[int]] = []
    for sequence in range(frames):
        while not sink.submit(picture.slot(sequence), back.append):
            pass
    sink.close(complete=True)
    assert len(back) == frames == sink.frames_written
    assert {hop.payload.value for hop in sink.hops if hop.destination is not MemoryDomain.DEVICE} == {"bitstream"}


@pytest.mark.parametrize("size", [(640, 360), (641, 361), (1920, 1080), (16, 2)])
@pytest.mark.parametrize(("matrix", "is_full_range"), [(ColorMatrix.BT709, False), (ColorMatrix.BT601, True)])
def test_the_picture_comes_back_in_jpegs_own_colours(
    context: CudaContext, tmp_path: Path, size: tuple[int, int], matrix: ColorMatrix, is_full_range: bool
) -> None:
    picture = Picture(context, ImageFormat(*size, PixelFormat.NV12, matrix=matrix, is_full_range=is_full_range))
    encode(context, picture, tmp_path / "out.mp4", 3)
    with av.open(str(tmp_path / "out.mp4")) as container:
        frames = list(container.decode(video=0))
    assert len(frames) == 3
    assert (frames[0].width, frames[0].height) == size
    black, y_y, y_b, y_r, *_ = to_jpeg(matrix, is_full_range)
    chroma = picture.chroma.astype(float).repeat(2, 0).repeat(2, 1)[: size[1], : size[0]] - 128
    expected = y_y * (picture.luma - black) + y_b * chroma[..., 0] + y_r * chroma[..., 1]
    plane = frames[0].planes[0]
    got = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[: size[1], : size[0]]
    assert np.abs(got - np.clip(expected, 0, 255)).mean() < 1.5


def test_nothing_allocates_after_the_warm_up_even_for_noise(context: CudaContext, tmp_path: Path) -> None:
    from zhcedge.backends.cuda.nvjpeg.encoder import JpegEncoder

    format = ImageFormat(1280, 720)
    smooth, noisy = Picture(context, format), Picture(context, format, noise=True)
    encoder = JpegEncoder(context, format, "test")
    instrument = CuptiInstrument(context)
    instrument.start()
    try:
        encoder.warm()
        before = instrument.counts()
        for picture in (smooth, noisy) * 10:
            assert bytes(encoder.encode(picture.surface)[:2]) == b"\xff\xd8"
        assert instrument.counts() == before, instrument.rows()
    finally:
        instrument.stop()
        encoder.close()


def test_snapshots_of_a_prepared_format_and_its_parts_allocate_nothing(context: CudaContext) -> None:
    from zhcedge.backends.cuda.nvjpeg.jpeg_encoder import DeviceJpegEncoder

    picture = Picture(context, ImageFormat(1280, 720), noise=True)
    luma, chroma = picture.surface.planes
    parts = []
    for left, top, width, height in ((0, 0, 1280, 720), (64, 32, 320, 240), (2, 4, 101, 77), (1278, 718, 2, 2)):
        columns = 2 * ((width + 1) // 2)
        planes = (
            Plane(luma.buffer + top * luma.pitch_bytes + left, width, height, luma.pitch_bytes),
            Plane(chroma.buffer + top // 2 * chroma.pitch_bytes + left, columns, (height + 1) // 2, chroma.pitch_bytes),
        )
        parts.append(Surface(planes, ImageFormat(width, height), MemoryDomain.DEVICE))
    encoder = DeviceJpegEncoder(support.GpuDevice(context), 80)
    instrument = CuptiInstrument(context)
    instrument.start()
    try:
        encoder.prepare(ImageFormat(1280, 720))
        before = instrument.counts()
        for surface in parts * 5:
            encoder.prepare(surface.format)  # the whole picture's covers it
            assert bytes(encoder.encode(surface)[:2]) == b"\xff\xd8"
        assert instrument.counts() == before, instrument.rows()
    finally:
        instrument.stop()
        encoder.close()


def test_an_aborted_sink_leaves_no_file_and_gives_every_slot_back(context: CudaContext, tmp_path: Path) -> None:
    from zhcedge.backends.cuda.nvjpeg.sink import JpegSink

    picture = Picture(context, ImageFormat(320, 240))
    sink = JpegSink(SinkRequest("cam", tmp_path / "out.mp4"), support.GpuDevice(context))
    sink.open(facts(picture.surface.format))
    back: list[FrameSlot[int]] = []
    taken = sum(sink.submit(picture.slot(index), back.append) for index in range(5))
    sink.close(complete=False)
    sink.close(complete=False)
    assert len(back) == taken
    assert list(tmp_path.iterdir()) == []


def test_what_it_can_not_do_is_refused_at_the_open(context: CudaContext, tmp_path: Path) -> None:
    from zhcedge.backends.cuda.nvjpeg.sink import JpegSink

    with pytest.raises(BackendUnavailableError, match="cuda device"):
        JpegSink(SinkRequest("cam", tmp_path / "out.mp4"), object())
    (tmp_path / "out.mp4").mkdir()
    sink = JpegSink(SinkRequest("cam", tmp_path / "out.mp4"), support.GpuDevice(context))
    with pytest.raises(OutputError, match="not a regular file"):
        sink.open(facts(ImageFormat(320, 240)))
    assert list((tmp_path / "out.mp4").iterdir()) == []


def test_a_source_of_ten_bits_is_written_from_its_slots_of_eight(context: CudaContext, tmp_path: Path) -> None:
    from zhcedge.backends.cuda.nvjpeg.sink import JpegSink

    picture = Picture(context, ImageFormat(320, 240))
    sink = JpegSink(SinkRequest("cam", tmp_path / "out.mp4"), support.GpuDevice(context))
    sink.open(facts(ImageFormat(320, 240, PixelFormat.P010)))
    back: list[FrameSlot[int]] = []
    assert sink.submit(picture.slot(0), back.append)
    sink.close(complete=True)
    assert len(back) == 1
    assert (tmp_path / "out.mp4").exists()

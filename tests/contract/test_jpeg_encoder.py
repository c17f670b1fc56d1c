"""What every encoder of snapshots does: whole pictures and parts, colours, what it refuses, and that it stays small."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

import av
import numpy as np
import pytest

from tests.contract.devices import DEVICES, Bytes, DeviceCase
from zhcedge.backends.registry import JPEG_ENCODERS
from zhcedge.core.errors import BackendUnavailableError, PipelineError
from zhcedge.core.ports import Device, JpegEncoder
from zhcedge.core.types import ColorMatrix, ImageFormat, PixelFormat, Surface
from zhcedge.profiles import PROFILES

QUALITY = 90


@dataclass
class Desk:
    """An encoder of one device, and pictures for it."""

    case: DeviceCase
    device: Device[object]
    encoder: JpegEncoder[object]

    def picture(self, image: ImageFormat, black: tuple[int, int, int, int] = (0, 0, 0, 0)) -> Surface[object]:
        """Luma grows from left to right and chroma from top to bottom; a rectangle (x0, y0, x1, y1) is black."""
        surface = self.device.arena.surface(image, "picture")
        for plane, pixels in zip(surface.planes, planes_of(image, black), strict=True):
            self.case.write(plane, pixels)
        return surface


def planes_of(image: ImageFormat, black: tuple[int, int, int, int]) -> tuple[Bytes, Bytes]:
    width, height = image.width_px, image.height_px
    rows, columns = (height + 1) // 2, (width + 1) // 2
    luma = np.tile(np.linspace(40, 220, width).astype(np.uint8), (height, 1))
    chroma = np.empty((rows, columns, 2), np.uint8)
    chroma[..., 0] = np.linspace(100, 140, rows).astype(np.uint8)[:, None]
    chroma[..., 1] = 128
    x0, y0, x1, y1 = black
    luma[y0:y1, x0:x1] = 0 if image.is_full_range else 16
    chroma[y0 // 2 : y1 // 2, x0 // 2 : x1 // 2] = 128
    return luma, chroma.reshape(rows, -1)


def luma_of(jpeg: memoryview) -> Bytes:
    """Decoded luma on JPEG's full range, [height, width]."""
    with av.open(io.BytesIO(bytes(jpeg)), format="jpeg_pipe") as container:
        frame = next(container.decode(video=0))
    decoded: Bytes = np.frombuffer(frame.planes[0], np.uint8).reshape(-1, frame.planes[0].line_size)
    return decoded[: frame.height, : frame.width].copy()


def full_range(luma: Bytes, image: ImageFormat) -> np.ndarray:
    values = luma.astype(np.float32)
    return values if image.is_full_range else np.clip((values - 16) * 255 / 219, 0, 255)


@pytest.fixture(params=DEVICES.values(), ids=DEVICES.keys())
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    case: DeviceCase = request.param
    chosen = next(profile for profile in PROFILES.values() if profile.device == case.device)
    with case.open() as device:
        try:
            encoder = JPEG_ENCODERS.get(chosen.jpeg)(device, QUALITY)
        except BackendUnavailableError as error:
            pytest.skip(f"cannot run here: {error}")
        try:
            yield Desk(case, device, encoder)
        finally:
            encoder.close()


@pytest.mark.parametrize("size", [(640, 360), (97, 71), (1280, 720)], ids=str)
@pytest.mark.parametrize("is_full_range", [False, True])
def test_a_picture_comes_back_as_it_was(desk: Desk, size: tuple[int, int], is_full_range: bool) -> None:
    image = ImageFormat(*size, matrix=ColorMatrix.BT601, is_full_range=is_full_range)
    surface = desk.picture(image)
    desk.encoder.prepare(image)
    found = luma_of(desk.encoder.encode(surface))
    assert found.shape == (image.height_px, image.width_px)
    expected = full_range(planes_of(image, (0, 0, 0, 0))[0], image)
    assert np.abs(found - expected).mean() < 2


@pytest.mark.parametrize(
    "where", [(0, 0, 640, 360), (40, 20, 200, 100), (322, 180, 101, 77), (638, 358, 2, 2)], ids=str
)
def test_a_part_is_a_picture_of_its_own(desk: Desk, where: tuple[int, int, int, int]) -> None:
    image = ImageFormat(640, 360)
    left, top, width, height = where
    surface = desk.picture(image)
    desk.encoder.prepare(image)
    found = luma_of(desk.encoder.encode(desk.device.arena.view(surface, *where)))
    assert found.shape == (height, width)
    whole = full_range(planes_of(image, (0, 0, 0, 0))[0], image)
    assert np.abs(found - whole[top : top + height, left : left + width]).mean() < 3
    # The whole picture is still whole after a part.
    assert np.abs(luma_of(desk.encoder.encode(surface)) - whole).mean() < 2


def test_black_stays_black(desk: Desk) -> None:
    image = ImageFormat(320, 240)
    desk.encoder.prepare(image)
    found = luma_of(desk.encoder.encode(desk.picture(image, (64, 64, 192, 192))))
    assert found[72:184, 72:184].max() <= 4


def test_formats_take_turns_and_one_that_was_prepared_twice_is_fine(desk: Desk) -> None:
    formats = [ImageFormat(64 + 32 * number, 48) for number in range(4)]
    pictures = [desk.picture(image) for image in formats]
    for _ in range(3):
        for image, surface in zip(formats, pictures, strict=True):
            desk.encoder.prepare(image)
            assert luma_of(desk.encoder.encode(surface)).shape == (image.height_px, image.width_px)


def test_what_was_not_prepared_is_refused(desk: Desk) -> None:
    desk.encoder.prepare(ImageFormat(320, 240))
    for image in (ImageFormat(322, 240), ImageFormat(64, 48, matrix=ColorMatrix.BT709)):
        with pytest.raises(PipelineError, match="nothing is prepared"):
            desk.encoder.encode(desk.picture(image))


def test_only_nv12_is_encoded(desk: Desk) -> None:
    with pytest.raises(PipelineError, match="nv12"):
        desk.encoder.prepare(ImageFormat(64, 48, PixelFormat.I420))


def test_it_can_be_closed_twice_and_encodes_nothing_afterwards(desk: Desk) -> None:
    image = ImageFormat(64, 48)
    surface = desk.picture(image)
    desk.encoder.prepare(image)
    desk.encoder.close()
    desk.encoder.close()
    with pytest.raises(PipelineError):
        desk.encoder.encode(surface)

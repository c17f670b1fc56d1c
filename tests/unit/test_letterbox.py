"""The numpy letterbox against a slow one that follows the definition pixel by pixel, in double precision."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.backends.cpu.arena import CpuArena, CpuBuffer
from zhcedge.backends.cpu.letterbox import PictureLetterbox
from zhcedge.core.errors import PipelineError
from zhcedge.core.geometry import Letterbox
from zhcedge.core.types import (
    GUARDED_BYTES,
    ColorMatrix,
    HeadKind,
    ImageFormat,
    ModelFacts,
    PixelFormat,
    Surface,
)

Samples = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]

sizes = st.integers(1, 70)
targets = st.integers(1, 24)
formats = st.sampled_from([PixelFormat.NV12, PixelFormat.P010, PixelFormat.RGB24])


def model(width: int, height: int, scale: float = 1 / 255) -> ModelFacts:
    return ModelFacts(
        "m", "", ("a",), "i", "o", (1, 3, height, width), (1, 5, 1), scale, 114, HeadKind.YOLO_ANCHOR_FREE, 0.5, 0.5
    )


def picture(image: ImageFormat, seed: int) -> Surface[CpuBuffer]:
    """A surface of random bytes, padding included, so that reading padding would be noticed."""
    surface = CpuArena().surface(image, "test")
    generator = np.random.default_rng(seed)
    for plane in surface.planes:
        plane.buffer[:] = generator.integers(0, 256, plane.buffer.shape, dtype=np.uint8)
    return surface


def letterboxed(surface: Surface[CpuBuffer], facts: ModelFacts) -> npt.NDArray[np.float32]:
    letterbox = PictureLetterbox(surface.format, facts, CpuArena(), "test")
    target = np.full(facts.input_shape[1:], np.nan, np.float32)
    letterbox.fill_border(target)
    letterbox(surface, target)
    return target


def components(surface: Surface[CpuBuffer]) -> list[Samples]:
    """Y, U, V or R, G, B planes."""
    image = surface.format
    planes = [plane.buffer[:, : plane.width_bytes] for plane in surface.planes]
    if image.pixel_format is PixelFormat.RGB24:
        return [planes[0][:, index::3] for index in range(3)]
    if image.pixel_format is PixelFormat.P010:
        planes = [plane.view("<u2") for plane in planes]
    return [planes[0], planes[1][:, 0::2], planes[1][:, 1::2]]


def bilinear(plane: Samples, x: float, y: float) -> float:
    """On a scale of 0..255."""
    x, y = min(max(x, 0.0), plane.shape[1] - 1.0), min(max(y, 0.0), plane.shape[0] - 1.0)
    left, top = math.floor(x), math.floor(y)
    right, bottom = min(left + 1, plane.shape[1] - 1), min(top + 1, plane.shape[0] - 1)
    upper = float(plane[top, left]) * (1 - (x - left)) + float(plane[top, right]) * (x - left)
    lower = float(plane[bottom, left]) * (1 - (x - left)) + float(plane[bottom, right]) * (x - left)
    return (upper * (1 - (y - top)) + lower * (y - top)) / (256 if plane.dtype == np.uint16 else 1)


def to_rgb(y: float, u: float, v: float, image: ImageFormat) -> tuple[float, float, float]:
    """Textbook form: normalise, then solve the luma equation Y = Kr R + Kg G + Kb B for G."""
    kr, kb = (0.299, 0.114) if image.matrix is ColorMatrix.BT601 else (0.2126, 0.0722)
    if image.is_full_range:
        luma, pb, pr = y / 255, (u - 128) / 255, (v - 128) / 255
    else:
        luma, pb, pr = (y - 16) / 219, (u - 128) / 224, (v - 128) / 224
    red = luma + 2 * (1 - kr) * pr
    blue = luma + 2 * (1 - kb) * pb
    return red, (luma - kr * red - kb * blue) / (1 - kr - kb), blue


def expected_pixel(surface: Surface[CpuBuffer], box: Letterbox, column: int, row: int) -> list[float]:
    """R, G, B 0..1 of a pixel of the target inside the picture."""
    image = surface.format
    x = (column - box.left_px + 0.5) * box.scale_x - 0.5
    y = (row - box.top_px + 0.5) * box.scale_y - 0.5
    x, y = min(max(x, 0.0), image.width_px - 1.0), min(max(y, 0.0), image.height_px - 1.0)
    first, second, third = components(surface)
    if image.pixel_format is PixelFormat.RGB24:
        rgb = tuple(bilinear(plane, x, y) / 255 for plane in (first, second, third))
    else:
        chroma_x, chroma_y = x / 2, (y - 0.5) / 2
        rgb = to_rgb(
            bilinear(first, x, y), bilinear(second, chroma_x, chroma_y), bilinear(third, chroma_x, chroma_y), image
        )
    return [min(max(value, 0.0), 1.0) for value in rgb]


@given(
    size=st.tuples(sizes, sizes),
    target=st.tuples(targets, targets),
    pixel_format=formats,
    matrix=st.sampled_from(ColorMatrix),
    is_full_range=st.booleans(),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_every_pixel_follows_the_definition(
    size: tuple[int, int],
    target: tuple[int, int],
    pixel_format: PixelFormat,
    matrix: ColorMatrix,
    is_full_range: bool,
    seed: int,
    data: st.DataObject,
) -> None:
    image = ImageFormat(*size, pixel_format, matrix=matrix, is_full_range=is_full_range)
    surface, facts = picture(image, seed), model(*target)
    box = Letterbox.fit(*size, *target)
    result = letterboxed(surface, facts)
    assert np.isfinite(result).all()
    inside = np.zeros(result.shape[1:], bool)
    inside[box.top_px : box.top_px + box.height_px, box.left_px : box.left_px + box.width_px] = True
    assert np.all(result[:, ~inside] == np.float32(114 / 255))
    corners = [(box.left_px, box.top_px), (box.left_px + box.width_px - 1, box.top_px + box.height_px - 1)]
    column = st.integers(box.left_px, box.left_px + box.width_px - 1)
    row = st.integers(box.top_px, box.top_px + box.height_px - 1)
    for x, y in [*corners, *data.draw(st.lists(st.tuples(column, row), max_size=8))]:
        assert result[:, y, x] == pytest.approx(expected_pixel(surface, box, x, y), abs=3e-5)


@pytest.mark.parametrize("size", [(7680, 4320), (4319, 7679), (1, 7680), (7680, 1), (1, 1)], ids=str)
def test_extreme_sizes_follow_the_definition(size: tuple[int, int]) -> None:
    surface, facts = picture(ImageFormat(*size), 5), model(64, 48)
    box = Letterbox.fit(*size, 64, 48)
    result = letterboxed(surface, facts)
    right, bottom = box.left_px + box.width_px - 1, box.top_px + box.height_px - 1
    middle = ((box.left_px + right) // 2, (box.top_px + bottom) // 2)
    for x, y in [(box.left_px, box.top_px), (right, bottom), (right, box.top_px), middle]:
        # Positions of thousands keep three digits less of a float32 weight.
        assert result[:, y, x] == pytest.approx(expected_pixel(surface, box, x, y), abs=5e-4)


@pytest.mark.parametrize(("is_full_range", "black", "white"), [(False, 16, 235), (True, 0, 255)])
def test_black_and_white_reach_both_ends_in_both_ranges(is_full_range: bool, black: int, white: int) -> None:
    for luma, expected in ((black, 0.0), (white, 1.0)):
        surface = picture(ImageFormat(9, 9, is_full_range=is_full_range), 0)
        surface.planes[0].buffer[:] = luma
        surface.planes[1].buffer[:] = 128
        assert letterboxed(surface, model(9, 9)) == pytest.approx(np.full((3, 9, 9), expected), abs=1e-5)


def test_the_models_scale_applies_to_picture_and_border() -> None:
    surface = picture(ImageFormat(20, 10), 6)
    assert letterboxed(surface, model(8, 8, scale=1.0)) == pytest.approx(
        255 * letterboxed(surface, model(8, 8)), abs=1e-2
    )


def test_i420_is_refused() -> None:
    with pytest.raises(PipelineError, match="i420"):
        PictureLetterbox(ImageFormat(8, 8, PixelFormat.I420), model(8, 8), CpuArena(), "test")


@pytest.mark.parametrize("pixel_format", [PixelFormat.NV12, PixelFormat.P010, PixelFormat.RGB24])
@pytest.mark.parametrize("size", [(768, 576), (767, 575), (1920, 1080)], ids=str)
def test_a_frame_allocates_less_than_a_guarded_buffer(pixel_format: PixelFormat, size: tuple[int, int]) -> None:
    surface, facts = picture(ImageFormat(*size, pixel_format), 7), model(416, 416)
    letterbox = PictureLetterbox(surface.format, facts, CpuArena(), "test")
    target = np.zeros((3, 416, 416), np.float32)
    letterbox(surface, target)
    tracemalloc.start()
    try:
        letterbox(surface, target)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < GUARDED_BYTES

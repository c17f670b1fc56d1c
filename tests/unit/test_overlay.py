"""The overlay against a painter that follows its description pixel by pixel, and its clipping at every border."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.backends.cpu.arena import CpuArena, CpuBuffer
from zhcedge.backends.cpu.glyphs import glyph_indices, load_atlas
from zhcedge.backends.cpu.overlay import (
    BLACK_FULL,
    BLACK_LIMITED,
    INK_LUMA,
    PALETTE,
    Hidden,
    TextTiles,
    draw,
    frame_thickness,
    text_scale,
)
from zhcedge.core.errors import PipelineError
from zhcedge.core.types import GUARDED_BYTES, MAX_DETECTIONS, RESULT_DTYPE, ImageFormat, Surface

LABELS = ("person", "fire hydrant", *(f"label {n}" for n in range(10)))
Detection = tuple[tuple[float, float, float, float], float, int]


def grey(width: int, height: int, is_full_range: bool = False) -> Surface[CpuBuffer]:
    surface = CpuArena().surface(ImageFormat(width, height, is_full_range=is_full_range), "test")
    for plane in surface.planes:
        plane.buffer[:] = 90
    return surface


def results_of(detections: list[Detection]) -> npt.NDArray[np.void]:
    results = np.zeros(1, RESULT_DTYPE)
    results["count"] = len(detections)
    for index, detection in enumerate(detections):
        results["detections"][0][index] = detection
    return results


def tiles(scale: int = 1) -> TextTiles:
    return TextTiles(LABELS, scale, CpuArena(), "test")


class Painter:
    """Paints sets of pixels, slowly."""

    def __init__(self, width: int, height: int) -> None:
        self.luma = np.full((height, width), 90, np.uint8)
        self.chroma = np.full(((height + 1) // 2, (width + 1) // 2, 2), 90, np.uint8)
        self.rows, self.columns = np.mgrid[:height, :width]

    def rectangle(self, x0: int, y0: int, x1: int, y1: int) -> npt.NDArray[np.bool_]:
        inside = (self.columns >= x0) & (self.columns < x1) & (self.rows >= y0) & (self.rows < y1)
        return np.asarray(inside)

    def fill(self, pixels: npt.NDArray[np.bool_], color: tuple[int, int, int]) -> None:
        self.luma[pixels] = color[0]
        self.chroma[self.rows[pixels] // 2, self.columns[pixels] // 2] = color[1:]

    def write(self, text: str, x: int, y: int, background: int) -> None:
        for position, glyph in enumerate(load_atlas()[glyph_indices(text)]):
            for (row, column), alpha in np.ndenumerate(glyph):
                at = (y + row, x + position * glyph.shape[1] + column)
                if at[0] < self.luma.shape[0] and at[1] < self.luma.shape[1]:
                    self.luma[at] = math.floor((int(alpha) * INK_LUMA + (255 - int(alpha)) * background) / 255 + 0.5)


def painted(
    width: int,
    height: int,
    detections: list[Detection],
    mask: npt.NDArray[np.bool_] | None = None,
    black: tuple[int, int, int] = BLACK_LIMITED,
) -> Painter:
    painter = Painter(width, height)
    if mask is not None:
        painter.fill(mask[painter.rows // 2, painter.columns // 2], black)
    _, glyph_height, glyph_width = load_atlas().shape
    whole = []
    for (x0, y0, x1, y1), score, label in reversed(detections):
        left, top = math.floor(x0 + 0.5), math.floor(y0 + 0.5)
        right, bottom = max(math.floor(x1 + 0.5), left + 1), max(math.floor(y1 + 0.5), top + 1)
        whole.append((left, top, right, bottom, score, label))
    for left, top, right, bottom, _, label in whole:
        box = painter.rectangle(left, top, right, bottom)
        hole = painter.rectangle(left + 2, top + 2, right - 2, bottom - 2)
        painter.fill(box & ~hole, PALETTE[label % len(PALETTE)])
    for left, top, _, _, score, label in whole:
        text = f"{LABELS[label]} {score:.2f}"
        tag_width, tag_height = len(text) * glyph_width + 4, glyph_height + 2
        x = max(min(left, width - tag_width), 0)
        y = top - tag_height if top >= tag_height else top
        color = PALETTE[label % len(PALETTE)]
        painter.fill(painter.rectangle(x, y, x + tag_width, y + tag_height), color)
        painter.write(text, x + 2, y + 1, color[0])
    return painter


# Quarters never round to a half by accident; scores in eighths have two certain digits or a tie that goes to even.
coordinates = st.integers(0, 400).map(lambda n: n / 4)


@st.composite
def detections_in(draw_from: st.DrawFn, width: int, height: int) -> list[Detection]:
    found = []
    for _ in range(draw_from(st.integers(0, 4))):
        xs = sorted(min(draw_from(coordinates), width) for _ in range(2))
        ys = sorted(min(draw_from(coordinates), height) for _ in range(2))
        box = (float(xs[0]), float(ys[0]), float(xs[1]), float(ys[1]))
        found.append((box, draw_from(st.integers(0, 8)) / 8, draw_from(st.integers(0, len(LABELS) - 1))))
    return found


@given(width=st.integers(1, 100), height=st.integers(1, 60), data=st.data())
def test_every_byte_is_as_described(width: int, height: int, data: st.DataObject) -> None:
    detections = data.draw(detections_in(width, height))
    surface = grey(width, height)
    draw(surface, results_of(detections), tiles())
    expected = painted(width, height, detections)
    luma, chroma = surface.planes
    assert np.array_equal(luma.buffer[:, :width], expected.luma)
    assert np.array_equal(chroma.buffer[:, : chroma.width_bytes].reshape(expected.chroma.shape), expected.chroma)
    # The padding of the rows belongs to nobody.
    assert np.all(luma.buffer[:, width:] == 90)
    assert np.all(chroma.buffer[:, chroma.width_bytes :] == 90)


@given(width=st.integers(1, 40), height=st.integers(1, 30), is_full_range=st.booleans(), data=st.data())
def test_a_mask_is_black_to_the_block_and_boxes_are_drawn_on_top(
    width: int, height: int, is_full_range: bool, data: st.DataObject
) -> None:
    detections = data.draw(detections_in(width, height))
    shape = (height + 1) // 2, (width + 1) // 2
    blocks = data.draw(st.lists(st.booleans(), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
    mask = np.array(blocks).reshape(shape)
    surface = grey(width, height, is_full_range)
    draw(surface, results_of(detections), tiles(), Hidden(CpuArena().plane(mask.astype(np.uint8), "test")))
    expected = painted(width, height, detections, mask, BLACK_FULL if is_full_range else BLACK_LIMITED)
    luma, chroma = surface.planes
    assert np.array_equal(luma.buffer[:, :width], expected.luma)
    assert np.array_equal(chroma.buffer[:, : chroma.width_bytes].reshape(expected.chroma.shape), expected.chroma)
    assert np.all(luma.buffer[:, width:] == 90)
    assert np.all(chroma.buffer[:, chroma.width_bytes :] == 90)


@pytest.mark.parametrize("shape", [(4, 5), (5, 4), (10, 10)], ids=str)
def test_a_mask_for_another_size_is_an_error_and_no_picture(shape: tuple[int, int]) -> None:
    hidden = Hidden(CpuArena().plane(np.ones(shape, np.uint8), "test"))
    with pytest.raises(PipelineError, match="mask"):
        draw(grey(10, 10), results_of([]), tiles(), hidden)


def test_a_wide_mask_is_few_rectangles() -> None:
    mask = np.zeros((540, 960), np.uint8)
    mask[100:300, 200:900] = 1
    mask[50:120, :40] = 1
    hidden = Hidden(CpuArena().plane(mask, "test"))
    assert len(hidden.rectangles) == 4  # in three bands; both shapes are in the middle one


def test_nothing_is_drawn_without_detections() -> None:
    surface = grey(31, 17)
    draw(surface, results_of([]), tiles())
    assert all(np.all(plane.buffer == 90) for plane in surface.planes)


def test_one_pixel_pictures_take_the_colour_of_the_box() -> None:
    surface = grey(1, 1)
    draw(surface, results_of([((0, 0, 1, 1), 0.5, 3)]), tiles())
    assert tuple(surface.planes[1].buffer[0, :2]) == PALETTE[3][1:]


@pytest.mark.parametrize(("height", "thickness", "scale"), [(576, 2, 1), (720, 3, 1), (1080, 3, 1), (2160, 6, 2)])
def test_lines_and_text_grow_with_the_picture(height: int, thickness: int, scale: int) -> None:
    assert (frame_thickness(height), text_scale(height)) == (thickness, scale)


def test_larger_text_is_the_same_text_enlarged() -> None:
    small, large = tiles(1), tiles(2)
    for one, two in zip(small.names, large.names, strict=True):
        assert np.array_equal(two[::2, ::2], one)
        assert np.array_equal(two[1::2, 1::2], one)


def test_a_long_label_is_cut() -> None:
    long = TextTiles(("x" * 500,), 1, CpuArena(), "test")
    assert long.names[0].shape[1] < 30 * long.glyph_width_px


def test_a_full_frame_of_boxes_allocates_less_than_a_guarded_buffer() -> None:
    generator = np.random.default_rng(10)
    found: list[Detection] = []
    for index in range(MAX_DETECTIONS):
        x, y = generator.random(2) * 1000
        found.append(((x, y, x + 300, y + 300), 0.75, index % len(LABELS)))
    surface, results, text = grey(1920, 1080), results_of(found), tiles()
    draw(surface, results, text)
    tracemalloc.start()
    try:
        draw(surface, results, text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < GUARDED_BYTES

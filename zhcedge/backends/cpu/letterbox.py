"""Preprocessing on the CPU: a slot's picture -> letterboxed RGB or BGR. The numpy twin of the GPU kernel.

For every pixel of the scaled picture (core/geometry.py says where it samples):

1. bilinear samples of luma and of chroma, each in its own plane at its own resolution. A luma position (x, y), already
   clamped to the picture, is chroma position (x / 2, (y - 0.5) / 2), clamped to the chroma plane;
2. YCbCr to R'G'B' with the constants of ITU-R BT.601-7 or BT.709-6 (Kr, Kb), limited or full range, on 0..255;
3. clamped to 0..255, times the model's scale. Nothing is rounded to 8 bits in between. All in float32, also where
   the model's input is float16: then each value is rounded once, at the end.

Borders hold pad_value * scale. RGB24 skips step 2. P010 samples count as 8-bit values with a fraction (x / 256).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zhcedge.backends.cpu.arena import CpuArena, CpuBuffer, Reals, pitch_bytes, tensor_values
from zhcedge.backends.cpu.program import CpuLane, LaunchFence
from zhcedge.core.errors import PipelineError
from zhcedge.core.geometry import Letterbox, plane_sizes
from zhcedge.core.types import ColorMatrix, ImageFormat, ModelFacts, PixelFormat, Surface

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.intp]

_STRIP_ROWS = 64
"""Output rows worked on at a time: scratch stays in the second-level cache, call overhead stays below 5 %."""

_FOR_EVER_S = 3600.0  # the assistant does bounded work; a hang is the collector's to notice

_KR_KB = {ColorMatrix.BT601: (0.299, 0.114), ColorMatrix.BT709: (0.2126, 0.0722)}


@dataclass(frozen=True)
class AxisTable:
    """Where the pixels of one axis sample: `low + (high - low) * weight`, all of shape [pixels]."""

    low: Indices
    high: Indices
    weight: Floats


def axis_positions(pixels: int, scale: float, source_pixels: int) -> npt.NDArray[np.float64]:
    """Clamped source positions of the centres of `pixels` scaled pixels along one axis."""
    positions = (np.arange(pixels, dtype=np.float64) + 0.5) * scale - 0.5
    return np.clip(positions, 0.0, source_pixels - 1.0)


def axis_table(positions: npt.NDArray[np.float64], samples: int) -> AxisTable:
    """Neighbours and weights for positions in a plane with `samples` samples along the axis."""
    inside = np.clip(positions, 0.0, samples - 1.0)
    low = np.floor(inside).astype(np.intp)
    high = np.minimum(low + 1, samples - 1)
    return AxisTable(low, high, (inside - low).astype(np.float32))


@dataclass(frozen=True)
class ColorRow:
    """R, G or B as weights of Y, U, V (on 0..255 samples) and a constant, the model's scale included."""

    y: float
    u: float
    v: float
    constant: float


def color_rows(image: ImageFormat, scale: float) -> tuple[ColorRow, ColorRow, ColorRow]:
    """YCbCr to R'G'B' times `scale`. ITU-R BT.601-7 / BT.709-6; limited range is 16..235 and 16..240."""
    kr, kb = _KR_KB[image.matrix]
    kg = 1.0 - kr - kb
    y_gain, c_gain, y_zero = (1.0, 1.0, 0.0) if image.is_full_range else (255.0 / 219.0, 255.0 / 224.0, 16.0)
    chroma = (
        (0.0, 2.0 * (1.0 - kr)),
        (-2.0 * kb * (1.0 - kb) / kg, -2.0 * kr * (1.0 - kr) / kg),
        (2.0 * (1.0 - kb), 0.0),
    )
    rows = []
    for u, v in chroma:
        u_weight, v_weight, y_weight = u * c_gain * scale, v * c_gain * scale, y_gain * scale
        rows.append(ColorRow(y_weight, u_weight, v_weight, -(y_weight * y_zero + 128.0 * (u_weight + v_weight))))
    return rows[0], rows[1], rows[2]


class PlaneSampler:
    """Samples one plane at a letterbox's positions, strip by strip, into scratch of its own.

    Args:
        components: interleaved samples of a pixel: 1 (luma), 2 (chroma), 3 (RGB).
        sample_type: uint8 or uint16.
        source_pixels, pitch_bytes: width of the plane; whole rows are gathered, padding included, because that is one
            memcpy a row.
    """

    def __init__(
        self,
        arena: CpuArena,
        owner: str,
        columns: AxisTable,
        rows: AxisTable,
        components: int,
        sample_type: type[np.uint8] | type[np.uint16],
        source_pixels: int,
        pitch_bytes: int,
    ) -> None:
        self._columns, self._rows, self._components = columns, rows, components
        self._sample_type = sample_type
        strip, width = min(_STRIP_ROWS, len(rows.low)), len(columns.low)
        self._used = source_pixels * components
        self._row_weight = rows.weight[:, None]
        self._column_weight = np.repeat(columns.weight, components)
        self._raw = arena.array((strip, pitch_bytes // np.dtype(sample_type).itemsize), sample_type, owner)
        self._top = arena.array((strip, self._used), np.float32, owner)
        self._bottom = arena.array((strip, self._used), np.float32, owner)
        self._left = arena.array((strip, width * components), np.float32, owner)
        self._right = arena.array((strip, width * components), np.float32, owner)

    def strip(self, plane: CpuBuffer, start: int, stop: int) -> Floats:
        """Samples of scaled rows start..stop, [rows, width * components]: scratch, valid until the next call."""
        source = plane.view(self._sample_type)
        count = stop - start
        top, bottom = self._top[:count], self._bottom[:count]
        self._gather_rows(source, self._rows.low[start:stop], top)
        self._gather_rows(source, self._rows.high[start:stop], bottom)
        _blend(top, bottom, self._row_weight[start:stop])
        left, right = self._left[:count], self._right[:count]
        self._gather(top, self._columns.low, left)
        self._gather(top, self._columns.high, right)
        _blend(left, right, self._column_weight)
        return left

    def _gather_rows(self, source: npt.NDArray[np.generic], rows: Indices, out: Floats) -> None:
        if source.shape[1] == self._raw.shape[1]:
            raw = self._raw[: len(rows)]
            # mode="clip" because "raise" makes numpy gather into a buffer of its own first; indices are in range.
            np.take(source, rows, axis=0, out=raw, mode="clip")
            np.copyto(out, raw[:, : self._used])
            return
        # Part of a wider picture: its rows lie apart, and take() would first copy all of them into one piece.
        for row, target in zip(rows.tolist(), out, strict=True):
            np.copyto(target, source[row, : self._used])

    def _gather(self, values: Floats, columns: Indices, out: Floats) -> None:
        # The samples of a pixel move together: numpy gathers 4- and 8-byte items by a fast path.
        shape = (len(values), -1, self._components)
        np.take(values.reshape(shape), columns, axis=1, out=out.reshape(shape), mode="clip")


def _blend(first: Floats, second: Floats, weight: Floats) -> None:
    """first += (second - first) * weight, in place; `second` is used up."""
    np.subtract(second, first, out=second)
    np.multiply(second, weight, out=second)
    np.add(first, second, out=first)


class PictureLetterbox:
    """Letterboxes pictures of one format into one model input. Tables and scratch are made here, before the seal.

    Args:
        image: NV12, P010 or RGB24; anything else raises PipelineError.
    """

    def __init__(self, image: ImageFormat, model: ModelFacts, arena: CpuArena, owner: str) -> None:
        if image.pixel_format not in (PixelFormat.NV12, PixelFormat.P010, PixelFormat.RGB24):
            raise PipelineError(f"letterbox can't read {image.pixel_format.value}", where=owner)
        height, width = model.input_shape[2:]
        self.box = Letterbox.fit(image.width_px, image.height_px, width, height)
        self._image = image
        self._limit = 255.0 * model.scale
        self._pad = model.pad_value * model.scale
        self._scale = model.scale
        self._samplers = self._make_samplers(image, arena, owner)
        # One for each plane of the input; the planes of RGB24 in the same order.
        red_first = color_rows(image, model.scale)
        self._colors = red_first[::-1] if model.is_bgr else red_first
        self._components = (2, 1, 0) if model.is_bgr else (0, 1, 2)
        strip = min(_STRIP_ROWS, self.box.height_px)
        # Arithmetic happens in contiguous scratch: over strided views numpy makes buffers of 32 KiB for each operand.
        self._scratch = tuple(arena.array((strip, self.box.width_px), np.float32, owner) for _ in range(4))

    def _make_samplers(self, image: ImageFormat, arena: CpuArena, owner: str) -> tuple[PlaneSampler, ...]:
        box = self.box
        x = axis_positions(box.width_px, box.scale_x, image.width_px)
        y = axis_positions(box.height_px, box.scale_y, image.height_px)
        luma = (axis_table(x, image.width_px), axis_table(y, image.height_px))
        pitches = [pitch_bytes(width) for width, _ in plane_sizes(image)]
        if image.pixel_format is PixelFormat.RGB24:
            return (PlaneSampler(arena, owner, *luma, 3, np.uint8, image.width_px, pitches[0]),)
        sample_type = np.uint16 if image.pixel_format is PixelFormat.P010 else np.uint8
        chroma_width, chroma_rows = (image.width_px + 1) // 2, (image.height_px + 1) // 2
        chroma = (axis_table(x / 2.0, chroma_width), axis_table((y - 0.5) / 2.0, chroma_rows))
        return (
            PlaneSampler(arena, owner, *luma, 1, sample_type, image.width_px, pitches[0]),
            PlaneSampler(arena, owner, *chroma, 2, sample_type, chroma_width, pitches[1]),
        )

    def fill_border(self, target: Reals) -> None:
        """Set all of [3, H, W] to the pad value; the picture is written over its part of it."""
        target.fill(self._pad)

    def __call__(self, surface: Surface[CpuBuffer], target: Reals, rows: range | None = None) -> None:
        """Write the scaled picture into its place in `target`, [3, H, W]. Allocates nothing of 64 KiB.

        Args:
            rows: of the scaled picture, to write a part of it; None for all.
        """
        box = self.box
        rows = range(box.height_px) if rows is None else rows
        inner = target[:, box.top_px : box.top_px + box.height_px, box.left_px : box.left_px + box.width_px]
        convert = self._convert_rgb if self._image.pixel_format is PixelFormat.RGB24 else self._convert_yuv
        for start in range(rows.start, rows.stop, _STRIP_ROWS):
            stop = min(start + _STRIP_ROWS, rows.stop)
            strip = inner[:, start:stop]
            convert(surface, start, stop, strip)

    def _convert_yuv(self, surface: Surface[CpuBuffer], start: int, stop: int, strip: Reals) -> None:
        luma = self._samplers[0].strip(surface.planes[0].buffer, start, stop)
        chroma = self._samplers[1].strip(surface.planes[1].buffer, start, stop)
        u, v, term, value = (scratch[: stop - start] for scratch in self._scratch)
        np.copyto(u, chroma[:, 0::2])
        np.copyto(v, chroma[:, 1::2])
        # P010 keeps its 10 bits at the top of 16: as fractions of an 8-bit value that is x / 256.
        unit = 1.0 / 256.0 if self._image.pixel_format is PixelFormat.P010 else 1.0
        np.multiply(luma, self._colors[0].y * unit, out=luma)
        for color, out in zip(self._colors, strip, strict=True):
            np.add(luma, color.constant, out=value)
            for samples, weight in ((u, color.u), (v, color.v)):
                if weight:
                    np.multiply(samples, weight * unit, out=term)
                    np.add(value, term, out=value)
            self._store(value, out)

    def _convert_rgb(self, surface: Surface[CpuBuffer], start: int, stop: int, strip: Reals) -> None:
        pixels = self._samplers[0].strip(surface.planes[0].buffer, start, stop)
        value = self._scratch[0][: stop - start]
        for component, out in zip(self._components, strip, strict=True):
            np.copyto(value, pixels[:, component::3])
            np.multiply(value, self._scale, out=value)
            self._store(value, out)

    def _store(self, value: Floats, out: Reals) -> None:
        np.clip(value, 0.0, self._limit, out=value)
        np.copyto(out, value)


class LetterboxStage:
    """Implements core.ports.Stage: slot surfaces -> lane.input. Runs on the lane's thread and its assistant's.

    A lone frame is split between the two, because it comes after a pause and finds cold caches: 3.6 ms for 768x576 to
    416 on one core, against 1.8 in a tight loop. With two lanes at work the second thread would cost more than it
    brings: measured 0.80 of the engine's rate against 0.93.
    """

    name = "letterbox"

    def __init__(self, lane: CpuLane, model: ModelFacts, arena: CpuArena) -> None:
        self._lane, self._model, self._arena = lane, model, arena
        self._input = tensor_values(lane.input)
        self._pictures: dict[ImageFormat, tuple[PictureLetterbox, PictureLetterbox]] = {}
        self._bordered: list[ImageFormat | None] = [None] * len(self._input)

    def prepare(self, image: ImageFormat) -> None:
        """Make tables and scratch for a format. Raises PhaseError for a new one after the seal."""
        self._picture(image)

    def enqueue(self, batch: int) -> None:
        for index, slot in enumerate(self._lane.slots[:batch]):
            image, target = slot.surface.format, self._input[index]
            upper, lower = self._picture(image)
            if self._bordered[index] != image:
                upper.fill_border(target)
                self._bordered[index] = image
            self._write(upper, lower, slot.surface, target)

    def _write(
        self, upper: PictureLetterbox, lower: PictureLetterbox, surface: Surface[CpuBuffer], target: Reals
    ) -> None:
        if self._lane.company.is_shared:
            upper(surface, target)
            return
        rows, half = upper.box.height_px, upper.box.height_px // 2
        fence = LaunchFence()
        self._lane.assistant.submit(lambda: upper(surface, target, range(half)), fence)
        try:
            lower(surface, target, range(half, rows))
        finally:
            fence.wait(_FOR_EVER_S)

    def _picture(self, image: ImageFormat) -> tuple[PictureLetterbox, PictureLetterbox]:
        pictures = self._pictures.get(image)
        if pictures is None:
            owner = f"lane {self._lane.index}, letterbox"
            upper, lower = (PictureLetterbox(image, self._model, self._arena, owner) for _ in range(2))
            pictures = self._pictures[image] = (upper, lower)
        return pictures

"""Overlay on the CPU: boxes and labels drawn straight into a slot's NV12. The numpy twin of the GPU kernel.

What is drawn, so that both agree to the byte:

- the slot's mask, where it has one, is black before anything else; boxes and tags go on top of it;
- edges are floor(coordinate + 0.5) and at least 1 pixel apart; a frame lies inside its box, 2 pixels thick, 3 from
  720 lines on, times the text scale (picture height / 900, at least 1);
- a tag "label 0.87" (score in hundredths, rounded half to even) in black on the box's colour stands above the box,
  or in its top when there is no room, moved left where it would leave the picture;
- all frames first, then all tags; within each the weaker detections first, so the best ones end on top;
- a chroma sample takes a colour when any of its four pixels is drawn.

The palette is in limited-range BT.601; other ranges and matrices shift the hues slightly and nothing else.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from zhcedge.backends.cpu.arena import CpuArena, CpuBuffer
from zhcedge.backends.cpu.glyphs import glyph_indices, load_atlas
from zhcedge.backends.cpu.program import CpuLane
from zhcedge.core.errors import PipelineError
from zhcedge.core.ports import FrameSlot
from zhcedge.core.types import ImageFormat, PixelFormat, Plane, Surface

PALETTE = (
    (155, 98, 74),  # green
    (157, 47, 185),  # orange
    (164, 166, 76),  # sky
    (184, 31, 165),  # yellow
    (152, 139, 189),  # pink
    (151, 176, 139),  # violet
    (153, 153, 28),  # turquoise
    (152, 99, 189),  # coral
    (184, 61, 118),  # lime
    (196, 128, 128),  # grey
)
"""Y, U, V by label index modulo its length: bright, so that black text can be read on every one."""

BLACK_LIMITED, BLACK_FULL = (16, 128, 128), (0, 128, 128)
"""Y, U, V of what a mask hides, by the picture's range (ITU-R BT.601-7 and BT.709-6: black is 16 or 0)."""

INK_LUMA = 16
MAX_LABEL_CHARACTERS = 24
_PADDING_X_PX, _PADDING_Y_PX = 2, 1
_SCORE_CHARACTERS = "0123456789."


def text_scale(height_px: int) -> int:
    """How many times larger than the atlas text is drawn on a picture of this height."""
    return max(1, height_px // 900)


def frame_thickness(height_px: int) -> int:
    """Thickness of a box's frame in pixels."""
    return (3 if height_px >= 720 else 2) * text_scale(height_px)


class TextTiles:
    """Luma of everything that tags can say, rendered once: label names, and digits in each palette colour."""

    def __init__(self, labels: Sequence[str], scale: int, arena: CpuArena, owner: str) -> None:
        atlas = load_atlas()
        self._arena, self._owner = arena, owner
        self._atlas = np.repeat(np.repeat(atlas, scale, axis=1), scale, axis=2)
        self.glyph_height_px, self.glyph_width_px = self._atlas.shape[1:]
        self.names = tuple(
            self._render(f"{label[:MAX_LABEL_CHARACTERS]} ", PALETTE[index % len(PALETTE)][0])
            for index, label in enumerate(labels)
        )
        self.digits = tuple(
            tuple(self._render(character, luma) for character in _SCORE_CHARACTERS) for luma, _, _ in PALETTE
        )

    def _render(self, text: str, background: int) -> CpuBuffer:
        glyphs = self._atlas[glyph_indices(text)].astype(np.int32)
        line = np.concatenate(list(glyphs), axis=1)
        tile = self._arena.array(line.shape, np.uint8, self._owner)
        # Integer blending, rounded to nearest: the kernel computes the same.
        tile[:] = (line * INK_LUMA + (255 - line) * background + 127) // 255
        return tile


class Mark(NamedTuple):
    """One detection in whole pixels: x0, y0 inside, x1, y1 outside the box."""

    x0: int
    y0: int
    x1: int
    y1: int
    hundredths: int
    label: int


def marks(results: npt.NDArray[np.void]) -> Iterator[Mark]:
    """What to draw of a RESULT_DTYPE array [1], weakest first; made one by one, so that 256 cost no memory."""
    detections = results["detections"][0][: int(results["count"][0])]
    edges = np.floor(detections["box"] + np.float32(0.5)).astype(np.int32)
    hundredths = np.rint(detections["score"] * np.float32(100)).astype(np.int32)
    for index in reversed(range(len(detections))):
        x0, y0, x1, y1 = edges[index].tolist()
        score = min(max(int(hundredths[index]), 0), 100)
        yield Mark(x0, y0, max(x1, x0 + 1), max(y1, y0 + 1), score, int(detections["label"][index]))


class Canvas:
    """Draws into one NV12 surface, clipped at its borders."""

    def __init__(self, surface: Surface[CpuBuffer]) -> None:
        self.width_px, self.height_px = surface.format.width_px, surface.format.height_px
        luma, chroma = surface.planes
        self._luma = luma.buffer[: luma.rows, : luma.width_bytes]
        # U and V of a sample as one 16-bit number: one assignment fills both.
        self._chroma = chroma.buffer[: chroma.rows, : chroma.width_bytes].view("<u2")

    def fill(self, x0: int, y0: int, x1: int, y1: int, color: tuple[int, int, int]) -> None:
        """Fill a rectangle, x1 and y1 excluded."""
        x0, y0, x1, y1 = max(x0, 0), max(y0, 0), min(x1, self.width_px), min(y1, self.height_px)
        if x0 >= x1 or y0 >= y1:
            return
        luma, u, v = color
        self._luma[y0:y1, x0:x1] = luma
        self._chroma[y0 // 2 : (y1 + 1) // 2, x0 // 2 : (x1 + 1) // 2] = u | v << 8

    def hide(self, hidden: Hidden, color: tuple[int, int, int]) -> None:
        """Fill what a mask hides. Raises PipelineError when the mask was made for another size."""
        rows, width = self._chroma.shape
        if (hidden.mask.rows, hidden.mask.width_bytes) != (rows, width):
            raise PipelineError(
                f"a mask for {hidden.mask.width_bytes} x {hidden.mask.rows} blocks, not {width} x {rows}"
            )
        for x0, y0, x1, y1 in hidden.rectangles:
            self.fill(x0, y0, x1, y1, color)

    def paste(self, tile: CpuBuffer, x: int, y: int) -> None:
        """Copy a tile of luma with its top left corner at x, y."""
        height, width = tile.shape
        x0, y0, x1, y1 = max(x, 0), max(y, 0), min(x + width, self.width_px), min(y + height, self.height_px)
        if x0 < x1 and y0 < y1:
            self._luma[y0:y1, x0:x1] = tile[y0 - y : y1 - y, x0 - x : x1 - x]

    def frame(self, mark: Mark, thickness: int) -> None:
        color = PALETTE[mark.label % len(PALETTE)]
        x0, y0, x1, y1 = mark.x0, mark.y0, mark.x1, mark.y1
        self.fill(x0, y0, x1, min(y0 + thickness, y1), color)
        self.fill(x0, max(y1 - thickness, y0), x1, y1, color)
        self.fill(x0, y0, min(x0 + thickness, x1), y1, color)
        self.fill(max(x1 - thickness, x0), y0, x1, y1, color)

    def tag(self, mark: Mark, tiles: TextTiles) -> None:
        name = tiles.names[mark.label]
        digits = tiles.digits[mark.label % len(PALETTE)]
        glyph_width = tiles.glyph_width_px
        width = name.shape[1] + 4 * glyph_width + 2 * _PADDING_X_PX
        height = tiles.glyph_height_px + 2 * _PADDING_Y_PX
        x = max(min(mark.x0, self.width_px - width), 0)
        y = mark.y0 - height if mark.y0 >= height else mark.y0
        self.fill(x, y, x + width, y + height, PALETTE[mark.label % len(PALETTE)])
        x, y = x + _PADDING_X_PX, y + _PADDING_Y_PX
        self.paste(name, x, y)
        x += name.shape[1]
        hundreds, rest = divmod(mark.hundredths, 100)
        for position, digit in enumerate((hundreds, len(_SCORE_CHARACTERS) - 1, rest // 10, rest % 10)):
            self.paste(digits[digit], x + position * glyph_width, y)


class Hidden:
    """A mask as rectangles, which are filled faster than blocks are looked at.

    Attributes:
        rectangles: x0, y0, x1, y1 of each in pixels, x1 and y1 excluded; of an odd picture up to one pixel beyond it.
    """

    def __init__(self, mask: Plane[CpuBuffer]) -> None:
        self.mask = mask
        blocks = mask.buffer[: mask.rows, : mask.width_bytes]
        changes = np.flatnonzero(np.any(blocks[1:] != blocks[:-1], axis=1)) + 1
        bands = [0, *changes.tolist(), mask.rows]
        self.rectangles = tuple(
            (2 * x0, 2 * top, 2 * x1, 2 * bottom)
            for top, bottom in itertools.pairwise(bands)
            for x0, x1 in _runs(blocks[top])
        )


def _runs(row: CpuBuffer) -> list[list[int]]:
    """[first, end) of each run of samples that are not 0."""
    edges = np.flatnonzero(np.diff((row != 0).astype(np.int8), prepend=0, append=0))
    pairs: list[list[int]] = edges.reshape(-1, 2).tolist()
    return pairs


def draw(
    surface: Surface[CpuBuffer], results: npt.NDArray[np.void], tiles: TextTiles, hidden: Hidden | None = None
) -> None:
    """Draw a RESULT_DTYPE array [1] into an NV12 surface. `tiles` fit the picture's text scale.

    `hidden` is blackened before. Raises PipelineError when it was made for another size.
    """
    canvas = Canvas(surface)
    if hidden is not None:
        canvas.hide(hidden, BLACK_FULL if surface.format.is_full_range else BLACK_LIMITED)
    thickness = frame_thickness(canvas.height_px)
    for mark in marks(results):
        canvas.frame(mark, thickness)
    for mark in marks(results):
        canvas.tag(mark, tiles)


class OverlayStage:
    """Implements core.ports.Stage: slot.mask and slot.results drawn into slot.surface. Runs on the lane's thread."""

    name = "overlay"

    def __init__(self, lane: CpuLane, labels: Sequence[str], arena: CpuArena) -> None:
        self._lane, self._labels, self._arena = lane, tuple(labels), arena
        self._tiles: dict[int, TextTiles] = {}
        self._hidden: dict[int, Hidden] = {}

    def prepare(self, image: ImageFormat) -> None:
        """Render the text for pictures of this size. Raises PipelineError for anything but NV12."""
        if image.pixel_format is not PixelFormat.NV12:
            raise PipelineError(f"overlay can't draw into {image.pixel_format.value}", where=self._owner)
        self._tiles_for(image)

    def admit(self, slot: FrameSlot[CpuBuffer]) -> None:
        """Find the rectangles of the slot's mask, which takes memory."""
        self._hidden_by(slot)

    def enqueue(self, batch: int) -> None:
        for slot in self._lane.slots[:batch]:
            if not slot.is_drawn:
                continue
            if slot.is_drawn:
                draw(slot.surface, slot.results, self._tiles_for(slot.surface.format), self._hidden_by(slot))

    @property
    def _owner(self) -> str:
        return f"lane {self._lane.index}, overlay"

    def _hidden_by(self, slot: FrameSlot[CpuBuffer]) -> Hidden | None:
        """Made when the slot is admitted, and again when its channel's mask is another one."""
        if slot.mask is None:
            return None
        known = self._hidden.get(slot.channel)
        if known is None or known.mask is not slot.mask:
            known = self._hidden[slot.channel] = Hidden(slot.mask)
        return known

    def _tiles_for(self, image: ImageFormat) -> TextTiles:
        scale = text_scale(image.height_px)
        if scale not in self._tiles:
            self._tiles[scale] = TextTiles(self._labels, scale, self._arena, self._owner)
        return self._tiles[scale]

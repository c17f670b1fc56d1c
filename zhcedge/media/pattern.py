"""Drawn pictures with known contents: coloured boxes on exact tracks, and a stamp that says which picture it is.

`truth` is a pure function of the frame number, so a test can know what is in any picture of any channel.

A picture is NV12, BT.601, limited range. All of it is measured in a unit of `unit_px` source pixels, which is at least
one pixel of a model input 320 pixels wide, so that everything survives the letterbox:

- the background is grey, and holds objects that never touch: each bounces about in a cell of its own;
- an object's brightness rises along each edge in a ramp two units wide with its middle on the edge, so that the edge is
  found between samples; its inside has the colour of its class, clear of the ramp;
- the stamp, top left, is 8 x 5 black or white blocks, three units each: the channel (8 bits), the frame number modulo
  2^24, and a CRC-8 of both (polynomial 0x07), bit by bit in rows, highest first.
"""

from __future__ import annotations

import random
import urllib.parse
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from zhcedge.core.errors import MediaError, SourceMissingError
from zhcedge.core.geometry import Letterbox
from zhcedge.core.types import MAX_DETECTIONS, HeadKind, ModelFacts

Pixels = npt.NDArray[np.uint8]

LABELS = ("blue", "yellow", "red", "cyan", "magenta", "green", "orange", "azure")
CHROMA_DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1), (-1, 1), (1, -1))
"""Each label's colour as signs of U - 128 and V - 128, times CHROMA_SWING."""

CHROMA_SWING = 36
BACKGROUND, OBJECT, BLACK, WHITE = 90, 170, 16, 235
"""Values of luma. Every colour lies inside RGB, and half way between object and background lies above the usual pad
value, 114, so that a letterbox's border looks like background."""

STAMP_COLUMNS, STAMP_ROWS = 8, 5
_BLOCK_UNITS = 3
_SMALLEST_INPUT_PX = 320
_GAP_UNITS = 2  # around an object: half its ramp, and one clear sample
_LEAST_OBJECT = (8, 4)  # units and pixels: ramps, a margin for blurred chroma, and an inside that no search misses
_MIN_SIZE_PX, _MAX_SIZE_PX = 64, 8192


@dataclass(frozen=True)
class PatternSpec:
    """What `pattern:boxes?objects=5&size=1280x720&fps=30&seed=1&frames=300` asks for; these are its defaults, but
    `frames`, which is 0: no end."""

    name: str = "boxes"
    objects: int = 5
    width_px: int = 1280
    height_px: int = 720
    fps: float = 30.0
    seed: int = 1
    frames: int = 0

    @property
    def unit_px(self) -> int:
        return -(-max(self.width_px, self.height_px) // _SMALLEST_INPUT_PX)

    @property
    def block_px(self) -> int:
        """Side of a block of the stamp."""
        return _BLOCK_UNITS * self.unit_px

    @property
    def stamp_height_px(self) -> int:
        return STAMP_ROWS * self.block_px

    @property
    def least_cell_px(self) -> int:
        """Side of the smallest cell that an object can live in."""
        units, pixels = _LEAST_OBJECT
        return (units + 2 * _GAP_UNITS) * self.unit_px + pixels

    @property
    def most_objects(self) -> int:
        rows = (self.height_px - self.stamp_height_px) // self.least_cell_px
        return min(rows * (self.width_px // self.least_cell_px), MAX_DETECTIONS)


_BOUNDS = {
    "objects": (0, MAX_DETECTIONS),
    "fps": (0.1, 1000),
    "seed": (0, 2**31 - 1),
    "frames": (0, 2**24 - 1),
}


def parse_pattern(uri: str, where: str) -> PatternSpec:
    """Read a `pattern:` address. Raises SourceMissingError for an unknown name, MediaError for what it can't be."""
    name, _, query = uri.removeprefix("pattern:").partition("?")
    if name != "boxes":
        raise SourceMissingError(f"no pattern is called {name!r}", where=where, fix="write pattern:boxes")
    values: dict[str, float] = {}
    for key, text in urllib.parse.parse_qsl(query, keep_blank_values=True):
        if key == "size":
            values["width_px"], values["height_px"] = _size(text, where)
        elif key in _BOUNDS:
            values[key] = _number(key, text, where)
        else:
            raise MediaError(f"a pattern has no {key!r}", where=where, fix=f"choose from size, {', '.join(_BOUNDS)}")
    whole = {key: int(value) for key, value in values.items() if key != "fps"}
    spec = PatternSpec(name, fps=float(values.get("fps", PatternSpec.fps)), **whole)
    if STAMP_COLUMNS * spec.block_px > spec.width_px or spec.stamp_height_px > spec.height_px:
        raise MediaError(
            f"a picture of {spec.width_px}x{spec.height_px} is too narrow for the stamp",
            where=where,
            fix="choose a size whose sides are less unequal",
        )
    if spec.objects > spec.most_objects:
        raise MediaError(
            f"{spec.objects} objects don't fit into {spec.width_px}x{spec.height_px}",
            where=where,
            fix=f"ask for {spec.most_objects} at most, or a larger size",
        )
    return spec


def _size(text: str, where: str) -> tuple[int, int]:
    width, _, height = text.lower().partition("x")
    if not (width.isascii() and width.isdigit() and height.isascii() and height.isdigit() and len(text) < 12):
        raise MediaError(f"size {text[:20]!r} is not a size", where=where, fix="write it as size=1280x720")
    size = int(width), int(height)
    if not all(_MIN_SIZE_PX <= side <= _MAX_SIZE_PX for side in size):
        raise MediaError(
            f"size {text} is out of bounds", where=where, fix=f"choose sides from {_MIN_SIZE_PX} to {_MAX_SIZE_PX}"
        )
    return size


def _number(key: str, text: str, where: str) -> float:
    low, high = _BOUNDS[key]
    try:
        value = float(text) if key == "fps" else int(text)
    except ValueError:
        value = -1
    if not low <= value <= high:
        raise MediaError(f"{key}={text[:20]!r} can't be", where=where, fix=f"choose {key} from {low} to {high}")
    return value


@dataclass(frozen=True)
class Track:
    """One object. It bounces in whole pixels: edges are x_px + bounce(phase + frame * speed) and so on.

    `free` is how far it can move in its cell, along x and y.
    """

    label: int
    size_px: tuple[int, int]
    origin_px: tuple[int, int]
    free_px: tuple[int, int]
    phase_px: tuple[int, int]
    speed_px: tuple[int, int]

    def corner(self, frame: int) -> tuple[int, int]:
        """Left and top edge in a frame."""
        x, y = (
            origin + _bounce(phase + frame * speed, free)
            for origin, phase, speed, free in zip(
                self.origin_px, self.phase_px, self.speed_px, self.free_px, strict=True
            )
        )
        return x, y


def _bounce(way: int, free: int) -> int:
    """Where something is that has gone `way` pixels to and fro on a line of `free` pixels."""
    if not free:
        return 0
    folded = way % (2 * free)
    return min(folded, 2 * free - folded)


@dataclass(frozen=True)
class Truth:
    """What is in a frame: boxes [n, 4] float32 x1, y1, x2, y2 in source pixels, labels [n] and ids [n] (0, 1, ...)."""

    boxes: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int32]
    ids: npt.NDArray[np.int32]


class Pattern:
    """What one channel shows. Channels of one seed show different pictures."""

    def __init__(self, spec: PatternSpec, channel: int) -> None:
        self.spec, self.channel = spec, channel

    @cached_property
    def tracks(self) -> tuple[Track, ...]:
        spec = self.spec
        if not spec.objects:
            return ()
        chance = random.Random(f"{spec.seed} {self.channel}")
        room_px = spec.height_px - spec.stamp_height_px
        rows = min(room_px // spec.least_cell_px, spec.objects)
        columns = -(-spec.objects // rows)
        cell = (spec.width_px // columns, room_px // rows)
        return tuple(
            self._track(
                chance,
                number,
                ((number // rows) * cell[0], spec.stamp_height_px + (number % rows) * cell[1]),
                cell,
            )
            for number in range(spec.objects)
        )

    def _track(self, chance: random.Random, number: int, corner: tuple[int, int], cell: tuple[int, int]) -> Track:
        unit = self.spec.unit_px
        gap = _GAP_UNITS * unit
        least = _LEAST_OBJECT[0] * unit + _LEAST_OBJECT[1]
        largest = [max(least, (side - 2 * gap) * 3 // 4) for side in cell]
        size = (chance.randint(least, min(largest[0], 2 * largest[1])), chance.randint(least, largest[1]))
        free = (cell[0] - 2 * gap - size[0], cell[1] - 2 * gap - size[1])
        return Track(
            label=(number + self.channel) % len(LABELS),
            size_px=size,
            origin_px=(corner[0] + gap, corner[1] + gap),
            free_px=free,
            phase_px=(chance.randrange(2 * free[0] + 1), chance.randrange(2 * free[1] + 1)),
            speed_px=(chance.randint(1, 2 * unit), chance.randint(0, unit)),
        )

    def truth(self, frame: int) -> Truth:
        """What frame number `frame` holds, from 0."""
        count = len(self.tracks)
        boxes = np.empty((count, 4), np.float32)
        for row, track in zip(boxes, self.tracks, strict=True):
            x, y = track.corner(frame)
            row[:] = (x, y, x + track.size_px[0], y + track.size_px[1])
        labels = np.array([track.label for track in self.tracks], np.int32)
        return Truth(boxes, labels, np.arange(count, dtype=np.int32))


class PatternCanvas:
    """Draws a pattern into one pair of NV12 planes. One thread; nothing large is made after the constructor.

    Attributes:
        luma: [height, width].
        chroma: [ceil(height / 2), 2 * ceil(width / 2)], U and V by turns.
    """

    def __init__(self, pattern: Pattern) -> None:
        spec = pattern.spec
        self._pattern = pattern
        self.luma: Pixels = np.full((spec.height_px, spec.width_px), BACKGROUND, np.uint8)
        self.chroma: Pixels = np.full(((spec.height_px + 1) // 2, 2 * ((spec.width_px + 1) // 2)), 128, np.uint8)
        unit = spec.unit_px
        self._patches = [_patch(*(_ramp(side, unit) for side in track.size_px)) for track in pattern.tracks]
        self._drawn: list[tuple[int, int]] = []

    def draw(self, frame: int) -> None:
        """Show frame number `frame`."""
        tracks, unit = self._pattern.tracks, self._pattern.spec.unit_px
        for track, corner, patch in zip(tracks, self._drawn, self._patches, strict=False):
            self._part(corner, patch, unit)[:] = BACKGROUND
            self._inside(track, corner)[:] = 128
        self._drawn = [track.corner(frame) for track in tracks]
        for track, corner, patch in zip(tracks, self._drawn, self._patches, strict=True):
            self._part(corner, patch, unit)[:] = patch
            inside = self._inside(track, corner)
            for offset, direction in enumerate(CHROMA_DIRECTIONS[track.label]):
                inside[:, offset::2] = 128 + direction * CHROMA_SWING
        self._stamp(frame)

    def _part(self, corner: tuple[int, int], patch: Pixels, unit: int) -> Pixels:
        x, y = corner[0] - unit, corner[1] - unit
        part: Pixels = self.luma[y : y + patch.shape[0], x : x + patch.shape[1]]
        return part

    def _inside(self, track: Track, corner: tuple[int, int]) -> Pixels:
        """Chroma of an object, clear of its ramp and of the pixel that bilinear sampling spreads it by."""
        margin = self._pattern.spec.unit_px + 2
        (x, y), (width, height) = corner, track.size_px
        left, right = (x + margin + 1) // 2, (x + width - margin) // 2
        top, bottom = (y + margin + 1) // 2, (y + height - margin) // 2
        inside: Pixels = self.chroma[top:bottom, 2 * left : 2 * right]
        return inside

    def _stamp(self, frame: int) -> None:
        block = self._pattern.spec.block_px
        code = stamp_code(self._pattern.channel, frame)
        for place in range(STAMP_COLUMNS * STAMP_ROWS):
            row, column = divmod(place, STAMP_COLUMNS)
            bit = code >> (STAMP_COLUMNS * STAMP_ROWS - 1 - place) & 1
            part = self.luma[row * block : (row + 1) * block, column * block : (column + 1) * block]
            part[:] = WHITE if bit else BLACK


def _ramp(side: int, unit: int) -> npt.NDArray[np.float64]:
    """Brightness 0..1 along one axis, from a unit before the object to a unit behind it."""
    centres = np.arange(side + 2 * unit) + 0.5
    ramp: npt.NDArray[np.float64] = np.minimum(centres, side + 2 * unit - centres) / (2 * unit)
    return np.clip(ramp, 0.0, 1.0)


def _patch(across: npt.NDArray[np.float64], down: npt.NDArray[np.float64]) -> Pixels:
    return np.rint(BACKGROUND + (OBJECT - BACKGROUND) * np.outer(down, across)).astype(np.uint8)


def stamp_code(channel: int, frame: int) -> int:
    """The 40 bits of a stamp."""
    word = (channel % 256) << 24 | frame % 2**24
    return word << 8 | _crc8(word)


def _crc8(word: int) -> int:
    crc = 0
    for byte in word.to_bytes(4, "big"):
        crc ^= byte
        for _ in range(8):
            crc = (crc << 1 ^ 0x07 if crc & 0x80 else crc << 1) & 0xFF
    return crc


def read_stamp(
    brightness: npt.NDArray[np.generic], block_px: int, letterbox: Letterbox | None = None
) -> tuple[int, int] | None:
    """Channel and frame number (modulo 2^24) of a picture; None where there is no stamp or its CRC is wrong.

    Args:
        brightness: [rows, columns], luma or any channel of RGB, in any unit; black and white are told by its range.
        block_px: PatternSpec.block_px.
        letterbox: how `brightness` was made from the source picture, None when it is the source picture.
    """
    scale_x, scale_y, left, top = 1.0, 1.0, 0, 0
    if letterbox is not None:
        scale_x, scale_y = letterbox.scale_x, letterbox.scale_y
        left, top = letterbox.left_px, letterbox.top_px
    columns = ((np.arange(STAMP_COLUMNS) + 0.5) * block_px / scale_x).astype(int) + left
    rows = ((np.arange(STAMP_ROWS) + 0.5) * block_px / scale_y).astype(int) + top
    samples = brightness[np.ix_(rows, columns)].astype(float).ravel()
    middle = (samples.max() + samples.min()) / 2
    word = 0
    for sample in samples:
        word = word << 1 | bool(sample > middle)
    word, crc = word >> 8, word & 0xFF
    if _crc8(word) != crc:
        return None
    return word >> 24, word % 2**24


def pattern_facts(side_px: int = 416, batch: int = 1, anchors: int = 300) -> ModelFacts:
    """Facts of a model that sees these labels, for the engine that finds them (backends/engines/pattern.py)."""
    return ModelFacts(
        name="pattern",
        sha256="",
        labels=LABELS,
        input_name="images",
        output_name="output0",
        input_shape=(batch, 3, side_px, side_px),
        output_shape=(batch, 4 + len(LABELS), anchors),
        scale=1 / 255,
        pad_value=114,
        head=HeadKind.YOLO_ANCHOR_FREE,
        score_threshold=0.5,
        nms_iou=0.5,
        has_free_batch=True,
    )

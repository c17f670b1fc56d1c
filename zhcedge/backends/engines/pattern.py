"""An engine without a model: finds the boxes of `pattern:` sources (media/pattern.py) and nothing else, exactly.

It works on the letterboxed tensor that any engine gets, so whatever mixes up pictures, places or geometry on the way
shows as a box that differs from the truth. On the cpu device only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zhcedge.core.errors import ModelError, PhaseError, PipelineError
from zhcedge.core.ports import Device, Lane
from zhcedge.core.requests import EngineRequest
from zhcedge.core.types import MAX_DETECTIONS, HeadKind, ModelFacts
from zhcedge.media.pattern import BACKGROUND, CHROMA_DIRECTIONS, CHROMA_SWING, OBJECT

CpuBuffer = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Box = tuple[float, float, float, float]

SCORE = 0.9

_STEP = 3  # input pixels from one looked-at point to the next; an object's coloured inside is at least 4 wide
_KR, _KG, _KB = 0.299, 0.587, 0.114  # ITU-R BT.601-7
_LEVEL = ((BACKGROUND + OBJECT) / 2 - 16) * 255 / 219  # brightness of an edge, 0..255
_SWING_V = CHROMA_SWING * 255 / 224 * 2 * (1 - _KR)  # R - Y of a full V
_SWING_U = CHROMA_SWING * 255 / 224 * 2 * (1 - _KB)  # B - Y of a full U
_DIRECTIONS = np.array([np.divide(direction, np.hypot(*direction)) for direction in CHROMA_DIRECTIONS], np.float32)
_COLOURED = CHROMA_SWING * 0.75  # least difference between the largest and smallest of R, G, B; the palest has 1.6
_BRIGHT = 60  # below the least of R, G, B inside any object, which is 106


def open_pattern(request: EngineRequest, device: Device[CpuBuffer]) -> PatternEngine:
    """Make the engine for the shapes of `request.facts`; the model's file is not read. Initialising phase.

    Raises PipelineError on another device than cpu, ModelError for facts that it can't answer with.
    """
    if device.name != "cpu":
        raise PipelineError(f"the pattern engine can't work on the memory of device {device.name!r}")
    facts = request.facts
    is_plain = facts.head is HeadKind.YOLO_ANCHOR_FREE and facts.input_dtype == facts.output_dtype == "float32"
    if not is_plain or facts.classes < len(CHROMA_DIRECTIONS):
        raise ModelError(
            f"the pattern engine gives anchor-free float32 outputs with {len(CHROMA_DIRECTIONS)} labels or more",
            where=facts.name,
            fix="choose another model",
        )
    return PatternEngine(facts)


class PatternEngine:
    """Implements core.ports.Engine. Lanes run at the same time."""

    def __init__(self, facts: ModelFacts) -> None:
        self._facts = facts
        self._is_closed = False

    @property
    def facts(self) -> ModelFacts:
        return self._facts

    @property
    def description(self) -> str:
        return "pattern finder CPU FP32"

    def bind(self, lane: Lane[CpuBuffer]) -> PatternStage:
        if self._is_closed:
            raise PhaseError("the engine is closed", where=self.description)
        return PatternStage(lane, self._facts)

    def close(self) -> None:
        self._is_closed = True


class PatternStage:
    """Implements core.ports.Stage. Runs on the lane's thread; allocates nothing large."""

    name = "engine"

    def __init__(self, lane: Lane[CpuBuffer], facts: ModelFacts) -> None:
        self._lane = lane  # keeps the memory behind the views alive
        self._input: Floats = lane.input.buffer.view(np.float32).reshape(lane.input.shape)
        self._output: Floats = lane.output.buffer.view(np.float32).reshape(lane.output.shape)
        self._used = [facts.anchors] * len(self._output)
        order = (2, 1, 0) if facts.is_bgr else (0, 1, 2)
        self._finder = BoxFinder(lane.input.shape[2:], facts.scale, order)

    def enqueue(self, batch: int) -> None:
        for place in range(batch):
            output = self._output[place]
            output[:, : self._used[place]] = 0
            found = self._finder(self._input[place])[: output.shape[1]]
            for anchor, (label, (x1, y1, x2, y2)) in enumerate(found):
                output[:4, anchor] = ((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1)
                output[4 + label, anchor] = SCORE
            self._used[place] = len(found)


class BoxFinder:
    """Finds coloured boxes in one [3, height, width] tensor at a time. One thread; scratch is made here.

    Args:
        size_px: height and width.
        scale: of the tensor's values over 0..255.
        order: planes of red, green and blue.
    """

    def __init__(self, size_px: tuple[int, ...], scale: float, order: tuple[int, int, int]) -> None:
        self._scale, self._order = np.float32(scale), order
        shape = tuple(-(-side // _STEP) for side in size_px)
        self._high: Floats = np.zeros(shape, np.float32)
        self._low: Floats = np.zeros(shape, np.float32)
        self._is_coloured = np.zeros(shape, np.bool_)
        self._is_bright = np.zeros(shape, np.bool_)

    def __call__(self, picture: Floats) -> list[tuple[int, Box]]:
        """(label, box) of every object, MAX_DETECTIONS at most; boxes in input pixels, continuous edges."""
        points = picture[:, ::_STEP, ::_STEP]
        np.maximum.reduce(points, axis=0, out=self._high)
        np.minimum.reduce(points, axis=0, out=self._low)
        np.subtract(self._high, self._low, out=self._high)
        np.greater(self._high, _COLOURED * self._scale, out=self._is_coloured)
        np.greater(self._low, _BRIGHT * self._scale, out=self._is_bright)
        np.logical_and(self._is_coloured, self._is_bright, out=self._is_coloured)
        found: list[tuple[int, Box]] = []
        for row in np.flatnonzero(self._is_coloured.any(axis=1)):
            end = -1.0
            for column in np.flatnonzero(self._is_coloured[row]):
                x, y = int(column) * _STEP, int(row) * _STEP
                if x <= end:
                    continue
                box = next((box for _, box in found if box[0] <= x <= box[2] and box[1] <= y <= box[3]), None)
                if box is None:
                    if len(found) == MAX_DETECTIONS:
                        return found
                    box = self._measure(picture, x, y)
                    found.append((self._label(picture, x, y), box))
                end = box[2]
        return found

    def _measure(self, picture: Floats, x: int, y: int) -> Box:
        """Edges of the object around a point of its inside."""
        x1, x2 = _edges(self._brightness(picture[:, y, :]), x)
        y1, y2 = _edges(self._brightness(picture[:, :, int((x1 + x2) / 2)]), y)
        return x1, y1, x2, y2

    def _brightness(self, line: Floats) -> Floats:
        red, green, blue = self._order
        brightness: Floats = (line[red] * _KR + line[green] * _KG + line[blue] * _KB) / self._scale
        return brightness

    def _label(self, picture: Floats, x: int, y: int) -> int:
        """The class whose colour lies in the direction of the point's; how strong it is does not count."""
        pixel = picture[:, y, x]
        luma = self._brightness(pixel) * self._scale
        u, v = (pixel[self._order[2]] - luma) / _SWING_U, (pixel[self._order[0]] - luma) / _SWING_V
        return int(np.argmax(_DIRECTIONS @ (u, v)))


def _edges(line: Floats, inside: int) -> tuple[float, float]:
    """Where brightness falls below the level on either side of a position, between samples; else the line's ends."""
    dark = line < _LEVEL
    if dark[inside]:  # no object of a pattern
        return float(inside), inside + 1.0
    before, after = np.flatnonzero(dark[:inside]), np.flatnonzero(dark[inside:])
    start, end = 0.0, float(len(line))
    if len(before):
        index = int(before[-1])
        start = index + 0.5 + float((_LEVEL - line[index]) / (line[index + 1] - line[index]))
    if len(after):
        index = inside + int(after[0])
        end = index + 0.5 - float((_LEVEL - line[index]) / (line[index - 1] - line[index]))
    return start, end

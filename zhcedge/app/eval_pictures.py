"""The frames on which boxes and truth differ most, drawn: green agrees, red is missed, blue is extra."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from zhcedge.app.frame_set import Frame
from zhcedge.app.model_trial import pixels_of
from zhcedge.core.errors import OutputError
from zhcedge.core.types import DetectionArray
from zhcedge.models.accuracy import match

_GREEN, _RED, _BLUE = (0, 200, 0), (230, 0, 0), (30, 90, 255)
_LINE_PX = 2

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class _Kept:
    faults: int
    number: int
    pixels: Pixels

    def __lt__(self, other: _Kept) -> bool:
        """Fewer faults first, and of equal ones the later frame, so that it is the first to go."""
        return (self.faults, -self.number) < (other.faults, -other.number)


class WorstFrames:
    """Keeps the pictures of the few frames with the most boxes that have no partner.

    Args:
        folder: for the pictures; made when they are written. None keeps nothing.
        count: how many.
    """

    def __init__(self, folder: Path | None, count: int) -> None:
        self._folder, self._count = folder, count
        self._kept: list[_Kept] = []

    def offer(self, frame: Frame, truth: DetectionArray, found: DetectionArray) -> None:
        """Look at one frame. Its picture is drawn only when it is among the worst so far."""
        if self._folder is None or not self._count:
            return
        matches = match(truth, found)
        if not matches.faults or (len(self._kept) == self._count and matches.faults <= self._kept[0].faults):
            return
        pixels = pixels_of(frame.slot.surface)
        for boxes, color in (
            (found[matches.is_true], _GREEN),
            (truth[~matches.is_found], _RED),
            (found[~matches.is_true], _BLUE),
        ):
            for box in boxes["box"]:
                _outline(pixels, box, color)
        kept = _Kept(matches.faults, frame.number, pixels)
        if len(self._kept) < self._count:
            heapq.heappush(self._kept, kept)
        else:
            heapq.heapreplace(self._kept, kept)

    def write(self) -> tuple[Path, ...]:
        """Write the pictures, the worst first. Raises OutputError and then leaves none."""
        if self._folder is None:
            return ()
        from zhcedge.media.picture import write_pixels

        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"the folder can't be made: {error.strerror}", where=str(self._folder), fix="choose another place"
            ) from error
        paths: list[Path] = []
        for rank, kept in enumerate(sorted(self._kept, reverse=True), start=1):
            path = self._folder / f"{rank:02}-{kept.faults}-boxes-frame-{kept.number:06}.jpg"
            try:
                write_pixels(kept.pixels, path)
            except OutputError:
                for written in paths:
                    written.unlink(missing_ok=True)
                raise
            paths.append(path)
        return tuple(paths)


def _outline(pixels: Pixels, box: npt.NDArray[np.float32], color: tuple[int, int, int]) -> None:
    """Draw a rectangle into [height, width, 3]; what lies outside of it is left out."""
    height, width = pixels.shape[:2]
    x1, y1, x2, y2 = (
        int(np.clip(round(float(value)), 0, limit - 1)) for value, limit in zip(box, (width, height) * 2, strict=True)
    )
    pixels[y1 : y1 + _LINE_PX, x1 : x2 + 1] = color
    pixels[max(y2 - _LINE_PX + 1, 0) : y2 + 1, x1 : x2 + 1] = color
    pixels[y1 : y2 + 1, x1 : x1 + _LINE_PX] = color
    pixels[y1 : y2 + 1, max(x2 - _LINE_PX + 1, 0) : x2 + 1] = color

"""Figures of a picture on the CPU: the numpy twin of kernels/picture.cu. core/picture.py has the definition."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zhcedge.backends.cpu.arena import CpuBuffer
from zhcedge.backends.cpu.motion import grid
from zhcedge.core.picture import COLUMNS, POINTS, ROWS, CellSums
from zhcedge.core.ports import FrameSlot
from zhcedge.core.types import ImageFormat


class LumaPicture:
    """Implements core.ports.PictureMeter. Measures in the reader's thread; there is nothing to wait for."""

    def __init__(self, image: ImageFormat) -> None:
        rows, columns = grid(image.height_px, ROWS * POINTS), grid(image.width_px, COLUMNS * POINTS)
        self._rows, self._columns = rows.reshape(ROWS, POINTS, 1), columns[None, :]
        self._below = np.minimum(rows + 1, image.height_px - 1).reshape(ROWS, POINTS, 1)
        self._right = np.minimum(columns + 1, image.width_px - 1)[None, :]
        self._found: tuple[CellSums, CellSums] | None = None

    def measure(self, slot: FrameSlot[CpuBuffer]) -> None:
        """See PictureMeter."""
        pixels = slot.surface.planes[0].buffer
        luma, detail = np.empty((ROWS, COLUMNS), np.int32), np.empty((ROWS, COLUMNS), np.int32)
        for row in range(ROWS):  # all of them at once would be an array of the size that the seal forbids
            here = pixels[self._rows[row], self._columns].astype(np.int32)
            right, below = pixels[self._rows[row], self._right], pixels[self._below[row], self._columns]
            luma[row] = _by_cell(here)
            detail[row] = _by_cell(np.abs(here - right) + np.abs(here - below))
        self._found = luma, detail

    def figures(self) -> tuple[CellSums, CellSums] | None:
        """See PictureMeter."""
        return self._found


def _by_cell(samples: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Sums of the samples of one row of cells, [POINTS, COLUMNS * POINTS] to [COLUMNS]."""
    sums: npt.NDArray[np.int32] = samples.reshape(POINTS, COLUMNS, POINTS).sum((0, 2), dtype=np.int32)
    return sums

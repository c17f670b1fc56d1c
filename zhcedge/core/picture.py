"""Figures of a whole picture: how bright and how detailed it is, on a coarse grid. A few hundred bytes, never pixels.

The picture is cut into COLUMNS x ROWS cells of equal size. In each, POINTS x POINTS samples of the luma plane are
taken, at the centres of equal parts (nearest sample). `luma` is the sum of the samples; `detail` is the sum of the
absolute differences of each sample from its right and from its lower neighbour pixel (the last ones have themselves).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from zhcedge.core.types import FrameInfo

COLUMNS, ROWS, POINTS = 16, 9, 12
SAMPLES = POINTS * POINTS
"""In one cell."""

CellSums = npt.NDArray[np.int32]
"""[ROWS, COLUMNS]."""


class PictureFigures(NamedTuple):
    """Of one frame."""

    info: FrameInfo
    luma: CellSums
    detail: CellSums

"""Figures of a picture on the GPU: core/picture.py has the definition, backends/cpu/picture.py is the numpy twin."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zhcedge.backends.cuda.arena import CudaArena
from zhcedge.backends.cuda.context import CudaStream
from zhcedge.backends.cuda.descriptor import pack
from zhcedge.backends.cuda.kernels import Kernel
from zhcedge.core.picture import COLUMNS, ROWS, SAMPLES, CellSums
from zhcedge.core.ports import FrameSlot

_CELLS = ROWS * COLUMNS
_GRID, _BLOCK = (_CELLS, 1, 1), (SAMPLES, 1, 1)
_SUM_BITS = 20
_SUM_MASK = (1 << _SUM_BITS) - 1
_TICKETS = 1 << 23


class CudaPicture:
    """Implements core.ports.PictureMeter. A kernel on the channel's stream; its results, 8 bytes a cell, lie in mapped
    memory. Made in the initialising phase, or under the arena's lease.
    """

    def __init__(self, arena: CudaArena, stream: CudaStream, kernel: Kernel, owner: str) -> None:
        self._arena, self._stream, self._kernel = arena, stream, kernel
        cells, self._address = arena.pinned(8 * _CELLS, owner)
        self._cells: npt.NDArray[np.uint64] = cells.view(np.uint64)
        self._ticket = 0

    def measure(self, slot: FrameSlot[int]) -> None:
        """See PictureMeter. Raises PipelineError when the GPU fails."""
        self._ticket = self._ticket % (_TICKETS - 1) + 1
        self._stream.wait_for(self._arena.ingest_fence(slot.surface))
        self._kernel.launch(self._stream, _GRID, _BLOCK, pack(slot.surface), self._ticket, self._address)

    def figures(self) -> tuple[CellSums, CellSums] | None:
        """See PictureMeter."""
        cells = self._cells.copy()
        if not (cells >> np.uint64(2 * _SUM_BITS) == self._ticket).all():
            return None
        return _sums(cells, 0), _sums(cells, _SUM_BITS)


def _sums(cells: npt.NDArray[np.uint64], shift: int) -> CellSums:
    sums: CellSums = (cells >> np.uint64(shift) & np.uint64(_SUM_MASK)).astype(np.int32).reshape(ROWS, COLUMNS)
    return sums

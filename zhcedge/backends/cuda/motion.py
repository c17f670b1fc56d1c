"""How much of a channel's picture moves, measured on the GPU. The numpy twin is backends/cpu/motion.py."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zhcedge.backends.cuda.arena import CudaArena
from zhcedge.backends.cuda.context import CudaStream
from zhcedge.backends.cuda.descriptor import pack
from zhcedge.backends.cuda.kernels import Kernel
from zhcedge.core.ports import FrameSlot

COLUMNS, ROWS, WEIGHT, THRESHOLD = 64, 36, 0.125, 12.0
_BLOCK = (256, 1, 1)  # THREADS of kernels/motion.cu
_RESULT_BYTES = 8  # points that moved, ticket of the call


class CudaMotion:
    """Implements core.ports.MotionMeter. A kernel on the channel's stream after each ingest; its 8 bytes of result
    lie in mapped memory, one pair a slot. Made in the initialising phase, or under the arena's lease.
    """

    def __init__(self, slots: int, arena: CudaArena, stream: CudaStream, kernel: Kernel, owner: str) -> None:
        self._arena, self._stream, self._kernel = arena, stream, kernel
        self._means = arena.memory(4 * COLUMNS * ROWS, owner)
        pairs, self._results_address = arena.pinned(_RESULT_BYTES * slots, owner)
        # Read as one number: a pair that is half written must not be seen.
        self._results: npt.NDArray[np.uint64] = pairs.view(np.uint64)
        self._tickets = [0] * slots
        self._ticket = 0
        self._descriptors: dict[int, tuple[FrameSlot[int], bytes]] = {}

    def measure(self, slot: FrameSlot[int]) -> None:
        """Enqueue the comparison behind the slot's ingest. Reader thread. Raises PipelineError when the GPU fails."""
        known = self._descriptors.get(slot.index)
        if known is None or known[0] is not slot:
            known = self._descriptors[slot.index] = slot, pack(slot.surface)
        self._ticket += 1
        self._tickets[slot.index] = self._ticket
        self._stream.wait_for(self._arena.ingest_fence(slot.surface))
        result = self._results_address + _RESULT_BYTES * slot.index
        self._kernel.launch(
            self._stream, (1, 1, 1), _BLOCK, known[1], self._means, self._ticket, WEIGHT, THRESHOLD, result
        )

    def changed(self, slot: FrameSlot[int]) -> float | None:
        """Share of the points that moved; None while the kernel has not run. Any thread."""
        pair = int(self._results[slot.index])
        moved, ticket = pair & 0xFFFFFFFF, pair >> 32
        return moved / (COLUMNS * ROWS) if ticket == self._tickets[slot.index] else None

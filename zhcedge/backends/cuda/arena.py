"""All memory of the frame path on one GPU: handed out before the seal, refused after it.

Device memory comes from few large blocks, because each cuMemAlloc takes whole pages of 2 MiB. Results lie in pinned
memory that is mapped into the device's address space: kernels write them over the bus, and no copy follows.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from zhcedge.backends.cuda import _vendor
from zhcedge.backends.cuda._vendor import pycuda
from zhcedge.backends.cuda.context import CudaContext, CudaFence
from zhcedge.core.errors import PhaseError, PipelineError
from zhcedge.core.geometry import plane_sizes
from zhcedge.core.types import RESULT_DTYPE, ImageFormat, Layout, MemoryDomain, Plane, Surface, Tensor

ALIGNMENT_BYTES = 256
_BLOCK_BYTES = 32 * 1024 * 1024


class CudaArena:
    """Implements core.ports.Arena; the buffer type is a device address. Any thread, guarded by a lock.

    Args:
        domain: DEVICE, or UNIFIED on a board whose GPU shares the CPU's memory.
    """

    def __init__(self, context: CudaContext, domain: MemoryDomain = MemoryDomain.DEVICE) -> None:
        self._context, self._domain = context, domain
        self._lock = threading.Lock()
        self._blocks: list[pycuda.DeviceAllocation] = []
        self._next, self._left = 0, 0
        self._mapped: dict[int, int] = {}
        self._pinned: list[npt.NDArray[np.uint8]] = []
        self._fences: dict[int, CudaFence] = {}
        self._by_owner: Counter[str] = Counter()
        self._is_sealed = False
        self._refused = 0

    def surface(self, format: ImageFormat, owner: str) -> Surface[int]:
        """Allocate a zeroed image, every plane with a pitch that is a multiple of 256 bytes.

        Raises PhaseError once sealed; PipelineError when memory is short or the layout is not pitch-linear.
        """
        if format.layout is not Layout.PITCH_LINEAR or min(format.width_px, format.height_px) < 1:
            raise PipelineError(f"the cuda device can't make a surface of {format}", where=owner)
        sizes = [(width, rows, _align(width)) for width, rows in plane_sizes(format)]
        address = self.memory(sum(rows * pitch for _, rows, pitch in sizes), owner)
        # Made now, because a slot's first frame may come after the seal.
        self._fences[address] = self._context.create_fence(f"{owner}, ingest")
        planes = []
        for width, rows, pitch in sizes:
            planes.append(Plane(address, width, rows, pitch))
            address += rows * pitch
        return Surface(tuple(planes), format, self._domain)

    def tensor(self, name: str, shape: Sequence[int], dtype: str, owner: str) -> Tensor[int]:
        """Allocate a zeroed tensor. Raises as `surface` does."""
        return Tensor(name, self.memory(math.prod(shape) * np.dtype(dtype).itemsize, owner), tuple(shape), dtype)

    def results(self, owner: str) -> npt.NDArray[np.void]:
        """Allocate one zeroed RESULT_DTYPE record, shape [1], in mapped pinned memory. Raises as `surface` does.

        It dies with the device: copy what is needed longer.
        """
        array, _ = self.pinned(RESULT_DTYPE.itemsize, owner)
        return array.view(RESULT_DTYPE)

    def memory(self, size_bytes: int, owner: str) -> int:
        """Allocate zeroed device memory, aligned to 256 bytes. Raises as `surface` does."""
        size = max(_align(size_bytes), ALIGNMENT_BYTES)
        with self._lock:
            self._refuse_if_sealed(size_bytes, owner)
            if size > self._left:
                self._add_block(max(size, _BLOCK_BYTES), size, owner)
            address = self._next
            self._next += size
            self._left -= size
            self._by_owner[owner] += size
        return address

    def pinned(self, size_bytes: int, owner: str) -> tuple[npt.NDArray[np.uint8], int]:
        """Allocate zeroed pinned memory: the host's view, uint8 [size_bytes], and its address on the device."""
        with self._lock:
            self._refuse_if_sealed(size_bytes, owner)
            try:
                with self._context.push():
                    array = pycuda.pagelocked_empty(
                        (size_bytes,), np.uint8, mem_flags=pycuda.host_alloc_flags.DEVICEMAP
                    )
                    address = _vendor.device_pointer(array)
            except _vendor.PYCUDA_ERROR as error:
                raise self._shortage(size_bytes, f"{owner}, pinned", error) from error
            pinned = array.view(np.uint8)
            pinned.fill(0)
            self._pinned.append(pinned)
            self._mapped[pinned.ctypes.data] = address
            self._by_owner[f"{owner}, pinned"] += size_bytes
        return pinned, address

    def device_address(self, results: npt.NDArray[np.void]) -> int:
        """Where the device sees a record that `results` handed out. Raises PipelineError for a foreign one."""
        try:
            return self._mapped[results.ctypes.data]
        except KeyError:
            raise PipelineError("a slot's results are not the cuda device's", where="cuda") from None

    def ingest_fence(self, surface: Surface[int]) -> CudaFence:
        """The fence that stands for the copy into a slot's surface. Raises PipelineError for a foreign surface."""
        try:
            return self._fences[surface.planes[0].buffer]
        except KeyError:
            raise PipelineError("a slot's surface is not the cuda device's", where="cuda") from None

    def seal(self) -> None:
        """From now on every request raises PhaseError and is counted."""
        with self._lock:
            self._is_sealed = True

    @property
    def total_bytes(self) -> int:
        return sum(self._by_owner.values())

    @property
    def refused(self) -> int:
        return self._refused

    def table(self) -> str:
        """What each owner holds, largest first, for messages about missing memory."""
        return "; ".join(f"{owner}: {size / 2**20:.1f} MiB" for owner, size in self._by_owner.most_common())

    def close(self) -> None:
        """Free everything, on the thread that opened the context; twice is fine. Nothing may be in flight."""
        with self._lock, self._context.push():
            while self._blocks:
                self._blocks.pop().free()
            self._pinned.clear()
            self._next = self._left = 0
            self._is_sealed = True

    def _refuse_if_sealed(self, size_bytes: int, owner: str) -> None:
        if self._is_sealed:
            self._refused += 1
            raise PhaseError(
                f"{size_bytes} bytes were asked for after the seal",
                where=owner,
                fix="let warm-up see every picture size and every lane",
            )

    def _add_block(self, size: int, wanted: int, owner: str) -> None:
        try:
            with self._context.push():
                try:
                    block = pycuda.mem_alloc(size)
                except pycuda.MemoryError:
                    size = wanted  # the rest of a whole block may not be needed any more
                    block = pycuda.mem_alloc(size)
                pycuda.memset_d8(block, 0, size)
                pycuda.Context.synchronize()  # streams of ours don't wait for the null stream, where this runs
        except _vendor.PYCUDA_ERROR as error:
            raise self._shortage(wanted, owner, error) from error
        self._blocks.append(block)
        self._next, self._left = int(block), size

    def _shortage(self, size: int, owner: str, error: Exception) -> PipelineError:
        free, total = self._context.memory_bytes()
        return PipelineError(
            f"no memory for {size / 2**20:.1f} MiB, {free / 2**20:.0f} of {total / 2**20:.0f} MiB are free ({error}); "
            f"so far: {self.table() or 'nothing'}",
            where=owner,
            fix="use fewer channels, slots or lanes, or a smaller model",
        )


def _align(size: int) -> int:
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

"""All memory of the frame path on one GPU: handed out before the seal, refused after it.

Device memory comes from few large blocks, because each cuMemAlloc takes whole pages of 2 MiB. Results lie in pinned
memory that is mapped into the device's address space: kernels write them over the bus, and no copy follows.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np
import numpy.typing as npt

from zhcedge.backends.cuda import _vendor
from zhcedge.backends.cuda._vendor import pycuda
from zhcedge.backends.cuda.context import CudaContext, CudaFence, gpu_error
from zhcedge.core.errors import PhaseError, PipelineError
from zhcedge.core.geometry import part_format, plane_sizes
from zhcedge.core.leases import ThreadLeases
from zhcedge.core.types import RESULT_DTYPE, ImageFormat, Layout, MemoryDomain, Plane, Surface, Tensor

ALIGNMENT_BYTES = 256
_GIVEN_BACK = "given back"
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
        self._leases = ThreadLeases()
        self._given: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)  # owner -> addresses and sizes
        self._given_pinned: defaultdict[str, list[npt.NDArray[np.uint8]]] = defaultdict(list)
        self._free: defaultdict[int, list[int]] = defaultdict(list)  # size -> addresses that were given back
        self._free_pinned: defaultdict[int, list[npt.NDArray[np.uint8]]] = defaultdict(list)
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
        if address not in self._fences:  # it is where an earlier surface was
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

    def plane(self, pixels: npt.NDArray[np.uint8], owner: str) -> Plane[int]:
        """Allocate a copy of `pixels`, uint8 [rows, width], with a pitch that is a multiple of 256 bytes.

        The padding is zero. Raises as `surface` does.
        """
        rows, width = pixels.shape
        padded = np.zeros((rows, _align(width)), np.uint8)
        padded[:, :width] = pixels
        return Plane(self.constant(padded, owner), width, rows, padded.shape[1])

    def constant(self, array: npt.NDArray[np.uint8], owner: str) -> int:
        """The address of a copy of `array` that never changes. Raises as `surface` does."""
        address = self.memory(array.nbytes, owner)
        try:
            with self._context.push():
                pycuda.memcpy_htod(address, np.ascontiguousarray(array))
                pycuda.Context.synchronize()  # streams of ours don't wait for the null stream, where this runs
        except _vendor.PYCUDA_ERROR as error:
            raise gpu_error(error, owner) from error
        return address

    def memory(self, size_bytes: int, owner: str) -> int:
        """Allocate zeroed device memory, aligned to 256 bytes. Raises as `surface` does."""
        size = max(_align(size_bytes), ALIGNMENT_BYTES)
        with self._lock:
            self._refuse_if_sealed(size_bytes, owner)
            if self._free.get(size):
                address = self._reuse(size, owner)
            else:
                if size > self._left:
                    self._add_block(max(size, _BLOCK_BYTES), size, owner)
                address = self._next
                self._next += size
                self._left -= size
            self._given[owner].append((address, size))
            self._by_owner[owner] += size
        return address

    def pinned(self, size_bytes: int, owner: str) -> tuple[npt.NDArray[np.uint8], int]:
        """Allocate zeroed pinned memory: the host's view, uint8 [size_bytes], and its address on the device."""
        with self._lock:
            self._refuse_if_sealed(size_bytes, owner)
            if self._free_pinned.get(size_bytes):
                pinned = self._free_pinned[size_bytes].pop()
                self._by_owner[_GIVEN_BACK] -= size_bytes
            else:
                pinned = self._make_pinned(size_bytes, owner)
            pinned.fill(0)
            self._given_pinned[owner].append(pinned)
            self._by_owner[_pinned_by(owner)] += size_bytes
        return pinned, self._mapped[pinned.ctypes.data]

    def _make_pinned(self, size_bytes: int, owner: str) -> npt.NDArray[np.uint8]:
        """New pinned memory, mapped into the device's addresses. Caller holds the lock."""
        try:
            with self._context.push():
                array = pycuda.pagelocked_empty((size_bytes,), np.uint8, mem_flags=pycuda.host_alloc_flags.DEVICEMAP)
                address = _vendor.device_pointer(array)
        except _vendor.PYCUDA_ERROR as error:
            raise self._shortage(size_bytes, _pinned_by(owner), error) from error
        pinned = array.view(np.uint8)
        self._pinned.append(pinned)
        self._mapped[pinned.ctypes.data] = address
        return pinned

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

    def view(self, surface: Surface[int], left_px: int, top_px: int, width_px: int, height_px: int) -> Surface[int]:
        """A part of an NV12 surface, without a copy; it shares the fence of its ingest.

        Raises PipelineError when it is not inside or its offsets are odd.
        """
        image = part_format(surface.format, left_px, top_px, width_px, height_px)
        fence = self.ingest_fence(surface)
        planes = []
        for plane, top, (width, rows) in zip(surface.planes, (top_px, top_px // 2), plane_sizes(image), strict=True):
            address = plane.buffer + top * plane.pitch_bytes + left_px  # a pair of chroma is as wide as its two pixels
            planes.append(Plane(address, width, rows, plane.pitch_bytes))
        # Never the start of another surface's memory: what is given back is handed out again whole.
        self._fences[planes[0].buffer] = fence
        return Surface(tuple(planes), image, surface.domain)

    def seal(self) -> None:
        """From now on every request raises PhaseError and is counted, but for threads with a `lease`."""
        with self._lock:
            self._is_sealed = True

    def lease(self) -> AbstractContextManager[None]:
        """Inside, the calling thread may ask for memory after the seal."""
        return self._leases.hold()

    def release(self, owner: str) -> None:
        """Take back all that `owner` was given, pinned memory too, for later requests of the same size.

        Nobody may use it any more: the launches and copies that did have ended. Nothing is freed before `close`.
        """
        with self._lock:
            for address, size in self._given.pop(owner, ()):
                self._free[size].append(address)
                self._by_owner[_GIVEN_BACK] += size
            for pinned in self._given_pinned.pop(owner, ()):
                self._free_pinned[pinned.nbytes].append(pinned)
                self._by_owner[_GIVEN_BACK] += pinned.nbytes
            del self._by_owner[owner], self._by_owner[_pinned_by(owner)]

    @property
    def total_bytes(self) -> int:
        return sum(self._by_owner.values())

    @property
    def refused(self) -> int:
        return self._refused

    def table(self) -> str:
        """What each owner holds, largest first, for messages about missing memory."""
        return "; ".join(f"{owner}: {size / 2**20:.1f} MiB" for owner, size in (+self._by_owner).most_common())

    def close(self) -> None:
        """Free everything, on the thread that opened the context; twice is fine. Nothing may be in flight."""
        with self._lock, self._context.push():
            while self._blocks:
                self._blocks.pop().free()
            for kept in (self._fences, self._pinned, self._given, self._given_pinned, self._free, self._free_pinned):
                kept.clear()
            self._next = self._left = 0
            self._is_sealed = True

    def _refuse_if_sealed(self, size_bytes: int, owner: str) -> None:
        if self._is_sealed and not self._leases.is_held:
            self._refused += 1
            raise PhaseError(
                f"{size_bytes} bytes were asked for after the seal",
                where=owner,
                fix="let warm-up see every picture size and every lane",
            )

    def _reuse(self, size: int, owner: str) -> int:
        """Memory that was given back, zeroed. Caller holds the lock."""
        address = self._free[size].pop()
        try:
            self._zero(address, size)
        except _vendor.PYCUDA_ERROR as error:
            self._free[size].append(address)
            raise gpu_error(error, owner) from error
        self._by_owner[_GIVEN_BACK] -= size
        return address

    def _zero(self, address: int, size: int) -> None:
        with self._context.push():
            pycuda.memset_d8(address, 0, size)
            pycuda.Context.synchronize()  # streams of ours don't wait for the null stream, where this runs

    def _add_block(self, size: int, wanted: int, owner: str) -> None:
        try:
            with self._context.push():
                try:
                    block = pycuda.mem_alloc(size)
                except pycuda.MemoryError:
                    size = wanted  # the rest of a whole block may not be needed any more
                    block = pycuda.mem_alloc(size)
            self._zero(int(block), size)
        except _vendor.PYCUDA_ERROR as error:
            raise self._shortage(wanted, owner, error) from error
        self._blocks.append(block)
        self._next, self._left = int(block), size

    def _shortage(self, size: int, owner: str, error: Exception) -> PipelineError:
        if self._context.is_lost():
            return gpu_error(error, owner)
        free, total = self._context.memory_bytes()
        return PipelineError(
            f"no memory for {size / 2**20:.1f} MiB, {free / 2**20:.0f} of {total / 2**20:.0f} MiB are free ({error}); "
            f"so far: {self.table() or 'nothing'}",
            where=owner,
            fix="use fewer channels, slots or lanes, or a smaller model",
        )


def _pinned_by(owner: str) -> str:
    return f"{owner}, pinned"


def _align(size: int) -> int:
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

"""The CPU's arena: 64-byte aligned numpy memory, handed out before the seal and refused afterwards.

Buffer type of the whole CPU backend: `CpuBuffer`, an array of bytes. A plane's buffer is 2-D [rows, pitch_bytes],
C order; a tensor's buffer is 1-D and `tensor_array` shows its numbers.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from zhcedge.core.errors import PhaseError, PipelineError
from zhcedge.core.geometry import part_format, plane_sizes
from zhcedge.core.leases import ThreadLeases
from zhcedge.core.types import RESULT_DTYPE, ImageFormat, Layout, MemoryDomain, Plane, Surface, Tensor

CpuBuffer = npt.NDArray[np.uint8]
Reals = npt.NDArray[np.float32] | npt.NDArray[np.float16]
"""The numbers of a tensor."""

S = TypeVar("S", bound=np.generic)

ALIGNMENT_BYTES = 64
"""A cache line, and the widest vector register (AVX-512)."""


def tensor_array(tensor: Tensor[CpuBuffer]) -> npt.NDArray[np.float32]:
    """The numbers of a float32 tensor as a view in its shape. Raises PipelineError for another type."""
    if tensor.dtype != "float32":
        raise PipelineError(f"tensor {tensor.name!r} holds {tensor.dtype}, not float32")
    return tensor.buffer.view(np.float32).reshape(tensor.shape)


def tensor_values(tensor: Tensor[CpuBuffer]) -> Reals:
    """The numbers of a float32 or float16 tensor as a view in its shape. Raises PipelineError for another type."""
    if tensor.dtype == "float16":
        return tensor.buffer.view(np.float16).reshape(tensor.shape)
    return tensor_array(tensor)


def pitch_bytes(width_bytes: int) -> int:
    """The arena's row pitch for rows of `width_bytes`."""
    return -(-width_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class CpuArena:
    """Implements core.ports.Arena for host memory. Any thread; a lock keeps the totals right."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_sealed = False
        self._total_bytes = 0
        self._refused = 0
        self._leases = ThreadLeases()
        self._by_owner: defaultdict[str, list[CpuBuffer]] = defaultdict(list)
        self._free: defaultdict[int, list[CpuBuffer]] = defaultdict(list)  # by size
        self._formats: list[ImageFormat] = []

    def surface(self, format: ImageFormat, owner: str) -> Surface[CpuBuffer]:
        """Allocate a zeroed image, every plane with a pitch that is a multiple of 64 bytes.

        Raises PhaseError once sealed; PipelineError when memory is short or the layout is not pitch-linear.
        """
        if format.layout is not Layout.PITCH_LINEAR or min(format.width_px, format.height_px) < 1:
            raise PipelineError(f"the cpu device can't make a surface of {format}", where=owner)
        planes = []
        for width_bytes, rows in plane_sizes(format):
            pitch = pitch_bytes(width_bytes)
            planes.append(Plane(self.array((rows, pitch), np.uint8, owner), width_bytes, rows, pitch))
        with self._lock:
            if format not in self._formats:
                self._formats.append(format)
        return Surface(tuple(planes), format, MemoryDomain.HOST)

    def tensor(self, name: str, shape: Sequence[int], dtype: str, owner: str) -> Tensor[CpuBuffer]:
        """Allocate a zeroed tensor; its buffer is 1-D bytes. Raises as `surface` does."""
        size_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        return Tensor(name, self.array((size_bytes,), np.uint8, owner), tuple(shape), dtype)

    def results(self, owner: str) -> npt.NDArray[np.void]:
        """Allocate one zeroed RESULT_DTYPE record, shape [1]. Raises as `surface` does."""
        return self.array((RESULT_DTYPE.itemsize,), np.uint8, owner).view(RESULT_DTYPE)

    def plane(self, pixels: npt.NDArray[np.uint8], owner: str) -> Plane[CpuBuffer]:
        """Allocate a copy of `pixels`, uint8 [rows, width], without padding. Raises as `surface` does."""
        rows, width = pixels.shape
        buffer = self.array((rows, width), np.uint8, owner)
        buffer[:] = pixels
        return Plane(buffer, width, rows, width)

    def array(self, shape: tuple[int, ...], dtype: type[S], owner: str) -> npt.NDArray[S]:
        """Allocate a zeroed C-ordered array, e.g. scratch of a stage. Raises as `surface` does."""
        size_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        with self._lock:
            if self._is_sealed and not self._leases.is_held:
                self._refused += 1
                raise PhaseError(
                    f"{size_bytes} bytes were asked for after the seal",
                    where=owner,
                    fix="let warm-up see every picture size and every lane",
                )
            raw = self._free[size_bytes].pop() if self._free.get(size_bytes) else self._make(size_bytes, owner)
            self._by_owner[owner].append(raw)
        # Writing touches every page now, so that the first frames don't pay for page faults.
        raw.fill(0)
        return raw.view(dtype).reshape(shape)

    def _make(self, size_bytes: int, owner: str) -> CpuBuffer:
        """New aligned memory. Caller holds the lock."""
        try:
            raw = np.empty(size_bytes + ALIGNMENT_BYTES, np.uint8)
        except MemoryError as error:
            raise PipelineError(
                f"no memory for {size_bytes} bytes, {self._total_bytes} are in use",
                where=owner,
                fix="use fewer channels, slots or lanes",
            ) from error
        self._total_bytes += size_bytes
        start = -raw.ctypes.data % ALIGNMENT_BYTES
        return raw[start : start + size_bytes]

    def view(
        self, surface: Surface[CpuBuffer], left_px: int, top_px: int, width_px: int, height_px: int
    ) -> Surface[CpuBuffer]:
        """A part of an NV12 surface, without a copy. Raises PipelineError when it is not inside or offsets are odd."""
        image = part_format(surface.format, left_px, top_px, width_px, height_px)
        planes = []
        offsets = ((top_px, left_px), (top_px // 2, left_px))
        for plane, (top, left), (width_bytes, rows) in zip(surface.planes, offsets, plane_sizes(image), strict=True):
            buffer = plane.buffer[top : top + rows, left : left + width_bytes]
            planes.append(Plane(buffer, width_bytes, rows, plane.pitch_bytes))
        return Surface(tuple(planes), image, surface.domain)

    def seal(self) -> None:
        """From now on every request raises PhaseError and is counted, but for threads with a `lease`."""
        with self._lock:
            self._is_sealed = True

    def lease(self) -> AbstractContextManager[None]:
        """Inside, the calling thread may ask for memory after the seal."""
        return self._leases.hold()

    def release(self, owner: str) -> None:
        """Take back all that `owner` was given, for later requests of the same size. Nobody may use it any more."""
        with self._lock:
            for raw in self._by_owner.pop(owner, ()):
                self._free[raw.nbytes].append(raw)

    @property
    def formats(self) -> tuple[ImageFormat, ...]:
        """Formats of the surfaces handed out so far, each once: what stages must be ready for."""
        with self._lock:
            return tuple(self._formats)

    @property
    def total_bytes(self) -> int:
        return self._total_bytes

    @property
    def refused(self) -> int:
        return self._refused

"""NV12 in device memory -> JPEG bytes in a pinned host buffer. Nothing allocates once `warm` has run."""

from __future__ import annotations

import ctypes
from bisect import bisect_left, insort
from importlib import resources

import numpy as np
import numpy.typing as npt

from zhcedge.backends.cuda import _vendor
from zhcedge.backends.cuda._vendor import pycuda
from zhcedge.backends.cuda.context import CudaContext, gpu_error
from zhcedge.backends.cuda.cupti.tally import BITSTREAM_BUFFERS
from zhcedge.backends.cuda.kernels import Kernel
from zhcedge.backends.cuda.nvjpeg._vendor import NvJpegError, RawEncoder
from zhcedge.backends.cuda.nvjpeg.color import to_jpeg
from zhcedge.backends.cuda.nvrtc import KernelSource, Nvrtc
from zhcedge.core.errors import BackendUnavailableError, PipelineError
from zhcedge.core.geometry import covers
from zhcedge.core.types import Agent, Hop, ImageFormat, MemoryDomain, Payload, PixelFormat, Provenance, Surface

_WARM_PICTURES = 3
_TIMEOUT_S = 10.0
_PAGE_BYTES = 4096
_BLOCK = (32, 8, 1)

Pinned = npt.NDArray[np.uint8]
_ARGUMENTS = "PiPiPPiii" + 8 * "f"


class KeptMemory:
    """Memory for nvJPEG that is never given back to the driver before `close`: a freed block serves the next request.

    nvJPEG's buffers grow with the content; after the worst content was encoded, every request is served from here.
    Raises MemoryError when the GPU has no more. One thread at a time.
    """

    def __init__(self, context: CudaContext) -> None:
        self._context = context
        self._blocks: dict[int, tuple[int, pycuda.DeviceAllocation | Pinned]] = {}
        self._free_device: list[tuple[int, int]] = []
        self._free_pinned: list[tuple[int, int]] = []

    def device(self, size: int) -> int:
        """The address of a device block of at least `size` bytes."""
        size = _whole(size)
        address = _take(self._free_device, size)
        if not address:
            try:
                with self._context.push():
                    block = pycuda.mem_alloc(size)
            except _vendor.PYCUDA_ERROR as error:
                raise MemoryError(str(error)) from error
            address = int(block)
            self._blocks[address] = size, block
        return address

    def pinned(self, size: int) -> int:
        """The address of a pinned host block of at least `size` bytes."""
        size = _whole(size)
        address = _take(self._free_pinned, size)
        if not address:
            try:
                with self._context.push():
                    block = pycuda.pagelocked_empty((size,), np.uint8).view(np.uint8)
            except _vendor.PYCUDA_ERROR as error:
                raise MemoryError(str(error)) from error
            address = block.ctypes.data
            self._blocks[address] = size, block
        return address

    def give_back(self, address: int) -> None:
        """Keep a block for the next request."""
        size, block = self._blocks[address]
        insort(self._free_pinned if isinstance(block, np.ndarray) else self._free_device, (size, address))

    def close(self) -> None:
        """Free everything."""
        self._free_device.clear()
        self._free_pinned.clear()
        with self._context.push():
            self._blocks.clear()  # pycuda frees with the objects


def _whole(size: int) -> int:
    """At least one page: nvJPEG also asks for nothing at all, which the driver refuses."""
    return max(-(-size // _PAGE_BYTES), 1) * _PAGE_BYTES


def _take(free: list[tuple[int, int]], size: int) -> int:
    """The smallest free block that fits, taken out of the list; 0 when none does."""
    index = bisect_left(free, (size, 0))
    return free.pop(index)[1] if index < len(free) else 0


class JpegEncoder:
    """Encodes NV12 surfaces of one format, and smaller ones of its colours.

    Made and closed with nothing in flight; `encode` belongs to one thread at a time.

    Raises BackendUnavailableError without nvJPEG or NVRTC, PipelineError when memory is short.

    Args:
        quality: 1..100, as everywhere with JPEG.
    """

    def __init__(self, context: CudaContext, format: ImageFormat, where: str, quality: int = 85) -> None:
        self._context, self._format, self._where = context, format, where
        self._coefficients = to_jpeg(format.matrix, format.is_full_range)
        self._width, self._height = format.width_px, format.height_px
        self._pitch = self._width + self._width % 2
        self._memory = KeptMemory(context)
        self._encoder: RawEncoder | None = None
        self._kernel: Kernel | None = None
        self._output_address = 0
        self._stream = context.create_stream()
        self._done = context.create_fence(where)
        major, minor = context.compute_capability
        cubin = Nvrtc(context.driver_version[0]).compile(_kernel_source(), 10 * major + minor)
        with context.push():
            try:
                function = pycuda.module_from_buffer(cubin).get_function("full_range")  # keeps its module
                self._kernel = Kernel(function, _ARGUMENTS, "full_range")
                self._picture = self._memory.device(self._pitch * (self._height + (self._height + 1) // 2))
                self._encoder = RawEncoder(
                    context.driver_version[0],
                    self._stream.handle,
                    quality,
                    self._memory.device,
                    self._memory.pinned,
                    self._memory.give_back,
                )
                self._capacity = self._encoder.largest_output_bytes(self._width, self._height)
                self._output_address = self._memory.pinned(self._capacity)
            except (NvJpegError, MemoryError, _vendor.PYCUDA_ERROR) as error:
                self.close()
                raise PipelineError(f"nvJPEG can't be opened: {error}", where=where) from error
            except BaseException:
                self.close()
                raise
        self._output = (ctypes.c_ubyte * self._capacity).from_address(self._output_address)
        BITSTREAM_BUFFERS.add(self._output_address, self._capacity)

    def warm(self) -> None:
        """Encode noise, the content that takes the most memory. Initialising or warming-up phase."""
        noise = np.random.default_rng(1).integers(
            0, 256, self._pitch * (self._height + (self._height + 1) // 2), np.uint8
        )
        try:
            with self._context.push():
                pycuda.memcpy_htod(self._picture, noise)
        except _vendor.PYCUDA_ERROR as error:
            raise gpu_error(error, self._where) from error
        for _ in range(_WARM_PICTURES):
            self._encode_picture(self._width, self._height)

    @classmethod
    def warmed(cls, context: CudaContext, format: ImageFormat, where: str, quality: int) -> JpegEncoder:
        """One that has its memory; raises what making and warming it raises, and then nothing is left."""
        encoder = cls(context, format, where, quality)
        try:
            encoder.warm()
        except BaseException:
            encoder.close()
            raise
        return encoder

    def encode(self, surface: Surface[int]) -> memoryview:
        """The JPEG of a surface, read-only, valid until the next call. Blocks until it is there, without spinning.

        Raises PipelineError for a surface that is larger or of other colours, or when the GPU fails.
        """
        if not covers(self._format, surface.format) or surface.format.pixel_format is not PixelFormat.NV12:
            raise PipelineError(f"a surface of {surface.format} does not fit the encoder", where=self._where)
        if self._kernel is None:
            raise PipelineError("the encoder is closed", where=self._where)
        luma, chroma = surface.planes
        width, height = surface.format.width_px, surface.format.height_px
        self._context.attach()
        grid = (-(-(width + width % 2) // (2 * _BLOCK[0])), -(-(height + 1) // (2 * _BLOCK[1])), 1)
        self._kernel.launch(
            self._stream,
            grid,
            _BLOCK,
            luma.buffer,
            luma.pitch_bytes,
            chroma.buffer,
            chroma.pitch_bytes,
            self._picture,
            self._picture + self._pitch * self._height,
            self._pitch,
            width,
            height,
            *self._coefficients,
        )
        return memoryview(self._output).toreadonly()[: self._encode_picture(width, height)]

    def _encode_picture(self, width: int, height: int) -> int:
        if self._encoder is None:
            raise PipelineError("the encoder is closed", where=self._where)
        self._context.attach()
        chroma = self._picture + self._pitch * self._height
        try:
            self._encoder.encode(self._picture, chroma, self._pitch, width, height)
            length = self._encoder.retrieve(self._output_address, self._capacity)
        except NvJpegError as error:
            if self._context.is_lost():
                raise gpu_error(error, self._where) from error
            raise PipelineError(f"nvJPEG failed: {error}", where=self._where) from error
        self._done.record(self._stream)
        if not self._done.wait(_TIMEOUT_S):
            raise PipelineError("a picture is not encoded in time", where=self._where)
        return length

    def close(self) -> None:
        """Free everything; the last `encode`'s bytes with it. Twice is fine. On a lost GPU nothing can be freed."""
        BITSTREAM_BUFFERS.remove(self._output_address)
        if self._context.is_lost():
            self._context.abandon(self._encoder, self._kernel, self._memory)
            self._encoder = self._kernel = None
            return
        with self._context.push():
            if self._encoder is not None:
                self._encoder.close()
                self._encoder = None
            self._kernel = None
            self._memory.close()


def context_of(device: object) -> CudaContext:
    """The context of the cuda device. Raises BackendUnavailableError for a device without one."""
    context = getattr(device, "context", None)
    if not isinstance(context, CudaContext):
        raise BackendUnavailableError("nvJPEG needs the cuda device", where="nvjpeg", fix="use the rtx profile")
    return context


def hops_of(pixel_bytes: int, average_bytes: int, note: str) -> tuple[Hop, ...]:
    """What a picture costs, from a slot to the medium; `average_bytes` of a JPEG, `note` on its encoding."""
    host, device, pinned = MemoryDomain.HOST, MemoryDomain.DEVICE, MemoryDomain.PINNED
    pixels, bitstream, derived = Payload.PIXELS, Payload.BITSTREAM, Provenance.DERIVED
    return (
        Hop("to full range", Agent.GPU, device, device, pixels, pixel_bytes, derived, "JPEG is BT.601 full range"),
        Hop("JPEG encode", Agent.GPU, device, device, pixels, pixel_bytes, derived, note),
        Hop("bitstream to the host", Agent.COPY_ENGINE, device, pinned, bitstream, average_bytes, derived),
        Hop("bitstream out", Agent.CPU, host, MemoryDomain.STORAGE, bitstream, average_bytes, derived),
    )


def _kernel_source() -> KernelSource:
    text = (resources.files("zhcedge.backends.cuda.nvjpeg") / "full_range.cu").read_text("utf-8")
    return KernelSource("full_range", text, "", ("--std=c++17",))

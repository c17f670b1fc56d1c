"""libnvjpeg, bound with ctypes: the encoder's dozen functions of nvjpeg.h. NVIDIA has no Python package for it."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from typing import Any

from zhcedge.core.errors import BackendUnavailableError

INSTALL = "pip install nvidia-nvjpeg (CUDA 13) or nvidia-nvjpeg-cu12"
_CHANNELS = 4  # NVJPEG_MAX_COMPONENT
_DEFAULT_BACKEND = 0
_CSS_420 = 2
_INPUT_NV12 = 8
_ALLOCATION_FAILED = 1  # any value but 0
_STATUS = {
    1: "not initialised",
    2: "invalid parameter",
    3: "bad JPEG",
    4: "JPEG not supported",
    5: "out of memory",
    6: "execution failed",
    7: "architecture mismatch",
    8: "internal error",
    9: "not supported",
}

_MALLOC = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_void_p
)
_FREE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


class NvJpegError(Exception):
    """A call failed; translated by the encoder."""


class _Allocator(ctypes.Structure):
    """nvjpegDevAllocatorV2_t and nvjpegPinnedAllocatorV2_t."""

    _fields_ = (("malloc", _MALLOC), ("free", _FREE), ("context", ctypes.c_void_p))


class _Image(ctypes.Structure):
    """nvjpegImage_t."""

    _fields_ = (("channel", ctypes.c_void_p * _CHANNELS), ("pitch", ctypes.c_size_t * _CHANNELS))


class RawEncoder:
    """One nvJPEG encoder for NV12 of one size, 4:2:0 baseline. One thread at a time, with the context current.

    Args:
        device_memory, pinned_memory: give memory of at least so many bytes; may raise MemoryError.
        give_back: takes an address of either back.

    Raises BackendUnavailableError without libnvjpeg or where it is too old for NV12, NvJpegError when it refuses.
    """

    def __init__(
        self,
        driver_major: int,
        stream: int,
        quality: int,
        device_memory: Callable[[int], int],
        pinned_memory: Callable[[int], int],
        give_back: Callable[[int], None],
    ) -> None:
        self._library = _load(driver_major)
        self._stream = ctypes.c_void_p(stream)
        self._handle, self._state, self._params = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        # nvJPEG keeps the pointers of both structs: they live as long as the encoder.
        self._shortages: list[str] = []
        self._allocators = tuple(self._allocator(take, give_back) for take in (device_memory, pinned_memory))
        try:
            device, pinned = (ctypes.byref(allocator) for allocator in self._allocators)
            self._do("nvjpegCreateExV2", _DEFAULT_BACKEND, device, pinned, 0, ctypes.byref(self._handle))
            self._do("nvjpegEncoderStateCreate", self._handle, ctypes.byref(self._state), self._stream)
            self._do("nvjpegEncoderParamsCreate", self._handle, ctypes.byref(self._params), self._stream)
            self._do("nvjpegEncoderParamsSetQuality", self._params, quality, self._stream)
            self._do("nvjpegEncoderParamsSetSamplingFactors", self._params, _CSS_420, self._stream)
        except NvJpegError:
            self.close()
            raise

    def _allocator(self, take: Callable[[int], int], give_back: Callable[[int], None]) -> _Allocator:
        def malloc(_context: Any, target: Any, size: int, _stream: Any) -> int:
            try:
                target[0] = take(size)
            except MemoryError as error:  # nvJPEG reports "out of memory" to whoever called it
                self._shortages.append(f"{size} bytes: {error}")
                return _ALLOCATION_FAILED
            return 0

        def free(_context: Any, address: int | None, _size: int, _stream: Any) -> int:
            if address:
                give_back(address)
            return 0

        return _Allocator(_MALLOC(malloc), _FREE(free), None)

    def _do(self, function: str, *arguments: Any) -> None:
        status = getattr(self._library, function)(*arguments)
        if status:
            reason = "; ".join((str(_STATUS.get(status, status)), *self._shortages[-1:]))
            raise NvJpegError(f"{function}: {reason}")

    def largest_output_bytes(self, width_px: int, height_px: int) -> int:
        """Most bytes that a picture of this size can take."""
        size = ctypes.c_size_t()
        self._do("nvjpegEncodeGetBufferSize", self._handle, self._params, width_px, height_px, ctypes.byref(size))
        return size.value

    def encode(self, luma: int, chroma: int, pitch_bytes: int, width_px: int, height_px: int) -> None:
        """Encode NV12 at device addresses, in stream order."""
        image = _Image((luma, chroma), (pitch_bytes, pitch_bytes))
        self._do(
            "nvjpegEncode", self._handle, self._state, self._params, ctypes.byref(image), _CSS_420, _INPUT_NV12,
            width_px, height_px, self._stream,
        )  # fmt: skip

    def retrieve(self, address: int, capacity_bytes: int) -> int:
        """Copy the bitstream to host memory, in stream order; its length. Waits for the encoder."""
        length = ctypes.c_size_t(capacity_bytes)
        self._do(
            "nvjpegEncodeRetrieveBitstream", self._handle, self._state, ctypes.c_void_p(address),
            ctypes.byref(length), self._stream,
        )  # fmt: skip
        return length.value

    def close(self) -> None:
        """Destroy everything; twice is fine."""
        if self._params:
            self._library.nvjpegEncoderParamsDestroy(self._params)
        if self._state:
            self._library.nvjpegEncoderStateDestroy(self._state)
        if self._handle:
            self._library.nvjpegDestroy(self._handle)
        self._handle, self._state, self._params = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()


def _load(driver_major: int) -> Any:
    """libnvjpeg of the driver's own major version: from the wheels, else from the system."""
    name = f"libnvjpeg.so.{driver_major}"
    for path in (*(f"{folder}/{name}" for folder in _wheel_folders()), name):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        if not hasattr(library, "nvjpegEncode"):
            raise BackendUnavailableError("libnvjpeg is too old to encode NV12", where="nvjpeg", fix=INSTALL)
        return library
    raise BackendUnavailableError(f"{name} is not installed", where="nvjpeg", fix=INSTALL)


def _wheel_folders() -> list[str]:
    """Where the wheels of CUDA 13 and 12 put it; several sites may share one namespace package."""
    folders: list[str] = []
    for package in ("nvidia.cu13.lib", "nvidia.nvjpeg.lib"):
        try:
            folders += importlib.import_module(package).__path__
        except ImportError:
            continue
    return folders

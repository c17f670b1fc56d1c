"""Reads destination and size of a copy out of a callback's argument struct.

Each reader takes the address of the `..._params` struct of generated_cuda_meta.h, laid out for 64-bit processes, and
returns (host address or 0, bytes). They run inside the driver call, so that the pointers are alive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from zhcedge.backends.cuda.cupti import _vendor
from zhcedge.backends.cuda.cupti.table import Reader

HostTest = Callable[[int], bool]
"""Whether an address is host memory."""


class _Layout(NamedTuple):
    """Word numbers inside CUDA_MEMCPY2D or CUDA_MEMCPY3D (cuda.h): destination's type, pointers, and the extent."""

    words: int
    memory_type: int
    host: int
    device: int
    extent: tuple[int, ...]


_COPY_2D = _Layout(16, memory_type=9, host=10, device=11, extent=(14, 15))
_COPY_3D = _Layout(25, memory_type=15, host=16, device=17, extent=(22, 23, 24))


def read(reader: Reader, params: int, is_host: HostTest) -> tuple[int, int]:
    """(host address of the destination or 0, bytes copied) of one call; (0, 0) where nothing is read."""
    if reader is Reader.TO_HOST:
        destination, _, size = _vendor.words(params, 3)
        return destination, size
    if reader is Reader.TO_DEVICE:
        return 0, _vendor.words(params, 3)[2]
    if reader is Reader.ARRAY_TO_HOST:
        destination, _, _, size = _vendor.words(params, 4)
        return destination, size
    if reader is Reader.BY_POINTER:
        destination, _, size = _vendor.words(params, 3)
        return (destination if is_host(destination) else 0), size
    if reader is Reader.PITCHED_2D:
        return _pitched(_COPY_2D, params, is_host)
    if reader is Reader.PITCHED_3D:
        return _pitched(_COPY_3D, params, is_host)
    return 0, 0


def _pitched(layout: _Layout, params: int, is_host: HostTest) -> tuple[int, int]:
    copy = _vendor.words(_vendor.words(params, 1)[0], layout.words)
    size = 1
    for word in layout.extent:
        size *= copy[word]
    kind = copy[layout.memory_type] & 0xFFFFFFFF  # a 32-bit enum; the upper half is padding
    if kind == _vendor.MEMORY_TYPE_HOST:
        return copy[layout.host], size
    if kind == _vendor.MEMORY_TYPE_UNIFIED and is_host(copy[layout.device]):
        return copy[layout.device], size
    return 0, size

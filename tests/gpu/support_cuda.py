"""What the tests of the cuda device share: the device, bytes in and out of its memory, twins of the CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest

from zhcedge.backends.cpu.arena import CpuArena, CpuBuffer
from zhcedge.core.errors import BackendUnavailableError
from zhcedge.core.ports import FrameSlot
from zhcedge.core.requests import DeviceSettings
from zhcedge.core.types import HeadKind, ImageFormat, ModelFacts, Surface

if TYPE_CHECKING:
    from zhcedge.backends.cuda.device import CudaDevice

PATIENCE_S = 30.0
Bytes = npt.NDArray[np.uint8]


@contextmanager
def open_device() -> Iterator[CudaDevice]:
    """The cuda device of GPU 0; without one a skip, or a failure where ZHC_REQUIRE_GPU=1 says that it must be there."""
    try:
        from zhcedge.backends.cuda.device import CudaDevice

        device = CudaDevice(DeviceSettings())
    except BackendUnavailableError as error:
        if os.environ.get("ZHC_REQUIRE_GPU") == "1":
            raise
        pytest.skip(f"cannot run here: {error}")
    try:
        yield device
    finally:
        device.close()


def model(width: int, height: int, classes: int = 2, anchors: int = 32, batch: int = 1) -> ModelFacts:
    return ModelFacts(
        "m",
        "",
        tuple(f"label {index}" for index in range(classes)),
        "i",
        "o",
        (batch, 3, height, width),
        (batch, 4 + classes, anchors),
        1 / 255,
        114,
        HeadKind.YOLO_ANCHOR_FREE,
        0.5,
        0.5,
    )


def to_device(device: CudaDevice, address: int, array: npt.NDArray[Any]) -> None:
    from zhcedge.backends.cuda._vendor import pycuda

    with device.context.push():
        pycuda.memcpy_htod(address, np.ascontiguousarray(array))
        pycuda.Context.synchronize()  # streams of ours don't wait for the null stream's copy


def to_host(device: CudaDevice, address: int, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Fill `array` from device memory; waits for what is in flight."""
    from zhcedge.backends.cuda._vendor import pycuda

    with device.context.push():
        pycuda.memcpy_dtoh(array, address)
    return array


def cpu_picture(image: ImageFormat, seed: int) -> Surface[CpuBuffer]:
    """A host surface of random bytes, padding included."""
    surface = CpuArena().surface(image, "test")
    generator = np.random.default_rng(seed)
    for plane in surface.planes:
        plane.buffer[:] = generator.integers(0, 256, plane.buffer.shape, dtype=np.uint8)
    return surface


def write_surface(device: CudaDevice, source: Surface[CpuBuffer], target: Surface[int]) -> None:
    """Copy the pixels of a host surface into a device surface of the same format; the padding becomes 255."""
    for host, plane in zip(source.planes, target.planes, strict=True):
        padded = np.full((plane.rows, plane.pitch_bytes), 255, np.uint8)
        padded[:, : plane.width_bytes] = host.buffer[: host.rows, : host.width_bytes]
        to_device(device, plane.buffer, padded)


def read_surface(device: CudaDevice, surface: Surface[int]) -> list[Bytes]:
    """The pixels of each plane, [rows, width_bytes]."""
    planes = []
    for plane in surface.planes:
        host = to_host(device, plane.buffer, np.empty((plane.rows, plane.pitch_bytes), np.uint8))
        planes.append(host[:, : plane.width_bytes])
    return planes


def pixels_of(surface: Surface[CpuBuffer]) -> list[Bytes]:
    return [plane.buffer[: plane.rows, : plane.width_bytes] for plane in surface.planes]


def make_slot(device: CudaDevice, image: ImageFormat, index: int = 0) -> FrameSlot[int]:
    return FrameSlot(index, 0, device.arena.surface(image, "slot"), device.arena.results("slot"))

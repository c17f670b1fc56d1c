"""The devices that contract tests run over, each with a way to move bytes in and out of its buffers.

A new device joins DEVICES; the tests stay as they are. `B` is the device's own buffer type, so it is `object` here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from zhcedge.backends.registry import DEVICES as DEVICE_REGISTRY
from zhcedge.backends.registry import ENGINES as ENGINE_REGISTRY
from zhcedge.core.errors import BackendUnavailableError
from zhcedge.core.ports import Device, Engine, FrameSlot
from zhcedge.core.requests import DeviceSettings, EngineRequest
from zhcedge.core.types import HeadKind, ImageFormat, ModelFacts, Plane, Surface, Tensor

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class DeviceCase:
    """A device of the registry and its engine.

    Attributes:
        to_host: (plane buffer, rows, pitch_bytes) -> a copy of its bytes, [rows, pitch_bytes]; a tensor is one row.
        from_host: (plane buffer, bytes [rows, pitch_bytes]) -> None.
    """

    device: str
    engine: str
    to_host: Callable[[object, int, int], Bytes]
    from_host: Callable[[object, Bytes], None]

    @contextmanager
    def open(self) -> Iterator[Device[object]]:
        try:
            device = DEVICE_REGISTRY.get(self.device)(DeviceSettings())
        except BackendUnavailableError as error:
            if os.environ.get("ZHC_REQUIRE_GPU") == "1":
                raise
            pytest.skip(f"cannot run here: {error}")
        try:
            yield device
        finally:
            device.close()

    def open_engine(self, model_path: Path, facts: ModelFacts, device: Device[object]) -> Engine[object]:
        return ENGINE_REGISTRY.get(self.engine)(EngineRequest(model_path, facts, threads=1), device)

    def read(self, plane: Plane[object]) -> Bytes:
        """The pixels of a plane, [rows, width_bytes]."""
        return self.to_host(plane.buffer, plane.rows, plane.pitch_bytes)[:, : plane.width_bytes]

    def write(self, plane: Plane[object], pixels: Bytes) -> None:
        padded = np.zeros((plane.rows, plane.pitch_bytes), np.uint8)
        padded[:, : plane.width_bytes] = pixels
        self.from_host(plane.buffer, padded)

    def read_tensor(self, tensor: Tensor[object]) -> npt.NDArray[np.floating]:
        dtype = np.dtype(tensor.dtype)
        size_bytes = dtype.itemsize * int(np.prod(tensor.shape))
        return self.to_host(tensor.buffer, 1, size_bytes).view(dtype).reshape(tensor.shape)

    def write_tensor(self, tensor: Tensor[object], values: npt.NDArray[np.floating]) -> None:
        self.from_host(tensor.buffer, np.ascontiguousarray(values).view(np.uint8).reshape(1, -1))


def _cpu_to_host(buffer: object, rows: int, pitch_bytes: int) -> Bytes:
    assert isinstance(buffer, np.ndarray)
    copied: Bytes = buffer.reshape(rows, pitch_bytes).copy()
    return copied


def _cpu_from_host(buffer: object, pixels: Bytes) -> None:
    assert isinstance(buffer, np.ndarray)
    np.copyto(buffer.reshape(pixels.shape), pixels)


def _cuda_to_host(buffer: object, rows: int, pitch_bytes: int) -> Bytes:
    from zhcedge.backends.cuda._vendor import pycuda

    assert isinstance(buffer, int)
    pixels = np.empty((rows, pitch_bytes), np.uint8)
    pycuda.memcpy_dtoh(pixels, buffer)
    return pixels


def _cuda_from_host(buffer: object, pixels: Bytes) -> None:
    from zhcedge.backends.cuda._vendor import pycuda

    assert isinstance(buffer, int)
    pycuda.memcpy_htod(buffer, np.ascontiguousarray(pixels))
    pycuda.Context.synchronize()


DEVICES: dict[str, DeviceCase] = {
    "cpu": DeviceCase("cpu", "onnxruntime-cpu", _cpu_to_host, _cpu_from_host),
    "cuda": DeviceCase("cuda", "onnxruntime-cuda", _cuda_to_host, _cuda_from_host),
}

each_device = pytest.mark.parametrize("case", DEVICES.values(), ids=DEVICES.keys())


def tiny_model(**changes: object) -> ModelFacts:
    """Facts of a model for 8x8 pictures with 2 labels and 32 anchors."""
    facts: dict[str, object] = {
        "name": "tiny",
        "sha256": "",
        "labels": ("cat", "dog"),
        "input_name": "images",
        "output_name": "output0",
        "input_shape": (1, 3, 8, 8),
        "output_shape": (1, 6, 32),
        "scale": 1 / 255,
        "pad_value": 114,
        "head": HeadKind.YOLO_ANCHOR_FREE,
        "score_threshold": 0.5,
        "nms_iou": 0.5,
    }
    return ModelFacts(**{**facts, **changes})  # type: ignore[arg-type]


def make_slot(device: Device[object], image: ImageFormat, index: int = 0) -> FrameSlot[object]:
    surface = device.arena.surface(image, f"slot {index}")
    return FrameSlot(index, 0, surface, device.arena.results(f"slot {index}"))


def fill_at_random(case: DeviceCase, surface: Surface[object], seed: int) -> list[Bytes]:
    """Random pixels into every plane; returns them, [rows, width_bytes] each."""
    generator = np.random.default_rng(seed)
    pixels = []
    for plane in surface.planes:
        plane_pixels = generator.integers(0, 256, (plane.rows, plane.width_bytes), dtype=np.uint8)
        case.write(plane, plane_pixels)
        pixels.append(plane_pixels)
    return pixels

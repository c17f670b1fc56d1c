"""What the tests of nvcodec and CUPTI share: the context, synthetic clips, pictures of both decoders as arrays."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import av
import numpy as np
import numpy.typing as npt
import pytest

from zhcedge.core.errors import BackendUnavailableError
from zhcedge.core.ports import EndOfStream
from zhcedge.core.requests import SourceRequest
from zhcedge.core.types import Surface

if TYPE_CHECKING:
    from zhcedge.backends.cuda.context import CudaContext
    from zhcedge.backends.nvcodec.source import NvCodecSource

Pixels = npt.NDArray[np.uint8]
TOOL = Path(__file__).parents[2] / "tools" / "make-test-clip"


def skip_without_gpu(error: BackendUnavailableError) -> None:
    """Skip, unless ZHC_REQUIRE_GPU=1 says that the GPU must be there."""
    if os.environ.get("ZHC_REQUIRE_GPU") == "1":
        raise error
    pytest.skip(f"cannot run here: {error}")


def open_context() -> CudaContext:
    """The primary context of GPU 0, or a skip."""
    try:
        from zhcedge.backends.cuda.context import CudaContext

        return CudaContext(0)
    except BackendUnavailableError as error:
        skip_without_gpu(error)
        raise


class SystemClock:
    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        return time.time_ns()

    def is_synced(self) -> bool:
        return True


class GpuDevice:
    """As much of the cuda device as a source or sink asks for."""

    def __init__(self, context: CudaContext) -> None:
        self.context = context


def request(uri: str | Path, is_looped: bool = False, is_realtime: bool = False) -> SourceRequest:
    return SourceRequest(0, "cam", str(uri), is_realtime, is_looped, SystemClock())


def clip_tool() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("make_test_clip", str(TOOL))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def to_host(context: CudaContext, surface: Surface[int]) -> list[Pixels]:
    """The planes of a device surface, [rows, width_bytes] each. Waits for the copy."""
    from zhcedge.backends.cuda._vendor import pycuda

    planes = []
    with context.push():
        for plane in surface.planes:
            host = np.empty((plane.rows, plane.pitch_bytes), np.uint8)
            pycuda.memcpy_dtoh(host, plane.buffer)
            planes.append(host[:, : plane.width_bytes])
    return planes


def cpu_pictures(uri: str | Path, bits: int = 8) -> list[list[Pixels]]:
    """What libavcodec decodes, as NV12 (8 bits) or P010 (10 bits) planes in bytes."""
    pictures = []
    with av.open(str(uri)) as container:
        for frame in container.decode(video=0):
            array = frame.to_ndarray()
            height, width = frame.height, frame.width
            luma = array[:height]
            chroma = array[height:].reshape(2, height // 2, width // 2).transpose(1, 2, 0).reshape(height // 2, width)
            if bits == 10:
                luma, chroma = luma << 6, chroma << 6  # P010 keeps its ten bits on top
            pictures.append([np.ascontiguousarray(plane).view(np.uint8) for plane in (luma, chroma)])
    return pictures


def read_all(
    source: NvCodecSource, context: CudaContext, limit: int = 10_000
) -> tuple[list[list[Pixels]], list[float]]:
    """Pictures and media times until the end or `limit`."""
    pictures, times = [], []
    while len(pictures) < limit:
        lease = source.read(1.0)
        if isinstance(lease, EndOfStream):
            break
        assert hasattr(lease, "surface")
        assert lease.ready.wait(10.0)
        pictures.append(to_host(context, lease.surface))
        times.append(lease.info.media_time_s)
        lease.release()
    return pictures, times

"""pycuda and cuda-bindings, the only module that imports them and the only place where their untyped values live.

pycuda owns contexts, memory, streams, events and modules. cuda-bindings has what pycuda lacks: flags of the primary
context, graphs, 2-D copies with prepared arguments. Importing this module needs both packages and a driver; it raises
BackendUnavailableError without them. Functions here raise CudaCallError, which the callers translate.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from zhcedge.core.errors import BackendUnavailableError

INSTALL = "pip install 'zhcedge[rtx-cuda13]' (or [rtx-cuda12] for a driver older than 580)"

try:
    import pycuda.driver as pycuda
    from cuda.bindings import driver as _driver
except ImportError as error:
    if "libcuda" in str(error):
        raise BackendUnavailableError(
            "there is no NVIDIA driver (libcuda.so.1) on this machine",
            where="cuda",
            fix="install the driver, or choose the cpu profile",
        ) from error
    raise BackendUnavailableError(f"{error.name or 'a package'} is not installed", where="cuda", fix=INSTALL) from error

__all__ = ["pycuda"]

BLOCKING_SYNC = 4
"""CU_CTX_SCHED_BLOCKING_SYNC: waits sleep in the kernel instead of spinning."""

OUT_OF_MEMORY = 2
"""CUDA_ERROR_OUT_OF_MEMORY."""

NOT_READY = 600
"""CUDA_ERROR_NOT_READY: work is in flight."""

PRIMARY_CONTEXT_ACTIVE = 708
"""CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE."""


class CudaCallError(Exception):
    """A driver call failed. `code` is the CUresult."""

    def __init__(self, call: str, code: int, name: str) -> None:
        self.call, self.code, self.name = call, code, name
        super().__init__(f"{call}: {name}")


PYCUDA_ERROR: type[Exception] = pycuda.Error
"""Base of every error that pycuda raises."""


def _do(call: str, *arguments: Any) -> Any:
    """Call a driver function of cuda-bindings; its value, a tuple of them, or None."""
    result, *values = getattr(_driver, call)(*arguments)
    if int(result) != 0:
        raise CudaCallError(call, int(result), result.name)
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


# -- driver and context ----------------------------------------------------------------------------------------
def initialise() -> None:
    """cuInit. Raises CudaCallError, e.g. code 100 (no device)."""
    _do("cuInit", 0)


def driver_version() -> tuple[int, int]:
    """CUDA version that the driver speaks: (13, 0)."""
    version = int(_do("cuDriverGetVersion"))
    return version // 1000, version % 1000 // 10


def device_count() -> int:
    return int(_do("cuDeviceGetCount"))


def set_primary_context_flags(index: int, flags: int) -> None:
    _do("cuDevicePrimaryCtxSetFlags", _do("cuDeviceGet", index), flags)


def primary_context_state(index: int) -> tuple[int, bool]:
    """(flags, is_active)."""
    flags, is_active = _do("cuDevicePrimaryCtxGetState", _do("cuDeviceGet", index))
    return int(flags), bool(is_active)


def set_current_context(handle: int) -> None:
    """Make a context current in this thread; 0 for none."""
    _do("cuCtxSetCurrent", _driver.CUcontext(handle))


def query_null_stream() -> int:
    """The CUresult of the current context: 0 or NOT_READY while it works, a sticky error once it does not."""
    return int(_driver.cuStreamQuery(_driver.CUstream(0))[0])


def pop_current_context() -> None:
    """Take the top of this thread's context stack away."""
    _do("cuCtxPopCurrent")


def current_context() -> int:
    return int(_do("cuCtxGetCurrent"))


# -- memory ----------------------------------------------------------------------------------------------------
def copy_to_device_async(destination: int, source: int, size: int, stream: int) -> None:
    _do("cuMemcpyHtoDAsync", destination, source, size, _driver.CUstream(stream))


def is_host_address(address: int) -> bool:
    """True for memory of the host, whether pinned or unknown to the driver."""
    result, kind = _driver.cuPointerGetAttribute(
        _driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, _driver.CUdeviceptr(address)
    )
    return int(result) != 0 or int(kind) == int(_driver.CUmemorytype.CU_MEMORYTYPE_HOST)


def device_pointer(pinned: Any) -> int:
    """Where the device sees an array of pycuda.pagelocked_empty."""
    return int(pinned.base.get_device_pointer())


def is_known_address(address: int) -> bool:
    """Whether the driver knows the memory: allocated through it, or registered with it."""
    attribute = _driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    return int(_driver.cuPointerGetAttribute(attribute, _driver.CUdeviceptr(address))[0]) == 0


def read_host(address: int, size: int) -> bytes:
    """Bytes of host memory that is known to exist."""
    return ctypes.string_at(address, size)


class Copy2d:
    """A prepared device-to-device copy of rows: made once, issued for every frame. One thread at a time."""

    def __init__(
        self, source: int, source_pitch: int, destination: int, destination_pitch: int, width_bytes: int, rows: int
    ) -> None:
        device = _driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy = _driver.CUDA_MEMCPY2D()
        copy.srcMemoryType = copy.dstMemoryType = device
        copy.srcDevice, copy.srcPitch = _driver.CUdeviceptr(source), source_pitch
        copy.dstDevice, copy.dstPitch = _driver.CUdeviceptr(destination), destination_pitch
        copy.WidthInBytes, copy.Height = width_bytes, rows
        self._copy = copy
        self._call = _driver.cuMemcpy2DAsync

    def issue(self, stream: Any) -> None:
        """Copy, `stream` being a handle of `stream_handle`. A hot call: no lookups, no conversions."""
        result = self._call(self._copy, stream)[0]
        if result:
            raise CudaCallError("cuMemcpy2DAsync", int(result), result.name)


def stream_handle(stream: int) -> Any:
    """A stream's handle as cuda-bindings wants it; kept by callers, because making one costs as much as a call."""
    return _driver.CUstream(stream)


# -- timing events ---------------------------------------------------------------------------------------------
class TimingEvent:
    """An event that keeps time, recorded by a graph as a node of its own. Destroy with `close`."""

    def __init__(self) -> None:
        self._event = _do("cuEventCreate", int(_driver.CUevent_flags.CU_EVENT_DEFAULT))

    def capture(self, stream: int) -> None:
        """Record into a stream, also one that is being captured."""
        external = int(_driver.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL)
        _do("cuEventRecordWithFlags", self._event, _driver.CUstream(stream), external)

    def milliseconds_since(self, start: TimingEvent) -> float:
        call = "cuEventElapsedTime_v2" if hasattr(_driver, "cuEventElapsedTime_v2") else "cuEventElapsedTime"
        return float(_do(call, start._event, self._event))

    def close(self) -> None:
        _do("cuEventDestroy", self._event)


# -- graphs ----------------------------------------------------------------------------------------------------
def begin_capture(stream: int) -> None:
    """Relaxed mode: other threads' allocations, and an engine's own bookkeeping, don't break the capture."""
    _do("cuStreamBeginCapture", _driver.CUstream(stream), _driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)


def end_capture(stream: int) -> Any:
    """The captured graph, to be given to GraphExec or destroy_graph."""
    return _do("cuStreamEndCapture", _driver.CUstream(stream))


def destroy_graph(graph: Any) -> None:
    _do("cuGraphDestroy", graph)


def graph_nodes(graph: Any) -> Sequence[Any]:
    """The nodes of a graph, those of child graphs included."""
    _, count = _do("cuGraphGetNodes", graph, 0)
    nodes, _ = _do("cuGraphGetNodes", graph, count)
    found: list[Any] = []
    for node in nodes[:count]:
        found.append(node)
        if node_kind(node) == "GRAPH":
            found += graph_nodes(_do("cuGraphChildGraphNodeGetGraph", node))
    return found


def node_kind(node: Any) -> str:
    """KERNEL, MEMCPY, MEMSET, HOST, GRAPH, EMPTY, MEM_ALLOC, ...: the end of the CUgraphNodeType's name."""
    return str(_do("cuGraphNodeGetType", node).name).removeprefix("CU_GRAPH_NODE_TYPE_")


class CopyNode:
    """A MEMCPY node of a graph.

    Attributes:
        source: address that it reads from.
        size: bytes that it moves.
        is_linear: one row.
        is_pinned: the source is host memory that the driver knows, so that it still exists after the capture.
    """

    def __init__(self, node: Any) -> None:
        self._node = node
        p = self._parameters = _do("cuGraphMemcpyNodeGetParams", node)
        self.size = int(p.WidthInBytes) * max(int(p.Height), 1) * max(int(p.Depth), 1)
        self.is_linear = max(int(p.Height), 1) == max(int(p.Depth), 1) == 1
        start, self.is_from_host = _end(p.srcMemoryType, p.srcHost, p.srcDevice)
        self.source = start + int(p.srcXInBytes)
        _, self.is_to_host = _end(p.dstMemoryType, p.dstHost, p.dstDevice)
        self.is_pinned = self.is_from_host and is_known_address(self.source)

    def read_from_device(self, address: int) -> None:
        """Make the node copy from device memory instead. Before the graph is instantiated."""
        p = self._parameters
        p.srcMemoryType, p.srcHost = _driver.CUmemorytype.CU_MEMORYTYPE_DEVICE, 0
        p.srcDevice, p.srcXInBytes = _driver.CUdeviceptr(address), 0
        _do("cuGraphMemcpyNodeSetParams", self._node, p)


def _end(kind: Any, host: Any, device: Any) -> tuple[int, bool]:
    """Address of one end of a copy, and whether it is on the host."""
    if int(kind) == int(_driver.CUmemorytype.CU_MEMORYTYPE_HOST):
        return int(host or 0), True
    if int(kind) == int(_driver.CUmemorytype.CU_MEMORYTYPE_UNIFIED):
        address = int(device) or int(host or 0)
        return address, is_host_address(address)
    return int(device), False


class GraphExec:
    """An instantiated graph, uploaded, ready to launch. Destroy with `close`."""

    def __init__(self, graph: Any, stream: int) -> None:
        self._exec = _do("cuGraphInstantiate", graph, 0)
        self._stream = _driver.CUstream(stream)
        self._launch = _driver.cuGraphLaunch
        try:
            _do("cuGraphUpload", self._exec, self._stream)
        except CudaCallError:
            self.close()
            raise

    def launch(self) -> None:
        """Start the graph on its stream. The hot call: no lookups, no conversions."""
        result = self._launch(self._exec, self._stream)[0]
        if result:
            raise CudaCallError("cuGraphLaunch", int(result), result.name)

    def close(self) -> None:
        _do("cuGraphExecDestroy", self._exec)

"""tensorrt and tensorrt_rtx, the only module that imports them, by the name that is asked for.

Both have the same shape where we use them. The Protocols here are that shape: tests check them against the type stubs
of TensorRT 10.13 (tensorrt-stubs), and the simulator of the tests implements them. What the library calls back must be
a subclass of a class of its own, so such classes are made here, by functions.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from zhcedge.core.errors import BackendUnavailableError, ModelError

KINDS = ("tensorrt", "tensorrt_rtx")
"""Names of the modules, and of the kinds of plans."""

INSTALL = {
    "tensorrt": "on a Jetson, apt install python3-libnvinfer; else install TensorRT for your driver's CUDA",
    "tensorrt_rtx": "pip install 'zhcedge[tensorrt-rtx]'",
}

WARNING = 2
"""Severity of a message: 0 internal error, 1 error, 2 warning, 3 information, 4 verbose."""


# -- what we use of the library --------------------------------------------------------------------------------
class Memory(Protocol):
    """Host memory of the library; memoryview() reads it."""

    @property
    def nbytes(self) -> int: ...


class Shape(Protocol):
    """A tensor's sizes, -1 where one is open."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> int: ...


class NetworkTensor(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> Any: ...


class Network(Protocol):
    @property
    def num_inputs(self) -> int: ...
    @property
    def num_outputs(self) -> int: ...
    def get_input(self, index: int) -> Any: ...


class ParserError(Protocol):
    def code(self) -> Any: ...
    def desc(self) -> str: ...
    def node(self) -> int: ...
    def node_name(self) -> str: ...
    def node_operator(self) -> str: ...


class Parser(Protocol):
    @property
    def num_errors(self) -> int: ...
    def get_error(self, index: int) -> Any: ...
    def parse(self, model: Any, path: Any = None) -> bool: ...


class Profile(Protocol):
    def set_shape(self, input: str, min: Any, opt: Any, max: Any) -> None: ...


class BuilderConfig(Protocol):
    def set_memory_pool_limit(self, pool: Any, pool_size: int) -> None: ...
    def set_flag(self, flag: Any) -> None: ...
    def add_optimization_profile(self, profile: Any) -> int: ...
    def create_timing_cache(self, serialized_timing_cache: Any) -> Any: ...
    def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool: ...


class TimingCache(Protocol):
    def serialize(self) -> Any: ...


class Builder(Protocol):
    def create_network(self, flags: int = 0) -> Any: ...
    def create_builder_config(self) -> Any: ...
    def create_optimization_profile(self) -> Any: ...
    def build_serialized_network(self, network: Any, config: Any) -> Any: ...


class Context(Protocol):
    def set_device_memory(self, memory: int, size: int) -> None: ...
    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool: ...
    def set_tensor_address(self, name: str, memory: int) -> bool: ...
    def execute_async_v3(self, stream_handle: int) -> bool: ...


class Engine(Protocol):
    @property
    def num_io_tensors(self) -> int: ...
    @property
    def device_memory_size_v2(self) -> int: ...
    def get_tensor_name(self, index: int) -> str: ...
    def get_tensor_mode(self, name: str) -> Any: ...
    def get_tensor_dtype(self, name: str) -> Any: ...
    def get_tensor_shape(self, name: str) -> Any: ...
    def get_tensor_profile_shape(self, name: str, profile_index: int) -> Any: ...
    def create_execution_context(self, strategy: Any = ...) -> Any: ...


class Runtime(Protocol):
    def deserialize_cuda_engine(self, serialized_engine: Any) -> Any: ...


class Vendor(Protocol):
    """The module itself. Enumerations are looked up by name, because their members differ between versions."""

    @property
    def Builder(self) -> Callable[[Any], Any]: ...
    @property
    def OnnxParser(self) -> Callable[[Any, Any], Any]: ...
    @property
    def Runtime(self) -> Callable[[Any], Any]: ...
    @property
    def ILogger(self) -> type: ...
    @property
    def IProgressMonitor(self) -> type: ...
    @property
    def IGpuAllocator(self) -> type: ...
    @property
    def BuilderFlag(self) -> Any: ...
    @property
    def NetworkDefinitionCreationFlag(self) -> Any: ...
    @property
    def MemoryPoolType(self) -> Any: ...
    @property
    def TensorIOMode(self) -> Any: ...
    @property
    def ExecutionContextAllocationStrategy(self) -> Any: ...
    @property
    def DataType(self) -> Any: ...


def load(kind: str) -> Vendor:
    """Import the module `kind`. Raises BackendUnavailableError, with what installs it, where that fails."""
    try:
        module: Vendor = importlib.import_module(kind)
        version(module)
    # AttributeError: a half-removed package leaves an empty namespace behind. RuntimeError, OSError: its libraries.
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        raise BackendUnavailableError(f"{kind} can't be imported ({error})", where=kind, fix=INSTALL[kind]) from error
    return module


def version(trt: Vendor) -> str:
    """As the module says it: "10.3.0"."""
    return str(trt.__version__)  # type: ignore[attr-defined]


def member(enumeration: object, name: str) -> Any | None:
    """A member of one of the library's enumerations, None where this version has none of that name."""
    return getattr(enumeration, name, None)


# -- what the library calls ------------------------------------------------------------------------------------
def make_logger(trt: Vendor, say: Callable[[int, str], None]) -> Any:
    """A logger that calls say(severity, text) for errors and warnings. Any thread of the library."""
    base: Any = trt.ILogger

    class Logger(base):  # type: ignore[misc]
        def __init__(self) -> None:
            base.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            if int(severity) <= WARNING:
                say(int(severity), msg)

    return Logger()


class Progress(Protocol):
    """What a builder is told of. Any thread of the library."""

    def begin(self, phase: str, parent: str | None, steps: int) -> None: ...
    def step(self, phase: str, done: int) -> None: ...
    def end(self, phase: str) -> None: ...


def make_monitor(trt: Vendor, progress: Progress) -> Any:
    """A progress monitor that never stops the build."""
    base: Any = trt.IProgressMonitor

    class Monitor(base):  # type: ignore[misc]
        def __init__(self) -> None:
            base.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            progress.begin(phase_name, parent_phase, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            progress.step(phase_name, step + 1)
            return True

        def phase_finish(self, phase_name: str) -> None:
            progress.end(phase_name)

    return Monitor()


def make_allocator(trt: Vendor, allocate: Callable[[int], int], free: Callable[[int], None]) -> Any:
    """A GPU allocator whose memory comes from `allocate(bytes)` (0: none left) and goes back by `free(address)`.

    Neither may raise: an exception would pass through the library. TensorRT 10 calls the first pair or the second,
    depending on its version; 11 has the second only. Addresses pass as integers. Alignments asked for are at most
    256 bytes, which `allocate` must keep.
    """
    base: Any = trt.IGpuAllocator

    class Allocator(base):  # type: ignore[misc]
        def __init__(self) -> None:
            base.__init__(self)

        def allocate(self, size: int, alignment: int, flags: int) -> int:
            return allocate(size)

        def deallocate(self, memory: int) -> bool:
            free(memory)
            return True

        def allocate_async(self, size: int, alignment: int, flags: int, stream: int) -> int:
            return allocate(size)

        def deallocate_async(self, memory: int, stream: int) -> bool:
            free(memory)
            return True

        def reallocate(self, address: int, alignment: int, new_size: int) -> int:
            return 0  # "not implemented": the library then keeps what it has and asks for new memory

    return Allocator()


# -- the GPU of this machine -----------------------------------------------------------------------------------
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of cuda.h


def compute_capability(index: int = 0) -> str:
    """ "sm86" of a GPU of this machine, by the driver alone; "" where there is no driver or no such GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ""
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), index):
        return ""
    for attribute, value in ((_MAJOR, major), (_MINOR, minor)):
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
            return ""
    return f"sm{major.value}{minor.value}"


def parser_errors(parser: Parser) -> Sequence[ParserError]:
    """Every error of the last parse, in order."""
    return [parser.get_error(index) for index in range(parser.num_errors)]


def as_bytes(memory: Memory) -> bytes:
    """A copy of the library's memory."""
    return bytes(memoryview(memory))  # type: ignore[arg-type]


def call(what: str, where: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the library whose errors share no base class but Exception. Raises ModelError."""
    try:
        return function(*arguments)
    # pybind11 gives RuntimeError, TypeError or ValueError, as the library likes.
    except (RuntimeError, TypeError, ValueError) as error:
        raise ModelError(f"{what} failed: {error}", where=where) from error

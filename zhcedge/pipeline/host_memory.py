"""Instruments that see large host allocations of the frame path as they happen.

`HostArrays` hooks numpy's own data allocator (NEP 49, `PyDataMem_SetHandler`): every array of a watched thread
passes through it. The handler is a context variable of numpy, so it watches exactly the threads that asked for it.
`HostObjects` uses tracemalloc for everything else that Python allocates; it costs too much to stay on, so only the
audit uses it.
"""

from __future__ import annotations

import ctypes
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np

from zhcedge.core.errors import BackendUnavailableError
from zhcedge.core.leases import ThreadLeases
from zhcedge.core.ports import Canary
from zhcedge.core.types import GUARDED_BYTES, ViolationKind

OBJECT_BYTES = 4 * GUARDED_BYTES
"""From where HostObjects sees an object. The peak is a sum: small objects of all threads, and numpy's own buffers of
32 KiB an operand, reach 64 to 128 KiB together for a moment, so that one object of 64 KiB can't be told from them."""

# Both prototypes keep the interpreter lock, which numpy holds whenever it allocates.
_MALLOC = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_CALLOC = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
_REALLOC = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_SET_HANDLER, _GET_HANDLER = 304, 305  # slots of numpy's C-API table (numpy/_core/code_generators/numpy_api.py)


class _Allocator(ctypes.Structure):
    """PyDataMemAllocator of numpy/ndarraytypes.h."""

    _fields_ = (
        ("ctx", ctypes.c_void_p),
        ("malloc", _MALLOC),
        ("calloc", _CALLOC),
        ("realloc", _REALLOC),
        ("free", ctypes.c_void_p),
    )


class _Handler(ctypes.Structure):
    """PyDataMem_Handler of numpy/ndarraytypes.h."""

    _fields_ = (("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("allocator", _Allocator))


class HostArrays:
    """Counts numpy buffers of at least GUARDED_BYTES that watched threads allocate.

    The handler forwards to numpy's default one. `free` stays numpy's own C function, so an array may outlive this
    object and the interpreter's shutdown. Raises BackendUnavailableError where numpy has no such table.
    """

    name = "numpy allocator hook"

    def __init__(self) -> None:
        self._count = self._rewarm_count = 0
        self._leases = ThreadLeases()
        self.total_bytes = 0
        self._get, self._set = _handler_functions()
        default = self._get()
        base = _default_allocator(default)

        def malloc(context: int, size: int) -> int | None:
            self._see(size)
            return base.malloc(context, size)  # type: ignore[no-any-return]

        def calloc(context: int, count: int, size: int) -> int | None:
            self._see(count * size)
            return base.calloc(context, count, size)  # type: ignore[no-any-return]

        def realloc(context: int, pointer: int, size: int) -> int | None:
            self._see(size)
            return base.realloc(context, pointer, size)  # type: ignore[no-any-return]

        allocator = _Allocator(base.ctx, _MALLOC(malloc), _CALLOC(calloc), _REALLOC(realloc), base.free)
        handler = _Handler(b"zhcedge", 1, allocator)
        self._default, self._capsule = default, _capsule(handler)
        _KEPT.append((handler, default, self._capsule))

    def _see(self, size: int) -> None:
        if size >= GUARDED_BYTES:
            if self._leases.is_held:
                self._rewarm_count += 1
            else:
                self._count += 1
            self.total_bytes += size

    def start(self) -> None:
        """Nothing to do: watching begins with each thread's `watch_thread`."""

    def watch_thread(self) -> None:
        """Watch the calling thread's arrays from now on."""
        self._set(self._capsule)

    def unwatch_thread(self) -> None:
        self._set(self._default)

    def counts(self) -> dict[ViolationKind, int]:
        return {ViolationKind.HOST_ARRAY: self._count}

    def rewarm(self) -> AbstractContextManager[None]:
        """The calling thread's arrays are counted apart."""
        return self._leases.hold()

    def rewarm_counts(self) -> dict[ViolationKind, int]:
        return {ViolationKind.HOST_ARRAY: self._rewarm_count}

    def canaries(self) -> tuple[Canary, ...]:
        return (Canary(ViolationKind.HOST_ARRAY, self._plant),)

    def _plant(self) -> None:
        self.watch_thread()
        try:
            np.zeros(2 * GUARDED_BYTES, np.uint8)
        finally:
            self.unwatch_thread()

    def stop(self) -> None:
        self.unwatch_thread()


# An array frees its buffer through the handler that made it, perhaps after the instrument is gone.
_KEPT: list[tuple[object, ...]] = []


def _handler_functions() -> tuple[Callable[[], object], Callable[[object], object]]:
    try:
        module = __import__("numpy._core._multiarray_umath", fromlist=["_ARRAY_API"])
    except ImportError:  # numpy 1
        module = __import__("numpy.core._multiarray_umath", fromlist=["_ARRAY_API"])
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    table = ctypes.cast(pointer(module._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    get_at, set_at = table[_GET_HANDLER], table[_SET_HANDLER]
    if not get_at or not set_at:
        raise BackendUnavailableError("this numpy has no allocator hook", where="ledger", fix="use numpy 1.22 or later")
    return (
        ctypes.PYFUNCTYPE(ctypes.py_object)(get_at),
        ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(set_at),
    )


def _default_allocator(capsule: object) -> _Allocator:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    handler = ctypes.cast(pointer(capsule, b"mem_handler"), ctypes.POINTER(_Handler)).contents
    allocator: _Allocator = handler.allocator
    return allocator


def _capsule(handler: _Handler) -> object:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    capsule: object = new(ctypes.addressof(handler), b"mem_handler", None)
    return capsule


class HostObjects:
    """Counts intervals between two looks in which Python objects of OBJECT_BYTES or more came up.

    tracemalloc knows the peak since the last look; arrays seen by `arrays` meanwhile are not counted twice. All
    threads of the process are seen, and not told apart: while some thread holds a re-warm lease, what any of them does
    is booked there. Slows Python's allocations down: for the audit only.
    """

    name = "tracemalloc peak"

    def __init__(self, arrays: HostArrays) -> None:
        self._arrays = arrays
        self._count = self._rewarm_count = self._open_leases = 0
        self._base = self._array_bytes = 0
        self._lock = threading.Lock()

    def start(self) -> None:
        tracemalloc.start(1)
        self._look()

    def watch_thread(self) -> None:
        """Nothing to do: tracemalloc sees every thread."""

    def counts(self) -> dict[ViolationKind, int]:
        with self._lock:
            self._close_interval()
            return {ViolationKind.HOST_OBJECT: self._count}

    @contextmanager
    def rewarm(self) -> Iterator[None]:
        """Until the block ends, large objects of every thread are counted apart."""
        with self._lock:
            self._close_interval()
            self._open_leases += 1
        try:
            yield
        finally:
            with self._lock:
                self._close_interval()
                self._open_leases -= 1

    def rewarm_counts(self) -> dict[ViolationKind, int]:
        return {ViolationKind.HOST_OBJECT: self._rewarm_count}

    def _close_interval(self) -> None:
        """Judge what came up since the last look, and begin anew. Caller holds the lock."""
        array_bytes = self._arrays.total_bytes - self._array_bytes
        _, peak = tracemalloc.get_traced_memory()
        if peak - self._base - array_bytes >= OBJECT_BYTES:
            if self._open_leases:
                self._rewarm_count += 1
            else:
                self._count += 1
        self._look()

    def _look(self) -> None:
        tracemalloc.reset_peak()
        self._base, _ = tracemalloc.get_traced_memory()
        self._array_bytes = self._arrays.total_bytes

    def canaries(self) -> tuple[Canary, ...]:
        return (Canary(ViolationKind.HOST_OBJECT, _plant_object),)

    def stop(self) -> None:
        tracemalloc.stop()


def _plant_object() -> None:
    bytearray(2 * OBJECT_BYTES)


class ArenaGrowth:
    """Counts requests that a sealed arena refused: `refused` reads the arena's counter, `plant` makes one."""

    name = "arena"

    def __init__(self, refused: Callable[[], int], plant: Callable[[], None]) -> None:
        self._refused, self._plant = refused, plant

    def start(self) -> None:
        """Nothing to do: the arena counts by itself."""

    def watch_thread(self) -> None:
        """Nothing to do: the arena is asked by whoever wants memory."""

    def counts(self) -> dict[ViolationKind, int]:
        return {ViolationKind.ARENA_GROWTH: self._refused()}

    def rewarm(self) -> AbstractContextManager[None]:
        """Nothing to set apart: the arena refuses nothing to a thread with a lease of its own."""
        return nullcontext()

    def rewarm_counts(self) -> dict[ViolationKind, int]:
        return {}

    def canaries(self) -> tuple[Canary, ...]:
        return (Canary(ViolationKind.ARENA_GROWTH, self._plant),)

    def stop(self) -> None:
        """Nothing to undo."""

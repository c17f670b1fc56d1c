"""libcupti and the few calls of libcuda that the instrument needs, bound with ctypes.

A binding of our own and not cupti-python: that package hands callbacks no arguments of the call (so a copy's size is
unknown) and has no wheel for CUDA 12 on aarch64. ctypes releases the interpreter lock around each foreign call and
takes it for each callback. Sources: cupti_callbacks.h, cupti_result.h, cuda.h.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from typing import Any

DRIVER_API = 1  # CUPTI_CB_DOMAIN_DRIVER_API
_API_ENTER = 0  # CUPTI_API_ENTER
MEMORY_TYPE_HOST = 1  # CU_MEMORYTYPE_HOST
_MEMORY_TYPE_DEVICE = 2  # CU_MEMORYTYPE_DEVICE
MEMORY_TYPE_UNIFIED = 4  # CU_MEMORYTYPE_UNIFIED
_POINTER_MEMORY_TYPE = 2  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE
_SUBSCRIBER_LIMIT = (12, 39)  # CUPTI_ERROR_MAX_LIMIT_REACHED, CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED


class _CallbackData(ctypes.Structure):
    """CUpti_CallbackData, the part that is read."""

    _fields_ = (
        ("callback_site", ctypes.c_int),
        ("function_name", ctypes.c_char_p),
        ("function_params", ctypes.c_void_p),
    )


Callback = Callable[[int, int], None]
"""Gets the callback id of the function and the address of its argument struct."""

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(_CallbackData))


class CuptiError(Exception):
    """libcupti is missing or refuses; translated at the instrument."""


class DriverError(Exception):
    """A driver call of a canary failed; translated at the instrument."""


class Driver:
    """The calls that canaries plant, and the question which memory a pointer belongs to.

    Raises DriverError when there is no libcuda. Any thread; the calls need a current context.
    """

    def __init__(self) -> None:
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise DriverError("libcuda.so.1 is not there: no NVIDIA driver") from error

    def _do(self, function: str, *arguments: Any) -> None:
        result = getattr(self._cuda, function)(*arguments)
        if result:
            raise DriverError(f"{function} returned CUDA error {result}")

    def version_major(self) -> int:
        """The CUDA version that the driver speaks: 13 for 13.0."""
        version = ctypes.c_int()
        self._do("cuDriverGetVersion", ctypes.byref(version))
        return version.value // 1000

    def allocate(self, size: int) -> int:
        address = ctypes.c_uint64()
        self._do("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def allocate_async(self, size: int, stream: int) -> int:
        address = ctypes.c_uint64()
        self._do("cuMemAllocAsync", ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_void_p(stream))
        return address.value

    def free(self, address: int) -> None:
        self._do("cuMemFree_v2", ctypes.c_uint64(address))

    def allocate_pinned(self, size: int) -> int:
        address = ctypes.c_void_p()
        self._do("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_uint(0))
        return address.value or 0

    def free_pinned(self, address: int) -> None:
        self._do("cuMemFreeHost", ctypes.c_void_p(address))

    def copy_to_host(self, host: int, device: int, size: int) -> None:
        self._do("cuMemcpyDtoH_v2", ctypes.c_void_p(host), ctypes.c_uint64(device), ctypes.c_size_t(size))

    def copy_2d_to_host(self, host: int, device: int, width: int, height: int) -> None:
        """cuMemcpy2D of `height` rows of `width` bytes; 16 words of CUDA_MEMCPY2D."""
        source = (0, 0, _MEMORY_TYPE_DEVICE, 0, device, 0, width)
        target = (0, 0, MEMORY_TYPE_HOST, host, 0, 0, width)
        copy = (ctypes.c_uint64 * 16)(*source, *target, width, height)
        self._do("cuMemcpy2D_v2", ctypes.byref(copy))

    def synchronise_context(self) -> None:
        self._do("cuCtxSynchronize")

    def is_host_pointer(self, address: int) -> bool:
        """True for pinned and for ordinary host memory (which the driver does not know)."""
        kind = ctypes.c_uint()
        result = self._cuda.cuPointerGetAttribute(ctypes.byref(kind), _POINTER_MEMORY_TYPE, ctypes.c_uint64(address))
        return bool(result) or kind.value == MEMORY_TYPE_HOST


class Cupti:
    """One subscriber to the driver's callbacks.

    Raises CuptiError when the library is missing. `driver_major` chooses among installed versions: CUPTI of another
    major version than the driver's refuses to attach.
    """

    def __init__(self, driver_major: int) -> None:
        self._cupti = _load(driver_major)
        self._handle = ctypes.c_void_p()
        self._callback: Any = None

    def _do(self, function: str, *arguments: Any) -> None:
        result = getattr(self._cupti, function)(*arguments)
        if result:
            text = ctypes.c_char_p()
            self._cupti.cuptiGetResultString(result, ctypes.byref(text))
            name = text.value.decode() if text.value else str(result)
            hint = "; another profiler is attached to this process" if result in _SUBSCRIBER_LIMIT else ""
            raise CuptiError(f"{function} returned {name}{hint}")

    def version(self) -> int:
        version = ctypes.c_uint32()
        self._do("cuptiGetVersion", ctypes.byref(version))
        return version.value

    def functions(self) -> dict[int, str]:
        """Every driver-API callback id that this libcupti knows, with its name. Needs no GPU."""
        names: dict[int, str] = {}
        for number in range(1, 4096):
            name = ctypes.c_char_p()
            if self._cupti.cuptiGetCallbackName(DRIVER_API, number, ctypes.byref(name)):
                break
            names[number] = (name.value or b"").decode()
        return names

    def subscribe(self, callback: Callback) -> None:
        """From now on each call of an enabled function calls back once, before it runs, on the caller's thread."""

        def on_call(_user: Any, _domain: int, number: int, data: Any) -> None:
            if data.contents.callback_site == _API_ENTER:  # there is another for the exit
                callback(number, data.contents.function_params)

        self._callback = _CALLBACK(on_call)
        self._do("cuptiSubscribe", ctypes.byref(self._handle), self._callback, None)

    def enable(self, number: int) -> None:
        self._do("cuptiEnableCallback", ctypes.c_uint32(1), self._handle, DRIVER_API, ctypes.c_uint32(number))

    def unsubscribe(self) -> None:
        # The callback object stays alive with this one: a call already on its way may still arrive.
        if self._handle:
            handle, self._handle = self._handle, ctypes.c_void_p()
            self._do("cuptiUnsubscribe", handle)


def _load(driver_major: int) -> ctypes.CDLL:
    tried: list[str] = []
    for path in _candidates(driver_major):
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            tried.append(str(error))
    raise CuptiError("libcupti is not installed: " + "; ".join(tried))


def _candidates(driver_major: int) -> list[str]:
    """Paths and names to try, the driver's own major version first."""
    soname = f"libcupti.so.{driver_major}"
    toolkits = (f"/usr/local/cuda-{driver_major}", "/usr/local/cuda")
    found = [soname, *(f"{toolkit}/extras/CUPTI/lib64/{soname}" for toolkit in toolkits)]
    for package in ("nvidia.cu13.lib", "nvidia.cuda_cupti.lib"):  # where the wheels of CUDA 13 and 12 put it
        found = [f"{folder}/{soname}" for folder in _namespace_folders(package)] + found
    return found


def _namespace_folders(package: str) -> list[str]:
    """Wheels of several sites may share one namespace package."""
    try:
        return list(importlib.import_module(package).__path__)
    except ImportError:
        return []


def words(address: int, count: int) -> Any:
    """`count` unsigned 64-bit words at an address inside this process."""
    return (ctypes.c_uint64 * count).from_address(address)


def host_buffer(size: int) -> tuple[Any, int]:
    """A zeroed host buffer outside numpy and the object allocator: the owner to keep, and its address."""
    owner = ctypes.create_string_buffer(size)
    return owner, ctypes.addressof(owner)

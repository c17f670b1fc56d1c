"""What each driver-API function means to the ledger: the classification table.

CUPTI numbers every entry point of the driver and names it (`cuptiGetCallbackName`): "cuMemcpyDtoHAsync_v2_ptsz".
The table is keyed by the plain name ("cuMemcpyDtoHAsync"): suffixes only mark the version of a signature (`_v2`) and
the default stream that it uses (`_ptds`, `_ptsz`). Functions of a first signature that was replaced take 32-bit sizes
and are treated apart, since their arguments have another layout.

A function that deals with memory, copies or synchronisation (`is_relevant`) and has no row here is unclassified:
the instrument then says that it can't see, and the verdict is `unproved`. Sources: CUDA Driver API reference and
`generated_cuda_meta.h` of CUPTI 12.6, 13.0 and 13.5.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from zhcedge.core.types import ViolationKind


class Reader(str, enum.Enum):
    """Where a copy's destination and size stand among its arguments."""

    NONE = "none"  # every call counts, whatever it was asked to do
    TO_HOST = "dst, src, bytes; dst is host memory"
    ARRAY_TO_HOST = "dst, array, offset, bytes; dst is host memory"
    TO_DEVICE = "dst, src, bytes; src is host memory"
    BY_POINTER = "dst, src, bytes; the pointer says where dst lives"
    PITCHED_2D = "CUDA_MEMCPY2D"
    PITCHED_3D = "CUDA_MEMCPY3D"


@dataclass(frozen=True)
class Rule:
    """What a call of a function means.

    Attributes:
        kind: the violation that it can be, or None where it never is one.
        reader: how to find out, for copies; NONE: every call is one.
        is_rare: True when a healthy frame path never calls it, so that watching it live costs nothing.
        reason: for people, why it counts or why it doesn't.
    """

    kind: ViolationKind | None
    reason: str
    reader: Reader = Reader.NONE
    is_rare: bool = True


_DEVICE = Rule(ViolationKind.DEVICE_ALLOCATION, "allocates device memory")
_ASYNC = Rule(ViolationKind.ASYNC_ALLOCATION, "allocates device memory in stream order")
_FREE = Rule(ViolationKind.DEVICE_FREE, "frees memory through the driver, which may synchronise")
_PINNED = Rule(ViolationKind.PINNED_ALLOCATION, "locks host memory")
_SYNC = Rule(ViolationKind.DEVICE_SYNCHRONISE, "waits for everything on the device")
_UNREAD_COPY = Rule(ViolationKind.HOST_COPY, "may move pixels to the host; its arguments are not read, so all count")
_LOADS = Rule(ViolationKind.DEVICE_ALLOCATION, "takes device memory for code or nodes")

_ON_DEVICE = Rule(None, "stays on the device")
_UPLOAD = Rule(None, "to the device: bytes are added up, not judged", Reader.TO_DEVICE, is_rare=False)
_TO_ARRAY = Rule(None, "to an array on the device")
_STREAM_WAIT = Rule(None, "waits for one stream or event, or makes a stream wait: allowed")
_QUERY = Rule(None, "asks or sets an attribute")
_MAPPING = Rule(None, "gives an address to memory that was counted when it was made")
_NODE = Rule(None, "edits a graph; the nodes are walked when the graph is compiled")
_INTEROP = Rule(None, "shares another interface's memory; it makes none")

_MEMSETS = tuple(
    f"cuMemset{to}{mode}" for to in ("D8", "D16", "D32", "D2D8", "D2D16", "D2D32") for mode in ("", "Async")
)

RULES: dict[str, Rule] = {
    # -- device memory
    **dict.fromkeys(
        (
            "cuMemAlloc",
            "cuMemAllocPitch",
            "cuMemAllocManaged",
            "cuMemCreate",
            "cuArrayCreate",
            "cuArray3DCreate",
            "cuMipmappedArrayCreate",
            "cuMulticastCreate",
        ),
        _DEVICE,
    ),
    **dict.fromkeys(("cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemPoolCreate"), _ASYNC),
    **dict.fromkeys(
        (
            "cuMemFree",
            "cuMemFreeAsync",
            "cuMemFreeHost",
            "cuMemHostUnregister",
            "cuMemRelease",
            "cuArrayDestroy",
            "cuMipmappedArrayDestroy",
            "cuMemPoolDestroy",
            "cuMemPoolTrimTo",
            "cuDeviceGraphMemTrim",
            "cuDestroyExternalMemory",
            "cuModuleUnload",
            "cuLibraryUnload",
        ),
        _FREE,
    ),
    **dict.fromkeys(("cuMemAllocHost", "cuMemHostAlloc", "cuMemHostRegister"), _PINNED),
    **dict.fromkeys(
        (
            "cuModuleLoad",
            "cuModuleLoadData",
            "cuModuleLoadDataEx",
            "cuModuleLoadFatBinary",
            "cuLibraryLoadData",
            "cuLibraryLoadFromFile",
            "cuFuncLoad",
            "cuGraphInstantiate",
            "cuGraphInstantiateWithFlags",
            "cuGraphInstantiateWithParams",
            "cuGraphUpload",
        ),
        _LOADS,
    ),
    # -- copies
    **dict.fromkeys(
        ("cuMemcpyDtoH", "cuMemcpyDtoHAsync"),
        Rule(ViolationKind.HOST_COPY, "to the host: counts from a frame's size on", Reader.TO_HOST),
    ),
    **dict.fromkeys(
        ("cuMemcpyAtoH", "cuMemcpyAtoHAsync"),
        Rule(ViolationKind.HOST_COPY, "to the host: counts from a frame's size on", Reader.ARRAY_TO_HOST),
    ),
    **dict.fromkeys(
        ("cuMemcpy", "cuMemcpyAsync"),
        Rule(ViolationKind.HOST_COPY, "counts where the destination is host memory", Reader.BY_POINTER, is_rare=False),
    ),
    **dict.fromkeys(
        ("cuMemcpy2D", "cuMemcpy2DUnaligned", "cuMemcpy2DAsync"),
        Rule(ViolationKind.HOST_COPY_2D, "counts where the destination is host memory", Reader.PITCHED_2D, False),
    ),
    **dict.fromkeys(
        ("cuMemcpy3D", "cuMemcpy3DAsync"),
        Rule(ViolationKind.HOST_COPY_2D, "counts where the destination is host memory", Reader.PITCHED_3D, False),
    ),
    **dict.fromkeys(
        (
            "cuMemcpyBatchAsync",
            "cuMemcpy3DBatchAsync",
            "cuMemcpyWithAttributesAsync",
            "cuMemcpy3DWithAttributesAsync",
            "cuMemPrefetchAsync",
            "cuMemPrefetchBatchAsync",
            "cuMemDiscardAndPrefetchBatchAsync",
        ),
        _UNREAD_COPY,
    ),
    **dict.fromkeys(("cuMemcpyHtoD", "cuMemcpyHtoDAsync"), _UPLOAD),
    **dict.fromkeys(("cuMemcpyHtoA", "cuMemcpyHtoAAsync"), _TO_ARRAY),
    **dict.fromkeys(
        (
            "cuMemcpyDtoD",
            "cuMemcpyDtoDAsync",
            "cuMemcpyDtoA",
            "cuMemcpyAtoD",
            "cuMemcpyAtoA",
            "cuMemcpyPeer",
            "cuMemcpyPeerAsync",
            "cuMemcpy3DPeer",
            "cuMemcpy3DPeerAsync",
            "cuMemBatchDecompressAsync",
            "cuMemDiscardBatchAsync",
            "cuMemMapArrayAsync",
            *_MEMSETS,
        ),
        _ON_DEVICE,
    ),
    # -- synchronisation
    "cuCtxSynchronize": _SYNC,
    **dict.fromkeys(
        (
            "cuStreamSynchronize",
            "cuEventSynchronize",
            "cuStreamWaitEvent",
            "cuCtxWaitEvent",
            "cuGreenCtxWaitEvent",
            "cuStreamWaitValue32",
            "cuStreamWaitValue64",
            "cuStreamBatchMemOp",
            "cuWaitExternalSemaphoresAsync",
            "cuSignalExternalSemaphoresAsync",
            "cuImportExternalSemaphore",
            "cuDestroyExternalSemaphore",
        ),
        _STREAM_WAIT,
    ),
    # -- addresses of memory that exists already
    **dict.fromkeys(
        (
            "cuMemAddressReserve",
            "cuMemAddressFree",
            "cuMemMap",
            "cuMemUnmap",
            "cuMemSetAccess",
            "cuMemRetainAllocationHandle",
            "cuMemExportToShareableHandle",
            "cuMemImportFromShareableHandle",
            "cuMemPoolExportToShareableHandle",
            "cuMemPoolImportFromShareableHandle",
            "cuMemPoolExportPointer",
            "cuMemPoolImportPointer",
            "cuMemPeerRegister",
            "cuMemPeerUnregister",
            "cuMulticastBindMem",
            "cuLogicalEndpointBindMem",
            "cuIpcOpenMemHandle",
            "cuIpcCloseMemHandle",
            "cuImportExternalMemory",
            "cuStreamAttachMemAsync",
        ),
        _MAPPING,
    ),
    # -- attributes
    **dict.fromkeys(
        (
            "cuMemAdvise",
            "cuMemSetMemPool",
            "cuMemPoolSetAttribute",
            "cuMemPoolSetAccess",
            "cuDeviceSetMemPool",
            "cuDeviceSetGraphMemAttribute",
            "cuDeviceTotalMem",
            "cuCtxSetSharedMemConfig",
            "cuFuncSetSharedMemConfig",
            "cuOccupancyAvailableDynamicSMemPerBlock",
            "cuLogsDumpToMemory",
            "cuNNSetAllocator",
            "cuBinaryFree",
            "cuStreamCopyAttributes",
            "cuGraphKernelNodeCopyAttributes",
            "cuEventCreateFromEGLSync",
            "cuEventCreateFromNVNSync",
            "cuTexRefSetMipmappedArray",
        ),
        _QUERY,
    ),
}
"""One row for every function that can matter, by plain name."""

_FAMILIES: tuple[tuple[re.Pattern[str], Rule], ...] = (
    (re.compile(r"cuMem(Host|Pool|Peer|Range)?Get\w+"), _QUERY),
    (re.compile(r"cu(Device|Ctx|Ipc|Module|ExternalMemory|Array|MipmappedArray|TexRef)Get\w+"), _QUERY),
    (re.compile(r"cuGraph(Exec)?(\w+)Node(Get|Set)\w+|cuGraphAdd\w+Node"), _NODE),
    (re.compile(r"cu(Graphics|D3D9|D3D10|D3D11|GL|VDPAU)\w+"), _INTEROP),
)
"""Families of functions by the shape of their name: readers of attributes, builders of graphs, interop."""

_RELEVANT = re.compile(
    r"Mem(?!oryRequirements)|[Cc]py|Copy|Synchroni[sz]e|Sync\b|Alloc|Free|Array(3D)?Create|ArrayDestroy|Wait"
    r"|External(Memory|Semaphore)|Map(Resources|Buffer|Vertex)|(Module|Library|Func)(Load|Unload)(?!ing)"
    r"|Graph(Instantiate|Upload)"
)
_SUFFIX = re.compile(r"(_v\d+)?(_pt[ds]s|_ptsz)?$")
_REPLACED = re.compile(r"cu(64)?Memcpy((HtoD|DtoH|DtoD|HtoA|AtoH|2D|3D)(Async)?|DtoA|AtoD|AtoA|2DUnaligned)")
_SMALL_TO_HOST = Rule(
    ViolationKind.HOST_COPY, "first signature, with 32-bit sizes: its arguments are not read, so all calls count"
)


def plain_name(function: str) -> str:
    """ "cuMemcpyDtoHAsync_v2_ptsz" -> "cuMemcpyDtoHAsync"; the old "cu64" prefix counts as "cu"."""
    return _SUFFIX.sub("", re.sub(r"^cu64", "cu", function))


def is_relevant(function: str) -> bool:
    """Whether a function's name says that it deals with memory, copies or synchronisation."""
    return _RELEVANT.search(plain_name(function)) is not None


def classify(function: str) -> Rule | None:
    """The rule for a callback's function name; None when the table has no row for it."""
    name = plain_name(function)
    rule = RULES.get(name)
    if rule is None:
        return next((family for pattern, family in _FAMILIES if pattern.fullmatch(name)), None)
    if rule.kind is not None and rule.reader is not Reader.NONE and _REPLACED.fullmatch(function):
        return _SMALL_TO_HOST
    return rule


def unclassified(functions: list[str]) -> list[str]:
    """The relevant functions without a row; must be empty."""
    return sorted(name for name in functions if is_relevant(name) and classify(name) is None)

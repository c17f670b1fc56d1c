"""The GPU's primary context, streams and fences.

The primary context is the one that every other library in the process (ONNX Runtime, PyNvVideoCodec, nvJPEG) uses
too, so memory and streams can be shared with them. Its blocking-sync flag must be set before anyone retains it:
open a CudaContext before importing or starting those libraries.

Threads: pycuda objects are made and freed by a thread that has pushed the context (`with context.push()`); every
other thread calls `attach` once and may then launch, record and wait. pycuda aborts the process when a thread ends
with a context still on its stack, which is why long-lived threads attach and never push.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from zhcedge.backends.cuda import _vendor
from zhcedge.backends.cuda._vendor import CudaCallError, pycuda
from zhcedge.core.errors import BackendUnavailableError, PipelineError

_OLDEST_CUDA = (12, 4)
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: never waits for the null stream
_POLL_S = 0.0001
_LONGEST_POLL_S = 0.002
_SLEEP_SHARE = 0.75  # of the last wait, slept at once: most waits of a fence are alike


_ABANDONED: list[object] = []
"""What is never freed, because its GPU is lost: see CudaContext.abandon."""


class CudaFence:
    """A CUDA event without timing. Implements core.ports.Fence; record again only once the last work is done.

    A fence that was never recorded counts as done. Any attached thread.
    """

    def __init__(self, context: CudaContext, where: str) -> None:
        self._context = context
        self._where = where
        flags = int(pycuda.event_flags.DISABLE_TIMING) | int(pycuda.event_flags.BLOCKING_SYNC)
        self.event = pycuda.Event(flags)
        self.stream: CudaStream | None = None
        """The one that it was recorded on last."""
        self._usual_s = 0.0

    def record(self, stream: CudaStream) -> None:
        """Stand for all work given to `stream` so far. Raises PipelineError when the GPU is lost."""
        self.stream = stream
        try:
            self.event.record(stream.native)
        except _vendor.PYCUDA_ERROR as error:
            raise gpu_error(error, self._where) from error

    def is_done(self) -> bool:
        """Whether the work is finished. Raises PipelineError when it failed."""
        self._context.attach()
        try:
            return self.event.query()
        except _vendor.PYCUDA_ERROR as error:
            raise gpu_error(error, self._where) from error

    def wait(self, timeout_s: float) -> bool:
        """Block until the work is finished, without spinning. Raises PipelineError when it failed.

        The driver's own wait has no timeout and would hang with the GPU. So this sleeps for most of the time that the
        last wait took, then looks every tenth of a millisecond, and less often when it takes long. One thread at a
        time.
        """
        if self.is_done():
            return True
        started_s = now_s = time.monotonic()
        pause_s = max(self._usual_s * _SLEEP_SHARE, _POLL_S)
        while (left_s := started_s + timeout_s - now_s) > 0:
            time.sleep(min(pause_s, left_s))
            is_done = self.is_done()
            now_s = time.monotonic()
            if is_done:
                self._usual_s = now_s - started_s
                return True
            pause_s = min(max(_POLL_S, (now_s - started_s) / 16), _LONGEST_POLL_S)
        return False


class CudaStream:
    """A stream that never waits for the null stream. `handle` is the CUstream as an integer."""

    def __init__(self) -> None:
        self.native = pycuda.Stream(_NON_BLOCKING)
        self.handle: int = self.native.handle
        self.prepared = _vendor.stream_handle(self.handle)
        """The handle as the hot calls of `_vendor` want it."""

    def wait_for(self, fence: CudaFence) -> None:
        """Work given to this stream from now on starts after what `fence` was recorded for. The host goes on.

        For its own fences nothing needs to be done: a stream keeps order.
        """
        if fence.stream is self:
            return
        try:
            self.native.wait_for_event(fence.event)
        except _vendor.PYCUDA_ERROR as error:
            raise gpu_error(error, "stream") from error

    def synchronize(self) -> None:
        """Block until all work of this stream is done. Initialising and closing only."""
        try:
            self.native.synchronize()
        except _vendor.PYCUDA_ERROR as error:
            raise gpu_error(error, "stream") from error


class CudaContext:
    """The primary context of GPU `index`, retained until `close`.

    Raises BackendUnavailableError without a GPU, with too old a driver, or when another library holds the primary
    context with a spinning flag that can no longer be changed.
    """

    def __init__(self, index: int = 0) -> None:
        self._local = threading.local()
        self._owned: list[CudaStream | CudaFence] = []
        self.index = index
        self.driver_version = _start_driver(index)
        _set_blocking_sync(index)
        try:
            pycuda.init()
            device = pycuda.Device(index)
            self._context = device.retain_primary_context()
        except _vendor.PYCUDA_ERROR as error:
            raise BackendUnavailableError(f"GPU {index} can't be opened: {error}", where="cuda") from error
        self._is_open = True
        self._opener = threading.get_ident()
        self.name: str = device.name()
        self.pci_bus_id: str = device.pci_bus_id()
        """ "0000:01:00.0", as NVML and `nvidia-smi` name the board."""
        major, minor = device.compute_capability()
        self.compute_capability: tuple[int, int] = (int(major), int(minor))
        self.handle: int = self._context.handle
        """The CUcontext as an integer."""
        self.attach()

    @contextmanager
    def push(self) -> Iterator[None]:
        """Make the context current for making and freeing pycuda objects; popped again on the way out.

        Raises PipelineError when the GPU is lost.
        """
        try:
            self._context.push()
        except _vendor.PYCUDA_ERROR as error:
            raise gpu_error(error, "cuda") from error
        try:
            yield
        finally:
            self._context.pop()

    def attach(self) -> None:
        """Make the context current in this thread for good. Cheap when it already is; undone by nobody."""
        if not getattr(self._local, "is_attached", False):
            try:
                _vendor.set_current_context(self.handle)
            except CudaCallError as error:
                raise gpu_error(error, "cuda") from error
            self._local.is_attached = True

    def create_stream(self) -> CudaStream:
        """A new non-blocking stream, owned by the context. Any thread, before the seal. Raises PipelineError."""
        try:
            with self.push():
                stream = CudaStream()
        except _vendor.PYCUDA_ERROR as error:
            raise gpu_error(error, "stream") from error
        self._owned.append(stream)
        return stream

    def create_fence(self, where: str = "cuda") -> CudaFence:
        """A new fence, owned by the context; `where` names the work in error messages. Raises PipelineError."""
        try:
            with self.push():
                fence = CudaFence(self, where)
        except _vendor.PYCUDA_ERROR as error:
            raise gpu_error(error, where) from error
        self._owned.append(fence)
        return fence

    def memory_bytes(self) -> tuple[int, int]:
        """(free, total) device memory."""
        with self.push():
            free, total = pycuda.mem_get_info()
        return int(free), int(total)

    def is_lost(self) -> bool:
        """Whether the GPU has stopped working for this process: nothing can be freed any more. Any thread, no waiting.

        A kernel's fault and a GPU that fell off the bus are lost; one that is only busy is not.
        """
        try:
            self.attach()
            return _vendor.query_null_stream() not in (0, _vendor.NOT_READY)
        except PipelineError:
            return True

    def abandon(self, *owners: object) -> None:
        """Keep what `owners` hold until the process ends: freeing it on a lost or stuck GPU would fail, or block."""
        _ABANDONED.extend(owners)

    def close(self) -> None:
        """Free streams and fences and release the primary context. On the thread that opened it; twice is fine.

        What belongs to other owners (memory, modules) must be freed before. Called from another thread it leaves
        the release to the end of the process: pycuda lets only the opener release.
        """
        if not self._is_open:
            return
        self._is_open = False
        self._owned.clear()
        if threading.get_ident() == self._opener:
            self._context.detach()
            # Ours from `attach`, and what detach() of a primary context leaves on the driver's stack.
            while _vendor.current_context() == self.handle:
                _vendor.pop_current_context()


def _start_driver(index: int) -> tuple[int, int]:
    try:
        _vendor.initialise()
        version, count = _vendor.driver_version(), _vendor.device_count()
    except CudaCallError as error:
        raise BackendUnavailableError(
            f"the NVIDIA driver finds no usable GPU ({error.name})",
            where="cuda",
            fix="check that `nvidia-smi` lists one and that this user may open /dev/nvidia*",
        ) from error
    if version < _OLDEST_CUDA:
        raise BackendUnavailableError(
            f"the driver speaks CUDA {version[0]}.{version[1]}, older than {_OLDEST_CUDA[0]}.{_OLDEST_CUDA[1]}",
            where="cuda",
            fix="install a newer NVIDIA driver",
        )
    if index >= count:
        raise BackendUnavailableError(
            f"there is no GPU {index}, only {count}", where="cuda", fix="choose another index"
        )
    return version


def _set_blocking_sync(index: int) -> None:
    """Waits must sleep: a spinning one would take the CPU that the control process needs."""
    try:
        flags, is_active = _vendor.primary_context_state(index)
        if is_active and flags & _vendor.BLOCKING_SYNC:
            return
        _vendor.set_primary_context_flags(index, _vendor.BLOCKING_SYNC)
    except CudaCallError as error:
        if error.code != _vendor.PRIMARY_CONTEXT_ACTIVE:
            raise BackendUnavailableError(f"GPU {index} can't be prepared: {error}", where="cuda") from error
        raise BackendUnavailableError(
            "another library opened this GPU before us, with waits that spin",
            where="cuda",
            fix="open the cuda device before that library",
        ) from error


def gpu_error(error: Exception, where: str) -> PipelineError:
    """A driver's or pycuda's error as one of ours. Errors of kernels are sticky: the process must start again."""
    return PipelineError(
        f"the GPU reported: {error}", where=where, fix="restart the process; see the kernel log for Xid"
    )

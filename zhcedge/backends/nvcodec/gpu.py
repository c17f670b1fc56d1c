"""What this backend needs of the cuda device: its context, streams and fences, by shape and not by import."""

from __future__ import annotations

from typing import Protocol, cast

from zhcedge.core.errors import BackendUnavailableError
from zhcedge.core.ports import Fence


class GpuStream(Protocol):
    """A stream that never waits for the null stream."""

    @property
    def handle(self) -> int: ...
    def wait_for(self, fence: GpuFence) -> None:
        """Later work of this stream starts after a fence of the same context. The host goes on."""
        ...


class GpuFence(Fence, Protocol):
    def record(self, stream: GpuStream) -> None:
        """Stand for all work given to `stream` so far."""
        ...


class GpuContext(Protocol):
    """The primary context that all libraries in the process share."""

    @property
    def index(self) -> int: ...
    @property
    def handle(self) -> int: ...
    def attach(self) -> None: ...
    def create_stream(self) -> GpuStream: ...
    def create_fence(self, where: str = ...) -> GpuFence: ...


def context_of(device: object) -> GpuContext:
    """The context of the cuda device. Raises BackendUnavailableError for a device without one."""
    context = getattr(device, "context", None)
    if not hasattr(context, "create_stream"):
        raise BackendUnavailableError(
            "NVDEC and NVENC need the cuda device", where="nvcodec", fix="use the rtx profile"
        )
    return cast(GpuContext, context)

"""Pictures made on the host (image files, patterns, codecs that NVDEC lacks) as surfaces on the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np
import numpy.typing as npt

from zhcedge.backends.cuda import _vendor
from zhcedge.backends.cuda._vendor import CudaCallError
from zhcedge.backends.cuda.context import CudaFence, CudaStream, gpu_error
from zhcedge.backends.cuda.device import CudaDevice
from zhcedge.core.errors import BackendUnavailableError, PhaseError, PipelineError
from zhcedge.core.geometry import plane_sizes
from zhcedge.core.lending import SurfaceLease
from zhcedge.core.ports import EndOfStream, Fence, Idle, Lease, Source, SourceFacts, SourceStatus
from zhcedge.core.types import (
    Agent,
    Hop,
    ImageFormat,
    MemoryDomain,
    Payload,
    PixelFormat,
    Plane,
    Provenance,
    Surface,
)

Pixels = npt.NDArray[np.uint8]

_STAGES = 2  # one is filled while the GPU still reads the other
_TIMEOUT_S = 10.0  # a copy takes a millisecond; after this long the GPU is taken for hung


@dataclass
class _Stage:
    """Memory that one picture goes through.

    Attributes:
        rows: views of the pinned planes, [rows, width_bytes].
        pinned_address, size_bytes: of all pinned planes together, laid out as in `surface`.
        uploaded: the copy to the GPU.
        reader: last work on the surface, None when nobody reads it.
    """

    rows: tuple[Pixels, ...]
    pinned_address: int
    size_bytes: int
    surface: Surface[int]
    uploaded: CudaFence
    reader: Fence | None = None


class HostSource:
    """Copies every picture of a host source to the GPU once. Implements core.ports.Source over device memory.

    The picture goes into pinned memory, by the CPU, and from there by the copy engine on a stream of its own: on a
    discrete GPU this is how such a picture enters GPU memory at all. Both ways are declared in the hops. One frame is
    lent at a time. Memory comes from the device's arena in `open` and goes back in `close`.

    Args:
        inner: lends NV12 or I420 in host memory.
        device: the cuda device.
    """

    def __init__(self, inner: Source[object], device: object) -> None:
        if not isinstance(device, CudaDevice):
            raise BackendUnavailableError("uploading needs the cuda device", where="upload", fix="use the rtx profile")
        self._inner = cast(Source[Pixels], inner)
        self._device = device
        self._stream: CudaStream | None = None
        self._stages: list[_Stage] = []
        self._image: ImageFormat | None = None
        self._owner = f"upload {id(self):x}"
        self._next = 0
        self._is_lent = False

    @property
    def status(self) -> SourceStatus:
        return self._inner.status

    @property
    def warnings(self) -> tuple[str, ...]:
        """Those of the host source."""
        return self._inner.warnings

    def open(self) -> SourceFacts:
        """Open the host source and make the memory that its pictures go through.

        Raises what it raises, PipelineError when memory is short, PhaseError after the seal; holds nothing then.
        """
        facts = self._inner.open()
        try:
            self._prepare(facts)
        except BaseException:
            self._inner.close()
            raise
        return replace(
            facts,
            domain=self._stages[0].surface.domain,
            has_packets=False,
            hops=(*facts.hops, *self._hops(facts.format)),
            description=f"{facts.description}, copied to the GPU",
        )

    def read(self, timeout_s: float) -> SurfaceLease[int] | Idle | EndOfStream:
        """The next picture, on its way to the GPU; Idle when none comes within `timeout_s`.

        Raises what the host source raises, PhaseError while the last frame is lent, PipelineError when the GPU fails.
        """
        if self._is_lent:
            raise PhaseError("the last frame was not given back", where="upload")
        lease = self._inner.read(timeout_s)
        if isinstance(lease, (Idle, EndOfStream)):
            return lease
        stage = self._stages[self._next]
        self._next = (self._next + 1) % _STAGES
        try:
            self._upload(lease, stage)
        finally:
            lease.release()
        self._is_lent = True
        return SurfaceLease(stage.surface, lease.info, partial(self._take_back, stage), stage.uploaded)

    def _take_back(self, stage: _Stage, after: Fence | None) -> None:
        """A lease was released; `after` is the last work on its surface."""
        stage.reader = after
        self._is_lent = False

    def rewind(self) -> None:
        self._inner.rewind()

    def close(self) -> None:
        """Close the host source and give the memory back, once nothing in flight uses it. Twice is fine."""
        try:
            for stage in self._stages:
                stage.uploaded.wait(_TIMEOUT_S)
                if stage.reader is not None:
                    stage.reader.wait(_TIMEOUT_S)
        finally:
            self._inner.close()
            self._give_memory_back()
            self._is_lent = False

    # -- memory ------------------------------------------------------------------------------------------------
    def _prepare(self, facts: SourceFacts) -> None:
        image = facts.format
        if facts.domain is not MemoryDomain.HOST or image.pixel_format not in (PixelFormat.NV12, PixelFormat.I420):
            raise PipelineError(
                f"{image.pixel_format.value} pictures in {facts.domain.value} memory can't be uploaded", where="upload"
            )
        if image == self._image:
            return
        self._give_memory_back()
        self._stream = self._stream or self._device.context.create_stream()
        self._stages += [self._make_stage(image) for _ in range(_STAGES)]
        self._image = image

    def _make_stage(self, image: ImageFormat) -> _Stage:
        arena = self._device.arena
        surface = arena.surface(image, self._owner)
        first, last = surface.planes[0], surface.planes[-1]
        size_bytes = last.buffer + last.rows * last.pitch_bytes - first.buffer
        pinned, _ = arena.pinned(size_bytes, self._owner)
        views = []
        for plane in surface.planes:  # one behind the other, so that one copy takes them all
            start = plane.buffer - first.buffer
            rows = pinned[start : start + plane.rows * plane.pitch_bytes].reshape(plane.rows, plane.pitch_bytes)
            views.append(rows[:, : plane.width_bytes])
        return _Stage(tuple(views), pinned.ctypes.data, size_bytes, surface, arena.ingest_fence(surface))

    def _give_memory_back(self) -> None:
        self._stages.clear()
        self._image = None
        self._device.arena.release(self._owner)

    # -- copying -----------------------------------------------------------------------------------------------
    def _upload(self, lease: Lease[Pixels], stage: _Stage) -> None:
        context, stream = self._device.context, self._stream
        if stream is None:
            raise PhaseError("the source is not open", where="upload")
        context.attach()
        if lease.ready is not None and not lease.ready.wait(_TIMEOUT_S):
            raise PipelineError("the source's picture does not arrive", where="upload")
        # The copy before last read from the pinned memory, and somebody may still read what it brought.
        if not stage.uploaded.wait(_TIMEOUT_S):
            raise PipelineError("a copy to the GPU does not end", where="upload")
        _copy_rows(lease.surface.planes, stage.rows)
        if isinstance(stage.reader, CudaFence):  # the GPU waits, this thread does not
            stream.wait_for(stage.reader)
        elif stage.reader is not None and not stage.reader.wait(_TIMEOUT_S):
            raise PipelineError("work on a lent frame does not end", where="upload")
        stage.reader = None
        try:
            _vendor.copy_to_device_async(
                stage.surface.planes[0].buffer, stage.pinned_address, stage.size_bytes, stream.handle
            )
        except CudaCallError as error:
            raise gpu_error(error, "upload") from error
        stage.uploaded.record(stream)

    def _hops(self, image: ImageFormat) -> tuple[Hop, ...]:
        size_bytes = sum(width * rows for width, rows in plane_sizes(image))
        stage = self._stages[0]
        pinned, domain, pixels = MemoryDomain.PINNED, stage.surface.domain, Payload.PIXELS
        staging = Hop(
            "picture to pinned memory",
            Agent.CPU,
            MemoryDomain.HOST,
            pinned,
            pixels,
            size_bytes,
            Provenance.DERIVED,
            "where the copy engine can take it from without the CPU",
        )
        upload = Hop(
            "host picture to the GPU",
            Agent.COPY_ENGINE,
            pinned,
            domain,
            pixels,
            stage.size_bytes,
            Provenance.DERIVED,
            "cuMemcpyHtoDAsync, once: how a picture made on the host enters GPU memory; rows with their padding",
        )
        return staging, upload


def _copy_rows(planes: Sequence[Plane[Pixels]], targets: Sequence[Pixels]) -> None:
    for plane, target in zip(planes, targets, strict=True):
        np.copyto(target, plane.buffer[: plane.rows, : plane.width_bytes])

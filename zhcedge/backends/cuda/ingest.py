"""Ingest: a decoder's surface into a slot's own NV12, device to device, on the channel's stream."""

from __future__ import annotations

from dataclasses import dataclass

from zhcedge.backends.cuda import _vendor
from zhcedge.backends.cuda._vendor import Copy2d, CudaCallError
from zhcedge.backends.cuda.arena import CudaArena
from zhcedge.backends.cuda.context import CudaContext, CudaFence, CudaStream, gpu_error
from zhcedge.backends.cuda.descriptor import check_surface, pack
from zhcedge.backends.cuda.kernels import Kernel
from zhcedge.core.errors import PipelineError
from zhcedge.core.ports import FrameSlot
from zhcedge.core.types import ImageFormat, PixelFormat, Surface

_BLOCK = (32, 8, 1)
_FORMATS = (PixelFormat.NV12, PixelFormat.I420, PixelFormat.P010)


@dataclass(frozen=True)
class _Target:
    """A slot's surface, made ready: prepared copies of its planes, its descriptor, its fence."""

    surface: Surface[int]
    copies: tuple[Copy2d, ...]
    descriptor: bytes
    fence: CudaFence


class Ingest:
    """Copies lent surfaces into slots. One thread at a time for each channel; channels don't wait for each other.

    NV12 moves by the copy engine, two calls a frame; I420 and P010 are converted by a kernel.
    """

    def __init__(self, context: CudaContext, arena: CudaArena, kernel: Kernel) -> None:
        self._context, self._arena, self._kernel = context, arena, kernel
        self._streams: dict[int, tuple[CudaStream, object]] = {}
        self._targets: dict[int, _Target] = {}

    def __call__(self, source: Surface[int], slot: FrameSlot[int]) -> CudaFence:
        """Enqueue the copy of `source`, complete when lent, and return its fence.

        A launch over the slot waits for the same fence by itself. Raises PipelineError when the surfaces don't fit;
        nothing is then enqueued.
        """
        self._context.attach()
        target = self._targets.get(slot.surface.planes[0].buffer)
        if target is None or target.surface is not slot.surface:
            target = self._learn(slot.surface)
        _check_source(source, target.surface.format)
        stream, handle = self._entry(slot.channel)
        if source.format.pixel_format is PixelFormat.NV12:
            try:
                for copy, plane in zip(target.copies, source.planes, strict=True):
                    copy.issue(plane.buffer, plane.pitch_bytes, handle)
            except CudaCallError as error:
                raise gpu_error(error, "ingest") from error
        else:
            image = source.format
            grid = (-(-image.width_px // (2 * _BLOCK[0])), -(-image.height_px // (2 * _BLOCK[1])), 1)
            self._kernel.launch(stream, grid, _BLOCK, pack(source), target.descriptor)
        target.fence.record(stream)
        return target.fence

    def _learn(self, surface: Surface[int]) -> _Target:
        check_surface(surface, "slot")
        if surface.format.pixel_format is not PixelFormat.NV12:
            raise PipelineError(f"the slot is {surface.format.pixel_format.value}, not nv12", where="ingest")
        copies = tuple(Copy2d(p.buffer, p.pitch_bytes, p.width_bytes, p.rows) for p in surface.planes)
        target = _Target(surface, copies, pack(surface), self._arena.ingest_fence(surface))
        self._targets[surface.planes[0].buffer] = target
        return target

    def stream(self, channel: int) -> CudaStream:
        """The stream of a channel, made when it is first asked for, which must be before the seal."""
        return self._entry(channel)[0]

    def _entry(self, channel: int) -> tuple[CudaStream, object]:
        entry = self._streams.get(channel)
        if entry is None:
            stream = self._context.create_stream()
            entry = self._streams[channel] = (stream, _vendor.stream_handle(stream.handle))
        return entry


def _check_source(source: Surface[int], slot: ImageFormat) -> None:
    image = source.format
    if image.pixel_format not in _FORMATS:
        allowed = ", ".join(f.value for f in _FORMATS)
        raise PipelineError(f"the source is {image.pixel_format.value}, not one of {allowed}", where="ingest")
    check_surface(source, "source")
    if (image.width_px, image.height_px) != (slot.width_px, slot.height_px):
        raise PipelineError(
            f"a picture of {image.width_px}x{image.height_px} came for slots of {slot.width_px}x{slot.height_px}",
            where="ingest",
            fix="restart the channel",
        )

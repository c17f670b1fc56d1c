"""Ingest: a decoder's surface into a slot's own NV12, device to device, on the channel's stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zhcedge.backends.cuda._vendor import Copy2d, CudaCallError
from zhcedge.backends.cuda.arena import CudaArena
from zhcedge.backends.cuda.context import CudaContext, CudaFence, CudaStream, gpu_error
from zhcedge.backends.cuda.descriptor import check_surface, pack
from zhcedge.backends.cuda.kernels import Kernel
from zhcedge.core.errors import PipelineError
from zhcedge.core.ports import Fence, FrameSlot
from zhcedge.core.types import ImageFormat, PixelFormat, Plane, Surface

_BLOCK = (32, 8, 1)
_FORMATS = (PixelFormat.NV12, PixelFormat.I420, PixelFormat.P010)
_SOURCE_TIMEOUT_S = 10.0
_MAX_SOURCES = 64  # a decoder lends the same few surfaces again and again; more than this are not kept in mind


@dataclass(frozen=True)
class _Source:
    """A surface that was lent before and fits: prepared copies of its planes, none where a kernel converts."""

    surface: Surface[int]
    copies: tuple[Copy2d, ...]


@dataclass(frozen=True)
class _Target:
    """A slot's surface, made ready: its descriptor, its fence, and the sources that it met, by id."""

    surface: Surface[int]
    descriptor: bytes
    fence: CudaFence
    sources: dict[int, _Source]


class Ingest:
    """Copies lent surfaces into slots. One thread at a time for each channel; channels don't wait for each other.

    The copy goes on the stream that wrote the picture, so that neither it nor the next picture has to wait for an
    event: two driver calls a frame less. A picture without one goes on the channel's own stream.

    NV12 moves by the copy engine, two calls a frame; I420 and P010 are converted by a kernel.
    """

    def __init__(self, context: CudaContext, arena: CudaArena, kernel: Kernel) -> None:
        self._context, self._arena, self._kernel = context, arena, kernel
        self._streams: dict[int, CudaStream] = {}
        self._unused: list[CudaStream] = []
        self._targets: dict[int, _Target] = {}

    def __call__(self, source: Surface[int], slot: FrameSlot[int], after: Fence | None = None) -> CudaFence:
        """Enqueue the copy of `source`, complete once `after` is done, and return its fence.

        A launch over the slot waits for the same fence by itself. Raises PipelineError when the surfaces don't fit;
        nothing is then enqueued.
        """
        self._context.attach()
        target = self._targets.get(slot.surface.planes[0].buffer)
        if target is None or target.surface is not slot.surface:
            target = self._learn(slot.surface)
        known = target.sources.get(id(source))
        if known is None or known.surface is not source:
            known = _meet(source, target)
        stream = after.stream if isinstance(after, CudaFence) else None
        if stream is None:
            if after is not None and not after.wait(_SOURCE_TIMEOUT_S):
                raise PipelineError("the source's picture does not arrive", where="ingest")
            stream = self.stream(slot.channel)
        if known.copies:
            try:
                for copy in known.copies:
                    copy.issue(stream.prepared)
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
        target = _Target(surface, pack(surface), self._arena.ingest_fence(surface), {})
        self._targets[surface.planes[0].buffer] = target
        return target

    def stream(self, channel: int) -> CudaStream:
        """The stream of a channel, made when it is first asked for: before the seal, or under a re-warm lease."""
        stream = self._streams.get(channel)
        if stream is None:
            stream = self._unused.pop() if self._unused else self._context.create_stream()
            self._streams[channel] = stream
        return stream

    def forget(self, channel: int) -> None:
        """The channel is gone and nothing of it is in flight: its stream may serve another."""
        stream = self._streams.pop(channel, None)
        if stream is not None:
            self._unused.append(stream)


def _meet(source: Surface[int], target: _Target) -> _Source:
    """Check a source for a target and prepare what is the same for every frame."""
    _check_source(source, target.surface.format)
    if len(target.sources) >= _MAX_SOURCES:
        target.sources.clear()
    copies: tuple[Copy2d, ...] = ()
    if source.format.pixel_format is PixelFormat.NV12:
        pairs = zip(_joined(source.planes), _joined(target.surface.planes), strict=False)
        if len(_joined(source.planes)) != len(_joined(target.surface.planes)):
            pairs = zip(source.planes, target.surface.planes, strict=True)
        copies = tuple(
            Copy2d(a.buffer, a.pitch_bytes, b.buffer, b.pitch_bytes, b.width_bytes, b.rows) for a, b in pairs
        )
    # Keeps the source, so that its id can't come to mean another one.
    known = target.sources[id(source)] = _Source(source, copies)
    return known


def _joined(planes: Sequence[Plane[int]]) -> Sequence[Plane[int]]:
    """Both planes of NV12 as one, where the second follows the first without a gap: one copy instead of two."""
    luma, chroma = planes
    is_one = (luma.pitch_bytes, luma.width_bytes) == (chroma.pitch_bytes, chroma.width_bytes)
    if not is_one or chroma.buffer != luma.buffer + luma.rows * luma.pitch_bytes:
        return planes
    return (Plane(luma.buffer, luma.width_bytes, luma.rows + chroma.rows, luma.pitch_bytes),)


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

"""Ingest: a lent picture into a slot's own NV12 surface. One copy of the frame, host to host."""

from __future__ import annotations

import numpy as np

from zhcedge.backends.cpu.arena import CpuBuffer
from zhcedge.core.errors import PipelineError
from zhcedge.core.geometry import plane_sizes
from zhcedge.core.types import MemoryDomain, PixelFormat, Plane, Surface


def ingest(source: Surface[CpuBuffer], target: Surface[CpuBuffer]) -> None:
    """Copy I420 or NV12 of any pitch into NV12 of the same size. Any thread; allocates nothing.

    Raises PipelineError when the formats, sizes or domains don't fit; the target is then untouched.
    """
    if source.domain is not MemoryDomain.HOST:
        raise PipelineError(f"the cpu device can't read {source.domain.value} memory", where="ingest")
    _check(target, (PixelFormat.NV12,), "slot")
    _check(source, (PixelFormat.I420, PixelFormat.NV12), "source")
    size = (source.format.width_px, source.format.height_px)
    slot_size = (target.format.width_px, target.format.height_px)
    if size != slot_size:
        raise PipelineError(
            f"a picture of {size[0]}x{size[1]} came for slots of {slot_size[0]}x{slot_size[1]}",
            where="ingest",
            fix="restart the channel",
        )
    np.copyto(_pixels(target.planes[0]), _pixels(source.planes[0]))
    chroma = _pixels(target.planes[1])
    if source.format.pixel_format is PixelFormat.NV12:
        np.copyto(chroma, _pixels(source.planes[1]))
    else:
        np.copyto(chroma[:, 0::2], _pixels(source.planes[1]))
        np.copyto(chroma[:, 1::2], _pixels(source.planes[2]))


def _pixels(plane: Plane[CpuBuffer]) -> CpuBuffer:
    return plane.buffer[: plane.rows, : plane.width_bytes]


def _check(surface: Surface[CpuBuffer], formats: tuple[PixelFormat, ...], what: str) -> None:
    if surface.format.pixel_format not in formats:
        allowed = " or ".join(f.value for f in formats)
        raise PipelineError(f"the {what} is {surface.format.pixel_format.value}, not {allowed}", where="ingest")
    sizes = tuple((plane.width_bytes, plane.rows) for plane in surface.planes)
    if sizes != plane_sizes(surface.format):
        raise PipelineError(f"the {what}'s planes are {sizes}, not {plane_sizes(surface.format)}", where="ingest")
    for plane in surface.planes:
        if plane.buffer.shape[0] < plane.rows or plane.buffer.shape[1] < plane.width_bytes:
            raise PipelineError(f"a plane of the {what} is smaller than it says", where="ingest")

"""Single JPEG pictures of slots in host memory: snapshots, encoded by libav."""

from __future__ import annotations

from collections import OrderedDict

from zhcedge.backends.cpu.arena import CpuBuffer
from zhcedge.core.errors import PipelineError
from zhcedge.core.geometry import covers
from zhcedge.core.ports import Fence
from zhcedge.core.types import ImageFormat, PixelFormat, Surface
from zhcedge.media._vendor import require_av
from zhcedge.media.jpeg import JpegEncoder as LibavEncoder

_KEPT = 4  # encoders that are kept; libav's are for one size each
_WHERE = "snapshot"
_TIMEOUT_S = 10.0


class HostJpegEncoder:
    """Implements core.ports.JpegEncoder. A part of a new size takes libav an encoder of its own, freed when the next
    sizes come; pictures of a prepared format take none.

    Args:
        device: the cpu device; nothing of it is needed.
        quality: 1..100.

    Raises BackendUnavailableError without PyAV.
    """

    def __init__(self, device: object, quality: int) -> None:
        require_av()
        self._quality = quality
        self._wholes: OrderedDict[ImageFormat, LibavEncoder] = OrderedDict()
        self._parts: OrderedDict[ImageFormat, LibavEncoder] = OrderedDict()

    def prepare(self, image: ImageFormat) -> None:
        """Make an encoder for the format, unless there is one. Raises OutputError, or PipelineError where not NV12."""
        _check(image)
        self._kept(self._wholes, image)

    def encode(self, surface: Surface[CpuBuffer], after: Fence | None = None) -> memoryview:
        """The JPEG of a surface, valid until the next call. Raises OutputError or PipelineError."""
        image = surface.format
        if not any(covers(whole, image) for whole in self._wholes):
            raise PipelineError(f"nothing is prepared for pictures of {image.width_px}x{image.height_px}", where=_WHERE)
        if after is not None and not after.wait(_TIMEOUT_S):
            raise PipelineError("the picture does not get ready", where=_WHERE)
        encoders = self._wholes if image in self._wholes else self._parts
        return self._kept(encoders, image).encode(surface)

    def _kept(self, encoders: OrderedDict[ImageFormat, LibavEncoder], image: ImageFormat) -> LibavEncoder:
        encoder = encoders.get(image)
        if encoder is None:
            encoder = encoders[image] = LibavEncoder(image, self._quality, _WHERE)
            if len(encoders) > _KEPT:
                encoders.popitem(last=False)
        encoders.move_to_end(image)
        return encoder

    def close(self) -> None:
        self._wholes.clear()
        self._parts.clear()


def _check(image: ImageFormat) -> None:
    if image.pixel_format is not PixelFormat.NV12:
        raise PipelineError(f"a JPEG of {image.pixel_format.value} is not made here, only of nv12", where=_WHERE)

"""Single JPEG pictures of slots in device memory: snapshots, encoded by nvJPEG."""

from __future__ import annotations

from zhcedge.backends.cuda.nvjpeg.encoder import JpegEncoder, context_of
from zhcedge.core.errors import PipelineError
from zhcedge.core.geometry import covers
from zhcedge.core.ports import Fence
from zhcedge.core.types import ImageFormat, PixelFormat, Surface

_KEPT = 4  # formats whose encoder is kept
_WHERE = "snapshot"
_TIMEOUT_S = 10.0


class DeviceJpegEncoder:
    """Implements core.ports.JpegEncoder over device memory. Only the bitstream leaves the GPU.

    An encoder that was warmed with noise of a whole picture takes any part of one, too, and allocates nothing.

    Args:
        device: the cuda device, whose context everything here runs in.
        quality: 1..100.

    Raises BackendUnavailableError for a device without a CUDA context.
    """

    def __init__(self, device: object, quality: int) -> None:
        self._context, self._quality = context_of(device), quality
        self._encoders: dict[ImageFormat, JpegEncoder] = {}  # the oldest first

    def prepare(self, image: ImageFormat) -> None:
        """Make and warm an encoder for the format, unless one covers it.

        Raises BackendUnavailableError or PipelineError.
        """
        if image.pixel_format is not PixelFormat.NV12:
            raise PipelineError(f"a JPEG of {image.pixel_format.value} is not made here, only of nv12", where=_WHERE)
        if self._covering(image) is not None:
            return
        self._context.attach()
        self._encoders[image] = JpegEncoder.warmed(self._context, image, _WHERE, self._quality)
        if len(self._encoders) > _KEPT:
            self._encoders.pop(next(iter(self._encoders))).close()

    def encode(self, surface: Surface[int], after: Fence | None = None) -> memoryview:
        """The JPEG of a surface, valid until the next call. Raises PipelineError."""
        encoder = self._covering(surface.format)
        if encoder is None:
            size = f"{surface.format.width_px}x{surface.format.height_px}"
            raise PipelineError(f"nothing is prepared for pictures of {size}", where=_WHERE)
        if after is not None and not after.wait(_TIMEOUT_S):
            raise PipelineError("the picture does not get ready", where=_WHERE)
        return encoder.encode(surface)

    def _covering(self, image: ImageFormat) -> JpegEncoder | None:
        return next((encoder for whole, encoder in self._encoders.items() if covers(whole, image)), None)

    def close(self) -> None:
        """Free everything; twice is fine. On a lost GPU nothing can be freed."""
        while self._encoders:
            _, encoder = self._encoders.popitem()
            encoder.close()

"""Annotated pictures as a folder of JPEG files, encoded from device memory by nvJPEG."""

from __future__ import annotations

from dataclasses import replace

from zhcedge.backends.cuda.nvjpeg.encoder import JpegEncoder, context_of, hops_of
from zhcedge.core.ports import SourceFacts
from zhcedge.core.requests import SinkRequest
from zhcedge.core.types import Hop, PixelFormat
from zhcedge.media.host_frame import pixel_bytes
from zhcedge.media.jpeg import FolderSink


class JpegFolderSink(FolderSink[int]):
    """Implements core.ports.Sink over device memory. Never encodes on the CPU.

    One file a frame, numbered on from the highest number that is in the folder: a restarted run overwrites nothing,
    and those that are there stay, however the run ends. `open` encodes noise, so that nothing allocates afterwards. A
    slot is given back once its JPEG is on the host.

    Args:
        device: the cuda device, whose context everything here runs in.
    """

    def __init__(self, request: SinkRequest, device: object) -> None:
        super().__init__(request)
        self._context, self._quality = context_of(device), request.quality
        self._jpeg: JpegEncoder | None = None
        self._pixel_bytes = 0

    @property
    def hops(self) -> tuple[Hop, ...]:
        """What a submitted frame costs; the bitstream's size is the average so far. Empty before `open`."""
        if not self._pixel_bytes:
            return ()
        return hops_of(self._pixel_bytes, self._average_bytes, "nvJPEG")

    def open(self, source: SourceFacts) -> None:
        """Make folder, encoder and thread.

        Raises OutputError, BackendUnavailableError or PipelineError, and then holds nothing.
        """
        # Slots are NV12 whatever the source gives: Device.ingest converts.
        format = replace(source.format, pixel_format=PixelFormat.NV12)
        encoder = JpegEncoder.warmed(self._context, format, self._where, self._quality)
        try:
            self._start(encoder)
        except BaseException:
            encoder.close()
            raise
        self._jpeg, self._pixel_bytes = encoder, pixel_bytes(format)

    def close(self, complete: bool) -> None:
        """Write what waits, or leave it out. Raises OutputError when one could not be written. Nothing twice."""
        try:
            super().close(complete)
        finally:
            if self._jpeg is not None:
                self._jpeg.close()
                self._jpeg = None

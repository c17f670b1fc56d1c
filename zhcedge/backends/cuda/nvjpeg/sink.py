"""Annotated video as Motion JPEG in an MP4 file, encoded from device memory by nvJPEG."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from zhcedge.backends.cuda.nvjpeg.encoder import JpegEncoder, context_of, hops_of
from zhcedge.core.ports import SourceFacts
from zhcedge.core.requests import SinkRequest
from zhcedge.core.types import Hop, PixelFormat, Surface
from zhcedge.media.encoded_file import EncodedFileSink, EncodedPicture
from zhcedge.media.host_frame import pixel_bytes
from zhcedge.media.packet_mux import MjpegWriter

log = logging.getLogger(__name__)


class _JpegPictures:
    """Implements media.encoded_file.PictureEncoder."""

    def __init__(self, encoder: JpegEncoder) -> None:
        self._encoder = encoder

    def encode(self, surface: Surface[int], media_time_s: float) -> Sequence[EncodedPicture]:
        return (EncodedPicture(self._encoder.encode(surface), media_time_s),)

    def finish(self) -> Sequence[EncodedPicture]:
        return ()

    def close(self) -> None:
        self._encoder.close()


class JpegSink(EncodedFileSink[int]):
    """Implements core.ports.Sink over device memory, for GPUs without NVENC. Never encodes on the CPU.

    Only the compressed pictures leave the GPU, into a pinned buffer that is declared to the ledger. `open` encodes
    noise, so that nothing allocates afterwards. A slot is given back once its JPEG is on the host. What becomes of the
    file: see media.encoded_file.EncodedFileSink.

    Args:
        device: the cuda device, whose context everything here runs in.
        quality: 1..100.
    """

    def __init__(self, request: SinkRequest, device: object, quality: int = 85) -> None:
        super().__init__(request)
        self._context, self._path, self._quality = context_of(device), request.path, quality
        self._pixel_bytes = 0

    @property
    def hops(self) -> tuple[Hop, ...]:
        """What a submitted frame costs; the bitstream's size is the average so far. Empty before `open`."""
        if not self._pixel_bytes:
            return ()
        return hops_of(self._pixel_bytes, self._average_bytes, "nvJPEG; no NVENC is used")

    def open(self, source: SourceFacts) -> None:
        """Create file, encoder and thread.

        Raises OutputError, BackendUnavailableError or PipelineError, and then holds nothing.
        """
        # Slots are NV12 whatever the source gives: Device.ingest converts.
        format, fps = replace(source.format, pixel_format=PixelFormat.NV12), source.fps or 25.0
        encoder = JpegEncoder.warmed(self._context, format, self._where, self._quality)
        size = format.width_px, format.height_px
        self._start(_JpegPictures(encoder), lambda: MjpegWriter(self._path, *size, fps), fps)
        self._pixel_bytes = pixel_bytes(format)
        log.info("%s: encoded by nvJPEG as Motion JPEG, not by NVENC", self._where)

"""Annotated video as H.264 or H.265 in an MP4 file, encoded from device memory by NVENC. Not run on hardware yet."""

from __future__ import annotations

import logging
from dataclasses import replace

from zhcedge.backends.nvcodec.encoder import EncoderLibrary, NvencEncoder
from zhcedge.backends.nvcodec.gpu import context_of
from zhcedge.core.ports import SourceFacts
from zhcedge.core.requests import SinkRequest
from zhcedge.core.types import Agent, Hop, MemoryDomain, Payload, PixelFormat, Provenance
from zhcedge.media.encoded_file import EncodedFileSink
from zhcedge.media.host_frame import pixel_bytes
from zhcedge.media.packet_mux import AnnexBWriter

log = logging.getLogger(__name__)


class NvencSink(EncodedFileSink[int]):
    """Implements core.ports.Sink over device memory. Never encodes on the CPU.

    One device-to-device copy, inside PyNvVideoCodec, and the bitstream to the host. `open` makes the session and with
    it every buffer. What becomes of the file: see media.encoded_file.EncodedFileSink.

    Args:
        device: the cuda device, whose context everything here runs in.
        codec: "h264" or "hevc".
        library: what makes encoders; PyNvVideoCodec by default.

    `open` raises BackendUnavailableError where this GPU has no NVENC, no session left, or can't take the pictures (odd
    sizes): then another sink can take its place.
    """

    def __init__(
        self, request: SinkRequest, device: object, codec: str = "h264", library: EncoderLibrary | None = None
    ) -> None:
        super().__init__(request)
        self._context = context_of(device)
        self._path, self._codec = request.path, codec
        self._library = library or _py_nv_video_codec()
        self._pixel_bytes = 0

    @property
    def hops(self) -> tuple[Hop, ...]:
        """What a submitted frame costs; the bitstream's size is the average so far. Empty before `open`."""
        if not self._pixel_bytes:
            return ()
        host, device, size = MemoryDomain.HOST, MemoryDomain.DEVICE, self._pixel_bytes
        average, pixels, bitstream = self._average_bytes, Payload.PIXELS, Payload.BITSTREAM
        library = f"PyNvVideoCodec {self._library.version}"
        reason = f"{library} copies into the session's own surface (NvEncoderCuda::CopyToDeviceFrame)"
        derived = Provenance.DERIVED
        return (
            Hop("encoder's surface", Agent.COPY_ENGINE, device, device, pixels, size, Provenance.DECLARED, reason),
            Hop(f"{self._codec} encode", Agent.NVENC, device, device, pixels, size, derived, "read by NVENC"),
            Hop("bitstream to the host", Agent.NVENC, device, host, bitstream, average, derived, "nvEncLockBitstream"),
            Hop("bitstream out", Agent.CPU, host, MemoryDomain.STORAGE, bitstream, average, derived),
        )

    def open(self, source: SourceFacts) -> None:
        """Create session, file and thread. Raises BackendUnavailableError or OutputError, and then holds nothing."""
        # Slots are NV12 whatever the source gives: Device.ingest converts.
        format, fps = replace(source.format, pixel_format=PixelFormat.NV12), source.fps or 25.0
        encoder = NvencEncoder(self._library, self._context, format, fps, self._codec, self._where)
        self._start(encoder, lambda: AnnexBWriter(self._path, self._codec, format, fps), fps)
        self._pixel_bytes = pixel_bytes(format)
        log.info("%s: encoded by NVENC as %s", self._where, self._codec)


def _py_nv_video_codec() -> EncoderLibrary:
    """Raises BackendUnavailableError where it is not installed or finds no driver."""
    from zhcedge.backends.nvcodec._vendor import NvencLibrary  # imports the library, which needs the driver

    return NvencLibrary()

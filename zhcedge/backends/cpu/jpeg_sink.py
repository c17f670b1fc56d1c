"""Annotated pictures as a folder of JPEG files: NV12 slots in host memory, encoded on a thread of their own."""

from __future__ import annotations

from dataclasses import replace

from zhcedge.core.ports import SourceFacts
from zhcedge.core.requests import SinkRequest
from zhcedge.core.types import Agent, Hop, MemoryDomain, Payload, PixelFormat, Provenance
from zhcedge.media.host_frame import Pixels, pixel_bytes
from zhcedge.media.jpeg import FolderSink, JpegEncoder


class JpegFolderSink(FolderSink[Pixels]):
    """Implements core.ports.Sink. `open` and `close` belong to one thread, `submit` to the collector.

    One file a frame, numbered on from the highest number that is in the folder: a restarted run overwrites nothing.
    Each appears whole; those that are there stay, however the run ends. After a failure every `submit`, and the
    `close`, raise the same OutputError; slots still come back.
    """

    def __init__(self, request: SinkRequest, device: object) -> None:
        super().__init__(request)
        self._quality = request.quality
        self._pixel_bytes = 0

    @property
    def hops(self) -> tuple[Hop, ...]:
        """What a submitted frame costs; the bitstream's size is the average so far. Empty before `open`."""
        if not self._pixel_bytes:
            return ()
        host, pixels, size, derived = MemoryDomain.HOST, Payload.PIXELS, self._pixel_bytes, Provenance.DERIVED
        average = self._average_bytes
        return (
            Hop("sink copy", Agent.CPU, host, host, pixels, size, derived, "slot to the encoder's frame"),
            Hop("to full range", Agent.CPU, host, host, pixels, size, derived, "JPEG is BT.601 full range"),
            Hop("bitstream out", Agent.CPU, host, MemoryDomain.STORAGE, Payload.BITSTREAM, average, derived),
        )

    def open(self, source: SourceFacts) -> None:
        """Make the folder, the encoder and the thread. Raises OutputError and then leaves nothing behind."""
        # Slots are NV12 whatever the source gives: Device.ingest converts.
        encoder = JpegEncoder(replace(source.format, pixel_format=PixelFormat.NV12), self._quality, self._where)
        self._start(encoder)
        self._pixel_bytes = pixel_bytes(source.format)

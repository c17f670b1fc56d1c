"""What the sinks have in common that encode NV12 slots in host memory with x264 on a thread of their own."""

from __future__ import annotations

from abc import abstractmethod

from zhcedge.core.requests import SinkRequest
from zhcedge.core.types import Agent, Hop, MemoryDomain, Payload, Provenance
from zhcedge.media.host_frame import Pixels
from zhcedge.media.sink_thread import ThreadedSink


class X264Sink(ThreadedSink[Pixels]):
    """Half of a core.ports.Sink. A slot is copied into the encoder's own frame and given back before it is encoded.

    Args:
        target: what is written to, for messages, without credentials.
        verb: what becomes of the bitstream, "written" or "sent".
    """

    def __init__(self, request: SinkRequest, target: str, verb: str) -> None:
        super().__init__(request, target)
        self._verb = verb
        self._fps = 25.0
        self._pixel_bytes = 0  # 0 until the encoder is there
        self.frames_written = 0
        """Frames encoded, and written or sent, so far."""

    @property
    @abstractmethod
    def _bitstream_bytes(self) -> int:
        """Compressed so far."""

    @property
    def hops(self) -> tuple[Hop, ...]:
        """What a submitted frame costs; the bitstream's size is the average so far. Empty before `open`."""
        if not self._pixel_bytes:
            return ()
        host, pixels, size = MemoryDomain.HOST, Payload.PIXELS, self._pixel_bytes
        average = self._bitstream_bytes // max(self.frames_written, 1)
        return (
            Hop("sink copy", Agent.CPU, host, host, pixels, size, Provenance.DERIVED, "slot to the encoder's frame"),
            Hop(
                "x264 copy",
                Agent.CPU,
                host,
                host,
                pixels,
                size,
                Provenance.DECLARED,
                "x264 copies each picture into its own (x264_frame_copy_picture, common/frame.c)",
            ),
            Hop(
                "bitstream out",
                Agent.CPU,
                host,
                MemoryDomain.STORAGE,
                Payload.BITSTREAM,
                average,
                Provenance.DERIVED,
                f"bytes {self._verb} over frames",
            ),
        )

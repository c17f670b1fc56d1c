"""Annotated video as Motion JPEG in an MP4 file, encoded from device memory by nvJPEG."""

from __future__ import annotations

import logging
from collections.abc import Callable

from zhcedge.backends.cuda.context import CudaContext
from zhcedge.backends.cuda.nvjpeg.encoder import JpegEncoder
from zhcedge.core.errors import BackendUnavailableError, OutputError, PhaseError
from zhcedge.core.ports import FrameSlot, SinkRequest, SourceFacts
from zhcedge.core.types import Agent, Hop, MemoryDomain, Payload, PixelFormat, Provenance
from zhcedge.media.packet_mux import MjpegWriter
from zhcedge.media.sink_thread import GiveBack, SinkThread

log = logging.getLogger(__name__)


class JpegSink:
    """Implements core.ports.Sink over device memory, for GPUs without NVENC. Never encodes on the CPU.

    Only the compressed pictures leave the GPU, into a pinned buffer that is declared to the ledger. `open` encodes
    noise, so that nothing allocates afterwards. A slot is given back once its JPEG is on the host. The output
    appears under its name only when `close(complete=True)` succeeds; a failed, aborted or empty one leaves nothing.

    Args:
        device: the cuda device, whose context everything here runs in.
        quality: 1..100.
    """

    def __init__(self, request: SinkRequest, device: object, quality: int = 85) -> None:
        context = getattr(device, "context", None)
        if not isinstance(context, CudaContext):
            raise BackendUnavailableError("nvJPEG needs the cuda device", where="nvjpeg", fix="use the rtx profile")
        self._context, self._request, self._quality = context, request, quality
        self._where = f"{request.channel_name}: {request.path}"
        self._encoder: JpegEncoder | None = None
        self._writer: MjpegWriter | None = None
        self._thread: SinkThread[int] = SinkThread(f"sink {request.channel_name}", self._where, self._write)
        self._fps = 25.0
        self._pixel_bytes = 0
        self._frames_written = 0

    @property
    def frames_written(self) -> int:
        """Frames encoded so far."""
        return self._frames_written

    @property
    def hops(self) -> tuple[Hop, ...]:
        """What a submitted frame costs; the bitstream's size is the average so far. Empty before `open`."""
        if self._writer is None:
            return ()
        host, device, size = MemoryDomain.HOST, MemoryDomain.DEVICE, self._pixel_bytes
        average = self._writer.bytes_written // max(self._frames_written, 1)
        derived, bitstream = Provenance.DERIVED, Payload.BITSTREAM
        return (
            Hop("to full range", Agent.GPU, device, device, Payload.PIXELS, size, derived, "JPEG is BT.601 full range"),
            Hop("JPEG encode", Agent.GPU, device, device, Payload.PIXELS, size, derived, "nvJPEG; no NVENC is used"),
            Hop("bitstream to the host", Agent.COPY_ENGINE, device, MemoryDomain.PINNED, bitstream, average, derived),
            Hop("bitstream out", Agent.CPU, host, MemoryDomain.STORAGE, bitstream, average, derived),
        )

    def watch_threads(self, hook: Callable[[], None]) -> None:
        """`hook` is the first thing that the sink's thread does. Before `open`."""
        self._thread.watch(hook)

    def open(self, source: SourceFacts) -> None:
        """Create file, encoder and thread.

        Raises OutputError, BackendUnavailableError or PipelineError, and then holds nothing.
        """
        format = source.format
        if format.pixel_format is PixelFormat.P010:
            raise OutputError("JPEG has 8 bits and the source gives 10", where=self._where, fix="leave the sink out")
        self._fps = source.fps or 25.0
        chroma_bytes = 2 * ((format.width_px + 1) // 2) * ((format.height_px + 1) // 2)
        self._pixel_bytes = format.width_px * format.height_px + chroma_bytes
        encoder = JpegEncoder(self._context, format, self._where, self._quality)
        try:
            encoder.warm()
            self._writer = MjpegWriter(self._request.path, format.width_px, format.height_px, self._fps)
        except BaseException:
            encoder.close()
            raise
        self._encoder = encoder
        self._thread.start()
        log.info("%s: encoded by nvJPEG as Motion JPEG, not by NVENC", self._where)

    def submit(self, slot: FrameSlot[int], give_back: GiveBack[int]) -> bool:
        """Queue a slot; False when the queue is full. Raises OutputError once writing has failed."""
        if not self._thread.is_running:
            raise PhaseError("the sink is not open", where=self._where)
        return self._thread.submit(slot, give_back)

    def close(self, complete: bool) -> None:
        """Finish the file, or remove it. Raises OutputError when it could not be written. Does nothing twice."""
        if self._encoder is None or self._writer is None:
            return
        self._thread.stop(complete)
        self._encoder.close()
        self._encoder = None
        if not complete or self._thread.has_failed or not self._frames_written:
            self._writer.abandon()
            if complete:
                self._thread.raise_failure()
            return
        self._writer.finish()

    def _write(self, slot: FrameSlot[int], give_back: GiveBack[int]) -> None:
        info = slot.info
        encoder, writer = self._encoder, self._writer
        try:
            if encoder is None or writer is None:
                raise PhaseError("the sink is closed", where=self._where)
            picture = encoder.encode(slot.surface)
        finally:
            give_back(slot)
        writer.write(picture, info.media_time_s if info.media_time_s >= 0 else info.sequence / self._fps)
        self._frames_written += 1

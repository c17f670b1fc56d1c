"""Annotated video as an MP4 file: NV12 slots in host memory, encoded by x264 on a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import numpy.typing as npt

from zhcedge.core.errors import OutputError, PhaseError
from zhcedge.core.ports import FrameSlot, SinkRequest, SourceFacts
from zhcedge.core.types import Agent, Hop, MemoryDomain, Payload, PixelFormat, Provenance
from zhcedge.media.mux import Mp4Writer
from zhcedge.media.sink_thread import GiveBack, SinkThread

Pixels = npt.NDArray[np.uint8]


class Mp4Sink:
    """Implements core.ports.Sink. `open` and `close` belong to one thread, `submit` to the collector.

    A slot is copied into the encoder's own frame and given back before it is encoded. The output appears under
    its name only when `close(complete=True)` succeeds; a failed, aborted or empty one leaves nothing. After a
    failure every `submit`, and the `close`, raise the same OutputError; slots still come back.
    """

    def __init__(self, request: SinkRequest, device: object) -> None:
        self._request = request
        self._where = f"{request.channel_name}: {request.path}"
        self._thread: SinkThread[Pixels] = SinkThread(f"sink {request.channel_name}", self._where, self._write)
        self._writer: Mp4Writer | None = None
        self._frames_written = 0
        self._fps = 25.0
        self._pixel_bytes = 0

    @property
    def frames_written(self) -> int:
        """Frames encoded so far."""
        return self._frames_written

    @property
    def hops(self) -> tuple[Hop, ...]:
        """What a submitted frame costs; the bitstream's size is the average so far. Empty before `open`."""
        if self._writer is None:
            return ()
        host, pixels, size = MemoryDomain.HOST, Payload.PIXELS, self._pixel_bytes
        average = self._writer.bytes_written // max(self._frames_written, 1)
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
                "bytes written over frames",
            ),
        )

    def watch_threads(self, hook: Callable[[], None]) -> None:
        self._thread.watch(hook)

    def open(self, source: SourceFacts) -> None:
        """Create the file, the encoder and the thread. Raises OutputError and then leaves nothing behind."""
        format = source.format
        self._fps = source.fps or 25.0
        self._pixel_bytes = format.width_px * format.height_px
        self._pixel_bytes += 2 * ((format.width_px + 1) // 2) * ((format.height_px + 1) // 2)
        self._writer = Mp4Writer(self._request.path, format, self._fps)
        self._thread.start()

    def submit(self, slot: FrameSlot[Pixels], give_back: GiveBack[Pixels]) -> bool:
        """Queue a slot; False when the queue is full. Raises OutputError once writing has failed."""
        if not self._thread.is_running:
            raise PhaseError("the sink is not open", where=self._where)
        return self._thread.submit(slot, give_back)

    def close(self, complete: bool) -> None:
        """Finish the file, or remove it. Raises OutputError when it could not be written. Does nothing twice."""
        if not self._thread.is_running or self._writer is None:
            return
        self._thread.stop(complete)
        if complete and self._frames_written and not self._thread.has_failed:
            self._writer.finish()
            return
        self._writer.abandon()
        if complete:
            self._thread.raise_failure()

    def _write(self, slot: FrameSlot[Pixels], give_back: GiveBack[Pixels]) -> None:
        info = slot.info
        writer = cast(Mp4Writer, self._writer)
        try:
            _copy_nv12(slot, writer, self._where)
        finally:
            give_back(slot)
        writer.write(info.media_time_s if info.media_time_s >= 0 else info.sequence / self._fps)
        self._frames_written += 1


def _copy_nv12(slot: FrameSlot[Pixels], writer: Mp4Writer, where: str) -> None:
    surface = slot.surface
    shapes = tuple((plane.rows, plane.width_bytes) for plane in surface.planes)
    if surface.format.pixel_format is not PixelFormat.NV12 or shapes != (writer.luma.shape, writer.chroma.shape):
        raise OutputError(f"a slot of {surface.format} does not fit the opened source", where=where)
    for target, plane in zip((writer.luma, writer.chroma), surface.planes, strict=True):
        np.copyto(target, plane.buffer[:, : plane.width_bytes])

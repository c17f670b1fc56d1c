"""Annotated video as an MP4 file: NV12 slots in host memory, encoded by x264 on a thread of its own."""

from __future__ import annotations

from typing import cast

from zhcedge.backends.cpu.x264_sink import X264Sink
from zhcedge.core.ports import FrameSlot, SourceFacts
from zhcedge.core.requests import SinkRequest
from zhcedge.media.host_frame import Pixels, pixel_bytes
from zhcedge.media.mux import Mp4Writer
from zhcedge.media.sink_thread import GiveBack, shown_at_s


class Mp4Sink(X264Sink):
    """Implements core.ports.Sink. `open` and `close` belong to one thread, `submit` to the collector.

    The output appears under its name only when `close(complete=True)` succeeds; a failed, aborted or empty one leaves
    nothing. After a failure every `submit`, and the `close`, raise the same OutputError; slots still come back.
    """

    def __init__(self, request: SinkRequest, device: object) -> None:
        super().__init__(request, str(request.path), "written")
        self._path = request.path
        self._writer: Mp4Writer | None = None

    @property
    def _bitstream_bytes(self) -> int:
        return self._writer.bytes_written if self._writer is not None else 0

    def open(self, source: SourceFacts) -> None:
        """Create the file, the encoder and the thread. Raises OutputError and then leaves nothing behind."""
        self._fps = source.fps or 25.0
        self._writer = Mp4Writer(self._path, source.format, self._fps)
        self._pixel_bytes = pixel_bytes(source.format)
        self._thread.start()

    def close(self, complete: bool) -> None:
        """Finish the file, or remove it. Raises OutputError when it could not be written. Does nothing twice."""
        if not self._thread.is_running or self._writer is None:
            return
        self._thread.stop(complete)
        if complete and self.frames_written and not self._thread.has_failed:
            self._writer.finish()
            return
        self._writer.abandon()
        if complete:
            self._thread.raise_failure()

    def _write(self, slot: FrameSlot[Pixels], give_back: GiveBack[Pixels]) -> None:
        info = slot.info  # the slot gets another one once it is back
        writer = cast(Mp4Writer, self._writer)
        try:
            writer.picture.fill(slot.surface, self._where)
        finally:
            give_back(slot)
        writer.write(shown_at_s(info, self._fps))
        self.frames_written += 1

"""Detections as JSON Lines: one object a frame. Needs results only, no pixels, so it serves every device."""

from __future__ import annotations

from zhcedge.core.detections import frame_line
from zhcedge.core.errors import PhaseError
from zhcedge.core.ports import FrameSlot, SourceFacts
from zhcedge.core.requests import SinkRequest
from zhcedge.core.types import Agent, B, Hop, MemoryDomain, Payload, Provenance
from zhcedge.media.line_file import LineFile
from zhcedge.media.sink_thread import GiveBack, ThreadedSink


class JsonlSink(ThreadedSink[B]):
    """Implements core.ports.Sink. `open` and `close` belong to one thread, `submit` to the collector.

    The file appears under its name only when `close(complete=True)` succeeds, also one without frames; else nothing
    is left. "source" in it is the channel's name, "frame" the sequence number.
    """

    def __init__(self, request: SinkRequest, device: object) -> None:
        super().__init__(request, str(request.path))
        self._request = request
        self._file: LineFile | None = None

    @property
    def frames_written(self) -> int:
        """Lines written so far."""
        return self._file.lines_written if self._file is not None else 0

    @property
    def hops(self) -> tuple[Hop, ...]:
        """Text to the file, the average so far. Empty before `open`."""
        if self._file is None:
            return ()
        host, average = MemoryDomain.HOST, self._file.bytes_written // max(self._file.lines_written, 1)
        return (Hop("JSON out", Agent.CPU, host, MemoryDomain.STORAGE, Payload.RESULTS, average, Provenance.DERIVED),)

    def open(self, source: SourceFacts) -> None:
        """Create the file and the thread. Raises OutputError and then leaves nothing behind."""
        self._file = LineFile(self._request.path)
        self._thread.start()

    def close(self, complete: bool) -> None:
        """Finish the file, or remove it. Raises OutputError when it could not be written. Does nothing twice."""
        if not self._thread.is_running or self._file is None:
            return
        self._thread.stop(complete)
        if complete and not self._thread.has_failed:
            self._file.finish()
            return
        self._file.abandon()
        if complete:
            self._thread.raise_failure()

    def _write(self, slot: FrameSlot[B], give_back: GiveBack[B]) -> None:
        info, image = slot.info, slot.surface.format
        try:
            size = (image.width_px, image.height_px)
            text = frame_line(
                self._request.channel_name,
                info.sequence,
                info.media_time_s,
                size,
                slot.results,
                self._request.labels,
            )
        finally:
            give_back(slot)
        if self._file is None:
            raise PhaseError("the sink is closed", where=self._where)
        self._file.write(text)

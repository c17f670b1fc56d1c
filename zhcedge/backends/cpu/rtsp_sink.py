"""Annotated video pushed to an RTSP server: NV12 slots in host memory, encoded by x264 on a thread of its own."""

from __future__ import annotations

import logging
import time

from zhcedge.backends.cpu.x264_sink import X264Sink
from zhcedge.core.addresses import without_password
from zhcedge.core.backoff import Backoff
from zhcedge.core.errors import OutputError, PhaseError
from zhcedge.core.ports import FrameSlot, SourceFacts
from zhcedge.core.requests import SinkRequest
from zhcedge.media.host_frame import Pixels, pixel_bytes
from zhcedge.media.rtp import LiveEncoder, RtpPackets, session_description
from zhcedge.media.rtsp_publisher import RtspPublisher
from zhcedge.media.sink_thread import GiveBack, shown_at_s

log = logging.getLogger(__name__)


class RtspSink(X264Sink):
    """Implements core.ports.Sink. `open` and `close` belong to one thread, `submit` to the collector.

    A server that is away, slow or lost never holds up detection and is never an error: frames are dropped and counted,
    a file's too, and the connection is tried again with growing waits, up to 10 s. A new connection begins with a key
    frame. Credentials of the address appear in no message.

    Args:
        backoff: waits between two tries.
        timeout_s: longest time for connecting, and for sending one picture.
    """

    def __init__(
        self, request: SinkRequest, device: object, backoff: Backoff | None = None, timeout_s: float = 5.0
    ) -> None:
        super().__init__(request, without_password(request.url), "sent")
        self._request = request
        self._backoff, self._timeout_s = backoff or Backoff(), timeout_s
        self._encoder: LiveEncoder | None = None
        self._rtp: RtpPackets | None = None
        self._connection: RtspPublisher | None = None  # the sink thread's; None while the server is away
        self._is_connecting = self._is_closing = self._is_live = False
        self._retry_at_s = 0.0
        self._last_reason = ""
        self.dropped = 0
        """Frames that were not sent, because the server was away."""
        self.connections = 0
        """How often the server was reached."""

    @property
    def _bitstream_bytes(self) -> int:
        return self._encoder.bytes_written if self._encoder is not None else 0

    def open(self, source: SourceFacts) -> None:
        """Make the encoder and the thread; the server is called with the first frame. Raises OutputError."""
        self._fps, self._is_live = source.fps or 25.0, source.is_live
        self._encoder = LiveEncoder(source.format, self._fps, self._request.bitrate_kbps, self._where)
        self._pixel_bytes = pixel_bytes(source.format)
        self._thread.start()

    def submit(self, slot: FrameSlot[Pixels], give_back: GiveBack[Pixels]) -> bool:
        """Queue a slot; False when the queue is full or, of a live source, when the server is away.

        A file's frame is taken also then, and dropped: its reader would wait for the server otherwise. Raises
        OutputError once encoding has failed.
        """
        if not self._thread.is_running or not self._is_away():
            return super().submit(slot, give_back)
        self._thread.raise_failure()
        self.dropped += 1
        if self._is_live:
            return False
        give_back(slot)
        return True

    def close(self, complete: bool) -> None:
        """Say goodbye to the server. Waits for a running try to connect. Raises OutputError when encoding failed."""
        if not self._thread.is_running:
            return
        self._is_closing = True
        if not complete and (connection := self._connection) is not None:
            connection.abort()
        self._thread.stop(complete)
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._rtp is not None:
            self._rtp.close()
            self._rtp = None
        log.info("%s: %d frames pushed, %d dropped", self._where, self.frames_written, self.dropped)
        if complete:
            self._thread.raise_failure()

    # -- the sink's thread ---------------------------------------------------------------------------------------
    def _is_away(self) -> bool:
        return self._connection is None and (self._is_connecting or time.monotonic() < self._retry_at_s)

    def _write(self, slot: FrameSlot[Pixels], give_back: GiveBack[Pixels]) -> None:
        info, encoder = slot.info, self._encoder
        try:
            if encoder is None:
                raise PhaseError("the sink is closed", where=self._where)
            is_dropped = self._is_away() or (self._connection is None and self._is_closing)
            if not is_dropped:
                encoder.fill(slot.surface)
        finally:
            give_back(slot)
        if is_dropped:
            self.dropped += 1
            return
        for packet in encoder.encode(shown_at_s(info, self._fps), is_key=self._connection is None):
            rtp = self._rtp = self._rtp or RtpPackets(packet, self._where)
            try:
                connection = self._connection = self._connection or self._connected(bytes(packet))
                connection.send(rtp.packets(packet))
            except OutputError as error:
                self._lost(error)
                return
        self.frames_written += 1

    def _connected(self, key_frame: bytes) -> RtspPublisher:
        self._is_connecting = True
        try:
            description = session_description(key_frame, self._where)
            connection = RtspPublisher(self._request.url, description, self._where, self._timeout_s)
        finally:
            self._is_connecting = False
        self.connections += 1
        self._backoff.reset()
        self._last_reason = ""
        log.info("%s: pushing", self._where)
        return connection

    def _lost(self, error: OutputError) -> None:
        self.dropped += 1
        self._retry_at_s = time.monotonic() + self._backoff.next_s()
        if self._connection is not None:
            self._connection.abort()
            self._connection.close()
            self._connection = None
        if error.what != self._last_reason:  # once, not with every try
            self._last_reason = error.what
            log.warning("%s: not pushed: %s; it is tried again", self._where, error.what)

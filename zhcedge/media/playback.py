"""The compressed half of a file source, the same for every decoder: packets, kept packets, looping, time, pace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zhcedge.core.errors import MediaError
from zhcedge.core.ports import SourceStatus
from zhcedge.core.requests import SourceRequest
from zhcedge.core.types import FrameInfo
from zhcedge.media.demux import Demuxer, StreamFacts
from zhcedge.media.feed_base import MAX_PACKETS_WITHOUT_FRAME, FeedBase
from zhcedge.media.timeline import Timeline

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.stream import VideoStream


class Playback(FeedBase):
    """Plays one file for a decoder. Implements media.feed.PacketFeed; see there for the loop.

    Owned by the reader thread after `open`. A pass begins at the file's very first packet: MP4 and Matroska are wound
    back, any other file is opened again (see Demuxer.restart). Where the request has a start, a pass begins there: at
    the key frame before it, and `admit` drops what comes before the start itself.
    """

    def __init__(self, request: SourceRequest) -> None:
        super().__init__(request)
        self._demuxer: Demuxer | None = None
        self._interval_s = 0.04
        self._start_ticks: int | None = None  # where the request wants to begin, None for the first frame
        self._frames_in_pass = 0
        self._early_in_pass = 0
        self._admitted: int | None = None  # timestamp of the frame that was admitted last

    @property
    def status(self) -> SourceStatus:
        """A file is always there."""
        return SourceStatus()

    @property
    def is_live(self) -> bool:
        return self._request.is_realtime

    @property
    def can_rewind(self) -> bool:
        return True

    @property
    def watches_pictures(self) -> bool:
        return False

    def saw_picture(self, signature: int) -> None:
        """Nothing: a still film is no broken one."""

    def open(self) -> StreamFacts:
        """Open the file. Raises SourceMissingError or MediaError and then holds nothing."""
        self.close()
        self._demuxer = Demuxer(self._request.uri, self._where)
        facts = self._demuxer.facts
        self._interval_s = 1 / (facts.fps or 25.0)
        start_s = self._request.options.start_s
        if start_s:
            self._start_ticks = (facts.start_ticks or 0) + round(start_s / facts.time_base)
            self._demuxer.seek(self._start_ticks)
        start_ticks = facts.start_ticks if self._start_ticks is None else self._start_ticks
        self._timeline = Timeline(facts.time_base, start_ticks, self._interval_s)
        self._begin_packets(self._demuxer.stream)
        self._start_over()
        return self._paced(facts)

    @property
    def stream(self) -> VideoStream:
        """PyAV's stream of the current pass."""
        return self._opened().stream

    def wait_packet(self, timeout_s: float) -> bool:
        """True at once: a file waits for nobody."""
        return True

    def skip_to_keyframe(self) -> None:
        """Nothing: a file's decoder is flushed before a rewind only."""

    def next_packet(self) -> Packet[VideoStream] | None:
        """The next packet, also told to whoever keeps packets; None at the end of this pass. Raises MediaError."""
        demuxer, timeline = self._demuxer, self._timeline
        if demuxer is None or timeline is None:
            raise self._not_open()
        packet = self._read(demuxer)
        if packet is None:
            return None
        self._packets_without_frame += 1
        if self._packets_without_frame > MAX_PACKETS_WITHOUT_FRAME:
            raise self._no_picture(f"none of {MAX_PACKETS_WITHOUT_FRAME} packets in a row gave a picture")
        pts, dts = packet.pts, packet.dts
        self._keep(packet, demuxer.facts, timeline.position_s(dts if pts is None else pts), 0)
        return packet

    def start_next_pass(self) -> bool:
        """After the end of a pass: start the file again where it is looped, else False.

        Raises MediaError when the pass gave no frame at all, SourceMissingError when the file has gone.
        """
        if not self._frames_in_pass:
            if self._early_in_pass:
                raise MediaError("ends before start_s", where=self._where, fix="choose a smaller start_s")
            raise self._no_picture("not one picture could be decoded")
        if not self._request.is_looped:
            return False
        self._restart()
        self._times().next_pass()
        return True

    def rewind(self) -> None:
        """Back to the first frame, sequence 0 and time 0; kept packets are dropped. Needs a fresh decoder."""
        self._restart()
        self._times().reset()
        self._start_over()

    def admit(self, ticks: int | None) -> float | None:
        """See PacketFeed."""
        self._admitted = ticks
        if self._request.options.start_s and self._is_early(ticks):
            self._early_in_pass += 1
            self._packets_without_frame = 0
            return None
        return self._if_kept(self.media_time_s(ticks))

    def media_time_s(self, ticks: int | None) -> float:
        """Seconds on the growing timeline of the next frame in presentation order."""
        self._frames_in_pass += 1
        self._packets_without_frame = 0
        return self._times().advance(ticks)

    def wait_s(self, media_time_s: float) -> float:
        """Seconds until a frame is due: 0 unless the request is realtime."""
        return self._pacer.wait_s(media_time_s) if self._request.is_realtime else 0.0

    def stamp(self, media_time_s: float) -> FrameInfo:
        """See PacketFeed. A file's frame counts as taken now."""
        now_ns = self._request.clock.wall_ns()
        if self._keeper is not None:
            self._keeper.shown(self._admitted, now_ns)
        return self._stamp(media_time_s, now_ns)

    def close(self) -> None:
        """Close the file; frames that came from it stay valid."""
        if self._demuxer is not None:
            self._demuxer.close()
            self._demuxer = None

    def _is_early(self, ticks: int | None) -> bool:
        """Whether a frame lies before the wanted start; one without a timestamp is counted from the file's start."""
        if ticks is None or self._start_ticks is None:
            start_s = self._request.options.start_s
            return not self._frames_in_pass and self._early_in_pass * self._interval_s < start_s
        return not self._frames_in_pass and ticks < self._start_ticks

    def _read(self, demuxer: Demuxer) -> Packet[VideoStream] | None:
        """The next packet; None at the end of the pass, with a warning when that comes too early."""
        try:
            packet = demuxer.read()
        except MediaError as error:
            if not self._frames_in_pass:
                raise
            # What was there has been shown; a damaged tail ends the file, it does not void it.
            self.warn(error.what)
            packet = None
        if packet is None and (shortfall := demuxer.shortfall()):
            self.warn(shortfall)
        return packet

    def _restart(self) -> None:
        if self._demuxer is None or not self._demuxer.restart():
            self.close()
            self._demuxer = Demuxer(self._request.uri, self._where)
            if self._start_ticks is not None:
                self._demuxer.seek(self._start_ticks)
        self._frames_in_pass = 0
        self._early_in_pass = 0
        self._packets_without_frame = 0

    def _start_over(self) -> None:
        self._count_anew()
        self._frames_in_pass = 0
        self._early_in_pass = 0
        self._packets_without_frame = 0

    def _no_picture(self, what: str) -> MediaError:
        return MediaError(what, where=self._where, fix="copy the file again, or convert it to MP4 with H.264")

    def _opened(self) -> Demuxer:
        if self._demuxer is None:
            raise self._not_open()
        return self._demuxer

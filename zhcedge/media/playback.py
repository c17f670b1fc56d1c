"""The compressed half of a file source, the same for every decoder: packets, kept packets, looping, time, pace."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from zhcedge.core.errors import MediaError, PhaseError
from zhcedge.core.ports import SourceRequest
from zhcedge.core.types import FrameInfo
from zhcedge.media._vendor import av
from zhcedge.media.demux import Demuxer, StreamFacts
from zhcedge.media.packets import DEFAULT_RING_BYTES, EncodedPacket, PacketRing
from zhcedge.media.timeline import Pacer, Timeline

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.stream import VideoStream

MAX_PACKETS_WITHOUT_FRAME = 1000
"""So many packets in a row without a picture, and the stream counts as broken for good."""

MAX_WARNINGS = 20


def without_credentials(uri: str) -> str:
    """A URL without its user and password, for messages; a path comes back as it is."""
    return re.sub(r"(?<=://)[^/?#]*@", "", uri)


def _detached(packet: Packet[VideoStream]) -> memoryview:
    """A read-only copy of a packet's bytes, in FFmpeg's memory.

    The packet itself refers to its stream, and so to the demuxer and decoder of its pass with all their pictures:
    kept packets of a looped file would hold dozens of those.
    """
    copy = memoryview(av.Packet(packet.size))
    copy[:] = memoryview(packet)
    return copy.toreadonly()


class Playback:
    """Plays one file for a decoder. Owned by the reader thread after `open`.

    A decoder's loop: `next_packet` and decode it; for every frame `media_time_s`, then `wait_s` until it is due,
    then `stamp`; when `next_packet` gives None, flush the decoder, then `start_next_pass` and a fresh decoder, or
    the end. The container is opened again for every pass: that starts any file at its very first frame, seekable
    or not, at about 10 ms a pass.
    """

    def __init__(self, request: SourceRequest, ring_bytes: int = DEFAULT_RING_BYTES) -> None:
        self._request = request
        self._where = f"{request.channel_name}: {without_credentials(request.uri)}"
        self._ring = PacketRing(ring_bytes)
        self._pacer = Pacer(request.clock)
        self._demuxer: Demuxer | None = None
        self._timeline: Timeline | None = None
        self._sequence = 0
        self._frames_in_pass = 0
        self._packets_without_frame = 0
        self._warnings: list[str] = []

    @property
    def where(self) -> str:
        """Channel and input, for messages."""
        return self._where

    @property
    def ring(self) -> PacketRing:
        return self._ring

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was odd about the stream so far, each kind once."""
        return tuple(self._warnings)

    def warn(self, text: str) -> None:
        """Record a warning, once, and no more than MAX_WARNINGS of them."""
        if text not in self._warnings and len(self._warnings) < MAX_WARNINGS:
            self._warnings.append(text)

    def open(self) -> StreamFacts:
        """Open the file. Raises SourceMissingError or MediaError and then holds nothing."""
        self.close()
        self._demuxer = Demuxer(self._request.uri, self._where)
        facts = self._demuxer.facts
        self._timeline = Timeline(facts.time_base, facts.start_ticks, 1 / (facts.fps or 25.0))
        self._start_over()
        return facts

    @property
    def stream(self) -> VideoStream:
        """PyAV's stream of the current pass."""
        return self._opened().stream

    def next_packet(self) -> Packet[VideoStream] | None:
        """The next packet, also kept in `ring`; None at the end of this pass. Raises MediaError."""
        packet = self._read()
        if packet is None:
            self._warn_of_early_end()
            return None
        self._packets_without_frame += 1
        if self._packets_without_frame > MAX_PACKETS_WITHOUT_FRAME:
            raise self._no_picture(f"none of {MAX_PACKETS_WITHOUT_FRAME} packets in a row gave a picture")
        self._ring.append(
            EncodedPacket(
                payload=_detached(packet),
                pts=packet.pts,
                dts=packet.dts,
                duration=packet.duration or 0,
                time_base=self._opened().facts.time_base,
                is_keyframe=packet.is_keyframe,
                media_time_s=self._times().position_s(packet.pts if packet.pts is not None else packet.dts),
            )
        )
        return packet

    def start_next_pass(self) -> bool:
        """After the end of a pass: open the file again where it is looped, else False.

        Raises MediaError when the pass gave no frame at all, SourceMissingError when the file has gone.
        """
        if not self._frames_in_pass:
            raise self._no_picture("not one picture could be decoded")
        if not self._request.is_looped:
            return False
        self._reopen()
        self._times().next_pass()
        return True

    def rewind(self) -> None:
        """Back to the first frame, sequence 0 and time 0; kept packets are dropped. Needs a fresh decoder."""
        self._reopen()
        self._times().reset()
        self._start_over()

    def media_time_s(self, ticks: int | None) -> float:
        """Seconds on the growing timeline of the next frame in presentation order."""
        self._frames_in_pass += 1
        self._packets_without_frame = 0
        return self._times().advance(ticks)

    def wait_s(self, media_time_s: float) -> float:
        """Seconds until a frame is due: 0 unless the request is realtime."""
        return self._pacer.wait_s(media_time_s) if self._request.is_realtime else 0.0

    def stamp(self, media_time_s: float) -> FrameInfo:
        """Facts of a frame that is handed over now; takes the next sequence number."""
        clock = self._request.clock
        info = FrameInfo(
            channel=self._request.channel,
            sequence=self._sequence,
            capture_time_ns=clock.wall_ns(),
            read_time_ns=clock.monotonic_ns(),
            media_time_s=media_time_s,
            clock_synced=clock.is_synced(),
        )
        self._sequence += 1
        return info

    def close(self) -> None:
        """Close the file; frames that came from it stay valid."""
        if self._demuxer is not None:
            self._demuxer.close()
            self._demuxer = None

    def _read(self) -> Packet[VideoStream] | None:
        try:
            return self._opened().read()
        except MediaError as error:
            if not self._frames_in_pass:
                raise
            # What was there has been shown; a damaged tail ends the file, it does not void it.
            self.warn(error.what)
            return None

    def _warn_of_early_end(self) -> None:
        shortfall = self._opened().shortfall()
        if shortfall:
            self.warn(shortfall)

    def _reopen(self) -> None:
        self.close()
        self._demuxer = Demuxer(self._request.uri, self._where)
        self._frames_in_pass = 0
        self._packets_without_frame = 0

    def _start_over(self) -> None:
        self._ring.clear()
        self._pacer.reset()
        self._sequence = 0
        self._frames_in_pass = 0
        self._packets_without_frame = 0

    def _no_picture(self, what: str) -> MediaError:
        return MediaError(what, where=self._where, fix="copy the file again, or convert it to MP4 with H.264")

    def _opened(self) -> Demuxer:
        if self._demuxer is None:
            raise PhaseError("the source is not open", where=self._where)
        return self._demuxer

    def _times(self) -> Timeline:
        if self._timeline is None:
            raise PhaseError("the source is not open", where=self._where)
        return self._timeline

"""What the feeds of files and of streams have in common: packets that are kept, pace, warnings, numbered frames."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zhcedge.core.addresses import without_password
from zhcedge.core.errors import PhaseError
from zhcedge.core.pace import Pace
from zhcedge.core.packets import EncodedPacket
from zhcedge.core.requests import SourceRequest
from zhcedge.core.types import FrameInfo
from zhcedge.media.demux import StreamFacts
from zhcedge.media.stream_form import StreamForm
from zhcedge.media.timeline import Pacer, Timeline, stamped

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.stream import VideoStream

MAX_PACKETS_WITHOUT_FRAME = 1000
"""So many packets in a row without a picture, and file or connection counts as broken."""

MAX_WARNINGS = 20


class FeedBase:
    """Half of a media.feed.PacketFeed; see there for the threads."""

    def __init__(self, request: SourceRequest) -> None:
        self._request = request
        self._where = f"{request.channel_name}: {without_password(request.uri)}"
        self._keeper = request.packets
        self._pacer = Pacer(request.clock)
        self._pace = Pace(request.options.fps) if request.options.fps else None
        self._timeline: Timeline | None = None
        self._sequence = 0
        self._packets_without_frame = 0
        self._warnings: list[str] = []

    @property
    def where(self) -> str:
        """Channel and input, for messages, without credentials."""
        return self._where

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was odd about the stream so far, each kind once. Any thread."""
        return tuple(self._warnings)

    def warn(self, text: str) -> None:
        """Record a warning, once, and no more than MAX_WARNINGS of them."""
        if text not in self._warnings and len(self._warnings) < MAX_WARNINGS:
            self._warnings.append(text)

    def _stamp(self, media_time_s: float, captured_ns: int) -> FrameInfo:
        """Facts of a frame that is handed over now; takes the next sequence number."""
        info = stamped(self._request, self._sequence, media_time_s, captured_ns)
        self._sequence += 1
        return info

    def _count_anew(self) -> None:
        """The next frame is number 0; kept packets are dropped."""
        self._forget_packets()
        self._pacer.reset()
        if self._pace is not None:
            self._pace.reset()
        self._sequence = 0

    # -- packets for whoever keeps them ------------------------------------------------------------------------
    def _begin_packets(self, stream: VideoStream) -> None:
        if self._keeper is not None:
            self._keeper.begin(StreamForm(stream))

    def _keep(self, packet: Packet[VideoStream], facts: StreamFacts, position_s: float, captured_ns: int) -> None:
        """Hand a packet on, before anybody takes its bytes away: a bitstream filter does. What is kept must be a copy:
        the packet refers to its stream, and so to demuxer and decoder with all their pictures."""
        if self._keeper is not None:
            self._keeper.append(
                EncodedPacket(
                    memoryview(packet),
                    packet.pts,
                    packet.dts,
                    packet.duration or 0,
                    facts.time_base,
                    packet.is_keyframe,
                    position_s,
                    captured_ns,
                )
            )

    def _forget_packets(self) -> None:
        if self._keeper is not None:
            self._keeper.clear()

    def _paced(self, facts: StreamFacts) -> StreamFacts:
        """The facts with the rate that the request leaves of it."""
        return replace(facts, fps=self._pace.limit(facts.fps)) if self._pace else facts

    def _if_kept(self, time_s: float) -> float | None:
        """The time of a frame, None where the wanted rate leaves it out."""
        return time_s if self._pace is None or self._pace.keeps(time_s) else None

    def _times(self) -> Timeline:
        if self._timeline is None:
            raise self._not_open()
        return self._timeline

    def _not_open(self) -> PhaseError:
        return PhaseError("the source is not open", where=self._where)

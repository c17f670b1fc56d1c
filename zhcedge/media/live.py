"""The compressed half of a live source: a network stream or a camera, over any number of connections."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zhcedge.core.backoff import Backoff
from zhcedge.core.errors import SourceMissingError
from zhcedge.core.ports import SourceStatus
from zhcedge.core.requests import SourceRequest
from zhcedge.core.types import FrameInfo
from zhcedge.media.connection import Address, Connection
from zhcedge.media.demux import StreamFacts
from zhcedge.media.feed_base import MAX_PACKETS_WITHOUT_FRAME, FeedBase
from zhcedge.media.intake import Arrival, Intake
from zhcedge.media.liveness import FreezeWatch, Lateness
from zhcedge.media.timeline import Timeline

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.stream import VideoStream

_SLACK_S = 1.0
"""How much longer than its own timeouts a connection is waited for: then its own error says more."""

_MAX_CAPTURES = 64
"""Packets whose frames may still be in the decoder: reordering holds back 16."""

_KEY_SIZE_STEP_BYTES = 16
"""Key frames of one picture differ by a few bits in their headers; those of two pictures of a live scene by more."""


class LiveFeed(FeedBase):
    """Plays a stream for a decoder. Implements media.feed.PacketFeed; see there for the loop, which one thread runs.

    - A connection is a pass: its packets begin with a key frame and end with None when it is lost, and the next pass
      begins when the stream is back. Meanwhile `wait_packet` gives False and `status` says why.
    - Time goes on through the gap between two passes. Kept packets are told apart: the next connection's may need other
      parameters.
    - A file behind an http address is played like one: it waits for its decoder, and it ends.
    - Nothing here waits for the network longer than it is told, `open` no longer than `connect_timeout_s` and a second.
    """

    def __init__(
        self,
        request: SourceRequest,
        watches_packets: bool = False,
        backoff: Backoff | None = None,
    ) -> None:
        super().__init__(request)
        self._options, self._clock = request.options, request.clock
        self._watches_packets = watches_packets
        self._backoff = backoff or Backoff()
        freeze_s = self._options.freeze_timeout_s
        self._freeze = FreezeWatch(round(freeze_s * 1e9)) if freeze_s else None
        self._intake: Intake | None = None
        self._connection: Connection | None = None  # of the current pass
        self._is_ours = False  # the intake has handed it over, and we close it
        self._next: Arrival | None = None
        self._lateness = Lateness()
        self._is_finite = False
        self._needs_keyframe = False
        self._captures: dict[int | None, int] = {}
        self._captured_ns = 0
        self._last_arrival_ns = 0
        self._origin_ns = 0
        self._base_s = 0.0
        self._last_s = 0.0
        self._late_frames = 0

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was odd about the stream so far, each kind once. Any thread."""
        counted = []
        if self._late_frames:
            counted.append(f"{self._late_frames} frames came later than {self._options.max_latency_ms} ms: dropped")
        if (intake := self._intake) and intake.lost_packets:
            counted.append(f"decoding was too slow: {intake.lost_packets} packets dropped")
        return (*super().warnings, *counted)

    @property
    def status(self) -> SourceStatus:
        """Any thread."""
        intake = self._intake
        if intake is None:
            return SourceStatus(is_up=False, reason="not open")
        status = intake.status
        silent_s = (self._clock.monotonic_ns() - self._last_arrival_ns) / 1e9
        limit_s = self._options.read_timeout_s + _SLACK_S
        if status.is_up and not self._is_finite and silent_s > limit_s:
            # A camera's driver may hang where no timeout reaches it.
            return replace(status, is_up=False, reason=f"nothing came for more than {limit_s:g} s")
        return status

    @property
    def late_frames(self) -> int:
        """Dropped because they were older than `max_latency_ms`."""
        return self._late_frames

    @property
    def is_live(self) -> bool:
        return self._request.is_realtime or not self._is_finite

    @property
    def can_rewind(self) -> bool:
        return False

    @property
    def watches_pictures(self) -> bool:
        return self._freeze is not None and not self._watches_packets

    def open(self) -> StreamFacts:
        """Connect and wait for the first key frame.

        Raises SourceRefusedError, SourceMissingError or MediaError and then holds nothing.
        """
        self.close()
        request, address = self._request, Address(self._request.uri, self._options, self._where)
        intake = Intake(
            lambda: Connection(address, request.clock),
            request.clock,
            self._where,
            self._backoff,
            request.is_looped,
        )
        self._intake = intake
        try:
            intake.start()
            timeout_s = self._options.connect_timeout_s
            connection = intake.first(timeout_s + _SLACK_S)
            if connection is None:
                raise SourceMissingError(
                    f"no picture came within {timeout_s:g} s",
                    where=self._where,
                    fix="check the camera and the network, or raise connect_timeout_s",
                )
        except BaseException:
            self.close()
            raise
        self._is_finite = connection.is_finite
        self._begin(connection, 0.0)
        self._start_over()
        return self._paced(connection.facts)

    @property
    def stream(self) -> VideoStream:
        """PyAV's stream of the current connection."""
        if self._connection is None:
            raise self._not_open()
        return self._connection.stream

    # -- packets ----------------------------------------------------------------------------------------------
    def wait_packet(self, timeout_s: float) -> bool:
        """See PacketFeed."""
        intake = self._intake
        if intake is None:
            raise self._not_open()
        while self._next is None:
            arrival = intake.take(timeout_s)
            if arrival is None:
                return intake.has_ended
            if arrival.packet is None and arrival.connection is not self._connection:
                arrival.connection.close()  # it ended before its first key frame
            elif not self._is_unwanted(arrival):
                self._next = arrival
        return True

    def next_packet(self) -> Packet[VideoStream] | None:
        """See PacketFeed. Waits no longer than nothing: call `wait_packet` before."""
        connection, timeline, arrival = self._connection, self._timeline, self._next
        if connection is None or timeline is None:
            raise self._not_open()
        if arrival is None or arrival.connection is not connection:
            return None  # the pass is over, and the next one has its first packet waiting
        self._next = None
        packet = arrival.packet
        if packet is None:
            self._is_ours = True
            if self._is_finite and arrival.reason != "the stream ended":
                self.warn(arrival.reason)
            return None
        self._needs_keyframe = False
        self._packets_without_frame += 1
        if self._packets_without_frame > MAX_PACKETS_WITHOUT_FRAME and self._intake is not None:
            self._packets_without_frame = 0
            self._intake.dismiss(f"none of {MAX_PACKETS_WITHOUT_FRAME} packets in a row gave a picture")
        self._note(packet, arrival, connection.facts, timeline)
        return packet

    def start_next_pass(self) -> bool:
        """True when the stream is back, False at the end of a file. The last connection is closed."""
        arrival = self._next
        if arrival is None or arrival.packet is None:
            return False
        elapsed_s = (self._clock.monotonic_ns() - self._origin_ns) / 1e9
        interval_s = 1 / (arrival.connection.facts.fps or 25.0)
        follows_s = self._last_s + interval_s
        self._begin(arrival.connection, follows_s if self._is_finite else max(elapsed_s, follows_s))
        return True

    def skip_to_keyframe(self) -> None:
        """See PacketFeed."""
        self._needs_keyframe = True
        self._captures.clear()
        self._forget_packets()
        if self._next is not None and self._is_unwanted(self._next):
            self._next = None

    def rewind(self) -> None:
        """Count sequence and time from 0 again; the stream goes on."""
        self._times().reset()
        self._start_over()

    # -- frames -----------------------------------------------------------------------------------------------
    def admit(self, ticks: int | None) -> float | None:
        """See PacketFeed."""
        timeline = self._times()
        self._packets_without_frame = 0
        self._captured_ns = self._captures.pop(ticks, 0) or self._clock.wall_ns()
        self._last_s = time_s = self._base_s + timeline.advance(ticks)
        if self._is_late(ticks):
            self._late_frames += 1
            return None
        return self._if_kept(time_s)

    def saw_picture(self, signature: int) -> None:
        """See PacketFeed."""
        freeze, intake = self._freeze, self._intake
        if freeze is not None and intake is not None and freeze.saw(signature, self._clock.monotonic_ns()):
            freeze.reset()
            intake.dismiss(f"the picture has not changed for {self._options.freeze_timeout_s:g} s")

    def wait_s(self, media_time_s: float) -> float:
        """See PacketFeed."""
        return self._pacer.wait_s(media_time_s) if self._is_finite and self._request.is_realtime else 0.0

    def stamp(self, media_time_s: float) -> FrameInfo:
        """See PacketFeed. `capture_time_ns` is what the camera's RTCP reports say, else when the packet came."""
        return self._stamp(media_time_s, self._captured_ns)

    def close(self) -> None:
        """Disconnect, within 2 s; frames that came from the stream stay valid."""
        intake, self._intake = self._intake, None
        if intake is not None:
            intake.stop()
            self._is_ours |= not intake.is_running
        self._let_go()
        self._connection = self._timeline = self._next = None
        self._is_finite = False

    # -- inside -----------------------------------------------------------------------------------------------
    def _is_unwanted(self, arrival: Arrival) -> bool:
        packet = arrival.packet
        return self._needs_keyframe and packet is not None and not packet.is_keyframe

    def _begin(self, connection: Connection, base_s: float) -> None:
        self._let_go()
        facts = connection.facts
        self._connection = connection
        self._timeline = Timeline(facts.time_base, None, 1 / (facts.fps or 25.0))
        self._base_s = base_s
        self._lateness = Lateness()
        self._captures.clear()
        self._begin_packets(connection.stream)
        self._packets_without_frame = 0
        self._last_arrival_ns = self._clock.monotonic_ns()
        if self._freeze is not None:
            self._freeze.reset()

    def _let_go(self) -> None:
        """Close the connection of the current pass, where that is ours to do."""
        if self._connection is not None and self._is_ours:
            self._connection.close()
        self._is_ours = False

    def _start_over(self) -> None:
        self._count_anew()
        self._origin_ns = self._clock.monotonic_ns()
        self._base_s = self._last_s = 0.0

    def _note(self, packet: Packet[VideoStream], arrival: Arrival, facts: StreamFacts, timeline: Timeline) -> None:
        """Remember what is asked for later: the packet itself, when it was taken, how late it is."""
        pts, dts, time_base = packet.pts, packet.dts, facts.time_base
        decode_ticks = pts if dts is None else dts
        self._last_arrival_ns = arrival.monotonic_ns
        if decode_ticks is not None:
            stream_ns = decode_ticks * time_base.numerator * 1_000_000_000 // time_base.denominator
            self._lateness.observe(arrival.monotonic_ns, stream_ns)
        self._captures[pts] = arrival.captured_ns
        if len(self._captures) > _MAX_CAPTURES:  # of packets that gave no frame
            del self._captures[next(iter(self._captures))]
        position_s = self._base_s + timeline.position_s(decode_ticks if pts is None else pts)
        self._keep(packet, facts, position_s, arrival.captured_ns)
        if self._watches_packets and packet.is_keyframe:
            self.saw_picture(packet.size // _KEY_SIZE_STEP_BYTES)

    def _is_late(self, ticks: int | None) -> bool:
        limit_ms = self._options.max_latency_ms
        if limit_ms is None or ticks is None or self._is_finite or self._connection is None:
            return False
        time_base = self._connection.facts.time_base
        stream_ns = ticks * time_base.numerator * 1_000_000_000 // time_base.denominator
        return self._lateness.age_ns(self._clock.monotonic_ns(), stream_ns) > limit_ms * 1_000_000

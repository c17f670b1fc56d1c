"""What a decoder reads packets from, and which feed an address needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from zhcedge.core.ports import SourceStatus
from zhcedge.core.requests import SourceRequest
from zhcedge.core.types import FrameInfo
from zhcedge.media.address import is_live_address
from zhcedge.media.demux import StreamFacts
from zhcedge.media.live import LiveFeed
from zhcedge.media.playback import Playback

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.stream import VideoStream


VideoPacket: TypeAlias = "Packet[VideoStream]"
"""What a feed gives out, for decoders that have no other business with PyAV."""


class PacketFeed(Protocol):
    """The compressed half of a source: a file (Playback) or a stream (LiveFeed). Owned by the reader thread.

    A decoder's loop: `wait_packet`; `next_packet` and decode it; for every frame `admit`, then `wait_s` until it is
    due, then `stamp`, before the next `admit`. When `next_packet` gives None, flush the decoder; then `wait_packet`
    and `start_next_pass`, which asks for a fresh decoder or tells the end.
    """

    @property
    def where(self) -> str:
        """Channel and input, for messages, without credentials."""
        ...

    @property
    def warnings(self) -> tuple[str, ...]:
        """Any thread."""
        ...

    @property
    def status(self) -> SourceStatus:
        """Any thread."""
        ...

    @property
    def is_live(self) -> bool:
        """Whether frames come by themselves and are dropped, not awaited, under overload. Known after `open`."""
        ...

    @property
    def can_rewind(self) -> bool:
        """Whether `rewind` goes back; else it only begins to count anew, and the decoder goes on."""
        ...

    def warn(self, text: str) -> None: ...
    def open(self) -> StreamFacts:
        """Raises SourceMissingError or MediaError and then holds nothing; may be tried again."""
        ...

    @property
    def stream(self) -> VideoStream:
        """PyAV's stream of the current pass."""
        ...

    def wait_packet(self, timeout_s: float) -> bool:
        """Wait until `next_packet`, or `start_next_pass` after a pass's end, has something to say.

        False after `timeout_s`.
        """
        ...

    def next_packet(self) -> VideoPacket | None:
        """The next packet, also told to whoever keeps packets; None at the end of this pass. Raises MediaError."""
        ...

    def start_next_pass(self) -> bool:
        """After a pass's end: go on with the next one, True, or False at the end of all. Raises MediaError."""
        ...

    def skip_to_keyframe(self) -> None:
        """A live feed's next packet is to be a key frame: the decoder was flushed. Nothing for a file."""
        ...

    def rewind(self) -> None:
        """Back to the first frame where that can be, sequence 0 and time 0; kept packets are dropped."""
        ...

    def admit(self, ticks: int | None) -> float | None:
        """Time of the next decoded frame in presentation order, seconds; None for one that is not wanted.

        Not wanted are frames before `start_s`, above `fps`, or older than `max_latency_ms`.
        """
        ...

    def saw_picture(self, signature: int) -> None:
        """Tell what the newest picture looks like, a checksum of some of its samples, to notice a frozen camera."""
        ...

    @property
    def watches_pictures(self) -> bool:
        """Whether anybody wants `saw_picture`."""
        ...

    def wait_s(self, media_time_s: float) -> float:
        """Seconds until a frame is due: 0 unless a file is played at its own pace."""
        ...

    def stamp(self, media_time_s: float) -> FrameInfo:
        """Facts of the frame that was admitted last and is handed over now; takes the next sequence number."""
        ...

    def close(self) -> None:
        """Let go of file or stream, within 2 s; frames that came from it stay valid."""
        ...


def open_feed(request: SourceRequest, watches_packets: bool = False) -> PacketFeed:
    """The feed for the request's address; opened by its `open`.

    Args:
        watches_packets: a live feed tells a frozen picture by its key frames' sizes, as nobody calls `saw_picture`.
    """
    if is_live_address(request.uri):
        return LiveFeed(request, watches_packets)
    return Playback(request)

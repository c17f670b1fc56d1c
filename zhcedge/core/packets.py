"""Compressed packets of a source, and who may keep them: for recordings that touch no pixel."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple, Protocol


class EncodedPacket(NamedTuple):
    """One compressed picture as it lies in the stream.

    A tuple, because one is made for every frame and a frozen dataclass costs six times as much.

    Attributes:
        payload: the bytes in host memory, contiguous.
        pts, dts: presentation and decoding time in units of `time_base`, None where the stream has none.
        duration: in units of `time_base`, 0 if unknown.
        is_keyframe: decoding can start here.
        media_time_s: place on the source's timeline, seconds; it keeps growing when a file is looped.
        captured_ns: wall clock, when the picture was taken; 0 where that is known only once it is handed over.
    """

    payload: memoryview
    pts: int | None
    dts: int | None
    duration: int
    time_base: Fraction
    is_keyframe: bool
    media_time_s: float
    captured_ns: int = 0


class PacketKeeper(Protocol):
    """Keeps a source's packets for later. All methods belong to the source's reader thread."""

    def begin(self, form: object) -> None:
        """The packets that follow are of another stream than those before: a file or a connection was opened.

        Memory is taken with the first call, so that it is booked to whatever `Source.open` is booked to.

        Args:
            form: what a muxer must know of the stream; made and understood by one package (media.stream_form).
        """
        ...

    def append(self, packet: EncodedPacket) -> None:
        """Keep a copy of a packet, in decoding order. Its payload is not needed any more afterwards."""
        ...

    def shown(self, pts: int | None, captured_ns: int) -> None:
        """The picture with this presentation time is handed over, as taken at `captured_ns` of the wall clock."""
        ...

    def clear(self) -> None:
        """Forget all packets: what follows does not continue them."""
        ...

"""Packets in the form that hardware decoders parse: start codes and parameter sets inside the stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from zhcedge.core.errors import MediaError
from zhcedge.media._vendor import av

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.stream import VideoStream

_START_CODE = b"\0\0\1"
_HEAD_BYTES = 1024
"""Parameter sets stand first in a key frame and take a few dozen bytes."""

_OBU_SEQUENCE_HEADER = 1

_FILTERS = {"h264": "h264_mp4toannexb", "hevc": "hevc_mp4toannexb"}
"""MP4 and Matroska store lengths where ITU-T H.264/H.265 Annex B has start codes, and the parameter sets outside."""


class AccessUnit(NamedTuple):
    """One compressed picture in host memory, for a decoder that takes addresses.

    Attributes:
        address, size_bytes: where the bytes lie, valid as long as `owner` lives.
        ticks: presentation time in units of the stream's time base, None where it has none.
        sequence: the sequence parameter set of an H.264 or H.265 key frame, the sequence header of an AV1 one, empty
            where there is none: when it changes, size or format may change.
        owner: keeps the bytes alive.
    """

    address: int
    size_bytes: int
    ticks: int | None
    sequence: bytes
    owner: Packet[VideoStream]


class AnnexB:
    """Converts the packets of one pass. Owned by the reader thread.

    Streams that have start codes already, and codecs that know no such form (AV1), pass through unchanged.
    """

    def __init__(self, stream: VideoStream, where: str) -> None:
        self._where = where
        self._codec = stream.codec_context.codec.canonical_name
        name = _FILTERS.get(self._codec)
        self._filter = av.bitstream.BitStreamFilterContext(name, stream) if name else None

    def convert(self, packet: Packet[VideoStream]) -> AccessUnit | None:
        """The same access unit with start codes; None for a packet that is too damaged to be cut into units.

        Takes the packet's bytes away, which saves a copy: it is empty afterwards, unless it passes through unchanged
        and is itself the `owner`.
        """
        if self._filter is None:
            is_av1_key = packet.is_keyframe and self._codec == "av1"
            sequence = sequence_header(bytes(memoryview(packet)[:_HEAD_BYTES])) if is_av1_key else b""
            return AccessUnit(packet.buffer_ptr, packet.buffer_size, packet.pts, sequence, packet)
        is_keyframe = packet.is_keyframe
        try:
            filtered = self._filter.filter(packet)
        except av.error.InvalidDataError:
            self._filter.flush()
            return None
        except av.error.FFmpegError as error:
            raise MediaError(
                f"a packet can't be unpacked: {error.strerror}", where=self._where, fix="copy the file again"
            ) from error
        if not filtered:
            return None
        unit = filtered[0]  # these filters give one packet for one
        sequence = sequence_set(bytes(memoryview(unit)[:_HEAD_BYTES]), self._codec) if is_keyframe else b""
        return AccessUnit(unit.buffer_ptr, unit.buffer_size, unit.pts, sequence, unit)


def sequence_set(head: bytes, codec: str) -> bytes:
    """The first sequence parameter set among the units at the head of a stream with start codes; empty if none.

    NAL unit types: H.264 table 7-1 (7), H.265 table 7-1 (33).
    """
    for nal in head.split(_START_CODE)[1:]:
        first = nal[0] if nal else 0
        if (first & 0x1F == 7) if codec == "h264" else (first >> 1 & 0x3F == 33):
            return nal.rstrip(b"\0")
    return b""


def sequence_header(head: bytes) -> bytes:
    """The first sequence header OBU at the head of an AV1 temporal unit, without its own header; empty if none.

    AV1 bitstream specification 5.3.2 (OBU header) and 4.10.5 (leb128).
    """
    at = 0
    while at < len(head):
        first = head[at]
        has_extension, has_size = first & 4, first & 2
        at += 2 if has_extension else 1
        if not has_size:  # it reaches to the end of the unit
            return head[at:] if first >> 3 & 15 == _OBU_SEQUENCE_HEADER else b""
        size = shift = 0
        while at < len(head):
            byte = head[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
        if first >> 3 & 15 == _OBU_SEQUENCE_HEADER:
            return head[at : at + size]
        at += size
    return b""

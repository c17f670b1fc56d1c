"""Opens a video file and reads its compressed packets."""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from zhcedge.core.errors import MediaError, SourceMissingError
from zhcedge.media._vendor import av, require_av

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.stream import VideoStream

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")

_NOT_VIDEO = frozenset({"tty", "bin", "xbin", "adf", "idf"})
"""Containers of libavformat that "play" plain text and screen dumps."""

_OPEN_OPTIONS = {"protocol_whitelist": "file,crypto,data"}
"""A file may be a playlist; it must not make this process read from the network."""

_COPY_AGAIN = "copy the file again, or convert it to MP4 with H.264"


@dataclass(frozen=True)
class StreamFacts:
    """What the container says about its video stream.

    Attributes:
        codec: FFmpeg's name, "h264", "hevc", "av1", ...
        extradata: decoder configuration record, empty where the packets carry it.
        width_px, height_px: coded for display, before rotation; the decoder has the last word.
        time_base: seconds per tick of every timestamp.
        start_ticks: timestamp of the first picture, None if unknown.
        fps: nominal frames per second, 0 if unknown.
        duration_s: declared length, 0 if unknown.
        bytes_per_frame: average compressed bytes, 0 if unknown.
    """

    codec: str
    extradata: bytes
    width_px: int
    height_px: int
    time_base: Fraction
    start_ticks: int | None
    fps: float
    duration_s: float
    bytes_per_frame: int


class Demuxer:
    """The video packets of one file, once from start to end. Owned by one thread.

    The constructor opens and probes. Raises SourceMissingError or MediaError and then holds nothing;
    BackendUnavailableError without PyAV. `where` names the input in messages.
    """

    def __init__(self, uri: str, where: str) -> None:
        require_av()
        self._where = where
        size_bytes = _check_file(uri, where)
        self._container = _open(uri, where)
        try:
            self._stream = _video_stream(self._container, where)
            self._facts = _stream_facts(self._container, self._stream, size_bytes)
        except BaseException:
            self._container.close()
            raise
        self._packets = self._container.demux(self._stream)
        self._packet_count = 0
        self._end_ticks: int | None = None

    @property
    def facts(self) -> StreamFacts:
        return self._facts

    @property
    def stream(self) -> VideoStream:
        """PyAV's stream: what a CPU decoder or a muxer of packets is made from."""
        return self._stream

    def read(self) -> Packet[VideoStream] | None:
        """The next packet in decoding order, None at the end. Raises MediaError when reading itself fails."""
        try:
            packet = next(self._packets, None)
        except av.error.FFmpegError as error:
            raise MediaError(f"reading failed: {error.strerror}", where=self._where, fix=_COPY_AGAIN) from error
        # PyAV ends with an empty packet that means "flush".
        if packet is None or (packet.size == 0 and packet.dts is None):
            return None
        self._packet_count += 1
        if packet.pts is not None:
            end = packet.pts + (packet.duration or 0)
            self._end_ticks = end if self._end_ticks is None else max(self._end_ticks, end)
        return packet

    def shortfall(self) -> str:
        """At the end: how much less was read than the container declares, as a clause; empty if nothing lacks."""
        facts = self._facts
        if not facts.duration_s or self._end_ticks is None:
            return ""
        read_s = float((self._end_ticks - (facts.start_ticks or 0)) * facts.time_base)
        tolerance_s = max(0.5, 2 / facts.fps if facts.fps else 0.0)
        if facts.duration_s - read_s <= tolerance_s:
            return ""
        return f"the file ends early: {read_s:.1f} of {facts.duration_s:.1f} s are there ({self._packet_count} packets)"

    def close(self) -> None:
        """Close the file. Packets and frames that came from it stay valid."""
        self._container.close()


def _check_file(uri: str, where: str) -> int:
    """Size of the file in bytes. Raises for what is not a plain, non-empty file."""
    if match := _SCHEME.match(uri):
        raise MediaError(f"{match[1]} addresses can't be opened by this source", where=where, fix="name a video file")
    try:
        status = Path(uri).stat()
    except PermissionError as error:
        raise SourceMissingError("may not be read", where=where, fix="check the permissions of its folder") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        raise SourceMissingError("no such file", where=where, fix="check the path") from error
    if stat.S_ISDIR(status.st_mode):
        raise MediaError("is a folder, not a video file", where=where, fix="name a file in it")
    if not stat.S_ISREG(status.st_mode):
        raise MediaError("is a device or a pipe, not a video file", where=where, fix="name a video file")
    if not status.st_size:
        raise MediaError("the file is empty", where=where, fix=_COPY_AGAIN)
    return status.st_size


def _open(uri: str, where: str) -> InputContainer:
    # The prefix keeps a name like "concat:a|b" from being taken for one of FFmpeg's protocols.
    try:
        return av.open(f"file:{uri}", options=dict(_OPEN_OPTIONS), metadata_errors="replace")
    except PermissionError as error:
        raise SourceMissingError("may not be read", where=where, fix="check its permissions") from error
    except FileNotFoundError as error:
        raise SourceMissingError("no such file", where=where, fix="check the path") from error
    except av.error.FFmpegError as error:
        raise MediaError("is not a video, or its header is damaged", where=where, fix=_COPY_AGAIN) from error


def _video_stream(container: InputContainer, where: str) -> VideoStream:
    if container.format.name not in _NOT_VIDEO:
        for stream in container.streams.video:
            # A cover picture of a music file is a video stream too.
            if not stream.disposition & av.stream.Disposition.attached_pic and stream.codec_context is not None:
                return stream
    raise MediaError("holds no video stream", where=where, fix="name a file with pictures")


def _stream_facts(container: InputContainer, stream: VideoStream, size_bytes: int) -> StreamFacts:
    time_base = stream.time_base or Fraction(1, 90000)
    fps = float(stream.guessed_rate or stream.average_rate or 0)
    duration_s = 0.0
    if stream.duration:
        duration_s = float(stream.duration * time_base)
    elif container.duration and len(container.streams) == 1:  # else it may be the length of the sound
        duration_s = container.duration / 1e6
    frames = stream.frames or duration_s * fps
    return StreamFacts(
        codec=stream.codec_context.codec.canonical_name,
        extradata=bytes(stream.codec_context.extradata or b""),
        width_px=stream.codec_context.width,
        height_px=stream.codec_context.height,
        time_base=time_base,
        start_ticks=stream.start_time,
        fps=fps,
        duration_s=duration_s,
        bytes_per_frame=round(size_bytes / frames) if frames else 0,
    )

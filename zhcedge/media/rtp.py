"""H.264 as RTP packets: FFmpeg's encoder and its payload format (RFC 6184), without its network code."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from zhcedge.core.errors import OutputError
from zhcedge.core.types import ImageFormat, Surface
from zhcedge.media._vendor import av, require_av
from zhcedge.media.host_frame import HostFrame, Pixels, even

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.packet import Packet
    from av.stream import Stream
    from av.video.codeccontext import VideoCodecContext
    from av.video.stream import VideoStream

_TICKS_PER_S = 90_000
_TIME_BASE = Fraction(1, _TICKS_PER_S)
_PACKET_BYTES = 1400  # below the MTU of everything that RTP is sent over, headers included
_KEYFRAME_INTERVAL_S = 2
_START_CODE = re.compile(rb"\x00\x00(?:\x00)?\x01")
_SPS, _PPS = 7, 8
_PICTURE_I = 1  # AV_PICTURE_TYPE_I


class LiveEncoder:
    """Encodes NV12 surfaces in host memory to H.264 with start codes, parameter sets in front of each key frame.

    No picture is held back. Owned by one thread. The constructor raises OutputError.

    Attributes:
        bytes_written: compressed so far.
    """

    def __init__(self, format: ImageFormat, fps: float, bitrate_kbps: int, where: str) -> None:
        require_av()
        self._where = where
        self._picture = HostFrame(format, is_even=True)
        self._last_ticks = -1
        self.bytes_written = 0
        try:
            self._codec = _open_codec(format, fps or 25.0, bitrate_kbps)
        except (ValueError, av.error.FFmpegError) as error:
            raise OutputError(f"no H.264 of the picture: {error}", where=where) from error

    def fill(self, surface: Surface[Pixels]) -> None:
        """Copy a surface; it may be given back then. Raises OutputError for one of another format."""
        self._picture.fill(surface, self._where)

    def encode(self, media_time_s: float, is_key: bool) -> list[Packet[Stream]]:
        """The packets of the picture that was filled in last; a time that does not grow is moved on. OutputError."""
        frame = self._picture.frame
        self._last_ticks = max(round(media_time_s * _TICKS_PER_S), self._last_ticks + 1)
        frame.pts, frame.time_base = self._last_ticks, _TIME_BASE
        frame.pict_type = _PICTURE_I if is_key else 0
        try:
            packets = self._codec.encode(frame)
        except (ValueError, av.error.FFmpegError) as error:
            raise OutputError(f"no H.264 of a frame: {error}", where=self._where) from error
        self.bytes_written += sum(packet.size for packet in packets)
        return packets


class RtpPackets:
    """Cuts H.264 packets into RTP packets, with a sender report (RTCP) every few seconds. Owned by one thread.

    Args:
        first: a key frame with its parameter sets.
    """

    def __init__(self, first: Packet[Stream], where: str) -> None:
        self._where = where
        self._collector = _Collector()
        self._container: OutputContainer = av.open(
            self._collector,
            "w",
            format="rtp",
            container_options={"pkt_size": str(_PACKET_BYTES)},
            buffer_size=_PACKET_BYTES,
        )
        try:
            with av.open(io.BytesIO(bytes(first)), format="h264") as described:
                self._stream: VideoStream = self._container.add_stream_from_template(described.streams.video[0])
        except (OSError, ValueError, IndexError, av.error.FFmpegError) as error:
            raise OutputError(f"the encoder's first picture can't be described: {error}", where=where) from error
        self._stream.time_base = _TIME_BASE

    def packets(self, encoded: Packet[Stream]) -> Sequence[bytes]:
        """The RTP packets of one encoded picture. Raises OutputError."""
        encoded.stream = self._stream
        try:
            self._container.mux(encoded)
        except (OSError, ValueError, av.error.FFmpegError) as error:
            raise OutputError(f"no RTP of a frame: {error}", where=self._where) from error
        return self._collector.take()

    def close(self) -> None:
        """Free the muxer."""
        self._container.close()
        self._collector.take()


class _Collector:
    """What FFmpeg writes into: each write is one packet, because its buffer holds just one."""

    def __init__(self) -> None:
        self._packets: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._packets.append(bytes(data))
        return len(data)

    def take(self) -> list[bytes]:
        packets, self._packets = self._packets, []
        return packets


def session_description(key_frame: bytes, where: str) -> str:
    """SDP (RFC 4566) of a stream that starts with this key frame. Raises OutputError for one without parameter sets."""
    units = [unit for unit in _START_CODE.split(key_frame) if unit]
    sps = next((unit for unit in units if unit[0] & 0x1F == _SPS), b"")
    pps = next((unit for unit in units if unit[0] & 0x1F == _PPS), b"")
    if len(sps) < 4 or not pps:
        raise OutputError("the encoder's first picture has no parameter sets", where=where)
    sets = ",".join(base64.b64encode(unit).decode() for unit in (sps, pps))
    return "\r\n".join(
        [
            "v=0",
            "o=- 0 0 IN IP4 127.0.0.1",
            "s=zhc-edge",
            "c=IN IP4 0.0.0.0",
            "t=0 0",
            "m=video 0 RTP/AVP 96",
            f"a=rtpmap:96 H264/{_TICKS_PER_S}",
            f"a=fmtp:96 packetization-mode=1; sprop-parameter-sets={sets}; profile-level-id={sps[1:4].hex().upper()}",
            "a=control:streamid=0",
            "",
        ]
    )


def _open_codec(format: ImageFormat, fps: float, bitrate_kbps: int) -> VideoCodecContext:
    codec = av.CodecContext.create("libx264", "w")
    rate = Fraction(fps).limit_denominator(1001)
    codec.width, codec.height, codec.pix_fmt = even(format.width_px), even(format.height_px), "nv12"
    codec.time_base, codec.framerate = _TIME_BASE, rate
    codec.thread_count = 1  # the other cores belong to inference
    codec.gop_size = max(round(_KEYFRAME_INTERVAL_S * rate), 1)
    codec.bit_rate = bitrate_kbps * 1000
    codec.color_range = 2 if format.is_full_range else 1
    codec.options = {
        "preset": "ultrafast",
        "tune": "zerolatency",
        "forced-idr": "1",
        "maxrate": f"{bitrate_kbps}k",
        "bufsize": f"{bitrate_kbps}k",  # a second's worth: a key frame may be so much larger
    }
    codec.open()
    return codec

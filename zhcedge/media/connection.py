"""One connection to a network stream or a camera: opening, reading, and errors in our words, without credentials."""

from __future__ import annotations

import socket
import ssl
import stat
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast
from urllib.parse import urlsplit

from zhcedge.core.errors import MediaError, SourceMissingError, SourceRefusedError, ZhcEdgeError
from zhcedge.core.geometry import MAX_PICTURE_PX
from zhcedge.core.ports import Clock
from zhcedge.core.requests import SourceOptions
from zhcedge.media._vendor import av, require_av
from zhcedge.media.address import CAMERA_PREFIX, scheme_of, with_credentials
from zhcedge.media.demux import StreamFacts, stream_facts, video_stream

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.stream import VideoStream

T = TypeVar("T")

_RTSP_PROTOCOLS = "rtp,udp,tcp,tls,crypto"
_HTTP_PROTOCOLS = "http,https,httpproxy,tcp,tls,crypto"
"""What a stream may make FFmpeg open: not `file`, which a hostile playlist would name."""

_ANALYSE_US = 2_000_000
_PROBED_FRAMES = 3
"""So many frames are looked at for the rate; FFmpeg's 20 would make every connection a second longer."""

_REORDER_US = 200_000
"""Longest wait for a lost UDP packet."""

_MOST_FPS = 1000
"""A rate above it is a clock's, guessed from a stream that does not say."""

_CAMERA_AHEAD_NS = 1_000_000_000
_CAMERA_BEHIND_NS = 10_000_000_000
"""A sender's clock that seems further off than this is not set; then the time of arrival is the better one."""


@dataclass(frozen=True)
class Address:
    """What to connect to.

    Attributes:
        uri: rtsp(s)://, http(s):// or v4l2:/dev/videoN.
        options: of the source.
        where: names it in messages, without credentials.
    """

    uri: str
    options: SourceOptions
    where: str


def ffmpeg_options(uri: str, options: SourceOptions) -> dict[str, str]:
    """libavformat's options for an address. No secrets among them."""
    if uri.startswith(CAMERA_PREFIX):
        return {"fpsprobesize": str(_PROBED_FRAMES), "max_pixels": str(MAX_PICTURE_PX)}
    scheme = scheme_of(uri)
    chosen = {
        "timeout": str(round(options.read_timeout_s * 1e6)),
        "analyzeduration": str(_ANALYSE_US),
        "fpsprobesize": str(_PROBED_FRAMES),
        "max_pixels": str(MAX_PICTURE_PX),
    }
    if scheme in ("rtsp", "rtsps"):
        chosen |= {
            "protocol_whitelist": _RTSP_PROTOCOLS,
            "rtsp_transport": options.transport,
            "allowed_media_types": "video",
            "max_delay": str(_REORDER_US),
        }
    else:
        chosen["protocol_whitelist"] = _HTTP_PROTOCOLS
    if scheme in ("rtsps", "https"):
        chosen["tls_verify"] = str(int(options.verify_tls))
        authorities = options.ca_file or ssl.get_default_verify_paths().cafile
        if authorities:
            chosen["ca_file"] = str(authorities)
    return chosen


class Connection:
    """The video packets of one connection. Owned by the thread that makes it, until it is handed over whole.

    The constructor connects and probes: `connect_timeout_s` for each of the two, beside what the system takes to look
    up a name. Raises SourceRefusedError, SourceMissingError or MediaError and then holds nothing; no error refers to
    FFmpeg's own, which quotes the address with its password.
    """

    def __init__(self, address: Address, clock: Clock) -> None:
        require_av()
        self._address, self._clock = address, clock
        self._read_timeout_s = address.options.read_timeout_s
        self._container = self._try(self._open, address.options.connect_timeout_s)
        try:
            self._stream = video_stream(self._container, address.where)
            self._facts = self._read_facts()
            # With the sound, where it can't be left out: while only that comes, `read` must get a word in.
            self._packets = cast("Iterator[Packet[VideoStream]]", self._container.demux())
        except BaseException:
            self._container.close()
            raise

    @property
    def facts(self) -> StreamFacts:
        return self._facts

    @property
    def stream(self) -> VideoStream:
        """PyAV's stream; not to be touched after `close`."""
        return self._stream

    @property
    def is_finite(self) -> bool:
        """Whether this is a file behind an address, with a declared length, and not a camera."""
        if scheme_of(self._address.uri) not in ("http", "https"):
            return False
        has_length = self._container.format.name != "hls" and self._container.size > 0  # of a playlist it tells nothing
        return has_length or bool(self._container.duration)

    def read(self) -> Packet[VideoStream] | None:
        """The next packet of the video; None when the sender ends the stream.

        Raises SourceMissingError or MediaError when the connection is lost, also when nothing came for
        `read_timeout_s`.
        """
        index = self._stream.index
        deadline_s = time.monotonic() + self._read_timeout_s
        while True:
            packet = self._try(lambda: next(self._packets, None), self._read_timeout_s)
            if packet is None or (packet.dts is None and not packet.size):
                return None
            if packet.stream_index == index:
                return packet
            if time.monotonic() > deadline_s:
                raise self._silent(self._read_timeout_s)

    def captured_ns(self, packet: Packet[VideoStream]) -> int:
        """Wall clock, nanoseconds, when the picture was taken.

        That is what RTCP sender reports (RFC 3550, 6.4.1) say about the RTP timestamp. Without one, or where the
        sender's clock is plainly wrong, it is the moment of this call: the arrival.
        """
        now_ns = self._clock.wall_ns()
        if not packet.has_sidedata("prft"):
            return now_ns
        # AVProducerReferenceTime: int64 wall clock in microseconds, flags.
        (wall_us,) = struct.unpack_from("=q", packet.get_sidedata("prft"))
        captured_ns = wall_us * 1000
        return captured_ns if -_CAMERA_AHEAD_NS <= now_ns - captured_ns <= _CAMERA_BEHIND_NS else now_ns

    def close(self) -> None:
        """Say goodbye and close; packets and frames that came from it stay valid. Twice is fine."""
        self._container.close()

    def _read_facts(self) -> StreamFacts:
        facts = stream_facts(self._container, self._stream, 0)
        fps = facts.fps if facts.fps <= _MOST_FPS else 0.0
        bits_per_s = self._stream.bit_rate or self._container.bit_rate or 0
        return StreamFacts(
            codec=facts.codec,
            extradata=facts.extradata,
            width_px=facts.width_px,
            height_px=facts.height_px,
            time_base=facts.time_base,
            start_ticks=None,
            fps=fps,
            duration_s=facts.duration_s,
            bytes_per_frame=round(bits_per_s / 8 / fps) if fps else 0,
        )

    def _open(self) -> InputContainer:
        uri, options, where = self._address.uri, self._address.options, self._address.where
        timeouts = options.connect_timeout_s, options.read_timeout_s
        if uri.startswith(CAMERA_PREFIX):
            path = _camera_path(uri, where)
            return av.open(path, format="v4l2", options=ffmpeg_options(uri, options), timeout=timeouts)
        if options.ca_file is not None and not options.ca_file.is_file():
            raise SourceMissingError(f"there is no file {options.ca_file}", where=where, fix="check ca_file")
        url = with_credentials(uri, options.username, options.password, where)
        _check_host(url, where)
        return av.open(url, options=ffmpeg_options(uri, options), timeout=timeouts, metadata_errors="replace")

    def _try(self, call: Callable[[], T], timeout_s: float) -> T:
        failure: ZhcEdgeError
        began_s = time.monotonic()
        try:
            return call()
        except av.error.FFmpegError as error:
            # Each protocol calls the end of FFmpeg's patience by another name.
            is_silence = time.monotonic() - began_s >= timeout_s
            failure = self._silent(timeout_s) if is_silence else self._translated(error)
        except ValueError:  # PyAV was built without this kind of input
            failure = MediaError("this PyAV can't open such an input", where=self._address.where, fix="update PyAV")
        # Out here, so that the error has no __context__ to quote the password from.
        raise failure

    def _silent(self, timeout_s: float) -> SourceMissingError:
        return SourceMissingError(
            f"nothing came for {timeout_s:g} s", where=self._address.where, fix="check the camera and the network"
        )

    def _translated(self, error: Exception) -> ZhcEdgeError:
        where = self._address.where
        if isinstance(error, (av.error.HTTPUnauthorizedError, av.error.HTTPForbiddenError)):
            has_login = self._address.options.username is not None or "@" in urlsplit(self._address.uri).netloc
            what = "user name or password is wrong" if has_login else "a user name and password are needed"
            return SourceRefusedError(what, where=where, fix="check username and password_file")
        if isinstance(error, av.error.HTTPNotFoundError):
            return SourceMissingError("there is no such stream", where=where, fix="check the path in the address")
        if isinstance(error, (av.error.HTTPClientError, av.error.HTTPServerError)):
            return SourceMissingError(f"the server says: {_reason(error)}", where=where, fix="check the server")
        if isinstance(error, av.error.InvalidDataError):
            return MediaError("sends nothing that can be read as video", where=where, fix="check the address")
        if self._address.uri.startswith(CAMERA_PREFIX) and isinstance(error, PermissionError):
            return SourceMissingError("may not be read", where=where, fix="add the user to the group video")
        if scheme_of(self._address.uri) in ("rtsps", "https") and not isinstance(error, ConnectionRefusedError):
            what = f"no secure connection ({_reason(error)}): it ended, or the certificate is not trusted"
            return SourceMissingError(what, where=where, fix="check the server, ca_file and verify_tls")
        return SourceMissingError(
            f"the connection failed: {_reason(error)}", where=where, fix="check the address, the camera and the network"
        )


def _reason(error: Exception) -> str:
    """libav's words for an error number, without the address that str() adds."""
    return str(getattr(error, "strerror", None) or type(error).__name__)


def _check_host(url: str, where: str) -> None:
    """Raise SourceMissingError for a host name that is not known: FFmpeg would say "Input/output error"."""
    host = urlsplit(url).hostname or ""
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        is_known = False
    else:
        is_known = True
    if not is_known:
        raise SourceMissingError(f"the host {host} is not known", where=where, fix="check the address and the DNS")


def check_camera(uri: str, where: str) -> None:
    """Raise SourceMissingError or MediaError when `uri` is a local camera's and leads to none; it is not opened."""
    if uri.startswith(CAMERA_PREFIX):
        _camera_path(uri, where)


def _camera_path(uri: str, where: str) -> str:
    path = uri.removeprefix(CAMERA_PREFIX)
    try:
        status = Path(path).stat()
    except (OSError, ValueError) as error:
        raise SourceMissingError("there is no such camera", where=where, fix="see ls /dev/video*") from error
    if not stat.S_ISCHR(status.st_mode):
        raise MediaError("is no camera device", where=where, fix="see ls /dev/video*")
    return path

"""A client that pushes RTP to an RTSP server over one TCP connection: ANNOUNCE, SETUP, RECORD (RFC 2326).

FFmpeg's RTSP muxer is not used for this: PyAV calls it with the interpreter's lock held, so that a server that does not
answer would stop every thread of the frame path. Here only the calling thread waits, and every wait has an end.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import secrets
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit
from urllib.request import parse_http_list, parse_keqv_list

from zhcedge.core.errors import OutputError

_PORTS = {"rtsp": 554, "rtsps": 322}
_MAX_HEADER_BYTES = 16_384
_RTCP_TYPES = range(192, 224)  # RFC 5761, section 4
_PACKETS_AT_ONCE = 32  # for one system call; as bytes below 64 KiB
_DEFAULT_SESSION_S = 60.0  # RFC 2326, 12.37
_REASONS = {
    401: "the server refuses the user name or password",
    403: "the server forbids to publish there",
    404: "the server has no such path",
    461: "the server does not take RTP over TCP",
}
_HASHES = {"MD5": "md5", "SHA-256": "sha256"}


@dataclass
class _Login:
    """User, password, and the server's latest challenge (RFC 7617, RFC 7616)."""

    user: str
    password: str = field(repr=False)
    scheme: str = ""
    challenge: dict[str, str] = field(default_factory=dict)
    count: int = 0

    def learn(self, offers: Sequence[str]) -> bool:
        """Take the best of the challenges; False when none is known here."""
        for wanted in ("digest", "basic"):
            for offer in offers:
                scheme, _, rest = offer.partition(" ")
                challenge = parse_keqv_list([item for item in parse_http_list(rest) if "=" in item])
                is_known = wanted == "basic" or challenge.get("algorithm", "MD5").upper() in _HASHES
                if scheme.lower() == wanted and is_known:
                    self.scheme, self.challenge, self.count = wanted, challenge, 0
                    return True
        return False

    def header(self, method: str, uri: str) -> str:
        if self.scheme == "basic":
            return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return self._digest(method, uri)

    def _digest(self, method: str, uri: str) -> str:
        said = self.challenge
        algorithm = said.get("algorithm", "MD5")

        def digest(text: str) -> str:
            return hashlib.new(_HASHES[algorithm.upper()], text.encode(), usedforsecurity=False).hexdigest()

        realm, nonce = said.get("realm", ""), said.get("nonce", "")
        account, request = digest(f"{self.user}:{realm}:{self.password}"), digest(f"{method}:{uri}")
        parts = {"username": self.user, "realm": realm, "nonce": nonce, "uri": uri}
        bare = ""
        if "auth" in [choice.strip() for choice in said.get("qop", "").split(",")]:
            self.count += 1
            count, ours = f"{self.count:08x}", secrets.token_hex(8)
            parts |= {"cnonce": ours, "response": digest(f"{account}:{nonce}:{count}:{ours}:auth:{request}")}
            bare = f", qop=auth, nc={count}"
        else:
            parts["response"] = digest(f"{account}:{nonce}:{request}")
        if "opaque" in said:
            parts["opaque"] = said["opaque"]
        if "algorithm" in said:
            bare += f", algorithm={algorithm}"
        return "Digest " + ", ".join(f'{key}="{value}"' for key, value in parts.items()) + bare


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: dict[str, list[str]]

    def first(self, name: str) -> str:
        return self.headers.get(name, [""])[0]


class RtspPublisher:
    """One connection, made by the constructor. Owned by one thread; `abort` may come from any.

    Args:
        url: rtsp:// or rtsps://, with credentials where the server wants them; they appear in no message.
        sdp: describes one stream, whose control name is "streamid=0" (RFC 4566).
        where: channel and address without credentials, for messages.
        timeout_s: longest time for the whole of connecting, and for each `send`.

    Raises OutputError, and then holds nothing.
    """

    def __init__(self, url: str, sdp: str, where: str, timeout_s: float = 5.0) -> None:
        self._where, self._timeout_s = where, timeout_s
        self._sequence = 0
        self._session = ""
        self._keep_alive_s = _DEFAULT_SESSION_S / 2
        self._rest = b""  # received and not yet understood
        parts = _parts(url, where)
        self._login = _Login(unquote(parts.username or ""), unquote(parts.password or "")) if parts.username else None
        host = parts.netloc.rpartition("@")[2]
        self._uri = urlunsplit((parts.scheme.lower(), host, parts.path, parts.query, ""))
        self._deadline_s = time.monotonic() + timeout_s
        self._socket = self._connect(parts)
        try:
            self._announce(sdp)
        except BaseException:
            self._socket.close()
            raise
        self._next_sign_s = time.monotonic() + self._keep_alive_s

    # -- sending -----------------------------------------------------------------------------------------------
    def send(self, packets: Sequence[bytes]) -> None:
        """Send RTP and RTCP packets, told apart by their second byte. Raises OutputError when the connection is lost.

        The whole of it takes no longer than the timeout.
        """
        self._drain()
        self._deadline_s = time.monotonic() + self._timeout_s
        for first in range(0, len(packets), _PACKETS_AT_ONCE):
            parts: list[bytes] = []
            for packet in packets[first : first + _PACKETS_AT_ONCE]:
                channel = 1 if packet[1] in _RTCP_TYPES else 0
                parts += (b"$" + bytes((channel,)) + len(packet).to_bytes(2, "big"), packet)
            self._write(b"".join(parts))
        if time.monotonic() >= self._next_sign_s:
            self._next_sign_s = time.monotonic() + self._keep_alive_s
            self._write(self._request("OPTIONS", self._uri))

    def _drain(self) -> None:
        """Throw away what the server says meanwhile: receiver reports, answers to signs of life."""
        self._socket.settimeout(0)
        try:
            while self._socket.recv(_MAX_HEADER_BYTES):
                pass
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except OSError as error:
            raise self._lost(error) from error
        raise OutputError("the server has closed the connection", where=self._where)

    def close(self) -> None:
        """Say goodbye without waiting for the answer, and let go. Never raises."""
        with contextlib.suppress(OSError):  # the server finds out by itself
            self._socket.settimeout(0.2)
            self._socket.sendall(self._request("TEARDOWN", self._uri))
        self._socket.close()

    def abort(self) -> None:
        """Make the owner's blocking call fail now. Any thread."""
        with contextlib.suppress(OSError):  # closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    # -- connecting --------------------------------------------------------------------------------------------
    def _connect(self, parts: SplitResult) -> socket.socket:
        scheme = parts.scheme.lower()
        try:
            connection = socket.create_connection(
                (parts.hostname or "", parts.port or _PORTS[scheme]), timeout=self._timeout_s
            )
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if scheme == "rtsp":
                return connection
            try:
                return ssl.create_default_context().wrap_socket(connection, server_hostname=parts.hostname)
            except BaseException:
                connection.close()
                raise
        except (OSError, UnicodeError) as error:  # UnicodeError: a host name that no name can be
            raise self._lost(error) from error

    def _announce(self, sdp: str) -> None:
        self._ask("ANNOUNCE", self._uri, {"Content-Type": "application/sdp"}, sdp.encode())
        transport = "RTP/AVP/TCP;unicast;interleaved=0-1;mode=record"
        answer = self._ask("SETUP", f"{self._uri.rstrip('/')}/streamid=0", {"Transport": transport})
        self._session, _, parameters = answer.first("session").partition(";")
        name, _, seconds = parameters.strip().partition("=")
        if name == "timeout" and seconds.isdecimal():
            self._keep_alive_s = max(int(seconds) / 2, 1.0)
        if "interleaved=" in (said := answer.first("transport")) and "interleaved=0-1" not in said:
            raise OutputError("the server wants other channels than 0 and 1", where=self._where)
        self._ask("RECORD", self._uri, {"Range": "npt=0.000-"})

    def _ask(self, method: str, uri: str, headers: dict[str, str] | None = None, body: bytes = b"") -> _Answer:
        for is_last in (False, True):
            self._write(self._request(method, uri, headers, body))
            answer = self._read_answer()
            if answer.status == 401 and not is_last and self._login is not None:
                if not self._login.learn(answer.headers.get("www-authenticate", [])):
                    raise OutputError("the server asks for a way to log in that is not known here", where=self._where)
                continue
            break
        if answer.status != 200:
            reason = _REASONS.get(answer.status, f"the server answers {answer.status} to {method}")
            raise OutputError(reason, where=self._where, fix="check the sink's url")
        return answer

    def _request(self, method: str, uri: str, headers: dict[str, str] | None = None, body: bytes = b"") -> bytes:
        self._sequence += 1
        lines = [f"{method} {uri} RTSP/1.0", f"CSeq: {self._sequence}", "User-Agent: zhc-edge"]
        if self._session:
            lines.append(f"Session: {self._session}")
        if self._login is not None and self._login.scheme:
            lines.append(f"Authorization: {self._login.header(method, uri)}")
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join((*lines, "", "")).encode() + body

    def _read_answer(self) -> _Answer:
        head = self._until(b"\r\n\r\n").decode("utf-8", "replace").split("\r\n")
        version, _, rest = head[0].partition(" ")
        if not version.startswith("RTSP/") or not rest[:3].isdecimal():
            raise OutputError("this is no RTSP server", where=self._where, fix="check the sink's url")
        headers: dict[str, list[str]] = {}
        for line in head[1:]:
            name, _, value = line.partition(":")
            headers.setdefault(name.strip().lower(), []).append(value.strip())
        answer = _Answer(int(rest[:3]), headers)
        length = answer.first("content-length")
        self._take(min(int(length), _MAX_HEADER_BYTES) if length.isdecimal() else 0)
        return answer

    def _until(self, end: bytes) -> bytes:
        while (found := self._rest.find(end)) < 0:
            if len(self._rest) > _MAX_HEADER_BYTES:
                raise OutputError("the server's answer does not end", where=self._where)
            self._receive()
        head, self._rest = self._rest[:found], self._rest[found + len(end) :]
        return head

    def _take(self, count: int) -> None:
        while len(self._rest) < count:
            self._receive()
        self._rest = self._rest[count:]

    def _receive(self) -> None:
        try:
            self._socket.settimeout(self._left_s())
            data = self._socket.recv(4096)
        except OSError as error:
            raise self._lost(error) from error
        if not data:
            raise OutputError("the server has closed the connection", where=self._where)
        self._rest += data

    def _write(self, data: bytes) -> None:
        try:
            self._socket.settimeout(self._left_s())
            self._socket.sendall(data)
        except OSError as error:
            raise self._lost(error) from error

    def _left_s(self) -> float:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s

    def _lost(self, error: Exception) -> OutputError:
        if isinstance(error, TimeoutError):
            return OutputError(f"the server does not answer for {self._timeout_s:g} s", where=self._where)
        text = getattr(error, "strerror", None) or type(error).__name__  # never str(error): it may hold the address
        return OutputError(f"the server can't be reached: {text}", where=self._where)


def _parts(url: str, where: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme.lower() in _PORTS and bool(parts.hostname)
        _ = parts.port  # raises for one that is no number
    except ValueError:
        is_good = False
    if not is_good:
        raise OutputError("this is no rtsp:// or rtsps:// address", where=where, fix="write rtsp://host/path")
    return parts

"""A broker that answers what a test tells it to: refusals that no real one gives on demand. MQTT 5 and 3.1.1.

It knows CONNECT, SUBSCRIBE, PUBLISH with QoS 0 and 1, PINGREQ and DISCONNECT, keeps nothing and passes nothing on.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

HOST = "127.0.0.1"

CONNECT, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, PINGREQ, DISCONNECT = 1, 3, 8, 10, 12, 14


@dataclass
class ScriptedBroker:
    """Listens at once. Use as a context manager.

    Attributes:
        on_publish: payload -> reason code of its PUBACK; None leaves it without one. MQTT 3.1.1 has no such code.
        grant: answer to each subscription: 1, or 0x80 and above for a refusal.
        farewell: what happens after CONNACK: None for nothing, b"" to close the connection, other bytes are sent first.
        receive_maximum: told to clients of MQTT 5; 0 for nothing.
        is_stuck: after CONNACK nothing is read any more.
        heard: payloads in order of arrival.
        accepted: connections so far.
    """

    on_publish: Callable[[bytes], int | None] = lambda payload: 0
    grant: int = 1
    farewell: bytes | None = None
    receive_maximum: int = 0
    is_stuck: bool = False
    heard: list[bytes] = field(default_factory=list)
    accepted: int = 0

    def __post_init__(self) -> None:
        self._server = socket.create_server((HOST, 0))
        self.port: int = self._server.getsockname()[1]
        self._open: list[socket.socket] = []
        self._ending = threading.Event()

    def __enter__(self) -> ScriptedBroker:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for one in (self._server, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                self.accepted += 1
                self._open.append(near)
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), near.makefile("rb") as stream:
            is_5 = False
            while True:
                kind, flags, body = _packet(stream.read)
                if kind == CONNECT:
                    is_5 = body[6] == 5
                    near.sendall(self._welcome() if is_5 else b"\x20\x02\x00\x00")
                    if self.is_stuck:
                        self._ending.wait()
                    if self.farewell is not None:
                        near.sendall(self.farewell if is_5 else b"")
                        near.shutdown(socket.SHUT_WR)  # what it sends is read on: a reset would overtake the farewell
                elif kind == PUBLISH:
                    self._take(near, body, qos=flags >> 1 & 3, is_5=is_5)
                elif kind == SUBSCRIBE:
                    count = _filters(body, is_5)
                    answer = body[:2] + (b"\x00" if is_5 else b"") + bytes([self.grant]) * count
                    near.sendall(bytes([0x90, len(answer)]) + answer)
                elif kind == PINGREQ:
                    near.sendall(b"\xd0\x00")
                elif kind == DISCONNECT:
                    return

    def _welcome(self) -> bytes:
        facts = b"\x21" + self.receive_maximum.to_bytes(2, "big") if self.receive_maximum else b""
        return bytes([0x20, 3 + len(facts), 0, 0, len(facts)]) + facts

    def _take(self, near: socket.socket, body: bytes, *, qos: int, is_5: bool) -> None:
        at = 2 + int.from_bytes(body[:2], "big")
        packet = body[at : at + 2] if qos else b""
        at += len(packet)
        at += 1 + body[at] if is_5 else 0  # properties, below 128 bytes here
        self.heard.append(body[at:])
        reason = self.on_publish(body[at:]) if qos else None
        if reason is not None:
            near.sendall(b"\x40\x04" + packet + bytes([reason, 0]) if is_5 else b"\x40\x02" + packet)


def _packet(read: Callable[[int], bytes]) -> tuple[int, int, bytes]:
    def some(count: int) -> bytes:
        data = read(count)
        if len(data) < count:
            raise EOFError
        return data

    first = some(1)[0]
    length, shift = 0, 0
    while True:
        byte = some(1)[0]
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return first >> 4, first & 15, some(length)


def _filters(body: bytes, is_5: bool) -> int:
    at, count = 2 + (1 + body[2] if is_5 else 0), 0
    while at < len(body):
        (length,) = struct.unpack_from("!H", body, at)
        at += 2 + length + 1
        count += 1
    return count

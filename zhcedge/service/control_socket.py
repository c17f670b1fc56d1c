"""The control socket: JSON lines over a Unix stream socket, served by whoever has a loop, without a thread.

A request is one line, {"do": word, ...}, its answer another one: {"ok": true, ...} or {"error": {"what": ..., "where":
..., "fix": ..., "code": exit code}}. Requests of one connection are answered one after the other, in their order.
"""

from __future__ import annotations

import json
import logging
import selectors
import socket
import time
from collections.abc import Callable, Mapping

from zhcedge.core.errors import NotNowError, PipelineError, UsageError, ZhcEdgeError
from zhcedge.service.socket_file import SocketFile

log = logging.getLogger(__name__)

MAX_CLIENTS = 16
MAX_REQUEST_BYTES = 1 << 20
STUCK_S = 10.0
"""A client that takes nothing of what waits for it for this long is dropped."""

WATCH_S = 1.0

_CHUNK_BYTES = 1 << 16  # read of one client in one turn of the loop
_DEAF_S = 1.0  # pause after a connection that could not be taken


class Client:
    """One connection. Belongs to the loop's thread. What is said to a client that has gone is forgotten."""

    def __init__(self, connection: socket.socket, number: int, show: Callable[[str], str]) -> None:
        self._connection, self._show = connection, show
        self.number = number
        self._incoming, self._outgoing = bytearray(), bytearray()
        self._lines = 0  # whole ones in `_incoming`
        self._taken_s = time.monotonic()  # when it last took something, or nothing waited
        self.has_ended = False  # it sends no more
        self.is_gone = False
        self.is_asking = False  # its request is being carried out
        self.is_watching = False

    def fileno(self) -> int:
        return self._connection.fileno()

    # -- for whoever answers -----------------------------------------------------------------------------------
    def answer(self, facts: Mapping[str, object]) -> None:
        """Once for each request: it is carried out."""
        self.is_asking = False
        self._say({"ok": True, **facts})

    def fail(self, error: ZhcEdgeError) -> None:
        """Once for each request: it is not carried out."""
        self.is_asking = False
        facts = {"what": self._show(error.what), "where": self._show(error.where), "fix": self._show(error.fix)}
        self._say({"error": {**facts, "code": error.exit_code}})

    def watch(self) -> None:
        """Instead of an answer: from now on it gets what `ControlSocket.tell_watchers` is given."""
        self.is_watching = self.is_asking = True

    # -- for the socket ----------------------------------------------------------------------------------------
    @property
    def events(self) -> int:
        """What to wait for; 0 for nothing. Who has sent a whole request too much is read no further."""
        wants = selectors.EVENT_WRITE if self._outgoing else 0
        is_readable = not self.has_ended and len(self._incoming) <= MAX_REQUEST_BYTES
        return wants | (selectors.EVENT_READ if is_readable else 0)

    @property
    def has_request(self) -> bool:
        """There is something to do: a request that may be begun, or one that is too long."""
        is_busy = self.is_gone or self.is_asking or bool(self._outgoing)
        return not is_busy and (self._lines > 0 or len(self._incoming) > MAX_REQUEST_BYTES)

    @property
    def is_done(self) -> bool:
        return self.is_gone or (self.has_ended and not self.is_asking and not self._outgoing and not self.has_request)

    def is_stuck(self, now_s: float) -> bool:
        if not self._outgoing:
            self._taken_s = now_s
        return now_s - self._taken_s > STUCK_S

    def read(self) -> None:
        try:
            data = self._connection.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self.is_gone = True
            return
        if not data:
            self.has_ended = True
        elif not self.is_watching:
            self._incoming += data
            self._lines += data.count(b"\n")

    def next_request(self) -> dict[str, object]:
        """Raises UsageError for what is none; one that is too long ends the connection."""
        end = self._incoming.find(b"\n")
        if end < 0 or end > MAX_REQUEST_BYTES:
            self._incoming.clear()
            self._lines, self.has_ended = 0, True
            raise UsageError(f"a request of more than {MAX_REQUEST_BYTES} bytes")
        line = bytes(self._incoming[:end])
        del self._incoming[: end + 1]
        self._lines -= 1
        try:
            request = json.loads(line)
        except (ValueError, RecursionError) as error:  # ValueError: not UTF-8, not JSON, thousands of digits
            raise UsageError("the request is not JSON that can be used") from error
        if not isinstance(request, dict):
            raise UsageError("the request is no JSON object")
        return request

    def tell(self, line: bytes) -> None:
        """To one that watches; one that has not taken the last line yet misses this one."""
        if not self._outgoing:
            self._send(line)

    def flush(self) -> None:
        self._send(b"")

    def _say(self, message: Mapping[str, object]) -> None:
        self._send(encoded(message))

    def _send(self, line: bytes) -> None:
        if self.is_gone:
            return
        self._outgoing += line
        try:
            sent = self._connection.send(self._outgoing) if self._outgoing else 0
        except BlockingIOError:
            return
        except OSError:  # it has gone
            self.is_gone = True
            return
        if sent:
            self._taken_s = time.monotonic()
            del self._outgoing[:sent]

    def close(self) -> None:
        self.is_gone = True
        self._connection.close()


Handler = Callable[[dict[str, object], Client], None]
"""Takes a request; calls `answer`, `fail` or `watch` of the client, now or later. A ZhcEdgeError that it raises is
the answer. The loop's thread; must not wait."""


def encoded(message: Mapping[str, object]) -> bytes:
    """As a line. ASCII: half a UTF-16 pair, which JSON may hold, could not be sent otherwise."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n"


class ControlSocket:
    """Serves the clients of one socket. Belongs to the loop's thread; nothing in it waits.

    At most MAX_CLIENTS connections: a new one takes the place of the oldest that waits for no answer. In one turn of
    the loop a client is read of once and has one request begun, so that no client can hold the loop up.

    Args:
        file: the listening socket; closed by `close`.
        show: applied to the texts of errors: takes passwords out of them.
    """

    def __init__(self, file: SocketFile, show: Callable[[str], str] = str) -> None:
        self._file, self._show = file, show
        self._selector = selectors.EpollSelector()
        self._selector.register(file.socket, selectors.EVENT_READ)
        self._clients: dict[int, Client] = {}  # by number, the oldest first
        self._number = 0
        self._watched_s = 0.0
        self._deaf_until_s = 0.0  # no connection is taken before

    def fileno(self) -> int:
        """For the loop's selector: readable when `serve` has something to do."""
        return self._selector.fileno()

    @property
    def is_busy(self) -> bool:
        """Requests wait that have come already: the loop should call `serve` again at once."""
        return any(client.has_request for client in self._clients.values())

    def serve(self, handle: Handler) -> None:
        """Everything that can be done now. Cheap where there is nothing."""
        if self._deaf_until_s and time.monotonic() >= self._deaf_until_s:
            self._deaf_until_s = 0.0
            self._selector.register(self._file.socket, selectors.EVENT_READ)
        for key, events in self._selector.select(0):
            client = key.data
            if client is None:
                self._accept()
                continue
            if events & selectors.EVENT_WRITE:
                client.flush()
            if events & selectors.EVENT_READ:
                client.read()
        for client in tuple(self._clients.values()):
            if client.has_request:
                self._begin(client, handle)
        self._sweep()

    def tell_watchers(self, make: Callable[[], Mapping[str, object]]) -> None:
        """Give those that watch what `make` says, once in WATCH_S; it is asked only when somebody watches."""
        now_s = time.monotonic()
        if now_s - self._watched_s < WATCH_S:
            return
        # Once a second on average, however seldom the loop turns.
        self._watched_s = max(self._watched_s + WATCH_S, now_s - WATCH_S / 2)
        watching = [client for client in self._clients.values() if client.is_watching]
        if watching:
            line = encoded({"ok": True, **make()})
            for client in watching:
                client.tell(line)
        self._sweep()

    def close(self) -> None:
        """Hang up and remove the socket. A second call does nothing."""
        self._file.close()
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        self._selector.close()

    # -- inside ------------------------------------------------------------------------------------------------
    def _accept(self) -> None:
        for _ in range(MAX_CLIENTS):
            try:
                connection, _ = self._file.socket.accept()
            except BlockingIOError:
                return
            except OSError as error:  # no descriptors are left: the connection waits, and must not keep us turning
                log.warning("a control connection can't be taken: %s", error.strerror)
                self._selector.unregister(self._file.socket)
                self._deaf_until_s = time.monotonic() + _DEAF_S
                return
            connection.setblocking(False)
            self._number += 1
            client = Client(connection, self._number, self._show)
            if not self._make_room():
                client.fail(NotNowError("too many requests are being carried out", fix="try again"))
                client.close()
                continue
            self._clients[client.number] = client
            self._selector.register(client, client.events, client)

    def _make_room(self) -> bool:
        if len(self._clients) < MAX_CLIENTS:
            return True
        for client in tuple(self._clients.values()):
            if client.is_watching or not client.is_asking:
                client.fail(NotNowError("dropped: others have connected since", fix="connect again"))
                self._drop(client)
                return True
        return False

    def _begin(self, client: Client, handle: Handler) -> None:
        client.is_asking = True
        try:
            handle(client.next_request(), client)
        except ZhcEdgeError as error:
            client.fail(error)
        except Exception as error:  # the daemon must live on; the client hears of it
            log.error("a control request failed", exc_info=error)
            bug = PipelineError(f"{type(error).__name__}: {error}", where="control", fix="report this as a bug")
            client.fail(bug)

    def _sweep(self) -> None:
        """Drop who is done or stuck; wait for the right things of the others."""
        now_s = time.monotonic()
        for client in tuple(self._clients.values()):
            if client.is_done or client.is_stuck(now_s):
                self._drop(client)
                continue
            is_known = client.fileno() in self._selector.get_map()
            if is_known and not client.events:
                self._selector.unregister(client)
            elif is_known and self._selector.get_key(client).events != client.events:
                self._selector.modify(client, client.events, client)
            elif not is_known and client.events:
                self._selector.register(client, client.events, client)

    def _drop(self, client: Client) -> None:
        if client.fileno() in self._selector.get_map():
            self._selector.unregister(client)
        client.close()
        del self._clients[client.number]

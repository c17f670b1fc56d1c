"""The proxy's faults are what they are called: seen by a client that sends, and a server that answers."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.contract.brokers import HOST, wait_until
from tests.contract.chaos_proxy import ChaosProxy

pytestmark = pytest.mark.slow  # processes, servers and sockets: minutes in all


class Echo:
    """A server that sends back what it gets, and keeps it."""

    def __init__(self) -> None:
        self._listening = socket.create_server((HOST, 0))
        self.port: int = self._listening.getsockname()[1]
        self.received = b""
        self.ends: list[str] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(4096):
                    self.received += data
                    connection.sendall(data)
                self.ends.append("closed")
            except OSError:
                self.ends.append("reset")


@pytest.fixture
def echo() -> Iterator[Echo]:
    with contextlib.closing(Echo()) as server:
        yield server


@pytest.fixture
def proxy(echo: Echo) -> Iterator[ChaosProxy]:
    with contextlib.closing(ChaosProxy(echo.port)) as one:
        yield one


@pytest.fixture
def client(proxy: ChaosProxy) -> Iterator[socket.socket]:
    with connected(proxy) as connection:
        assert asked(connection, b"hello") == b"hello"
        yield connection


def connected(proxy: ChaosProxy) -> socket.socket:
    return socket.create_connection((HOST, proxy.port), timeout=10)


def asked(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    return connection.recv(4096)


def is_silent(connection: socket.socket) -> bool:
    connection.settimeout(0.2)
    try:
        return not connection.recv(4096) and False
    except TimeoutError:
        return True


def test_a_cut_lets_so_many_bytes_through_and_then_closes(proxy: ChaosProxy, echo: Echo, client: socket.socket) -> None:
    proxy.cut(3)
    client.sendall(b"packet")
    while client.recv(4096):
        pass
    wait_until(lambda: bool(echo.ends), "the server's end")
    assert echo.received == b"hellopac"
    with connected(proxy) as other:
        assert asked(other, b"again") == b"again"


def test_a_reset_is_one_for_both(proxy: ChaosProxy, echo: Echo, client: socket.socket) -> None:
    proxy.reset()
    with pytest.raises(ConnectionResetError):
        client.recv(4096)
    wait_until(lambda: echo.ends == ["reset"], "the server's end")


def test_a_stalled_connection_stays_dead_and_a_new_one_works_after_healing(
    proxy: ChaosProxy, echo: Echo, client: socket.socket
) -> None:
    proxy.stall()
    client.sendall(b"x")
    with connected(proxy) as meanwhile:
        meanwhile.sendall(b"y")
        assert is_silent(meanwhile)
    proxy.heal()
    assert is_silent(client)
    assert (echo.received, echo.ends) == (b"hello", [])
    with connected(proxy) as other:
        assert asked(other, b"again") == b"again"


def test_what_the_broker_says_to_a_deaf_connection_is_lost(
    proxy: ChaosProxy, echo: Echo, client: socket.socket
) -> None:
    proxy.deafen()
    client.sendall(b"world")
    wait_until(lambda: echo.received == b"helloworld", "what the server gets")
    assert is_silent(client)


def test_refused_connections_are_reset_until_healing(proxy: ChaosProxy, client: socket.socket) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionResetError):
        client.recv(4096)
    with pytest.raises(ConnectionResetError), connected(proxy) as other:
        other.recv(4096)
    proxy.heal()
    with connected(proxy) as other:
        assert asked(other, b"again") == b"again"


def test_a_delay_keeps_the_order(proxy: ChaosProxy, echo: Echo, client: socket.socket) -> None:
    proxy.delay(0.01)
    for number in range(10):
        client.sendall(b"%d" % number)
    wait_until(lambda: echo.received == b"hello0123456789", "all of it")


def test_without_a_broker_connections_end(proxy: ChaosProxy, echo: Echo, client: socket.socket) -> None:
    echo.close()
    with connected(proxy) as other, contextlib.suppress(ConnectionError):
        assert other.recv(4096) == b""

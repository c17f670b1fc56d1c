"""The control socket answers whoever asks properly, and nobody else can hold it up, fill it up or break it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.leftovers import nothing_left, open_files
from zhcedge.core.errors import NotNowError, OutputError, UsageError, ZhcEdgeError
from zhcedge.service import control_socket
from zhcedge.service.control_socket import MAX_CLIENTS, MAX_REQUEST_BYTES, Client, ControlSocket
from zhcedge.service.socket_file import LONGEST_PATH_BYTES, SocketFile

TURNS = 300
IDLE_TURNS = 6  # enough to read what the kernel holds of a connection


class Bench:
    """A control socket whose loop turns when the test says so."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.control = ControlSocket(SocketFile(path))
        self.asked: list[tuple[dict[str, object], Client]] = []  # of `later`
        self.connections: list[socket.socket] = []

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self.connections:
            connection.close()
        self.control.close()

    def handle(self, request: dict[str, object], client: Client) -> None:
        word = request.get("do")
        if word == "echo":
            client.answer({"said": request.get("text")})
        elif word == "later":
            self.asked.append((request, client))
        elif word == "watch":
            client.watch()
        elif word == "bug":
            raise KeyError("a bug")
        else:
            raise UsageError("there is no such request", fix="use echo")

    def turn(self, turns: int = 1) -> None:
        for _ in range(turns):
            self.control.serve(self.handle)

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connections.append(connection)
        connection.settimeout(10)
        connection.connect(str(self.path))
        self.turn()
        return connection

    def send(self, connection: socket.socket, data: bytes) -> None:
        """Send all of it, with turns of the loop in between, as long as the other side takes it."""
        connection.setblocking(False)
        view = memoryview(data)
        for _ in range(TURNS):
            if not view:
                return
            try:
                view = view[connection.send(view) :]
            except BlockingIOError:
                pass
            except OSError:
                return
            self.turn()

    def ask(self, connection: socket.socket, **request: object) -> list[dict[str, object]]:
        self.send(connection, json.dumps(request).encode() + b"\n")
        return self.hear(connection)

    def hear(self, connection: socket.socket) -> list[dict[str, object]]:
        """Everything that is there after some turns of the loop."""
        connection.setblocking(False)
        data, idle = b"", 0
        for _ in range(TURNS):
            self.turn()
            try:
                chunk = connection.recv(1 << 20)
                idle = 0
            except BlockingIOError:
                idle += not self.control.is_busy
                if idle < IDLE_TURNS:
                    continue
                break
            except OSError:
                break
            if not chunk:
                break
            data += chunk
        return [json.loads(line) for line in data.splitlines()]

    def has_hung_up(self, connection: socket.socket) -> bool:
        connection.setblocking(False)
        try:
            while connection.recv(1 << 20):
                pass
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path / "c.sock") as made:
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One for many examples."""
    with Bench(tmp_path_factory.mktemp("control") / "c.sock") as made:
        yield made


def error_of(answer: Mapping[str, object]) -> dict[str, object]:
    error = answer["error"]
    assert isinstance(error, dict)
    assert set(error) == {"what", "where", "fix", "code"}
    return error


NEAR_JSON = st.sampled_from(
    [
        b'{"do":"echo"}\n',
        b'{"do":"later"}\n',
        b'{"do":"watch"}\n',
        b'{"do":"bug"}\n',
        b"{",
        b"\n",
        b"[" * 5000,
        b"\\ud800",
    ]
)


@given(chunks=st.lists(st.one_of(st.binary(max_size=200), NEAR_JSON), max_size=12), is_cut=st.booleans())
def test_whatever_is_sent_the_loop_goes_on_and_others_are_answered(
    shared: Bench, chunks: list[bytes], is_cut: bool
) -> None:
    connection = shared.connect()
    for chunk in chunks:
        shared.send(connection, chunk)
    for answer in shared.hear(connection):
        assert ("ok" in answer) != ("error" in answer)
    if is_cut:
        connection.close()
    assert shared.ask(shared.connect(), do="echo", text="\ud800") == [{"ok": True, "said": "\ud800"}]
    for connection in shared.connections:
        connection.close()
    shared.connections.clear()
    for _, client in shared.asked:
        client.answer({})  # it may have gone
    shared.asked.clear()
    shared.turn(3)
    assert not shared.control.is_busy


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(1, 40))
def test_requests_of_one_connection_are_answered_in_their_order_however_they_are_cut(
    shared: Bench, numbers: list[int], size: int
) -> None:
    connection = shared.connect()
    data = b"".join(b'{"do":"echo","text":%d}\n' % number for number in numbers)
    for at in range(0, len(data), size):
        shared.send(connection, data[at : at + size])
    assert [answer["said"] for answer in shared.hear(connection)] == numbers


def test_an_answer_that_comes_later_holds_back_only_its_own_connection(bench: Bench) -> None:
    first, second = bench.connect(), bench.connect()
    bench.send(first, b'{"do":"later"}\n{"do":"echo","text":2}\n')
    assert bench.hear(first) == []
    assert bench.ask(second, do="echo", text=1) == [{"ok": True, "said": 1}]
    ((_, client),) = bench.asked
    client.answer({"said": 1})
    assert [answer["said"] for answer in bench.hear(first)] == [1, 2]


def test_who_sends_no_more_still_gets_the_answer(bench: Bench) -> None:
    connection = bench.connect()
    bench.send(connection, b'{"do":"later"}\n')
    connection.shutdown(socket.SHUT_WR)
    bench.turn(3)
    ((_, client),) = bench.asked
    client.fail(NotNowError("it is busy", where="gate", fix="wait"))
    assert error_of(bench.hear(connection)[0]) == {"what": "it is busy", "where": "gate", "fix": "wait", "code": 75}
    assert bench.has_hung_up(connection)


def test_an_answer_to_one_that_has_gone_is_forgotten(bench: Bench) -> None:
    connection = bench.connect()
    bench.send(connection, b'{"do":"later"}\n')
    connection.close()
    bench.turn(3)
    ((_, client),) = bench.asked
    client.answer({})
    bench.turn()
    assert not bench.control.is_busy


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (b"nonsense", "not JSON"),
        (b"[1]", "no JSON object"),
        (b'{"do":1}', "no such request"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_request_that_is_none_is_said_to_be_none(bench: Bench, line: bytes, word: str) -> None:
    connection = bench.connect()
    bench.send(connection, line + b"\n")
    assert word in str(error_of(bench.hear(connection)[0])["what"])
    assert bench.ask(connection, do="echo", text=1) == [{"ok": True, "said": 1}]


def test_a_bug_is_an_answer_and_the_socket_lives(bench: Bench) -> None:
    connection = bench.connect()
    assert error_of(bench.ask(connection, do="bug")[0])["code"] == 70
    assert bench.ask(connection, do="echo", text=1) == [{"ok": True, "said": 1}]


def test_the_longest_request_is_taken_and_a_longer_one_ends_the_connection(bench: Bench) -> None:
    frame = b'{"do":"echo","text":"%s"}'
    longest = frame % (b"x" * (MAX_REQUEST_BYTES - len(frame % b"")))
    connection = bench.connect()
    bench.send(connection, longest + b"\n")
    (answer,) = bench.hear(connection)
    assert len(str(answer["said"])) == MAX_REQUEST_BYTES - len(frame % b"")
    other = bench.connect()
    bench.send(other, b"x" * (MAX_REQUEST_BYTES + 1))
    assert str(MAX_REQUEST_BYTES) in str(error_of(bench.hear(other)[0])["what"])
    assert bench.has_hung_up(other)


def test_200_connections_that_never_read_take_nobody_s_place(bench: Bench) -> None:
    before = open_files()
    for number in range(200):
        connection = bench.connect()
        bench.send(connection, b'{"do":"watch"}\n' if number % 2 else b'{"do":"echo"}\n')
        bench.control.tell_watchers(lambda: {"text": "x" * 1000})
    ours = len(bench.connections)
    assert open_files() - before <= ours + MAX_CLIENTS
    assert bench.ask(bench.connect(), do="echo", text=1) == [{"ok": True, "said": 1}]


def test_who_waits_for_an_answer_keeps_the_place_and_a_newcomer_is_told(bench: Bench) -> None:
    waiting = [bench.connect() for _ in range(MAX_CLIENTS)]
    for connection in waiting:
        bench.send(connection, b'{"do":"later"}\n')
    newcomer = bench.connect()
    assert error_of(bench.hear(newcomer)[0])["code"] == 75
    for _, client in bench.asked:
        client.answer({})
    assert [bench.hear(connection) for connection in waiting] == [[{"ok": True}]] * MAX_CLIENTS


def test_who_asks_without_reading_is_not_read_on_and_dropped_in_the_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = bench.connect()
    text = b'{"do":"echo","text":"%s"}\n' % (b"x" * 10_000)
    for _ in range(300):
        bench.send(connection, text)
    (client,) = bench.control._clients.values()
    assert len(client._incoming) + len(client._outgoing) < MAX_REQUEST_BYTES + 200_000
    assert not bench.control.is_busy
    monkeypatch.setattr(control_socket, "STUCK_S", 0.0)
    bench.turn(2)
    assert bench.has_hung_up(connection)


def test_a_watcher_gets_the_news_and_a_slow_one_misses_some(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_socket, "WATCH_S", 0.0)
    quick, slow = bench.connect(), bench.connect()
    for connection in (quick, slow):
        bench.send(connection, b'{"do":"watch"}\n')
    seen: list[object] = []
    for number in range(100):
        bench.control.tell_watchers(lambda number=number: {"number": number, "text": "x" * 20_000})  # type: ignore[misc]
        seen += [news["number"] for news in bench.hear(quick)]
    assert seen == list(range(100))
    missed = [news["number"] for news in bench.hear(slow)]
    assert missed == list(range(len(missed)))
    assert len(missed) < 100


def test_nothing_is_asked_for_watchers_that_are_not_there(bench: Bench) -> None:
    def never() -> dict[str, object]:
        raise AssertionError

    bench.connect()
    bench.control.tell_watchers(never)


def test_texts_of_errors_go_through_the_given_function(tmp_path: Path) -> None:
    with Bench(tmp_path / "c.sock") as bench:
        bench.control.close()
        bench.control = ControlSocket(SocketFile(bench.path), show=str.upper)
        assert error_of(bench.ask(bench.connect(), do="x")[0])["fix"] == "USE ECHO"


# -- the file ---------------------------------------------------------------------------------------------------
def is_answered(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def leave_dead(path: Path) -> None:
    """What a killed daemon leaves."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
        dead.listen()


def test_owner_and_group_of_the_folder_may_use_it_and_nobody_else(tmp_path: Path) -> None:
    with contextlib.suppress(PermissionError):
        os.chown(tmp_path, -1, 12345)
    file = SocketFile(tmp_path / "c.sock")
    facts = (tmp_path / "c.sock").stat()
    assert facts.st_mode & 0o777 == 0o660
    assert facts.st_gid == tmp_path.stat().st_gid
    file.close()
    assert list(tmp_path.iterdir()) == []


def test_a_dead_daemon_s_socket_is_replaced_and_a_living_one_s_is_not(tmp_path: Path) -> None:
    path = tmp_path / "c.sock"
    leave_dead(path)
    first = SocketFile(path)
    with pytest.raises(NotNowError, match="another daemon listens"):
        SocketFile(path)
    assert is_answered(path)
    first.close()
    first.close()
    assert not path.exists()


def test_of_many_that_start_at_once_one_gets_the_place_of_a_dead_one(tmp_path: Path) -> None:
    path = tmp_path / "c.sock"
    leave_dead(path)
    made: list[SocketFile] = []
    refused: list[ZhcEdgeError] = []

    def start() -> None:
        try:
            made.append(SocketFile(path))
        except ZhcEdgeError as error:
            refused.append(error)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), len(refused)) == (1, 7)
    assert all(isinstance(error, NotNowError) for error in refused)
    assert is_answered(path)
    made[0].close()


def test_another_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "c.sock"
    path.write_text("mine")
    with pytest.raises(OutputError, match="no socket"):
        SocketFile(path)
    assert path.read_text() == "mine"


def test_at_the_end_a_successor_s_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "c.sock"
    first = SocketFile(path)
    path.unlink()
    second = SocketFile(path)
    first.close()
    assert is_answered(path)
    second.close()


@pytest.mark.parametrize("name", ["absent/c.sock", "x" * LONGEST_PATH_BYTES])
def test_where_none_can_be_made_is_one_clear_error(tmp_path: Path, name: str) -> None:
    with nothing_left(), pytest.raises(OutputError, match=r"control\.socket"):
        SocketFile(tmp_path / name)
    assert list(tmp_path.iterdir()) == []

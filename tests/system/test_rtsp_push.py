"""Pushing annotated video to a real RTSP server, and that no server can hold up detection or learn a password."""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import av
import numpy as np
import pytest

from tests.contract.clips import Bytes, luma
from tests.contract.sinks import PATIENCE_S, brightness, slot, source_facts
from tests.leftovers import nothing_left
from tests.system.rtsp import DEBIAN_PYTHON, HOST, Camera, black_hole, free_port, need_server
from zhcedge.backends.cpu.rtsp_sink import RtspSink
from zhcedge.core.backoff import Backoff
from zhcedge.core.errors import OutputError
from zhcedge.core.ports import FrameSlot
from zhcedge.core.requests import SinkRequest
from zhcedge.media.rtsp_publisher import RtspPublisher

pytestmark = pytest.mark.slow  # minutes of real processes and servers

RECORDER = Path(__file__).with_name("rtsp_recorder.py")
PASSWORD = 'p@ss:w/o?r#d %41"x'


class Recorder(Camera):
    """Takes pushes to /push and writes them to `output`."""

    def __init__(self, output: Path, *options: str) -> None:
        super().__init__(output, *options)
        self._command = [DEBIAN_PYTHON, str(RECORDER), str(output), *options]
        self.output = output

    def __enter__(self) -> Recorder:
        self.start()
        return self

    def url(self, login: str = "") -> str:
        return f"rtsp://{login}{HOST}:{self.port}/push"


class Pusher:
    """A sink that is fed pictures whose brightness tells their number."""

    def __init__(self, url: str, timeout_s: float = 2.0) -> None:
        backoff = Backoff(0.05, 0.2, random.Random(1))
        self.sink = RtspSink(SinkRequest("gate", Path(), url=url), None, backoff, timeout_s)
        self.number = 0
        self.refused = 0
        self.returned: list[FrameSlot[Bytes]] = []

    def offer(self, is_noise: bool = False) -> None:
        """Offer a frame once, as the collector does for a camera."""
        frame = slot(320, 240, self.number, self.number / 10)
        if is_noise:
            luma(frame.surface)[:] = np.random.default_rng(self.number).integers(0, 255, (240, 320), np.uint8)
        self.refused += not self.sink.submit(frame, self.returned.append)
        self.number += 1

    def push_until(self, sent: int) -> None:
        """Offer a frame every 10 ms until so many more have reached a server."""
        wanted = self.sink.frames_written + sent
        for _ in range(int(PATIENCE_S / 0.01)):
            if self.sink.frames_written >= wanted:
                return
            self.offer()
            time.sleep(0.01)
        raise AssertionError(f"only {self.sink.frames_written} of {wanted} frames were sent")


@contextmanager
def pushing(url: str, is_live: bool = True, timeout_s: float = 2.0) -> Iterator[Pusher]:
    pusher = Pusher(url, timeout_s)
    with nothing_left(counts_files=False):  # servers of the tests' own hold connections
        pusher.sink.open(source_facts(320, 240, is_live=is_live))
        try:
            yield pusher
        finally:
            pusher.sink.close(complete=True)
    assert len(pusher.returned) == pusher.number - pusher.refused
    assert pusher.sink.frames_written + pusher.sink.dropped >= len(pusher.returned)


@pytest.mark.parametrize(
    "options", [(), ("--user", "cam"), ("--user", "cam", "--digest")], ids=["open", "basic", "digest"]
)
def test_a_server_gets_the_pictures(tmp_path: Path, options: tuple[str, ...], caplog: pytest.LogCaptureFixture) -> None:
    need_server()
    caplog.set_level(logging.DEBUG)
    output = tmp_path / "pushed.ts"
    login = f"cam:{quote(PASSWORD, safe='')}@" if options else ""
    with Recorder(output, *options, "--password", PASSWORD) as recorder:
        with pushing(recorder.url(login)) as pusher:
            pusher.push_until(sent=25)
            sent = pusher.sink.frames_written
            assert pusher.sink.connections == 1
        for _ in range(100):
            if output.stat().st_size and len(pictures(output)) >= sent:
                break
            time.sleep(0.1)
    seen = pictures(output)
    assert len(seen) >= 25
    known = {brightness(number) for number in range(28)}
    assert all(min(abs(value - one) for one in known) <= 3 for value in seen)
    assert "p%40ss" not in caplog.text
    assert PASSWORD not in caplog.text


def test_a_tls_server_is_pushed_to_once_it_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_server()
    certificate = self_signed(tmp_path)
    with Recorder(tmp_path / "o.ts", "--certificate", str(certificate)) as recorder:
        url = recorder.url().replace("rtsp:", "rtsps:")
        with pushing(url) as pusher:
            for _ in range(20):
                pusher.offer()
                time.sleep(0.02)
        assert pusher.sink.connections == 0
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with pushing(url) as pusher:
            pusher.push_until(sent=5)


def self_signed(folder: Path) -> Path:
    """Certificate and key for 127.0.0.1 in one file."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=server"]
    command += ["-addext", f"subjectAltName=IP:{HOST}", "-keyout", str(key), "-out", str(certificate)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    certificate.write_text(certificate.read_text() + key.read_text())
    return certificate


def pictures(stream: Path) -> list[int]:
    """Brightness of each picture."""
    with av.open(str(stream)) as container:
        return [int(frame.to_ndarray()[0, 0]) for frame in container.decode(video=0)]


def test_it_comes_back_after_every_restart_of_the_server(tmp_path: Path) -> None:
    need_server()
    recorder = Recorder(tmp_path / "pushed.ts")
    with pushing(recorder.url()) as pusher:
        for _ in range(3):
            with recorder:
                pusher.push_until(sent=10)
            refused = pusher.refused
            for _ in range(int(PATIENCE_S / 0.01)):
                if pusher.refused > refused:
                    break
                pusher.offer()
                time.sleep(0.01)
        assert pusher.sink.connections == 3
        assert pusher.refused > 0


def test_a_wrong_password_is_said_once_without_the_password(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    need_server()
    recorder = Recorder(tmp_path / "o.ts", "--user", "cam", "--password", "right")
    with recorder, pushing(recorder.url("cam:hunter2@")) as pusher:
        for _ in range(60):
            pusher.offer()
            time.sleep(0.01)
    assert caplog.text.count("refuses the user name or password") == 1
    assert "rtsp://cam:***@" in caplog.text
    assert "hunter2" not in caplog.text
    assert pusher.sink.frames_written == 0


@pytest.mark.parametrize("is_live", [True, False], ids=["camera", "file"])
def test_a_server_that_never_answers_holds_nobody_up(is_live: bool) -> None:
    with black_hole() as port, pushing(f"rtsp://{HOST}:{port}/x", is_live) as pusher:
        pusher.offer()
        for _ in range(int(PATIENCE_S / 0.01)):
            if pusher.sink._is_connecting:
                break
            time.sleep(0.01)
        for _ in range(500):
            pusher.offer()
        assert pusher.sink._is_connecting  # it still waits for the answer: nobody waited for it
        # A camera's frames are the channel's to count; a file's would be offered again and again.
        assert (pusher.refused > 490) == is_live
    assert pusher.sink.frames_written == 0


def test_a_server_that_stops_reading_is_given_up() -> None:
    """It answers, and then lets the connection fill up."""
    with deaf_server() as port, pushing(f"rtsp://{HOST}:{port}/x", timeout_s=0.3) as pusher:
        for _ in range(int(PATIENCE_S / 0.005)):
            if pusher.sink.connections > 1:
                break
            pusher.offer(is_noise=True)
            time.sleep(0.005)
        assert pusher.sink.connections > 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"RTSP/1.0 404 Not Found\r\nCSeq: 1\r\n\r\n", "has no such path"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no RTSP server"),
        (b"RTSP/1.0 401 Unauthorized\r\nWWW-Authenticate: Bearer x\r\n\r\n", "a way to log in that is not known"),
        (b"RTSP/1.0 500 Oops\r\nContent-Length: 4\r\n\r\nabcd", "answers 500 to ANNOUNCE"),
        (b"\0" * 40_000, "does not end"),
        (b"", "closed the connection"),
    ],
)
def test_an_odd_answer_is_an_error_that_shows_no_password(answer: bytes, words: str) -> None:
    with one_answer(answer) as port, pytest.raises(OutputError) as caught:
        RtspPublisher(f"rtsp://cam:hunter2@{HOST}:{port}/x", "v=0\r\n", "gate", timeout_s=2.0)
    assert words in str(caught.value)
    assert "hunter2" not in str(caught.value) + repr(caught.value) + repr(caught.value.__cause__)


@pytest.mark.parametrize(
    "url",
    [f"rtsp://u:hunter2@{HOST}:{free_port()}/x", "rtsp://u:hunter2@no.such.host.invalid/", "rtsp://[::/x"],
    ids=["nobody listens", "no such host", "no address"],
)
def test_a_server_that_is_not_there_is_an_error_that_shows_no_password(url: str) -> None:
    with pytest.raises(OutputError) as caught:
        RtspPublisher(url, "v=0\r\n", "gate", timeout_s=2.0)
    assert "hunter2" not in str(caught.value) + repr(caught.value.__cause__)


@contextmanager
def one_answer(answer: bytes) -> Iterator[int]:
    """A server that says one thing to whatever it is asked, and hangs up."""
    with socket.create_server((HOST, 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):  # a client that has heard enough hangs up
                connection.recv(65_536)
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield int(server.getsockname()[1])
        thread.join(PATIENCE_S)


@contextmanager
def deaf_server() -> Iterator[int]:
    """A server that agrees to everything, with a small receive buffer, and reads nothing after RECORD."""
    held: list[socket.socket] = []
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        server.bind((HOST, 0))
        server.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                held.append(connection)
                for _ in ("ANNOUNCE", "SETUP", "RECORD"):
                    connection.recv(65_536)
                    connection.sendall(b"RTSP/1.0 200 OK\r\nSession: 1;timeout=60\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield int(server.getsockname()[1])
        finally:
            server.shutdown(socket.SHUT_RDWR)
            for connection in held:
                connection.close()

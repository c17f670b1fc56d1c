"""Live sources against a real RTSP server: what they give, and that they come back whatever happens to it."""

from __future__ import annotations

import functools
import http.server
import itertools
import logging
import os
import random
import socket
import ssl
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import av
import pytest

from tests.contract.clips import held_packets, make_clip
from tests.leftovers import nothing_left
from tests.system.rtsp import HOST, Camera, Proxy, black_hole, bundled_stream, need_server, numbered_stream
from zhcedge.backends.cpu.source import PyAvSource
from zhcedge.core.errors import MediaError, SourceMissingError, SourceRefusedError, ZhcEdgeError
from zhcedge.core.lending import SurfaceLease
from zhcedge.core.ports import EndOfStream, Idle, SourceStatus
from zhcedge.core.requests import SourceOptions, SourceRequest
from zhcedge.core.types import FrameInfo
from zhcedge.media.live import LiveFeed
from zhcedge.media.packets import PacketRing
from zhcedge.service.clock import SystemClock

pytestmark = pytest.mark.slow  # minutes of real processes and servers

WALKERS = Path(__file__).resolve().parents[2] / "zhcedge" / "data" / "walkers.mp4"
PASSWORD = 'p@ss:w/o?r#d %41"x\\é&'
BACK_WITHIN_S = 30.0
GRACE_S = 0.4  # what `read` may take longer than it was told, beside what this machine is late itself

# `tools/soak rtsp` raises these.
RESTARTS = int(os.environ.pop("ZHC_TEST_RESTARTS", "5"))
OPENS = int(os.environ.pop("ZHC_TEST_OPENS", "20"))


class Metronome:
    """How late this machine wakes a thread that asked for 20 ms, right now: other work may hold up any call so long."""

    def __init__(self) -> None:
        self._late: deque[tuple[float, float]] = deque(maxlen=200)
        threading.Thread(target=self._tick, name="metronome", daemon=True).start()

    def _tick(self) -> None:
        while True:
            began_s = time.monotonic()
            time.sleep(0.02)
            now_s = time.monotonic()
            self._late.append((now_s, now_s - began_s - 0.02))

    def late_s(self, since_s: float) -> float:
        """In all, since a moment of time.monotonic; what it is late right now shows in the next tick."""
        time.sleep(0.03)
        return sum(late_s for at_s, late_s in list(self._late) if at_s >= since_s)


metronome = functools.cache(Metronome)


def assert_in_time(began_s: float, within_s: float) -> None:
    """What began then has just ended, and took no longer than it may on a machine of this moment's lateness."""
    took_s = time.monotonic() - began_s
    assert took_s < within_s or took_s < within_s + metronome().late_s(began_s)


def make(
    uri: str, options: SourceOptions | None = None, *, loop: bool = False, packets: PacketRing | None = None
) -> PyAvSource:
    options = options or SourceOptions()
    return PyAvSource(SourceRequest(3, "gate", uri, False, loop, SystemClock(), options, packets=packets), None)


@contextmanager
def opened(uri: str, options: SourceOptions | None = None, packets: PacketRing | None = None) -> Iterator[PyAvSource]:
    metronome()
    source = make(uri, options, packets=packets)
    try:
        source.open()
        yield source
    finally:
        began_s = time.monotonic()
        source.close()
        assert_in_time(began_s, 2.5)


def next_frame(source: PyAvSource, within_s: float = BACK_WITHIN_S) -> FrameInfo:
    """The next frame's facts; on the way every `read` keeps its time."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        began_s = time.monotonic()
        lease = source.read(0.1)
        if not isinstance(lease, SurfaceLease):  # a frame has been decoded as well
            assert_in_time(began_s, 0.1 + GRACE_S)
        assert not isinstance(lease, EndOfStream)
        if isinstance(lease, SurfaceLease):
            lease.release()
            return lease.info
    raise AssertionError(f"no frame within {within_s} s: {source.status}")


def frames(source: PyAvSource, count: int) -> list[FrameInfo]:
    return [next_frame(source) for _ in range(count)]


def wait_for_loss(source: PyAvSource, within_s: float = 20.0) -> SourceStatus:
    """Read until the source says that it is down and has nothing left to show."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        lease = source.read(0.05)
        if isinstance(lease, SurfaceLease):
            lease.release()
        elif not source.status.is_up:
            return source.status
    raise AssertionError("the source did not notice")


def assert_grows(infos: list[FrameInfo]) -> None:
    for values in ([info.media_time_s for info in infos], [info.sequence for info in infos]):
        assert values == sorted(set(values))


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_server()
    return numbered_stream(tmp_path_factory.mktemp("streams") / "numbered.ts", 60)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificate and key for 127.0.0.1, signed by themselves."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    key = path.with_name("key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=camera"]
    command += ["-addext", f"subjectAltName=IP:{HOST}", "-keyout", str(key), "-out", str(path)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    path.write_text(path.read_text() + key.read_text())
    return path


# -- what it gives -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_a_camera_plays_over(transport: str, tmp_path: Path) -> None:
    need_server()
    with Camera(bundled_stream(tmp_path / "walkers.ts", WALKERS)) as camera:
        ring = PacketRing()
        source = make(camera.address(), SourceOptions(transport=transport), packets=ring)
        facts = source.open()
        infos = frames(source, 40)
        now_ns = time.time_ns()
        status = source.status
        kept = held_packets(ring)
        source.close()
    assert (facts.format.width_px, facts.format.height_px, facts.is_live, facts.has_packets) == (768, 576, True, True)
    assert facts.fps == pytest.approx(10.0)
    assert [info.sequence for info in infos] == list(range(40))
    assert_grows(infos)
    assert infos[-1].media_time_s - infos[0].media_time_s == pytest.approx(3.9, abs=0.05)
    # The server's clock is ours: the camera's sender reports must agree with it.
    assert 0 <= now_ns - infos[-1].capture_time_ns < 1_000_000_000
    assert status == SourceStatus(is_up=True)
    assert kept[0][0].is_keyframe
    assert len(kept) >= 40


@pytest.mark.slow
def test_capture_times_come_from_the_camera_and_not_from_the_network(numbered: Path) -> None:
    with Camera(numbered) as camera, opened(camera.address()) as source:
        infos = frames(source, 200)[100:]  # by then a sender report has come
    steps_ms = [(b.capture_time_ns - a.capture_time_ns) / 1e6 for a, b in itertools.pairwise(infos)]
    assert steps_ms == pytest.approx([40.0] * len(steps_ms), abs=1.0)


def test_frames_are_kept_evenly_at_the_wanted_rate(numbered: Path) -> None:
    with Camera(numbered) as camera:
        source = make(camera.address(), SourceOptions(fps=5.0))
        assert source.open().fps == 5.0
        infos = frames(source, 15)
        source.close()
    assert_grows(infos)
    steps = [b.media_time_s - a.media_time_s for a, b in itertools.pairwise(infos)]
    assert steps == pytest.approx([0.2] * 14, abs=0.041)


def test_warm_up_ends_with_counting_anew(numbered: Path) -> None:
    with Camera(numbered) as camera, opened(camera.address()) as source:
        frames(source, 20)
        source.rewind()
        infos = frames(source, 20)
    assert (infos[0].sequence, infos[0].media_time_s) == (0, 0.0)
    assert_grows(infos)


# -- who may see it --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["basic", "digest"])
def test_the_right_password_opens_and_the_wrong_one_says_so(
    method: str, numbered: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    options = ["--user", "ad min", "--password", PASSWORD, *(["--digest"] if method == "digest" else [])]
    with Camera(numbered, *options) as camera:
        with opened(camera.address(), SourceOptions(username="ad min", password=PASSWORD)) as source:
            next_frame(source)
        with opened(camera.address(login=f"ad%20min:{quote(PASSWORD, safe='')}@")) as source:
            next_frame(source)
        for wrong in (
            make(camera.address(), SourceOptions(username="ad min", password="not-this-one")),
            make(camera.address(login="ad%20min:not-this-one@")),
            make(camera.address()),
        ):
            with pytest.raises(SourceRefusedError) as caught:
                wrong.open()
            told = "".join([str(caught.value), repr(caught.value), caught.value.where, *wrong.warnings])
            assert "not-this-one" not in told
            assert (caught.value.__cause__, caught.value.__context__) == (None, None)
    printed = capfd.readouterr()  # FFmpeg writes there, past Python
    for text in (caplog.text, printed.out, printed.err):
        assert "not-this-one" not in text
        assert PASSWORD not in text
        assert quote(PASSWORD, safe="") not in text


@pytest.mark.slow
def test_a_password_that_was_changed_does_not_lead_to_a_storm_of_tries(numbered: Path) -> None:
    login = SourceOptions(username="admin", password="old")
    with Camera(numbered, "--user", "admin", "--password", "old") as camera, Proxy(camera.port) as proxy:
        source = make(proxy.address(), login)
        source.open()
        next_frame(source)
        changed = Camera(numbered, "--user", "admin", "--password", "new")
        changed.port = camera.port
        camera.kill()
        with changed:
            wait_for_loss(source)
            deadline_s = time.monotonic() + 20
            while "wrong" not in source.status.reason and time.monotonic() < deadline_s:
                assert isinstance(source.read(0.1), Idle)
            assert "wrong" in source.status.reason
            before = proxy.connections
            deadline_s = time.monotonic() + 4.5  # the least wait after a refusal is 5 s
            while time.monotonic() < deadline_s:
                assert isinstance(source.read(0.1), Idle)
            assert proxy.connections == before
        source.close()


def test_tls_is_verified_unless_told_otherwise(numbered: Path, certificate: Path) -> None:
    with Camera(numbered, "--certificate", str(certificate)) as camera:
        address = camera.address("rtsps")
        for options in (SourceOptions(ca_file=certificate), SourceOptions(verify_tls=False)):
            with opened(address, options) as source:
                next_frame(source)
        with pytest.raises(SourceMissingError, match="certificate"):
            make(address).open()
        with pytest.raises(SourceMissingError, match="certificate"):
            make(address.replace(HOST, "localhost"), SourceOptions(ca_file=certificate)).open()
        with pytest.raises(SourceMissingError, match="no file"):
            make(address, SourceOptions(ca_file=Path("no/such/ca.pem"))).open()


# -- what happens to it ----------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_camera_that_is_killed_and_comes_back_is_played_again(numbered: Path) -> None:
    chance = random.Random(4)
    ring = PacketRing()
    options = SourceOptions(read_timeout_s=2.0)
    with Camera(numbered) as camera, opened(camera.address(), options, ring) as source:
        infos = frames(source, 5)
        for restarts in range(1, RESTARTS + 1):
            infos += frames(source, chance.randrange(1, 20))
            camera.kill()
            status = wait_for_loss(source)
            assert status.reason
            deadline_s = time.monotonic() + chance.uniform(0.0, 3.0)
            while time.monotonic() < deadline_s:
                assert isinstance(source.read(0.1), Idle)
            camera.start()
            infos.append(next_frame(source, BACK_WITHIN_S))
            assert source.status == SourceStatus(is_up=True, reconnects=restarts)
            kept = [packet for packet, _ in held_packets(ring) if packet.form is ring.form]
            assert kept[0].is_keyframe
            assert kept[0].captured_ns > infos[-2].capture_time_ns  # nothing of the last connection
        assert_grows(infos)


@pytest.mark.parametrize("scheme", ["rtsp", "http"])
def test_a_server_that_never_answers_costs_no_more_than_the_timeout(scheme: str) -> None:
    with nothing_left(), black_hole() as port:
        source = make(f"{scheme}://{HOST}:{port}/cam", SourceOptions(connect_timeout_s=1.0, read_timeout_s=1.0))
        began_s = time.monotonic()
        with pytest.raises(SourceMissingError, match=r"nothing came|no picture"):
            source.open()
        assert_in_time(began_s, 1.0 + 1.0 + 1.5 + GRACE_S)


def test_a_stream_that_stops_in_the_middle_is_noticed_and_taken_up_again(numbered: Path) -> None:
    options = SourceOptions(read_timeout_s=1.0)
    with Camera(numbered) as camera, Proxy(camera.port) as proxy, opened(proxy.address(), options) as source:
        infos = frames(source, 10)
        proxy.is_stalled = True
        assert "nothing came" in wait_for_loss(source).reason
        proxy.is_stalled = False
        infos += frames(source, 5)
        assert_grows(infos)
        proxy.is_stalled = True  # and `opened` sees that closing does not wait for it


@pytest.mark.slow
def test_a_frozen_picture_is_noticed_and_a_moving_one_is_not(tmp_path: Path, numbered: Path) -> None:
    options = SourceOptions(freeze_timeout_s=1.0)
    with Camera(numbered) as camera, opened(camera.address(), options) as source:
        frames(source, 75)
        assert source.status == SourceStatus(is_up=True)
    still = numbered_stream(tmp_path / "still.ts", 20, is_still=True)
    with Camera(still) as camera, opened(camera.address(), options) as source:
        assert "not changed" in wait_for_loss(source).reason
        assert next_frame(source).sequence > 10  # and tried again


@pytest.mark.slow
def test_a_frozen_picture_is_noticed_by_its_packets_where_pictures_are_out_of_reach(tmp_path: Path) -> None:
    need_server()

    def play(stream: Path) -> SourceStatus:
        options = SourceOptions(freeze_timeout_s=1.0)
        with Camera(stream) as camera:
            request = SourceRequest(3, "gate", camera.address(), False, False, SystemClock(), options)
            feed = LiveFeed(request, watches_packets=True)
            feed.open()
            deadline_s = time.monotonic() + 8.0
            while feed.status.is_up and time.monotonic() < deadline_s:
                if feed.wait_packet(0.1):
                    feed.next_packet()
            status = feed.status
            feed.close()
        return status

    assert play(bundled_stream(tmp_path / "walkers.ts", WALKERS)) == SourceStatus(is_up=True)
    assert "not changed" in play(numbered_stream(tmp_path / "still.ts", 20, is_still=True)).reason


@pytest.mark.slow
def test_a_change_of_size_on_the_way_is_scaled_to_the_opened_size(tmp_path: Path) -> None:
    need_server()
    stream = numbered_stream(tmp_path / "sizes.ts", 8, sizes=((64, 48), (128, 96)))
    with Camera(stream) as camera, opened(camera.address()) as source:
        deadline_s = time.monotonic() + 20
        while not any("128x96" in warning for warning in source.warnings):
            assert time.monotonic() < deadline_s
            lease = source.read(0.5)
            if isinstance(lease, SurfaceLease):
                assert (lease.surface.format.width_px, lease.surface.format.height_px) == (64, 48)
                lease.release()
        for _ in range(10):
            next_frame(source)


@pytest.mark.slow
def test_lost_bytes_do_not_end_a_stream(numbered: Path) -> None:
    chance = random.Random(7)
    options = SourceOptions(read_timeout_s=2.0)
    with Camera(numbered) as camera, Proxy(camera.port) as proxy, opened(proxy.address(), options) as source:
        infos = frames(source, 20)
        proxy.spoil = lambda piece: None if chance.random() < 0.1 else piece
        infos += frames(source, 60)
        proxy.spoil = lambda piece: piece
        infos += frames(source, 50)
        assert_grows(infos)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_lost_packets_cost_pictures_and_not_the_stream(numbered: Path, transport: str) -> None:
    options = SourceOptions(transport=transport)
    with Camera(numbered, "--loss", "0.1") as camera, opened(camera.address(), options) as source:
        infos = frames(source, 150)
        assert_grows(infos)
        assert source.status == SourceStatus(is_up=True)


@pytest.mark.slow
def test_late_frames_are_dropped_and_counted(numbered: Path) -> None:
    options = SourceOptions(max_latency_ms=500)
    with Camera(numbered) as camera, Proxy(camera.port) as proxy, opened(proxy.address(), options) as source:
        frames(source, 50)
        assert source.warnings == ()
        proxy.delay_s = 1.5
        time.sleep(1.6)
        proxy.delay_s = 0.0  # what was held back comes all at once
        deadline_s = time.monotonic() + 10
        while not source.warnings and time.monotonic() < deadline_s:
            next_frame(source)
        assert "later than 500 ms" in source.warnings[0]
        frames(source, 30)
        before = source.warnings
        frames(source, 30)
        assert source.warnings == before


# -- what it costs -----------------------------------------------------------------------------------------------
def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_a_source_that_is_opened_again_and_again_leaves_nothing_behind(numbered: Path) -> None:
    def once(address: str, options: SourceOptions) -> None:
        try:
            with opened(address, options) as source:
                next_frame(source)
        except ZhcEdgeError:
            pass

    hurried = SourceOptions(connect_timeout_s=0.2, read_timeout_s=0.2)
    with Camera(numbered, "--user", "admin", "--password", "x") as camera, black_hole() as hole:
        right, wrong = SourceOptions(username="admin", password="x"), SourceOptions()

        def all_kinds(round_: int) -> None:
            if round_ % 4 == 0:
                once(camera.address(), right)
            once(camera.address(), wrong)
            once(f"rtsp://{HOST}:{hole}/cam", hurried)

        for round_ in range(4):
            all_kinds(round_)
        time.sleep(1.0)  # the last connections' ends
        with nothing_left():
            memory = resident_bytes()
            for round_ in range(OPENS):
                all_kinds(round_)
        assert resident_bytes() - memory < 8 * 1024 * 1024


# -- files behind addresses --------------------------------------------------------------------------------------
class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def web_server(folder: Path, certificate: Path | None = None) -> Iterator[str]:
    handler = functools.partial(QuietHandler, directory=str(folder))
    server = http.server.ThreadingHTTPServer((HOST, 0), handler)
    scheme = "http"
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"{scheme}://{HOST}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("name", ["clip.mp4", "clip.ts"])
def test_a_file_behind_an_address_is_played_whole_and_ends(tmp_path: Path, name: str) -> None:
    make_clip(tmp_path / name, 60)
    with web_server(tmp_path) as base:
        source = make(f"{base}/{name}")
        facts = source.open()
        infos = []
        while not isinstance(lease := source.read(5.0), EndOfStream):
            assert isinstance(lease, SurfaceLease)
            infos.append(lease.info)
            lease.release()
        source.close()
    assert not facts.is_live
    assert len(infos) == 60
    assert_grows(infos)
    assert [info.media_time_s for info in infos] == pytest.approx([index / 10 for index in range(60)], abs=1e-3)
    assert source.warnings == ()


def test_a_looped_file_behind_an_address_begins_again(tmp_path: Path) -> None:
    make_clip(tmp_path / "clip.mp4", 12)
    with web_server(tmp_path) as base:
        source = make(f"{base}/clip.mp4", loop=True)
        source.open()
        infos = frames(source, 30)
        source.close()
    assert_grows(infos)


@contextmanager
def motion_jpeg_camera(picture: bytes) -> Iterator[tuple[str, threading.Event]]:
    """The address of a web camera that sends one JPEG after the other, and what ends its connections when set."""
    ended = threading.Event()

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
            self.end_headers()
            head = b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n" % len(picture)
            while not ended.wait(0.04):
                self.wfile.write(head + picture + b"\r\n")

    server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}/video", ended
    finally:
        ended.set()
        server.shutdown()
        server.server_close()


def test_a_camera_of_single_pictures_is_live_and_comes_back(tmp_path: Path) -> None:
    with av.open(str(make_clip(tmp_path / "one.mkv", 1, codec="mjpeg", pixel_format="yuvj420p", color_range=2))) as one:
        picture = next(bytes(packet) for packet in one.demux(video=0) if packet.size)
    with motion_jpeg_camera(picture) as (address, ended), opened(address) as source:
        infos = frames(source, 30)
        ended.set()
        assert wait_for_loss(source).reason
        ended.clear()
        infos += frames(source, 10)
        assert_grows(infos)
        assert source.status == SourceStatus(is_up=True, reconnects=1)


def test_a_secure_web_server_is_verified(tmp_path: Path, certificate: Path) -> None:
    make_clip(tmp_path / "clip.mp4", 4)
    with web_server(tmp_path, certificate) as base:
        with opened(f"{base}/clip.mp4", SourceOptions(ca_file=certificate)) as source:
            next_frame(source)
        with pytest.raises(SourceMissingError, match="certificate"):
            make(f"{base}/clip.mp4").open()


def test_a_playlist_from_the_network_reads_no_local_file(tmp_path: Path) -> None:
    folder = tmp_path / "served"
    folder.mkdir()
    clip = make_clip(tmp_path / "private.ts", 12)
    (folder / "list.m3u8").write_text(
        f"#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:1.2,\nfile://{clip}\n#EXT-X-ENDLIST\n", encoding="utf-8"
    )
    (folder / "list.ffconcat").write_text(f"ffconcat version 1.0\nfile 'file:{clip}'\n", encoding="utf-8")
    with web_server(folder) as base:
        for name in ("list.m3u8", "list.ffconcat"):
            with pytest.raises((MediaError, SourceMissingError)):
                make(f"{base}/{name}", SourceOptions(connect_timeout_s=3.0)).open()


@pytest.mark.parametrize(
    ("address", "match"),
    [
        ("http://{host}:{port}/nothing.mp4", "no such stream"),
        ("http://{host}:1/a", "refused"),
        ("rtsp://no-such-host.invalid/a", "not known"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(tmp_path: Path, address: str, match: str) -> None:
    with web_server(tmp_path) as base:
        port = base.rpartition(":")[2]
        with pytest.raises(SourceMissingError, match=match) as caught:
            make(address.format(host=HOST, port=port)).open()
    assert "\n" not in str(caught.value)
    assert caught.value.fix


def test_a_server_that_speaks_another_language_is_refused() -> None:
    def answer(server: socket.socket) -> None:
        client, _ = server.accept()
        with client:
            client.recv(1000)
            client.sendall(b"220 mail.example.com ESMTP\r\n" * 50)

    with socket.create_server((HOST, 0)) as server:
        threading.Thread(target=answer, args=(server,), daemon=True).start()
        with pytest.raises((MediaError, SourceMissingError)):
            make(f"rtsp://{HOST}:{server.getsockname()[1]}/a", SourceOptions(connect_timeout_s=2.0)).open()

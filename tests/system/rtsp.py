"""Cameras for tests: GStreamer's RTSP server as a child, the streams it plays, and a network that fails."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import av
import pytest

from tests.contract.clips import numbered_frame

SERVER = Path(__file__).with_name("rtsp_server.py")
DEBIAN_PYTHON = "/usr/bin/python3"
HOST = "127.0.0.1"
NEEDS = 'import gi; gi.require_version("GstRtspServer", "1.0"); from gi.repository import GstRtspServer'


def need_server() -> None:
    """Skip where the server's packages are not installed."""
    try:
        done = subprocess.run([DEBIAN_PYTHON, "-c", NEEDS], capture_output=True, check=False)
    except OSError:
        pytest.skip("there is no /usr/bin/python3")
    if done.returncode:
        pytest.skip("gir1.2-gst-rtsp-server-1.0 and python3-gi are not installed")


def free_port() -> int:
    with socket.create_server((HOST, 0)) as server:
        return int(server.getsockname()[1])


class Camera:
    """An RTSP server that can be killed and started again on its port. A context manager.

    Args:
        before: a command line that runs another one: in another network, for one.
    """

    def __init__(self, stream: Path, *options: str, before: Sequence[str] = ()) -> None:
        self._command = [*before, DEBIAN_PYTHON, str(SERVER), str(stream), *options]
        self.port = free_port()
        self._process: subprocess.Popen[str] | None = None

    def address(self, scheme: str = "rtsp", login: str = "") -> str:
        return f"{scheme}://{login}{HOST}:{self.port}/cam"

    def start(self) -> None:
        """Start and wait until it serves; the port may still be taken for a moment by the one before."""
        command = [*self._command, "--port", str(self.port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline().startswith("ready")

    def kill(self) -> None:
        """As when somebody pulls its plug: nobody says goodbye."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __enter__(self) -> Camera:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def bundled_stream(path: Path, clip: Path, times: int = 2, fps: int | None = None) -> Path:
    """A clip's H.264 packets, unchanged, as an MPEG transport stream of `times` passes, at another rate if wanted."""
    with av.open(str(clip)) as source, av.open(str(path), "w", format="mpegts") as output:
        video = source.streams.video[0]
        to_start_codes = av.bitstream.BitStreamFilterContext("h264_mp4toannexb", video)
        units = [
            (bytes(unit), unit.is_keyframe)
            for packet in source.demux(video)
            if packet.size
            for unit in to_start_codes.filter(packet)
        ]
        stream = output.add_stream_from_template(video)
        assert video.average_rate is not None
        for index, (data, is_keyframe) in enumerate(units * times):
            _mux(output, stream, data, index, 1 / Fraction(fps or video.average_rate), is_keyframe)
    return path


def numbered_stream(
    path: Path, seconds: int, sizes: tuple[tuple[int, int], ...] = ((64, 48),), fps: int = 25, is_still: bool = False
) -> Path:
    """Numbered pictures (see clips.py) as an MPEG transport stream; its size changes from part to part.

    A still one shows the first picture over and over, encoded anew each time.
    """
    index = 0
    with av.open(str(path), "w", format="mpegts") as output:
        stream = None
        for width, height in sizes:
            encoder = av.CodecContext.create("libx264", "w")
            assert isinstance(encoder, av.VideoCodecContext)
            encoder.width, encoder.height, encoder.pix_fmt = width, height, "yuv420p"
            encoder.time_base, encoder.framerate = Fraction(1, fps), Fraction(fps)
            encoder.gop_size = fps // 2
            encoder.options = {"preset": "ultrafast", "tune": "zerolatency"}
            if stream is None:
                stream = output.add_stream("libx264", rate=fps)
                assert isinstance(stream, av.VideoStream)
                stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            for _ in range(seconds * fps // len(sizes)):
                frame = av.VideoFrame.from_ndarray(numbered_frame(width, height, 0 if is_still else index), "rgb24")
                frame = frame.reformat(format="yuv420p")
                frame.pts, frame.time_base = None, Fraction(1, fps)
                for packet in encoder.encode(frame):
                    _mux(output, stream, bytes(packet), index, Fraction(1, fps), packet.is_keyframe)
                    index += 1
    return path


def _mux(
    output: av.container.OutputContainer,
    stream: av.VideoStream,
    data: bytes,
    index: int,
    interval: Fraction,
    is_keyframe: bool,
) -> None:
    packet = av.Packet(data)
    packet.stream, packet.time_base = stream, interval
    packet.pts = packet.dts = index
    packet.duration = 1
    packet.is_keyframe = is_keyframe
    output.mux(packet)


class Proxy:
    """A TCP proxy to `port` whose behaviour a test changes while it runs. A context manager.

    Attributes:
        spoil: what becomes of each piece that the server sends; None lets it vanish.
        delay_s: how long what comes from the server is held back.
        is_stalled: keeps what comes from the server back, without closing anything.
        connections: how many were made so far.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server((HOST, 0))
        self.port = int(self._listener.getsockname()[1])
        self.spoil: Callable[[bytes], bytes | None] = lambda piece: piece
        self.delay_s = 0.0
        self.is_stalled = False
        self.connections = 0
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # shutdown, because close alone does not wake a thread that is blocked in accept or recv
        for one in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def address(self) -> str:
        return f"rtsp://{HOST}:{self.port}/cam"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                self._sockets.append(client)
                try:
                    server = socket.create_connection((HOST, self._target))
                except OSError:
                    client.close()
                    continue
                self._sockets.append(server)
                threading.Thread(target=self._copy, args=(client, server, False), daemon=True).start()
                threading.Thread(target=self._copy, args=(server, client, True), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket, is_from_server: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                if is_from_server and self.delay_s:
                    time.sleep(self.delay_s)
                kept = self.spoil(piece) if is_from_server else piece
                if kept is not None and not (is_from_server and self.is_stalled):
                    target.sendall(kept)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def black_hole() -> Iterator[int]:
    """The port of a server that accepts connections, or lets them hang, and never says a word."""
    with socket.create_server((HOST, 0), backlog=64) as server:
        yield int(server.getsockname()[1])

"""Damaged and hostile files: every one ends in frames, a warning, or one clear error; never in a crash or a hang."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from tests.conftest import IS_EVERYTHING
from tests.contract.clips import cut_clip, make_clip, numbered_frame
from tests.system.play_files import KINDS

pytestmark = [pytest.mark.slow, pytest.mark.company]  # minutes of real processes and servers

ROOT = Path(__file__).resolve().parents[2]
WALKERS = ROOT / "zhcedge" / "data" / "walkers.mp4"
VIDEOS, IMAGES = (350, 150) if IS_EVERYTHING else (25, 15)
SEED = 20260


@dataclass(frozen=True)
class Outcome:
    """How a file went. `signal` is what ended the program while it played, 0 when none did."""

    path: str
    frames: int = 0
    error: str | None = None
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    signal: int = 0


def play(kind: str, paths: Sequence[Path | str]) -> list[Outcome]:
    """Play files in a program of their own, started again behind one that ended it."""
    outcomes: list[Outcome] = []
    left = [str(path) for path in paths]
    while left:
        done = subprocess.run(
            [sys.executable, "-m", "tests.system.play_files", kind],
            input="\n".join(left) + "\n",
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        )
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        finished = [Outcome(**{**row, "warnings": tuple(row["warnings"])}) for row in rows if "frames" in row]
        outcomes += finished
        left = left[len(finished) :]
        if done.returncode:
            outcomes.append(Outcome(left.pop(0), error=done.stderr[-2000:], signal=-done.returncode))
        assert done.returncode or (not left and not done.stderr), done.stderr
    return outcomes


def assert_clean(outcomes: Sequence[Outcome]) -> None:
    """Frames or one clear error each."""
    for outcome in outcomes:
        assert not outcome.signal, f"{outcome.path}: {signal.strsignal(outcome.signal)}\n{outcome.error}"
        assert outcome.frames or outcome.error, outcome
        if outcome.error is not None:
            assert outcome.error.startswith(("MediaError: fuzz: ", "SourceMissingError: fuzz: ")), outcome
            assert "\n" not in outcome.error, outcome
            assert Path(outcome.path).name in outcome.error, outcome


# -- seeded damage -------------------------------------------------------------------------------------------------
def flip_bits(data: bytearray, chance: random.Random) -> None:
    for _ in range(2 ** chance.randrange(8)):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def flip_bits_of_the_header(data: bytearray, chance: random.Random) -> None:
    for _ in range(2 ** chance.randrange(5)):
        data[chance.randrange(min(len(data), 700))] ^= 1 << chance.randrange(8)


def flip_bits_of_the_index(data: bytearray, chance: random.Random) -> None:
    """MP4 keeps it at the end."""
    for _ in range(2 ** chance.randrange(5)):
        data[-1 - chance.randrange(min(len(data), 1500))] ^= 1 << chance.randrange(8)


def truncate(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def splice_garbage(data: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(data))
    data[start : start + chance.randrange(200)] = chance.randbytes(chance.randrange(1, 2000))


def move_a_block(data: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(data))
    block = data[start : start + 300]
    del data[start : start + 300]
    place = chance.randrange(len(data) + 1)
    data[place:place] = block


def blow_up_a_number(data: bytearray, chance: random.Random) -> None:
    place = chance.randrange(max(len(data) - 4, 1))
    data[place : place + 4] = chance.choice([b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"\x80\0\0\0"])


DAMAGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    flip_bits,
    flip_bits_of_the_header,
    flip_bits_of_the_index,
    truncate,
    splice_garbage,
    move_a_block,
    blow_up_a_number,
)


def damaged(originals: Sequence[Path], count: int, folder: Path, seed: int) -> list[Path]:
    """`count` files, each an original with one or two damages."""
    chance, paths = random.Random(seed), []
    for number in range(count):
        original = originals[number % len(originals)]
        data = bytearray(original.read_bytes())
        for _ in range(chance.choice([1, 1, 2])):
            if data:
                DAMAGES[chance.randrange(len(DAMAGES))](data, chance)
        path = folder / f"{number}{original.suffix}"
        path.write_bytes(data)
        paths.append(path)
    return paths


def videos(folder: Path) -> list[Path]:
    """Short ones in the containers and formats that cameras and phones write."""
    return [
        cut_clip(WALKERS, folder / "walkers.mp4", 12),
        make_clip(folder / "tiny.mp4"),
        make_clip(folder / "tiny.ts"),
        make_clip(folder / "tiny.mkv"),
        make_clip(folder / "tiny.h264"),
        make_clip(folder / "jpeg.avi", pixel_format="yuvj420p", codec="mjpeg", color_range=2),
        make_clip(folder / "mpeg4.mov", codec="mpeg4"),
    ]


def images(folder: Path) -> list[Path]:
    picture = Image.fromarray(numbered_frame(96, 64, 3))
    exif = picture.getexif()
    exif[0x0112] = 6
    paths = []
    for suffix in ("jpg", "png", "webp", "tif", "bmp", "ppm", "tga", "gif"):
        path = folder / f"picture.{suffix}"
        picture.save(path, **({"exif": exif} if suffix in ("jpg", "png", "webp", "tif") else {}))
        paths.append(path)
    picture.save(folder / "packed.tif", compression="tiff_lzw")
    picture.convert("CMYK").save(folder / "cmyk.jpg")
    Image.fromarray(np.arange(6144, dtype=np.uint16).reshape(64, 96)).save(folder / "deep.png")
    return [*paths, folder / "packed.tif", folder / "cmyk.jpg", folder / "deep.png"]


@pytest.mark.parametrize(("kind", "count", "originals"), [("video", VIDEOS, videos), ("image", IMAGES, images)])
def test_damaged_files_end_in_frames_or_in_one_clear_error(
    tmp_path: Path, kind: str, count: int, originals: Callable[[Path], list[Path]]
) -> None:
    assert kind in KINDS
    (tmp_path / "damaged").mkdir()
    outcomes = play(kind, damaged(originals(tmp_path), count, tmp_path / "damaged", SEED))
    assert len(outcomes) == count
    assert_clean(outcomes)


# -- what a seed hardly finds --------------------------------------------------------------------------------------
def play_one(kind: str, path: Path) -> Outcome:
    (outcome,) = play(kind, [path])
    assert_clean([outcome])
    return outcome


@pytest.mark.slow
def test_the_watch_sees_a_crash_a_hang_and_a_traceback(tmp_path: Path) -> None:
    """What the tests here rely on."""
    for fault in ("os.kill(os.getpid(), 11)", "time.sleep(9)", "1 / 0"):
        program = (
            "import os, sys, time\n"
            "from tests.system import play_files\n"
            "play_files.ALARM_S = 1\n"
            "class Source(play_files.PyAvSource):\n"
            "    def open(self):\n"
            f"        {fault}\n"
            "play_files.PyAvSource = Source\n"
            "play_files.main('video')\n"
        )
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, input="a.mp4\n", cwd=ROOT, capture_output=True, text=True, check=False)
        last = json.loads(done.stdout.splitlines()[-1])
        ended_by = {"os": -signal.SIGSEGV, "time": -signal.SIGALRM, "1 / 0": 0}[fault.partition(".")[0]]
        assert done.returncode == ended_by
        assert str(last.get("error", "")).startswith("TRACEBACK") == (not ended_by)
        with pytest.raises(AssertionError):
            assert_clean([Outcome("a.mp4", error=last.get("error"), signal=-done.returncode)])


def test_a_size_beyond_the_limit_is_refused_before_a_picture_is_made(tmp_path: Path) -> None:
    """Raw video in AVI, whose header alone says how large it is (BITMAPINFOHEADER)."""
    data = bytearray(make_clip(tmp_path / "raw.avi", count=2, codec="rawvideo").read_bytes())
    place = data.index(b"strf") + 12
    paths = []
    for width, height in ((16_000, 16_000), (8193, 8192), (65_535, 65_535), (2**31 - 1, 2**31 - 1), (0, 0)):
        data[place : place + 8] = struct.pack("<II", width, height)
        paths.append(tmp_path / f"{width}x{height}.avi")
        paths[-1].write_bytes(data)
    outcomes = play("video", paths)
    assert_clean(outcomes)
    assert not any(outcome.frames for outcome in outcomes)


@pytest.mark.slow
def test_the_refusal_of_a_size_says_it(tmp_path: Path) -> None:
    outcome = play_one("video", make_clip(tmp_path / "wide.mp4", 1, 16_384, 4128))
    assert "16384x4128" in (outcome.error or "")


def test_a_stream_that_grows_beyond_the_limit_does_not_take_the_memory_with_it(tmp_path: Path) -> None:
    """Two JPEG pictures of 64 x 48, then some whose headers say 16000 x 16000."""
    path = make_clip(tmp_path / "jpeg.avi", count=6, pixel_format="yuvj420p", codec="mjpeg", color_range=2)
    data = bytearray(path.read_bytes())
    places = [place for place in range(len(data)) if data.startswith(b"\xff\xc0\x00\x11\x08", place)]
    assert len(places) == 6
    for place in places[2:]:
        data[place + 5 : place + 9] = struct.pack(">HH", 16_000, 16_000)
    path.write_bytes(data)
    assert play_one("video", path).frames == 2


def test_an_image_of_an_absurd_size_is_refused(tmp_path: Path) -> None:
    paths = []
    for width, height in ((65_535, 65_535), (65_535, 1025), (16_385, 1)):
        header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        start = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
        paths.append(tmp_path / f"{width}x{height}.png")
        paths[-1].write_bytes(start + struct.pack(">I", 64) + b"IDAT" + b"\0" * 64)
    outcomes = play("image", paths)
    assert_clean(outcomes)
    assert all("more than can be taken" in (outcome.error or "") for outcome in outcomes)


def clip_with_times(path: Path, times: Sequence[int]) -> Path:
    """MPEG-TS with these presentation times in 90 kHz ticks, one picture each, all key frames."""
    with av.open(str(path), "w", format="mpegts") as output:
        stream = output.add_stream("mpeg2video", rate=25)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.gop_size = 0
        packets = []
        for index in range(len(times)):
            frame = av.VideoFrame.from_ndarray(numbered_frame(64, 48, index), "rgb24").reformat(format="yuv420p")
            frame.pts, frame.time_base = index, Fraction(1, 25)
            packets += stream.encode(frame)
        packets += stream.encode(None)
        for ticks, packet in zip(times, packets, strict=True):
            packet.pts = packet.dts = ticks
            packet.time_base = Fraction(1, 90_000)
            output.mux(packet)
    return path


WRONG_TIMES = {
    "backwards": [0, 3600, 7200, 2**33 - 7200, 2**33 - 3600],
    "wrapped": [2**33 - 3600, 2**33 - 1, 2**33 + 3600, 2**33 + 7200],
    "ahead": [0, 3600, 90_000 * 3600 * 20, 90_000 * 3600 * 20 + 3600],
}


def test_wrong_times_neither_stop_nor_reverse_the_pictures(tmp_path: Path) -> None:
    """Backwards over the 33-bit wrap, over the wrap, and twenty hours ahead. play_files.py looks at every time."""
    paths = [clip_with_times(tmp_path / f"{name}.ts", times) for name, times in WRONG_TIMES.items()]
    for outcome, times in zip(play("video", paths), WRONG_TIMES.values(), strict=True):
        assert outcome.error is None
        assert outcome.frames == len(times)


def test_random_times_neither_stop_nor_reverse_the_pictures(tmp_path: Path) -> None:
    """Shuffled sample durations and offsets in an MP4's own tables."""
    original = make_clip(tmp_path / "clip.mp4", 24).read_bytes()
    chance, paths = random.Random(SEED), []
    for number in range(8):
        data = bytearray(original)
        for box in (b"stts", b"ctts"):
            place = data.find(box)
            if place < 0:
                continue
            (entries,) = struct.unpack_from(">I", data, place + 8)
            for entry in range(entries):
                value = chance.choice([0, 1, 512, 2**31 - 1, 2**32 - 1, chance.randrange(2**32)])
                struct.pack_into(">I", data, place + 16 + 8 * entry, value)
        path = tmp_path / f"times{number}.mp4"
        path.write_bytes(data)
        paths.append(path)
    outcomes = play("video", paths)
    assert_clean(outcomes)
    assert all(outcome.frames for outcome in outcomes)


def test_tables_that_declare_billions_of_entries_take_no_memory(tmp_path: Path) -> None:
    original = make_clip(tmp_path / "clip.mp4").read_bytes()
    paths = []
    for box in (b"stsz", b"stco", b"stts", b"stsc"):
        data = bytearray(original)
        struct.pack_into(">I", data, data.index(box) + (12 if box == b"stsz" else 8), 0x7FFF_FFFF)
        paths.append(tmp_path / f"{box.decode()}.mp4")
        paths[-1].write_bytes(data)
    assert_clean(play("video", paths))


def test_a_file_without_frames_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "empty.avi"
    with av.open(str(path), "w") as output:
        stream = output.add_stream("mjpeg", rate=25)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        output.start_encoding()
    outcome = play_one("video", path)
    assert outcome.frames == 0
    assert outcome.error is not None


HEADERS = {
    "padding.ts": b"\x47\x1f\xff\x10" + b"\xff" * 184,
    "free.mp4": b"\0\0\0\x14ftypisom\0\0\x02\0isom" + b"\0\0\0\x01free" + struct.pack(">Q", 2**40),
    "moov.mp4": b"\0\0\0\x14ftypisom\0\0\x02\0isom" + b"\x3f\xff\xff\xffmoov",
    "void.mkv": bytes.fromhex("1a45dfa3 8b 4282 88") + b"matroska" + bytes.fromhex("18538067 01ffffffffffffff"),
    "zeros.h264": b"",
    "list.avi": b"RIFF\xff\xff\xff\x7fAVI LIST\xff\xff\xff\x7fhdrl",
}


@pytest.mark.slow
def test_a_header_as_long_as_the_file_is_given_up(tmp_path: Path) -> None:
    """A gigabyte of nothing behind a valid start; the files are sparse, so they cost nothing."""
    paths = []
    for name, start in HEADERS.items():
        paths.append(tmp_path / name)
        with open(paths[-1], "wb") as file:
            file.write(start)
            file.truncate(2**30)
    outcomes = play("video", paths)
    assert_clean(outcomes)
    assert all(outcome.error is not None for outcome in outcomes)


@contextmanager
def endless_server(bodies: Mapping[str, tuple[bytes, bytes]]) -> Iterator[str]:
    """An HTTP server whose every answer is a start and then one block for ever; gives the address of its root."""

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            name = connection.recv(4096).split(b" ")[1].decode().strip("/")
            start, block = bodies[name]
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: video/mp4\r\n\r\n" + start)
            while True:
                connection.sendall(block * 16)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


@pytest.mark.slow
def test_a_server_whose_header_never_ends_is_given_up_in_time() -> None:
    """Within connect_timeout_s for each of connecting and probing, and within the memory that play_files.py allows."""
    bodies = {name: (start, b"\0" * 4096) for name, start in HEADERS.items() if name != "zeros.h264"}
    bodies["null.ts"] = (b"", HEADERS["padding.ts"])
    bodies["noise.mp4"] = (b"", random.Random(SEED).randbytes(4096))
    bodies["music.mp3"] = (b"ID3\x04\0\0\x7f\x7f\x7f\x7f", b"\0" * 4096)
    with endless_server(bodies) as root:
        outcomes = play("stream", [f"{root}/{name}" for name in bodies])
    for outcome in outcomes:
        assert not outcome.signal, outcome
        assert not outcome.frames
        assert outcome.error is not None
        assert outcome.error.startswith(("MediaError: fuzz: ", "SourceMissingError: fuzz: ")), outcome
        assert outcome.seconds < 10, outcome

"""A file that starts again: wound back where that is sure, opened anew otherwise, the same packets either way."""

from __future__ import annotations

import contextlib
import os
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from zhcedge.core.errors import MediaError
from zhcedge.media.demux import Demuxer

Row = tuple[bytes, "int | None", "int | None"]


def encode(path: Path, codec: str = "libx264", frames: int = 30, sound: bool = False, **options: str) -> str:
    """Moving pictures with B frames, key frames every 10, and sound if wanted; `path` decides the container."""
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec, rate=25, options={"g": "10", "bf": "2"})
        stream.width, stream.height, stream.pix_fmt = 160, 96, "yuv420p"
        stream.time_base = Fraction(1, 25)
        beep = container.add_stream("aac", rate=48000) if sound else None
        for index in range(frames):
            picture = np.full((96, 160, 3), 8 * index % 256, np.uint8)
            picture[10:40, 3 * index : 3 * index + 40] = 255
            picture[60:] = np.random.default_rng(index).integers(0, 256, (36, 160, 3))  # so that the file has some size
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = index
            container.mux(stream.encode(frame))
            if beep is not None:
                silence = av.AudioFrame.from_ndarray(np.zeros((1, 1920), np.float32), format="fltp", layout="mono")
                silence.sample_rate, silence.pts = 48000, index * 1920
                container.mux(beep.encode(silence))
        container.mux(stream.encode())
    return str(path)


def rows(demuxer: Demuxer) -> list[Row]:
    found = []
    while (packet := demuxer.read()) is not None:
        found.append((bytes(packet), packet.pts, packet.dts))
    return found


@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv", "clip.mov"])
@pytest.mark.parametrize("before", [0, 1, 7, 30])
@pytest.mark.parametrize("sound", [False, True])
def test_it_gives_every_packet_again_from_the_first(tmp_path: Path, name: str, before: int, sound: bool) -> None:
    demuxer = Demuxer(encode(tmp_path / name, sound=sound), "clip")
    whole = rows(demuxer)
    assert len(whole) == 30
    for _ in range(3):
        assert demuxer.restart()
        for _ in range(before):
            demuxer.read()
        assert demuxer.restart()
        assert rows(demuxer) == whole
        assert demuxer.shortfall() == ""
    demuxer.close()


def test_a_fragmented_file_gives_every_packet_again_or_asks_to_be_opened(tmp_path: Path) -> None:
    uri = encode(tmp_path / "clip.mp4", movflags="frag_keyframe+empty_moov")
    demuxer = Demuxer(uri, "clip")
    whole = rows(demuxer)
    assert not demuxer.restart() or rows(demuxer) == whole
    demuxer.close()


@pytest.mark.parametrize("name", ["clip.ts", "clip.h264", "clip.avi"])
def test_a_container_without_a_sure_index_is_not_wound_back(tmp_path: Path, name: str) -> None:
    demuxer = Demuxer(encode(tmp_path / name), "clip")
    rows(demuxer)
    assert not demuxer.restart()
    demuxer.close()


@pytest.mark.parametrize("change", ["gone", "longer", "another"])
def test_a_file_that_changed_is_not_wound_back(tmp_path: Path, change: str) -> None:
    path = tmp_path / "clip.mp4"
    demuxer = Demuxer(encode(path), "clip")
    rows(demuxer)
    if change == "gone":
        path.unlink()
    elif change == "longer":
        with path.open("ab") as file:
            file.write(b"more")
    else:
        Path(encode(tmp_path / "other.mp4", frames=5)).replace(path)
    assert not demuxer.restart()
    demuxer.close()


def test_another_first_packet_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    demuxer = Demuxer(encode(path, frames=100), "clip")  # more than what a reader buffers
    first = demuxer.read()
    assert first is not None
    assert first.pos is not None
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(first.pos + first.size - 4)
        file.write(b"\xff\xff\xff\xff")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert len(rows(demuxer)) == 99
    assert not demuxer.restart()
    demuxer.close()


def test_a_damaged_file_is_not_wound_back(tmp_path: Path) -> None:
    path = tmp_path / "clip.mkv"
    demuxer = Demuxer(encode(path, frames=100), "clip")
    demuxer.read()
    os.truncate(path, path.stat().st_size // 3)
    with contextlib.suppress(MediaError):
        rows(demuxer)
    assert not demuxer.restart()
    demuxer.close()

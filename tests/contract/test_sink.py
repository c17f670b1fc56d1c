"""What a sink that writes one annotated video file does; a new one joins SINKS. For all sinks: test_sink_kinds.py."""

from __future__ import annotations

import fcntl
import os
import queue
from pathlib import Path

import av
import numpy as np
import pytest

from tests.contract.clips import Bytes, chroma, luma
from tests.contract.sinks import (
    PATIENCE_S,
    Feeder,
    brightness,
    disk_full_at,
    files,
    slot,
    source_facts,
)
from tests.leftovers import nothing_left
from zhcedge.backends.cpu.mp4_sink import Mp4Sink
from zhcedge.core.errors import OutputError
from zhcedge.core.ports import FrameSlot
from zhcedge.core.requests import SinkRequest
from zhcedge.core.types import (
    FrameInfo,
)

SINKS = [Mp4Sink]


@pytest.fixture(params=SINKS, ids=lambda sink: str(sink.__name__))
def kind(request: pytest.FixtureRequest) -> type[Mp4Sink]:
    chosen: type[Mp4Sink] = request.param
    return chosen


def record(kind: type[Mp4Sink], path: Path, count: int, width: int = 64, height: int = 48) -> Mp4Sink:
    sink = kind(SinkRequest("gate", path), None)
    sink.open(source_facts(width, height))
    feeder = Feeder(sink)
    for index in range(count):
        feeder.feed(slot(width, height, index, index / 10))
    sink.close(complete=True)
    assert feeder.all_returned()
    return sink


# -- what is written -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("width", "height"), [(64, 48), (2, 2), (1, 1), (33, 17), (48, 65)])
def test_every_frame_is_in_the_file_with_its_content_and_time(
    kind: type[Mp4Sink], tmp_path: Path, width: int, height: int
) -> None:
    path = tmp_path / "out.mp4"
    sink = record(kind, path, 30, width, height)
    assert files(tmp_path) == ["out.mp4"]
    assert sink.frames_written == 30
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
    assert [frame.time for frame in frames] == pytest.approx([index / 10 for index in range(30)])
    for index, frame in enumerate(frames):
        picture = frame.to_ndarray()[: frame.height]
        # Odd sizes are padded to even ones by repeating the edge.
        assert picture.shape == (height + height % 2, width + width % 2)
        assert np.abs(picture.astype(int) - brightness(index)).max() <= 4
    assert (frames[0].colorspace, frames[0].color_range) == (1, 1)


def test_a_slot_is_given_back_before_the_next_one_is_needed(kind: type[Mp4Sink], tmp_path: Path) -> None:
    sink = kind(SinkRequest("gate", tmp_path / "out.mp4"), None)
    sink.open(source_facts(64, 48))
    only = slot(64, 48, 0, 0.0)
    returned: queue.Queue[FrameSlot[Bytes]] = queue.Queue()
    for index in range(10):
        only.info = FrameInfo(0, index, 0, 0, index / 10)
        luma(only.surface)[:] = brightness(index)
        assert sink.submit(only, returned.put)
        assert returned.get(timeout=PATIENCE_S) is only
    sink.close(complete=True)
    with av.open(str(tmp_path / "out.mp4")) as container:
        seen = [int(frame.to_ndarray()[0, 0]) for frame in container.decode(video=0)]
    assert seen == pytest.approx([brightness(index) for index in range(10)], abs=4)


def test_unknown_times_follow_the_frame_number_and_repeated_ones_still_grow(
    kind: type[Mp4Sink], tmp_path: Path
) -> None:
    sink = kind(SinkRequest("gate", tmp_path / "out.mp4"), None)
    sink.open(source_facts(64, 48))
    feeder = Feeder(sink)
    for index, media_time_s in enumerate([-1.0, -1.0, 0.2, 0.2, 0.4]):
        feeder.feed(slot(64, 48, index, media_time_s))
    sink.close(complete=True)
    with av.open(str(tmp_path / "out.mp4")) as container:
        times = [frame.time for frame in container.decode(video=0)]
    assert times == pytest.approx([0.0, 0.1, 0.2, 0.2, 0.4], abs=1e-4)
    assert len(set(times)) == 5


def test_colours_survive(kind: type[Mp4Sink], tmp_path: Path) -> None:
    sink = kind(SinkRequest("gate", tmp_path / "out.mp4"), None)
    sink.open(source_facts(64, 48))
    frame = slot(64, 48, 0, 0.0)
    chroma(frame.surface)[1][:] = 200
    Feeder(sink).feed(frame)
    sink.close(complete=True)
    with av.open(str(tmp_path / "out.mp4")) as container:
        planes = next(container.decode(video=0)).to_ndarray(format="yuv420p")[48:].reshape(2, -1).astype(int)
    assert np.abs(planes - [[90], [200]]).max() <= 4


# -- whole or not at all -------------------------------------------------------------------------------------------
def test_nothing_has_the_final_name_before_the_close(kind: type[Mp4Sink], tmp_path: Path) -> None:
    (tmp_path / "out.mp4").write_bytes(b"the last run's file")
    sink = kind(SinkRequest("gate", tmp_path / "out.mp4"), None)
    sink.open(source_facts(64, 48))
    Feeder(sink).feed(slot(64, 48, 0, 0.0))
    assert (tmp_path / "out.mp4").read_bytes() == b"the last run's file"
    sink.close(complete=True)
    assert b"ftyp" in (tmp_path / "out.mp4").read_bytes()[:16]


def test_a_run_without_frames_leaves_no_file(kind: type[Mp4Sink], tmp_path: Path) -> None:
    record(kind, tmp_path / "out.mp4", 0)
    assert files(tmp_path) == []


def test_what_a_killed_run_left_is_overwritten(kind: type[Mp4Sink], tmp_path: Path) -> None:
    (tmp_path / ".out.mp4.part").write_bytes(b"x" * 1_000_000)
    record(kind, tmp_path / "out.mp4", 3)
    assert files(tmp_path) == ["out.mp4"]
    assert (tmp_path / "out.mp4").stat().st_size < 100_000


def test_a_link_stays_a_link(kind: type[Mp4Sink], tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out.mp4").symlink_to(tmp_path / "disk" / "real.mp4")
    record(kind, tmp_path / "out.mp4", 3)
    assert (tmp_path / "out.mp4").is_symlink()
    assert files(tmp_path / "disk") == ["real.mp4"]


# -- outputs that can't be written ---------------------------------------------------------------------------------
def refused(kind: type[Mp4Sink], path: Path) -> OutputError:
    sink = kind(SinkRequest("gate", path), None)
    with nothing_left(), pytest.raises(OutputError) as caught:
        sink.open(source_facts(64, 48))
    assert caught.value.fix
    assert caught.value.where == str(path)
    sink.close(complete=True)
    return caught.value


def test_a_read_only_folder_is_refused_at_open(kind: type[Mp4Sink], tmp_path: Path) -> None:
    # sysfs refuses new files to root as well, whom a folder's mode would not stop.
    folder = Path("/sys/kernel") if os.geteuid() == 0 else tmp_path
    tmp_path.chmod(0o555)
    assert "may write" in refused(kind, folder / "out.mp4").fix


def test_odd_places_are_refused_at_open(kind: type[Mp4Sink], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("file/out.mp4", "folder", "pipe", "a\0b", "x" * 300):
        refused(kind, tmp_path / name)
    assert files(tmp_path) == ["file", "folder", "pipe"]
    assert (tmp_path / "file").read_bytes() == b"kept"


def test_two_writers_of_one_file_are_kept_apart(kind: type[Mp4Sink], tmp_path: Path) -> None:
    first = kind(SinkRequest("gate", tmp_path / "out.mp4"), None)
    first.open(source_facts(64, 48))
    Feeder(first).feed(slot(64, 48, 0, 0.0))
    assert "another writer" in refused(kind, tmp_path / "out.mp4").what
    first.close(complete=True)
    assert files(tmp_path) == ["out.mp4"]


def test_a_disk_that_fills_up_is_reported_and_every_slot_comes_back(kind: type[Mp4Sink], tmp_path: Path) -> None:
    sink = kind(SinkRequest("gate", tmp_path / "out.mp4"), None)
    with nothing_left():
        sink.open(source_facts(320, 240))
        feeder = Feeder(sink)
        with disk_full_at(300_000):
            with pytest.raises(OutputError) as caught:
                feeder.feed_noise(200)
            assert "free space" in caught.value.fix
            assert "out.mp4" in caught.value.where
            with pytest.raises(OutputError):
                sink.submit(slot(320, 240, 0, 0.0), lambda frame: None)
            with pytest.raises(OutputError):
                sink.close(complete=True)
        assert files(tmp_path) == []
        assert feeder.all_returned()


def test_a_disk_that_is_full_only_at_the_end_is_reported_by_close(kind: type[Mp4Sink], tmp_path: Path) -> None:
    sink = kind(SinkRequest("gate", tmp_path / "out.mp4"), None)
    sink.open(source_facts(64, 48))
    feeder = Feeder(sink)
    feeder.feed(slot(64, 48, 0, 0.0))
    with disk_full_at(16), pytest.raises(OutputError):
        sink.close(complete=True)
    assert files(tmp_path) == []
    assert feeder.all_returned()


def test_a_folder_that_vanishes_is_reported_by_close(kind: type[Mp4Sink], tmp_path: Path) -> None:
    folder = tmp_path / "stick"
    sink = kind(SinkRequest("gate", folder / "out.mp4"), None)
    sink.open(source_facts(64, 48))
    feeder = Feeder(sink)
    feeder.feed(slot(64, 48, 0, 0.0))
    (folder / ".out.mp4.part").unlink()
    folder.rmdir()
    with pytest.raises(OutputError):
        sink.close(complete=True)
    assert files(tmp_path) == []
    assert feeder.all_returned()


def test_the_lock_ends_with_the_sink(kind: type[Mp4Sink], tmp_path: Path) -> None:
    record(kind, tmp_path / "out.mp4", 2)
    with (tmp_path / "out.mp4").open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)

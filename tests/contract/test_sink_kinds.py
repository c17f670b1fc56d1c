"""What every sink does, whatever it writes. A new kind joins KINDS."""

from __future__ import annotations

import fcntl
import json
import queue
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
import pytest

from tests.contract.clips import Bytes, chroma
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
from zhcedge.backends.cpu.jpeg_sink import JpegFolderSink
from zhcedge.backends.cpu.mp4_sink import Mp4Sink
from zhcedge.core.errors import OutputError, PhaseError
from zhcedge.core.ports import FrameSlot, Sink
from zhcedge.core.requests import SinkRequest
from zhcedge.core.types import Hop, ImageFormat, MemoryDomain, Payload, PixelFormat, Surface
from zhcedge.media.jsonl_sink import JsonlSink

LABELS = ("person", "car")


@dataclass(frozen=True)
class Kind:
    """One kind of sink: its class, the name it is given, and how many frames an output holds."""

    make: Callable[[SinkRequest, object], Sink[Bytes]]
    output: str
    count: Callable[[Path], int]
    has_pixels: bool = True
    keeps_parts: bool = False  # each frame is whole by itself, and stays

    def sink(self, folder: Path, **options: object) -> Sink[Bytes]:
        return self.make(SinkRequest("gate", folder / self.output, labels=LABELS, **options), None)  # type: ignore[arg-type]


def frames_in(video: Path) -> int:
    with av.open(str(video)) as container:
        return sum(1 for _ in container.decode(video=0))


KINDS = {
    "mp4": Kind(Mp4Sink, "out.mp4", frames_in),
    "jpeg": Kind(JpegFolderSink, "out", lambda folder: len(list(folder.glob("*.jpg"))), keeps_parts=True),
    "jsonl": Kind(JsonlSink, "out.jsonl", lambda file: len(file.read_text().splitlines()), has_pixels=False),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def fed(kind: Kind, folder: Path, count: int, width: int = 64, height: int = 48) -> Feeder:
    """An open sink that was given so many frames."""
    sink = kind.sink(folder)
    sink.open(source_facts(width, height))
    feeder = Feeder(sink)
    for index in range(count):
        feeder.feed(slot(width, height, index, index / 10))
    return feeder


@pytest.mark.parametrize(("width", "height"), [(64, 48), (1, 1), (33, 17)])
def test_every_frame_arrives_and_every_slot_comes_back(kind: Kind, tmp_path: Path, width: int, height: int) -> None:
    with nothing_left():
        feeder = fed(kind, tmp_path, 12, width, height)
        feeder.sink.close(complete=True)
        assert kind.count(tmp_path / kind.output) == 12
        assert feeder.all_returned()
        assert files(tmp_path) == [kind.output]


def test_one_slot_is_enough(kind: Kind, tmp_path: Path) -> None:
    sink = kind.sink(tmp_path)
    sink.open(source_facts(64, 48))
    only = slot(64, 48, 0, 0.0)
    returned: queue.Queue[FrameSlot[Bytes]] = queue.Queue()
    for _ in range(5):
        assert sink.submit(only, returned.put)
        assert returned.get(timeout=PATIENCE_S) is only
    sink.close(complete=True)


def test_a_full_sink_says_so_at_once(kind: Kind, tmp_path: Path) -> None:
    sink = kind.sink(tmp_path)
    sink.open(source_facts(64, 48))
    is_stuck, go_on = threading.Event(), threading.Event()
    returned: list[int] = []

    def hold(frame: FrameSlot[Bytes]) -> None:
        returned.append(frame.index)
        is_stuck.set()
        go_on.wait(PATIENCE_S)

    assert sink.submit(slot(64, 48, 0, 0.0), hold)
    assert is_stuck.wait(PATIENCE_S)
    taken = [sink.submit(slot(64, 48, index, index / 10), hold) for index in range(1, 10)]
    assert taken[0]
    assert not taken[-1]
    go_on.set()
    sink.close(complete=True)
    assert returned == list(range(1 + sum(taken)))


def test_what_moves_is_declared(kind: Kind, tmp_path: Path) -> None:
    sink = kind.sink(tmp_path)
    assert sink.hops == ()
    sink.open(source_facts(64, 48))
    hops: tuple[Hop, ...] = sink.hops
    pixels = [hop for hop in hops if hop.payload is Payload.PIXELS]
    assert bool(pixels) == kind.has_pixels
    assert all(hop.bytes_per_frame == 64 * 48 * 3 // 2 for hop in pixels)
    assert hops[-1].destination is MemoryDomain.STORAGE
    sink.close(complete=False)


@pytest.mark.parametrize("frames", [0, 5])
def test_an_incomplete_close_leaves_no_half_output(kind: Kind, tmp_path: Path, frames: int) -> None:
    with nothing_left():
        feeder = fed(kind, tmp_path, frames)
        feeder.sink.close(complete=False)
        feeder.sink.close(complete=True)
        assert files(tmp_path) == ([kind.output] if kind.keeps_parts and frames else [])
        assert feeder.all_returned()


def test_missing_folders_are_made_and_an_older_output_is_replaced(kind: Kind, tmp_path: Path) -> None:
    for count in (5, 3):
        feeder = fed(kind, tmp_path / "a" / "b", count)
        feeder.sink.close(complete=True)
    expected = 8 if kind.keeps_parts else 3  # pictures are added
    assert kind.count(tmp_path / "a" / "b" / kind.output) == expected


def test_a_place_that_can_not_be_written_is_refused_at_open(kind: Kind, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    for folder in (tmp_path / "file", tmp_path / "a\0b", tmp_path / ("x" * 300)):
        with nothing_left():
            sink = kind.sink(folder)
            with pytest.raises(OutputError) as caught:
                sink.open(source_facts(64, 48))
            assert caught.value.fix
            sink.close(complete=True)
    assert files(tmp_path) == ["file"]


def test_a_disk_that_fills_up_is_reported_and_every_slot_comes_back(kind: Kind, tmp_path: Path) -> None:
    sink = kind.sink(tmp_path, quality=100)
    sink.open(source_facts(320, 240))
    feeder = Feeder(sink)
    with disk_full_at(20_000):
        with pytest.raises(OutputError) as caught:
            feeder.feed_noise(2000)
        assert "free space" in caught.value.fix
        with pytest.raises(OutputError):
            sink.close(complete=True)
    assert not list(tmp_path.rglob(".*"))
    assert feeder.all_returned()


def test_a_folder_that_vanishes_is_reported(kind: Kind, tmp_path: Path) -> None:
    feeder = fed(kind, tmp_path / "stick", 1)
    feeder.returned.get(timeout=PATIENCE_S)
    while (tmp_path / "stick").exists():  # the next picture may just be written
        shutil.rmtree(tmp_path / "stick", ignore_errors=True)

    def go_on() -> None:
        for index in range(50):
            feeder.feed(slot(64, 48, index, index / 10))
        feeder.sink.close(complete=True)

    with pytest.raises(OutputError):
        go_on()
    feeder.sink.close(complete=False)
    assert files(tmp_path) == []


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.has_pixels])
def test_a_slot_of_another_format_fails_the_sink_and_not_the_process(name: str, tmp_path: Path) -> None:
    sink = KINDS[name].sink(tmp_path)
    sink.open(source_facts(64, 48))
    frame = slot(64, 48, 0, 0.0)
    frame.surface = Surface(frame.surface.planes, ImageFormat(64, 48, PixelFormat.I420), MemoryDomain.HOST)
    feeder = Feeder(sink)
    feeder.feed(frame)
    with pytest.raises(OutputError, match="does not fit"):
        sink.close(complete=True)
    assert files(tmp_path) == []
    assert feeder.all_returned()


def test_submit_before_open_is_refused(kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(PhaseError):
        kind.sink(tmp_path).submit(slot(2, 2, 0, 0.0), lambda frame: None)


# -- what is special to one kind -----------------------------------------------------------------------------------
def test_pictures_are_named_by_their_number_and_show_the_frame(tmp_path: Path) -> None:
    sink = KINDS["jpeg"].sink(tmp_path)
    sink.open(source_facts(64, 48))
    for index in range(3):
        grey = slot(64, 48, index, index / 10)
        chroma(grey.surface)[0][:] = chroma(grey.surface)[1][:] = 128
        Feeder(sink).feed(grey)
    sink.close(complete=True)
    assert files(tmp_path / "out") == ["00000000.jpg", "00000001.jpg", "00000002.jpg"]
    for index in range(3):
        with av.open(str(tmp_path / "out" / f"{index:08}.jpg")) as container:
            (picture,) = container.decode(video=0)
        luma = picture.to_ndarray()[:48, :64].astype(float)
        # JPEG is full range: 16..235 becomes 0..255.
        assert np.abs(luma - (brightness(index) - 16) * 255 / 219).max() <= 3


def test_pictures_can_have_other_names_and_qualities(tmp_path: Path) -> None:
    sizes = []
    for quality in (20, 95):
        sink = KINDS["jpeg"].sink(tmp_path, quality=quality, picture_name=lambda number: f"q{number}.jpg")
        sink.open(source_facts(320, 240))
        Feeder(sink).feed_noise(1)
        sink.close(complete=True)
        sizes.append((tmp_path / "out" / "q0.jpg").stat().st_size)
    assert sizes[1] > 2 * sizes[0]


def test_a_restarted_run_numbers_its_pictures_on(tmp_path: Path) -> None:
    for _ in range(2):
        sink = KINDS["jpeg"].sink(tmp_path)
        sink.open(source_facts(64, 48))
        for index in range(2):
            Feeder(sink).feed(slot(64, 48, index, index / 10))
        sink.close(complete=True)
    assert files(tmp_path / "out") == [f"{number:08}.jpg" for number in range(4)]


def test_what_a_killed_run_left_of_a_picture_is_removed_but_not_what_is_being_written(tmp_path: Path) -> None:
    (folder := tmp_path / "out").mkdir()
    for name in (".00000007.jpg.part", ".00000008.jpg.part", ".hidden"):
        (folder / name).write_bytes(b"half")
    with (folder / ".00000008.jpg.part").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        sink = KINDS["jpeg"].sink(tmp_path)
        sink.open(source_facts(64, 48))
        sink.close(complete=True)
    assert sorted(path.name for path in folder.iterdir()) == [".00000008.jpg.part", ".hidden"]


def test_a_line_of_json_holds_what_was_detected(tmp_path: Path) -> None:
    sink = KINDS["jsonl"].sink(tmp_path)
    sink.open(source_facts(640, 480))
    frame = slot(640, 480, 7, 0.7)
    frame.results[0]["count"] = 1
    frame.results[0]["detections"][0] = ((1.5, 2.25, 30.126, 40), 0.87654321, 1)
    Feeder(sink).feed(frame)
    Feeder(sink).feed(slot(640, 480, 8, -1.0))
    sink.close(complete=True)
    first, second = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert first == {
        "source": "gate",
        "frame": 7,
        "time_s": 0.7,
        "width": 640,
        "height": 480,
        "detections": [{"label": "car", "score": 0.8765, "box": [1.5, 2.25, 30.13, 40.0]}],
    }
    assert (second["time_s"], second["detections"]) == (None, [])

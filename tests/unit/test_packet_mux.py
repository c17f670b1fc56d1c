"""Motion JPEG in MP4, and the thread that sinks share."""

from __future__ import annotations

import threading
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from zhcedge.core.errors import OutputError
from zhcedge.core.ports import FrameSlot
from zhcedge.core.types import RESULT_DTYPE, ImageFormat, MemoryDomain, Surface
from zhcedge.media.packet_mux import MjpegWriter
from zhcedge.media.sink_thread import QUEUE_DEPTH, GiveBack, SinkThread


def jpeg(level: int) -> memoryview:
    context = av.CodecContext.create("mjpeg", "w")
    context.width, context.height, context.pix_fmt, context.time_base = 63, 47, "yuvj420p", Fraction(1, 25)
    picture = np.full((47, 63, 3), level, np.uint8)
    (packet,) = context.encode(av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="yuvj420p"))
    return memoryview(bytes(packet))


def slot(index: int = 0) -> FrameSlot[int]:
    return FrameSlot(index, 0, Surface((), ImageFormat(2, 2), MemoryDomain.DEVICE), np.zeros(1, RESULT_DTYPE))


def test_pictures_come_back_in_order_and_at_their_times(tmp_path: Path) -> None:
    path = tmp_path / "new" / "out.mp4"
    writer = MjpegWriter(path, 63, 47, 25.0)
    for index in range(5):
        writer.write(jpeg(40 * index), index * 0.08)
    assert not path.exists()
    writer.finish()
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = list(container.decode(stream))
        assert stream.codec_context.name == "mjpeg"
        assert [float(frame.pts * stream.time_base) for frame in frames] == pytest.approx([0, 0.08, 0.16, 0.24, 0.32])
        assert {(frame.width, frame.height) for frame in frames} == {(63, 47)}
        levels = [frame.to_ndarray(format="gray")[20, 20] for frame in frames]
        assert levels == sorted(levels)
    assert [file.name for file in path.parent.iterdir()] == ["out.mp4"]


def test_an_abandoned_file_leaves_nothing(tmp_path: Path) -> None:
    writer = MjpegWriter(tmp_path / "out.mp4", 63, 47, 25.0)
    writer.write(jpeg(9), 0)
    writer.abandon()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_way_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="not a regular file"):
        MjpegWriter(tmp_path, 63, 47, 25.0)


def test_every_slot_comes_back_once_and_a_full_queue_refuses() -> None:
    may_write, back = threading.Event(), []

    def write(taken: FrameSlot[int], give_back: GiveBack[int]) -> None:
        may_write.wait(5)
        give_back(taken)

    thread: SinkThread[int] = SinkThread("sink", "test", write)
    thread.start()
    taken = [thread.submit(slot(index), lambda given: back.append(given.index)) for index in range(QUEUE_DEPTH + 3)]
    assert taken.count(False) >= 2
    may_write.set()
    thread.stop(complete=True)
    assert sorted(back) == [index for index, was_taken in enumerate(taken) if was_taken]


def test_the_first_failure_is_kept_and_later_slots_come_back_unwritten() -> None:
    back: list[int] = []

    def write(taken: FrameSlot[int], give_back: GiveBack[int]) -> None:
        give_back(taken)
        raise OutputError("the disk is full", where="test")

    thread: SinkThread[int] = SinkThread("sink", "test", write)
    thread.start()
    thread.submit(slot(0), lambda given: back.append(given.index))
    thread.stop(complete=True)
    assert back == [0]
    for _ in range(2):
        with pytest.raises(OutputError, match="disk is full"):
            thread.submit(slot(1), lambda given: back.append(given.index))

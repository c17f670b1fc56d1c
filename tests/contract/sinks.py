"""What the tests of sinks share: slots of known content, a feeder, a disk that fills up."""

from __future__ import annotations

import queue
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tests.contract.clips import Bytes, luma
from zhcedge.core.ports import FrameSlot, Sink, SourceFacts
from zhcedge.core.types import RESULT_DTYPE, ColorMatrix, FrameInfo, ImageFormat, MemoryDomain, Plane, Surface

PATIENCE_S = 30.0


def source_facts(width: int, height: int, **changes: object) -> SourceFacts:
    format = ImageFormat(width, height, matrix=ColorMatrix.BT709)
    facts = {"format": format, "fps": 10.0, "is_live": False, **changes}
    return SourceFacts(domain=MemoryDomain.HOST, has_packets=False, hops=(), description="", **facts)  # type: ignore[arg-type]


def slot(width: int, height: int, sequence: int, media_time_s: float) -> FrameSlot[Bytes]:
    """A slot with padded rows, full of a brightness that tells its sequence number."""
    chroma_width, chroma_height = 2 * ((width + 1) // 2), (height + 1) // 2
    planes = (
        Plane(np.full((height, width + 7), brightness(sequence), np.uint8), width, height, width + 7),
        Plane(np.full((chroma_height, chroma_width + 9), 90, np.uint8), chroma_width, chroma_height, chroma_width + 9),
    )
    surface = Surface(planes, ImageFormat(width, height), MemoryDomain.HOST)
    return FrameSlot(sequence, 0, surface, np.zeros(1, RESULT_DTYPE), FrameInfo(0, sequence, 0, 0, media_time_s))


def brightness(sequence: int) -> int:
    return 30 + 7 * (sequence % 28)


class Feeder:
    """Submits slots, waiting for room, and keeps those that came back."""

    def __init__(self, sink: Sink[Bytes]) -> None:
        self.sink = sink
        self.returned: queue.Queue[FrameSlot[Bytes]] = queue.Queue()
        self.submitted = 0

    def feed(self, frame: FrameSlot[Bytes]) -> None:
        for _ in range(int(PATIENCE_S / 0.002)):
            if self.sink.submit(frame, self.returned.put):
                self.submitted += 1
                return
            threading.Event().wait(0.002)
        raise AssertionError("the sink stayed full")

    def feed_noise(self, count: int) -> None:
        """Pictures that compress badly."""
        for index in range(count):
            frame = slot(320, 240, index, index / 10)
            luma(frame.surface)[:] = np.random.default_rng(index).integers(0, 255, (240, 320), np.uint8)
            self.feed(frame)

    def all_returned(self) -> bool:
        """Every submitted slot came back, exactly once and in order. Call after close."""
        back = [self.returned.get_nowait().index for _ in range(self.returned.qsize())]
        return back == list(range(self.submitted))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def disk_full_at(size_bytes: int) -> Iterator[None]:
    """Files of this process can't grow beyond a size, which fails writes just as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

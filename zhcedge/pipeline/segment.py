"""The memory that the frame process and the control process share: counters, ring, one recorder each.

It is an anonymous mapping (memfd), inherited as a file descriptor: nothing has a name in a file system and nothing
stays behind when a process is killed.
"""

from __future__ import annotations

import mmap
import os

import numpy as np
import numpy.typing as npt

from zhcedge.core.types import ViolationKind
from zhcedge.pipeline.recorder import Recorder
from zhcedge.pipeline.ring import DetectionRing

RING_RECORDS = 512
SPANS = 1 << 16

COUNTERS = (
    "phase",
    "heartbeat",  # frames through the collector
    "alive",  # seconds that the frame process has been able to count
    "in_hand",  # frames that a lane or the collector holds, every second
    "frames_dropped",
    "canaries_planted",
    "canaries_seen",
    "kinds_not_visible",  # of violations that the run claims to see
    *(f"violations: {kind.value}" for kind in ViolationKind),
)


class Counters:
    """Named 64-bit numbers; each is written by one process only."""

    def __init__(self, memory: memoryview) -> None:
        self._values: npt.NDArray[np.int64] = np.frombuffer(memory, np.int64, len(COUNTERS))
        self._index = {name: index for index, name in enumerate(COUNTERS)}

    def __getitem__(self, name: str) -> int:
        return int(self._values[self._index[name]])

    def __setitem__(self, name: str, value: int) -> None:
        self._values[self._index[name]] = value


class Segment:
    """The mapping and its parts: `counters`, `ring`, `frame_recorder`, `control_recorder`.

    Args:
        fd: a memfd of `Segment.size()` bytes to share, or -1 for memory of this process alone.
        wake_fd: an eventfd for the ring's reader, or -1.
    """

    def __init__(self, fd: int = -1, wake_fd: int = -1) -> None:
        self._map = mmap.mmap(fd, self.size())
        view = memoryview(self._map)
        for page in range(0, self.size(), mmap.PAGESIZE):
            view[page] |= 0  # fault it in now: a page that is touched first in the active phase is memory that grows
        at = 1024
        self.counters = Counters(view[:at])
        ring_bytes, spans_bytes = DetectionRing.size(RING_RECORDS), Recorder.size(SPANS)
        self.ring = DetectionRing(view[at : at + ring_bytes], RING_RECORDS, wake_fd)
        at += ring_bytes
        self.frame_recorder = Recorder(view[at : at + spans_bytes], SPANS)
        at += spans_bytes
        self.control_recorder = Recorder(view[at : at + spans_bytes], SPANS)

    @staticmethod
    def size() -> int:
        return 1024 + DetectionRing.size(RING_RECORDS) + 2 * Recorder.size(SPANS)

    @classmethod
    def create_fd(cls) -> int:
        """A memfd of the right size, to pass to a child process and to this class."""
        fd = os.memfd_create("zhc-edge")
        os.ftruncate(fd, cls.size())
        return fd

"""Simulated source, engine and sink for the cpu device: they implement the real ports and can be told to misbehave."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from zhcedge.backends.cpu.arena import CpuBuffer, tensor_array
from zhcedge.core.ports import EndOfStream, Fence, FrameSlot, Idle, Lane, SourceFacts, SourceStatus
from zhcedge.core.types import (
    FrameInfo,
    HeadKind,
    Hop,
    ImageFormat,
    MemoryDomain,
    ModelFacts,
    PixelFormat,
    Plane,
    Surface,
)
from zhcedge.service.clock import SystemClock

FACTS = ModelFacts(
    name="sim",
    sha256="0" * 64,
    labels=("person", "car"),
    input_name="images",
    output_name="output0",
    input_shape=(1, 3, 32, 32),
    output_shape=(1, 6, 16),
    scale=1 / 255,
    pad_value=114,
    head=HeadKind.YOLO_ANCHOR_FREE,
    score_threshold=0.4,
    nms_iou=0.5,
)


@dataclass
class SimLease:
    """A grey picture; counts its releases."""

    surface: Surface[CpuBuffer]
    info: FrameInfo
    on_release: Callable[[], None]
    ready: Fence | None = None

    def release(self, after: Fence | None = None) -> None:
        self.on_release()


@dataclass
class SimSource:
    """`frames` grey pictures; `on_read(sequence)` is called before each and may raise or sleep."""

    channel: int = 0
    frames: int = 20
    width_px: int = 64
    height_px: int = 48
    is_live: bool = False
    on_read: Callable[[int], None] = lambda sequence: None
    open_leases: int = 0
    is_open: bool = False
    _next: int = 0

    def open(self) -> SourceFacts:
        self.is_open = True
        self._format = ImageFormat(self.width_px, self.height_px, PixelFormat.NV12)
        luma = np.full((self.height_px, self.width_px), 128, np.uint8)
        chroma = np.full((self.height_px // 2, self.width_px), 128, np.uint8)
        planes = tuple(Plane(plane, self.width_px, len(plane), self.width_px) for plane in (luma, chroma))
        self._surface = Surface(planes, self._format, MemoryDomain.HOST)
        return SourceFacts(self._format, MemoryDomain.HOST, 10.0, self.is_live, False, (), "simulated")

    def read(self, timeout_s: float) -> SimLease | Idle | EndOfStream:
        if self._next >= self.frames:
            return EndOfStream()
        sequence = self._next
        self._next += 1
        self.on_read(sequence)
        self.open_leases += 1
        clock = SystemClock()
        info = FrameInfo(self.channel, sequence, clock.wall_ns(), clock.monotonic_ns(), sequence / 10)
        return SimLease(self._surface, info, self._released)

    def _released(self) -> None:
        self.open_leases -= 1

    @property
    def warnings(self) -> tuple[str, ...]:
        return ()

    @property
    def status(self) -> SourceStatus:
        return SourceStatus()

    def rewind(self) -> None:
        self._next = 0

    def close(self) -> None:
        self.is_open = False


class SimEngine:
    """Sees one person of fixed size in every frame; `on_run(lane)` is called in the lane's thread."""

    facts = FACTS
    description = "simulated"

    def __init__(self, on_run: Callable[[int], None] = lambda lane: None) -> None:
        self.on_run = on_run
        self.is_closed = False

    def bind(self, lane: Lane[CpuBuffer]) -> SimStage:
        return SimStage(self, lane)

    def close(self) -> None:
        self.is_closed = True


class SimStage:
    name = "engine"

    def __init__(self, engine: SimEngine, lane: Lane[CpuBuffer]) -> None:
        self._engine, self._lane = engine, lane
        self._output: npt.NDArray[np.float32] = tensor_array(lane.output)

    def enqueue(self, batch: int) -> None:
        self._engine.on_run(self._lane.index)
        self._output[:] = 0
        self._output[0, :4, 3] = (16, 16, 8, 8)
        self._output[0, 4, 3] = 0.9


@dataclass
class SimSink:
    """Keeps the sequence numbers it was given. Holds slots until `drain` is called where `is_held`."""

    on_submit: Callable[[FrameSlot[CpuBuffer]], None] = lambda slot: None
    capacity: int = 1000
    is_held: bool = False
    seen: list[int] = field(default_factory=list)
    closed: list[bool] = field(default_factory=list)
    hops: tuple[Hop, ...] = ()
    _held: queue.SimpleQueue[tuple[FrameSlot[CpuBuffer], Callable[[FrameSlot[CpuBuffer]], None]]] = field(
        default_factory=queue.SimpleQueue
    )

    def watch_threads(self, hook: Callable[[], None]) -> None:
        """No thread of its own."""

    def open(self, source: SourceFacts) -> None:
        """Nothing to prepare."""

    def submit(self, slot: FrameSlot[CpuBuffer], give_back: Callable[[FrameSlot[CpuBuffer]], None]) -> bool:
        if self._held.qsize() >= self.capacity:
            return False
        self.on_submit(slot)
        self.seen.append(slot.info.sequence)
        if self.is_held:
            self._held.put((slot, give_back))
        else:
            give_back(slot)
        return True

    def drain(self, seconds: float) -> None:
        """Give back held slots for a while, one a millisecond: a slow medium."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(0.001)
            if not self._held.empty():
                slot, give_back = self._held.get()
                give_back(slot)

    def close(self, complete: bool) -> None:
        self.closed.append(complete)

"""The ports: Protocols that a backend implements and that app wires together.

The pipeline is generic in the buffer type B and never looks inside it: no isinstance, no device branch. Each
Protocol says which thread calls it and in which phase. A constructor that raises leaves nothing open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol

import numpy as np
import numpy.typing as npt

from zhcedge.core.types import (
    B,
    DetectorSettings,
    FrameInfo,
    Hop,
    ImageFormat,
    MemoryDomain,
    ModelFacts,
    Surface,
    Tensor,
    ViolationKind,
)


# -- time ------------------------------------------------------------------------------------------------------
class Clock(Protocol):
    """Time for the whole process. Any thread."""

    def monotonic_ns(self) -> int: ...
    def wall_ns(self) -> int: ...
    def is_synced(self) -> bool:
        """Whether the wall clock has been set by a time service since boot."""
        ...


# -- frames in -------------------------------------------------------------------------------------------------
class Fence(Protocol):
    """Completion of work that was launched: a CUDA event on a GPU, a future on the CPU. Any thread."""

    def is_done(self) -> bool: ...
    def wait(self, timeout_s: float) -> bool:
        """Block without spinning; False on timeout. Raises PipelineError when the work itself failed."""
        ...


class Lease(Protocol[B]):
    """A surface that belongs to a source and is lent out until released."""

    @property
    def surface(self) -> Surface[B]: ...
    @property
    def info(self) -> FrameInfo: ...
    @property
    def ready(self) -> Fence | None:
        """What must be done before anyone reads the surface; None when it is complete."""
        ...

    def release(self, after: Fence | None = None) -> None:
        """Give the surface back, once `after` is done where the work on it is still in flight."""
        ...


@dataclass(frozen=True)
class Idle:
    """No frame came within the timeout; the source is still alive."""


@dataclass(frozen=True)
class EndOfStream:
    """The source has delivered its last frame."""


@dataclass(frozen=True)
class SourceFacts:
    """What an opened source is.

    Attributes:
        format: of the surfaces that it lends.
        domain: where those surfaces live.
        fps: nominal frames per second, 0 if unknown.
        is_live: True when frames come by themselves and are dropped, not awaited, under overload.
        has_packets: True when compressed packets are kept and can be recorded without decoding.
        hops: the copies that the source makes for every frame.
        description: one line for people, without credentials.
    """

    format: ImageFormat
    domain: MemoryDomain
    fps: float
    is_live: bool
    has_packets: bool
    hops: tuple[Hop, ...]
    description: str


class Source(Protocol[B]):
    """Makes frames. Owned by one reader thread after `open`; `close` may come from any thread, once it stopped."""

    def open(self) -> SourceFacts:
        """Open and probe. Raises SourceMissingError or MediaError and then holds nothing."""
        ...

    def read(self, timeout_s: float) -> Lease[B] | Idle | EndOfStream:
        """Wait for the next frame. Raises MediaError when the stream is broken for good."""
        ...

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was odd about the stream so far, for people: damaged packets, an early end. Any thread."""
        ...

    def rewind(self) -> None:
        """Start again at the first frame; nothing to do for a live source. Warm-up ends with it."""
        ...

    def close(self) -> None: ...


# -- slots and lanes -------------------------------------------------------------------------------------------
@dataclass
class FrameSlot(Generic[B]):
    """What one in-flight frame of a channel owns. Handed from thread to thread; one holder at a time.

    Attributes:
        index: position in its pool.
        channel: index of the channel.
        surface: the slot's own copy of the picture, drawn on by the overlay.
        results: scalar record of RESULT_DTYPE that the host can read once the launch's fence is done.
        info: facts of the frame that it holds now.
        holder: who has it, for messages about an exhausted pool.
    """

    index: int
    channel: int
    surface: Surface[B]
    results: npt.NDArray[np.void]
    info: FrameInfo = field(default_factory=lambda: FrameInfo(0, 0, 0, 0))
    holder: str = "free"


class Arena(Protocol[B]):
    """Hands out all memory of the frame path before the seal and refuses afterwards."""

    def surface(self, format: ImageFormat, owner: str) -> Surface[B]:
        """Allocate an image. Raises PhaseError once sealed, PipelineError when memory is short."""
        ...

    def tensor(self, name: str, shape: Sequence[int], dtype: str, owner: str) -> Tensor[B]: ...

    def results(self, owner: str) -> npt.NDArray[np.void]:
        """Allocate one RESULT_DTYPE record, shape [1], that the device writes and the host reads."""
        ...

    def seal(self) -> None:
        """From now on every request raises and is counted as ARENA_GROWTH."""
        ...

    @property
    def total_bytes(self) -> int: ...
    @property
    def refused(self) -> int:
        """Requests made after the seal."""
        ...


class Stage(Protocol):
    """One step of work on a lane, bound to the lane's buffers."""

    @property
    def name(self) -> str: ...
    def enqueue(self, batch: int) -> None:
        """Do (CPU) or record on the lane's stream (GPU) the work for the first `batch` frames of the lane."""
        ...


@dataclass(frozen=True)
class StageTime:
    """When a stage ran, monotonic nanoseconds."""

    name: str
    start_ns: int
    end_ns: int


class Program(Protocol[B]):
    """The compiled stages of one lane for one batch size. One launch in flight at a time."""

    @property
    def batch(self) -> int: ...
    def launch(self, slots: Sequence[FrameSlot[B]]) -> Fence:
        """Start the program over `slots` (exactly `batch` of them) and return at once.

        Results and overlay land in the slots. Called by the runner thread only.
        """
        ...

    def stage_times(self) -> Sequence[StageTime]:
        """Times of the last finished launch; empty where the backend can't say. Collector thread, after the fence."""
        ...


class Lane(Protocol[B]):
    """What one in-flight batch owns besides its slots."""

    @property
    def index(self) -> int: ...
    @property
    def input(self) -> Tensor[B]: ...
    @property
    def output(self) -> Tensor[B]: ...
    @property
    def stream_handle(self) -> int:
        """The native stream that an engine must enqueue on; 0 where there are no streams."""
        ...


class Engine(Protocol[B]):
    """A loaded model."""

    @property
    def facts(self) -> ModelFacts: ...
    @property
    def description(self) -> str:
        """Library, version, precision, for logs and state messages."""
        ...

    def bind(self, lane: Lane[B]) -> Stage:
        """Make the inference stage of a lane, with a context and scratch of its own. Initialising phase only."""
        ...

    def close(self) -> None: ...


class Device(Protocol[B]):
    """Memory, copies, our own stages, and compilation into programs."""

    @property
    def name(self) -> str: ...
    @property
    def arena(self) -> Arena[B]: ...
    @property
    def depth(self) -> int:
        """Launches that one lane may have in flight: 1 where a launch occupies a thread."""
        ...

    def hops(self, model: ModelFacts, formats: Sequence[ImageFormat]) -> tuple[Hop, ...]:
        """The copies that the device's stages make for every frame, `formats` being one per channel."""
        ...

    @property
    def claims(self) -> frozenset[ViolationKind]:
        """What a run on this device promises not to do, beyond what every run promises about host memory."""
        ...

    def instruments(self) -> tuple[Instrument, ...]:
        """What watches this device's memory and copies."""
        ...

    def ingest(self, source: Surface[B], slot: FrameSlot[B], after: Fence | None = None) -> Fence:
        """Copy a lent surface into the slot's NV12, converting I420, once `after` is done. Reader threads."""
        ...

    def create_lane(self, index: int, model: ModelFacts) -> Lane[B]: ...
    def preprocess(self, lane: Lane[B], model: ModelFacts) -> Stage:
        """Slot surfaces -> letterboxed, normalised lane.input."""
        ...

    def detect(self, lane: Lane[B], model: ModelFacts, settings: DetectorSettings) -> Stage:
        """lane.output -> slot.results: decode, score filter, class-aware NMS, boxes in source pixels."""
        ...

    def overlay(self, lane: Lane[B], labels: Sequence[str]) -> Stage:
        """Draw slot.results into slot.surface."""
        ...

    def compile(self, stages: Sequence[Stage], lane: Lane[B], batch: int) -> Program[B]: ...
    def watch_threads(self, hook: Callable[[], None]) -> None:
        """`hook` is called once by every thread that the device owns, now or later, before its next launch."""
        ...

    def close(self) -> None: ...


# -- frames out ------------------------------------------------------------------------------------------------
class Sink(Protocol[B]):
    """Consumes frames. `submit` is called by the collector thread and never blocks on the medium."""

    @property
    def hops(self) -> tuple[Hop, ...]: ...

    def watch_threads(self, hook: Callable[[], None]) -> None:
        """`hook` is called once by every thread that the sink owns, before its first frame. Called before `open`."""
        ...

    def open(self, source: SourceFacts) -> None:
        """Prepare everything that a frame will need. Raises OutputError and then leaves nothing behind."""
        ...

    def submit(self, slot: FrameSlot[B], give_back: Callable[[FrameSlot[B]], None]) -> bool:
        """Take a finished slot and call `give_back` exactly once, from any thread, when done with it.

        Returns False, without calling `give_back`, when the sink is full and the frame was not taken.
        """
        ...

    def close(self, complete: bool) -> None:
        """Flush and finish the output; with `complete` False remove what would be a half-written file."""
        ...


# -- the ledger's eyes -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Canary:
    """A planted violation: calling `plant` must raise the instrument's count of `kind` by exactly one."""

    kind: ViolationKind
    plant: Callable[[], None]


class Instrument(Protocol):
    """Counts violations as they happen."""

    @property
    def name(self) -> str: ...
    def start(self) -> None:
        """Begin to watch, for threads that have called `watch_thread`."""
        ...

    def watch_thread(self) -> None:
        """Called once by each frame-path thread before its first frame."""
        ...

    def counts(self) -> dict[ViolationKind, int]:
        """Totals since `start`; one key for every kind that it can see."""
        ...

    def canaries(self) -> tuple[Canary, ...]: ...
    def stop(self) -> None: ...


# -- control process -------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Message:
    """One MQTT publication. Payload is UTF-8 JSON unless the topic says otherwise."""

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False


class Outbox(Protocol):
    """Events on their way out, in order. A row leaves by `ack` or by the outbox's stated policy, counted.

    Owned by the thread of the control process's loop.
    """

    def append(self, message: Message, is_expendable: bool = False) -> int:
        """Keep a message; returns its id, above 0. Ids grow. A full outbox gives up expendable rows first."""
        ...

    def pending(self, after_id: int, limit: int) -> list[tuple[int, Message]]:
        """The oldest unacknowledged rows with an id above `after_id`."""
        ...

    def ack(self, row_id: int) -> None:
        """Forget a delivered row; nothing happens for one that is gone already."""
        ...

    @property
    def outbox_id(self) -> str:
        """Random name of this store: receivers tell repeated messages by it and the message's `seq`."""
        ...

    @property
    def depth(self) -> int: ...
    @property
    def lost(self) -> int:
        """Of `dropped`, those that were not expendable: somebody's events now miss a beginning or an end."""
        ...

    @property
    def dropped(self) -> int: ...


class Broker(Protocol):
    """A connection to an MQTT broker that reconnects by itself.

    `start`, `publish` and `stop` belong to the control loop's thread; the callbacks given to the constructor may
    come from another one.
    """

    def start(self) -> None: ...
    @property
    def is_connected(self) -> bool: ...
    @property
    def session(self) -> int:
        """Number of the current connection, growing from 1; 0 while there is none."""
        ...

    def publish(self, message: Message, token: int = 0, session: int = 0) -> bool:
        """Hand a message to the connection; False when there is none, or another one than `session` (0: any).

        A non-zero token comes back as an ack. What a lost connection has not acknowledged is forgotten: the owner
        sees the new session number and hands it over again.
        """
        ...

    def hurry(self) -> None:
        """Try at once, and from now on often, when there is no connection: the daemon is about to end."""
        ...

    def stop(self, last: Sequence[Message], timeout_s: float) -> None:
        """Publish `last`, wait for what is in flight, disconnect."""
        ...


# -- what factories are asked for ------------------------------------------------------------------------------
@dataclass(frozen=True)
class DeviceSettings:
    """How to open a device.

    Attributes:
        index: which one of its kind.
        threads: that host work may use, 0 for as many as there are cores.
        is_audit: watch and time everything, also where that costs time.
    """

    index: int = 0
    threads: int = 0
    is_audit: bool = False


@dataclass(frozen=True)
class EngineRequest:
    """Which model to load: the verified file, its facts, host threads for inference (0: one per core)."""

    model_path: Path
    facts: ModelFacts
    threads: int = 0


@dataclass(frozen=True)
class SourceRequest:
    """Which source to make.

    Attributes:
        channel, channel_name: index in the run and the name for messages.
        uri: file path or URL; never logged with its credentials.
        is_realtime: play a file at its own pace, dropping frames under overload, as a camera would.
        is_looped: start a file again at its end; presentation times keep growing.
    """

    channel: int
    channel_name: str
    uri: str
    is_realtime: bool
    is_looped: bool
    clock: Clock


@dataclass(frozen=True)
class SinkRequest:
    """Which sink to make: output path, and the channel's name for messages."""

    channel_name: str
    path: Path


DeviceFactory = Callable[[DeviceSettings], Device[object]]
EngineFactory = Callable[[EngineRequest, Device[object]], Engine[object]]
SourceFactory = Callable[[SourceRequest, Device[object]], Source[object]]
SinkFactory = Callable[[SinkRequest, Device[object]], Sink[object]]

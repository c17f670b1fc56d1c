"""The ports: Protocols that a backend implements and that app wires together.

The pipeline is generic in the buffer type B and never looks inside it: no isinstance, no device branch. Each
Protocol says which thread calls it and in which phase. A constructor that raises leaves nothing open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Generic, Protocol

import numpy as np
import numpy.typing as npt

from zhcedge.core.picture import CellSums
from zhcedge.core.types import (
    B,
    DetectorSettings,
    FrameInfo,
    Hop,
    ImageFormat,
    MemoryDomain,
    ModelFacts,
    Plane,
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


@dataclass(frozen=True)
class SourceStatus:
    """How a source is doing.

    Attributes:
        is_up: pictures come. A file is up from `open` to its end.
        reason: why it is not, in one line for people, without credentials; empty while it is up.
        reconnects: how often a stream was opened again after it had been up.
    """

    is_up: bool = True
    reason: str = ""
    reconnects: int = 0


class Source(Protocol[B]):
    """Makes frames. Owned by one reader thread after `open`; `close` may come from any thread, once it stopped."""

    def open(self) -> SourceFacts:
        """Open and probe. Raises SourceMissingError or MediaError and then holds nothing; may be tried again."""
        ...

    def read(self, timeout_s: float) -> Lease[B] | Idle | EndOfStream:
        """Wait for the next frame. Raises MediaError when the stream is broken for good.

        A network stream or a camera that is lost is not: it gives Idle while it connects again by itself, and goes on
        in the format that it was opened with.
        """
        ...

    @property
    def status(self) -> SourceStatus:
        """Any thread."""
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
        mask: the channel's privacy mask: uint8 [ceil(height / 2), ceil(width / 2)], not 0 where 2 x 2 pixels must
            never reach a sink; the overlay blackens them. None hides nothing.
        holder: who has it, for messages about an exhausted pool.
        part: -1 for a whole frame; else this is one of several views of a frame, detected in by itself.
        is_drawn: the overlay stage draws into it; a view is not, because its frame is drawn when all are done.
    """

    index: int
    channel: int
    surface: Surface[B]
    results: npt.NDArray[np.void]
    info: FrameInfo = field(default_factory=lambda: FrameInfo(0, 0, 0, 0))
    mask: Plane[B] | None = None
    holder: str = "free"
    part: int = -1
    is_drawn: bool = True


class MotionMeter(Protocol[B]):
    """Measures how much of one channel's picture moves, on the device."""

    def measure(self, slot: FrameSlot[B]) -> None:
        """Compare the picture just ingested into `slot` with the running mean of the channel. Reader thread; enqueues
        work on a GPU."""
        ...

    def changed(self, slot: FrameSlot[B]) -> float | None:
        """Share of the picture, 0..1, that differed; None while the device is not done. Runner thread; never waits."""
        ...


class PictureMeter(Protocol[B]):
    """Measures how bright and how detailed one channel's picture is (core/picture.py), on the device. Reader thread."""

    def measure(self, slot: FrameSlot[B]) -> None:
        """Begin with the picture just ingested into `slot`; enqueues work on a GPU. Not before the last one is done."""
        ...

    def figures(self) -> tuple[CellSums, CellSums] | None:
        """Luma and detail of what was measured last; None while the device is not done. Never waits."""
        ...


class Arena(Protocol[B]):
    """Hands out all memory of the frame path before the seal and refuses afterwards, but to threads with a lease."""

    def surface(self, format: ImageFormat, owner: str) -> Surface[B]:
        """Allocate an image. Raises PhaseError once sealed, PipelineError when memory is short."""
        ...

    def tensor(self, name: str, shape: Sequence[int], dtype: str, owner: str) -> Tensor[B]: ...

    def results(self, owner: str) -> npt.NDArray[np.void]:
        """Allocate one RESULT_DTYPE record, shape [1], that the device writes and the host reads."""
        ...

    def plane(self, pixels: npt.NDArray[np.uint8], owner: str) -> Plane[B]:
        """Allocate a plane that holds a copy of `pixels`, uint8 [rows, width], and never changes."""
        ...

    def view(self, surface: Surface[B], left_px: int, top_px: int, width_px: int, height_px: int) -> Surface[B]:
        """A part of an NV12 surface of this arena as a surface of its own, without a copy; offsets are even.

        What was ingested into the whole counts as ingested into the part.
        """
        ...

    def seal(self) -> None:
        """From now on every request raises and is counted as ARENA_GROWTH, outside a `lease`."""
        ...

    def lease(self) -> AbstractContextManager[None]:
        """Inside, the calling thread may ask for memory after the seal; other threads still may not.

        Open a re-warm lease of the guard as well, so that what the allocation costs is booked there.
        """
        ...

    def release(self, owner: str) -> None:
        """Take back all that `owner` was given, for later requests of the very same size. Any thread, any phase.

        Nobody may use it any more, work in flight included. What is not asked for again is kept until `close`, so that
        adding and removing the same thing for ever stays flat. Nothing happens for an unknown owner.
        """
        ...

    @property
    def total_bytes(self) -> int:
        """Memory that was handed out, given back or not."""
        ...

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
        """Blacken slot.mask in slot.surface, where there is one, then draw slot.results."""
        ...

    def compile(self, stages: Sequence[Stage], lane: Lane[B], batch: int) -> Program[B]: ...
    def admit(self, slot: FrameSlot[B]) -> None:
        """Make what frames in slots like this one need from streams and stages: its channel, format and mask.

        Once for every channel and kind of its slots and views, before its first frame: in the initialising phase, or
        under the arena's lease.
        """
        ...

    def dismiss(self, channel: int) -> None:
        """The channel is gone and nothing of it is in flight: what `admit` made may serve another. Any thread."""
        ...

    def motion_meter(self, slot: FrameSlot[B], slots: int, owner: str) -> MotionMeter[B]:
        """For a channel with so many slots like this one. Initialising phase, or under the arena's lease."""
        ...

    def picture_meter(self, slot: FrameSlot[B], owner: str) -> PictureMeter[B]:
        """For a channel with slots like this one. Initialising phase, or under the arena's lease."""
        ...

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


class JpegEncoder(Protocol[B]):
    """Makes single JPEG pictures of slots: snapshots. Sinks of pictures have encoders of their own.

    Every call but `close` belongs to one thread at a time, which may be a new one each time and is never the collector
    or the runner. One picture at a time: whoever owns it refuses a second one meanwhile.
    """

    def prepare(self, image: ImageFormat) -> None:
        """Take the memory that NV12 pictures of this format, and parts of them, need; nothing for a known one.

        In the initialising phase, or under a re-warm lease of the guard and the arena's lease. A few formats are kept,
        the latest ones. Raises BackendUnavailableError, OutputError or PipelineError, and then keeps nothing of it.
        """
        ...

    def encode(self, surface: Surface[B], after: Fence | None = None) -> memoryview:
        """The JPEG of an NV12 surface, or of a part of one (`Arena.view`), valid until the next call.

        Blocks, without spinning, until it is there; the surface must stay as it is so long.

        Args:
            after: what must be done before the surface is read.

        Raises PipelineError for a surface that no prepared format covers, or when the device fails; OutputError when
        the encoder does.
        """
        ...

    def close(self) -> None:
        """Free everything; twice is fine. With nothing in flight."""
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
        """Totals since `start`, without what re-warm leases cover; one key for every kind that it can see."""
        ...

    def rewarm(self) -> AbstractContextManager[None]:
        """Inside, what the calling thread does goes into `rewarm_counts`. An instrument that can't tell threads apart
        puts what any thread does there meanwhile."""
        ...

    def rewarm_counts(self) -> dict[ViolationKind, int]:
        """Totals since `start` of what happened under re-warm leases; kinds that did not happen may be left out."""
        ...

    def canaries(self) -> tuple[Canary, ...]: ...
    def stop(self) -> None: ...


# -- for a profiler beside us ---------------------------------------------------------------------------------
class Ranges(Protocol):
    """Names what a thread is doing, for a profiler that watches the process from outside (NVTX).

    Any thread; ranges nest per thread. A range that an error leaves open ends with its thread.
    """

    def push(self, name: str) -> None:
        """This thread begins work called `name`."""
        ...

    def pop(self) -> None:
        """This thread ends the work that it began last."""
        ...


class NullRanges:
    """Implements Ranges where nobody profiles: two empty calls a range, under a tenth of a microsecond."""

    __slots__ = ()

    def push(self, name: str) -> None:
        """Nothing."""

    def pop(self) -> None:
        """Nothing."""


NO_RANGES = NullRanges()
"""For everyone who is not told of another one."""


# -- the link between host and device --------------------------------------------------------------------------
@dataclass(frozen=True)
class LinkRate:
    """What went over the link between host and device in a short while, bytes a second, all processes together."""

    to_device: float
    to_host: float


class LinkMeter(Protocol):
    """Asks the hardware what crosses the link, to compare it with what the ledger says. One thread."""

    @property
    def name(self) -> str:
        """Link and instrument, for people: "PCIe, by NVML"."""
        ...

    def sample(self) -> LinkRate:
        """Measure for some tens of milliseconds; blocks. Raises BackendUnavailableError where it can't be measured."""
        ...

    def close(self) -> None: ...

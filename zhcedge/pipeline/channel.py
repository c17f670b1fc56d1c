"""What a pass works with: channels, and the launch positions of lanes."""

from __future__ import annotations

import collections
import enum
import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol

import numpy as np

from zhcedge.core.errors import ZhcEdgeError
from zhcedge.core.message_ids import tagged
from zhcedge.core.pace import Pace
from zhcedge.core.ports import FrameSlot, Lane, MotionMeter, Program, Sink, Source, SourceFacts
from zhcedge.core.types import RESULT_DTYPE, B
from zhcedge.pipeline.gate import Gate, MotionSettings
from zhcedge.pipeline.picture_watch import PictureWatch
from zhcedge.pipeline.pools import SharedSlot, SlotPool
from zhcedge.pipeline.tiles import WHOLE_PICTURE, Regions, TileMerger

log = logging.getLogger(__name__)

_READ_AHEAD = 2  # frames of a file that may wait for a lane: more would only grow the latency
_STARVED_NS = 5_000_000_000  # without a free slot for so long, somebody holds them who should not


def read_ahead(channels: int, batch: int) -> int:
    """Frames of one file that may wait for a lane: enough that the channels together fill the next two batches."""
    return max(_READ_AHEAD, -(-2 * batch // max(channels, 1)))


@dataclass(frozen=True)
class ChannelSettings:
    """How a channel is worked on.

    Attributes:
        priority: weight of its share of the detector, at least 1.
        detect_interval: of so many frames one is detected in.
        motion: detect only while something moves; None always.
        watches_picture: measure how bright and how detailed the picture is.
        regions: the parts of the picture that are detected in.
    """

    priority: int = 1
    detect_interval: int = 1
    motion: MotionSettings | None = None
    watches_picture: bool = False
    regions: Regions = WHOLE_PICTURE

    @property
    def skips_frames(self) -> bool:
        """Some frames are not detected in."""
        return self.detect_interval > 1 or self.motion is not None


DEFAULTS = ChannelSettings()


@dataclass(frozen=True)
class ChannelParts(Generic[B]):
    """What a channel is made of: unopened source, unopened sinks with names for messages.

    Attributes:
        is_patient: the source may be away at the start (a camera): it is tried again while the others run.
        masks: areas that are blacked out, polygons of points from 0 to 1.
    """

    name: str
    source: Source[B]
    sinks: Sequence[tuple[str, Sink[B]]]
    settings: ChannelSettings = DEFAULTS
    masks: Sequence[Sequence[tuple[float, float]]] = ()
    is_patient: bool = False


class ChannelState(str, enum.Enum):
    """How a channel is doing. The value is the word used in messages."""

    OPENING = "opening"
    UP = "up"
    DOWN = "down"  # its source is away and is tried again
    PAUSED = "paused"
    ENDED = "ended"
    FAILED = "failed"

    def __str__(self) -> str:
        return self.value


@dataclass
class TiledFrame(Generic[B]):
    """One slot whose picture is detected in by parts; reused for every frame that the slot carries.

    Attributes:
        slot: the frame's.
        parts: what programs see: views of the slot's surface, with results of their own.
        left: parts of the current frame that are not done yet. Collector thread.
    """

    slot: FrameSlot[B]
    parts: tuple[FrameSlot[B], ...]
    merger: TileMerger
    left: int = 0

    def part_done(self) -> bool:
        """One more part is done; True for the last one, and then the slot's results are merged. Collector thread."""
        self.left = (self.left or len(self.parts)) - 1
        if self.left:
            return False
        found = [part.results[0]["detections"][: int(part.results[0]["count"])] for part in self.parts]
        self.merger.merge(found, self.slot.results)
        return True


class SlotOrder(Protocol[B]):
    """Somebody wishes for one finished frame of a channel (pipeline/snapshots)."""

    def deliver(self, slot: FrameSlot[B], give_back: Callable[[FrameSlot[B]], None]) -> None:
        """Take the frame; `give_back` is called once, from any thread. Collector thread."""
        ...


@dataclass
class Channel(Generic[B]):
    """One opened channel of a run: its parts and its counts. The counts are written by its reader only.

    Attributes:
        tiled: by slot index, where the picture is not detected in as a whole; else empty.
        gate, meter: which frames are detected in, None for all; and what measures motion for it.
        picture: whether the camera still sees what it should, for whoever wants to know; None for nobody.
        draws_after: results are drawn once they are complete, by the drawer, because the lanes' programs don't.
        is_drawn_by_lanes: the lanes' programs draw into frames that are detected in, as a whole.
        is_detecting: False lets frames pass to the sinks unseen. Any thread may change it.
        pace: the wanted rate of a live source, None for all frames. Any thread may replace it, the reader uses it.
        order: who wants the next frame; the collector takes it away when it delivers.
        snapshot_ns: monotonic time of the last snapshot, 0 without one.
        credits: of a file, one for each frame that it may read ahead; None for a live source.
        last: the results of the newest frame that was detected in, where frames are skipped. Collector thread.
        backlog: finished frames of a file that some of its sinks (their positions) have not taken yet.
        has_ended: no more frames come out of the collector.
        is_silent: it gave no frame in the last warm-up pass that it was in.
        finished: set once its last frame has been handed to the sinks.
    """

    index: int
    name: str
    owner: str
    source: Source[B]
    facts: SourceFacts
    sinks: tuple[Sink[B], ...]
    sink_names: tuple[str, ...]
    pool: SlotPool[B]
    shared: tuple[SharedSlot[B], ...]
    settings: ChannelSettings = DEFAULTS
    tiled: tuple[TiledFrame[B], ...] = ()
    gate: Gate | None = None
    meter: MotionMeter[B] | None = None
    picture: PictureWatch[B] | None = None
    draws_after: bool = False
    is_drawn_by_lanes: bool = False
    is_detecting: bool = True
    pace: Pace | None = None
    order: SlotOrder[B] | None = None
    snapshot_ns: int = 0
    backlog: collections.deque[tuple[FrameSlot[B], list[int]]] = field(default_factory=collections.deque)
    has_ended: bool = False
    is_silent: bool = False
    ready: collections.deque[FrameSlot[B] | None] = field(default_factory=collections.deque)
    credits: queue.SimpleQueue[None] | None = None
    last: np.ndarray = field(default_factory=lambda: np.zeros(1, RESULT_DTYPE))
    stopping: threading.Event = field(default_factory=threading.Event)
    is_paused: bool = False
    finished: threading.Event = field(default_factory=threading.Event)
    error: ZhcEdgeError | None = None
    frames: int = 0
    dropped: int = 0
    sink_dropped: int = 0
    share: float = 0.0  # how much of the detector it has had, over its priority. Runner thread
    broken_sinks: set[str] = field(default_factory=set)
    _starved_since_ns: int = 0
    _is_starvation_logged: bool = False

    def parts_of(self, slot: FrameSlot[B]) -> tuple[FrameSlot[B], ...]:
        """What programs are launched over for the frame in `slot`. Runner thread."""
        if not self.tiled:
            return (slot,)
        parts = self.tiled[slot.index].parts
        for part in parts:
            part.info, part.holder = slot.info, slot.holder
        return parts

    @property
    def is_over(self) -> bool:
        """It has ended, or is about to. Any thread."""
        return self.stopping.is_set() or self.finished.is_set() or self.error is not None

    @property
    def is_starved(self) -> bool:
        """The reader finds no slot: whoever holds them does not give them back. Any thread."""
        return self._starved_since_ns != 0

    def note_starved(self, now_ns: int) -> None:
        """There was no slot to read into. Logs once who holds them, when that lasts. Reader thread."""
        self._starved_since_ns = self._starved_since_ns or now_ns
        if now_ns - self._starved_since_ns >= _STARVED_NS and not self._is_starvation_logged:
            self._is_starvation_logged = True
            log.warning(
                "channel %s: no free slot for 5 s; held by %s",
                self.name,
                self.pool.holders(),
                extra=tagged(camera=self.name),
            )

    def note_fed(self) -> None:
        """There was one again."""
        if self._starved_since_ns:
            self._starved_since_ns, self._is_starvation_logged = 0, False

    def start_over(self) -> None:
        """Warm-up is over: counts begin again. No thread works on the channel."""
        self.is_silent = not self.frames
        self.frames = self.dropped = self.sink_dropped = 0
        self.share = 0.0
        self.has_ended = False
        self.finished.clear()
        if self.gate is not None:
            self.gate = Gate(self.settings.detect_interval, self.settings.motion)


@dataclass(frozen=True)
class ChannelNews:
    """How a channel is doing from now on.

    Attributes:
        index: of the channel in the ring's records.
        reason: why it is not up, for people; else empty.
    """

    index: int
    name: str
    state: ChannelState
    reason: str = ""


def about(channel: str, error: ZhcEdgeError) -> str:
    """An error's text for a message that names the channel already; most errors of sources and sinks do so too."""
    return str(error).removeprefix(f"{channel}: ")


ChannelListener = Callable[[ChannelNews], None]
"""Any thread."""


def nobody_listens(news: ChannelNews) -> None:
    """For runs whose channels nobody asks about."""


@dataclass(frozen=True)
class Launcher(Generic[B]):
    """One launch position of a lane: a lane of depth 2 has two. `programs` by batch size."""

    lane: Lane[B]
    programs: Mapping[int, Program[B]]

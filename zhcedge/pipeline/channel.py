"""What a pass works with: channels, and the launch positions of lanes."""

from __future__ import annotations

import collections
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic

from zhcedge.core.ports import FrameSlot, Lane, Program, Sink, Source, SourceFacts
from zhcedge.core.types import B
from zhcedge.pipeline.pools import SharedSlot, SlotPool

log = logging.getLogger(__name__)

_READ_AHEAD = 2  # frames of a file that may wait for a lane: more would only grow the latency
_STARVED_NS = 5_000_000_000  # without a free slot for so long, somebody holds them who should not


def read_ahead(channels: int, batch: int) -> int:
    """Frames of one file that may wait for a lane: enough that the channels together fill the next two batches."""
    return max(_READ_AHEAD, -(-2 * batch // max(channels, 1)))


@dataclass
class Channel(Generic[B]):
    """One channel of a run: its parts and its counts. The counts are written by its reader only."""

    index: int
    name: str
    source: Source[B]
    facts: SourceFacts
    sinks: tuple[Sink[B], ...]
    sink_names: tuple[str, ...]
    pool: SlotPool[B]
    shared: tuple[SharedSlot[B], ...]
    ready: collections.deque[FrameSlot[B] | None] = field(default_factory=collections.deque)
    frames: int = 0
    dropped: int = 0
    sink_dropped: int = 0
    broken_sinks: set[str] = field(default_factory=set)
    _starved_since_ns: int = 0
    _is_starvation_logged: bool = False

    def note_starved(self, now_ns: int) -> None:
        """There was no slot to read into. Logs once who holds them, when that lasts. Reader thread."""
        self._starved_since_ns = self._starved_since_ns or now_ns
        if now_ns - self._starved_since_ns >= _STARVED_NS and not self._is_starvation_logged:
            self._is_starvation_logged = True
            log.warning("channel %s: no free slot for 5 s; held by %s", self.name, self.pool.holders())

    def note_fed(self) -> None:
        """There was one again."""
        if self._starved_since_ns:
            self._starved_since_ns, self._is_starvation_logged = 0, False


@dataclass(frozen=True)
class Launcher(Generic[B]):
    """One launch position of a lane: a lane of depth 2 has two. `programs` by batch size."""

    lane: Lane[B]
    programs: Mapping[int, Program[B]]

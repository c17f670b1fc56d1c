"""The event state machine: every confirmed track becomes new, any number of update, and exactly one end.

Pure: no I/O, no clock of its own; time is that of the tracker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from zhcedge.analytics.tracker import Track, TrackUpdate
from zhcedge.core.events import Box, EndReason, Event, EventSnapshot, EventType


@dataclass(frozen=True)
class EventSettings:
    """Values of one channel.

    Attributes:
        camera: name of the channel; part of every id, so no two channels may share it.
        labels: class names by index.
        update_interval_ms: least time between two messages of one id, `end` excepted.
        moved_iou: an object has moved when its box overlaps less than this with the box last told.
    """

    camera: str
    labels: tuple[str, ...]
    update_interval_ms: int = 1000
    moved_iou: float = 0.8


@dataclass(slots=True)
class _Open:
    """An event that has begun: what was last told, when by the tracker's clock, and how its track stands now."""

    told: EventSnapshot
    told_ns: int
    now: Track


class EventMachine:
    """Turns one channel's track updates into events. Belongs to one thread.

    A channel that starts again gets a new tracker and a new machine, with the ids going on.
    """

    def __init__(self, settings: EventSettings) -> None:
        self._settings = settings
        self._open: dict[int, _Open] = {}

    @property
    def open_count(self) -> int:
        """Events that have begun and not ended."""
        return len(self._open)

    def step(self, update: TrackUpdate) -> list[Event]:
        """The events of one frame: ends first, then by order of id. Empty for most frames."""
        events = [self._end(track.id, EndReason.LOST) for track in update.lost if track.id in self._open]
        events += [self._begin(track, update.time_ns) for track in update.confirmed]
        for track in update.seen:
            state = self._open.get(track.id)
            if state is not None and state.told.frame is not track.last:
                state.now = track
                if self._is_worth_telling(state, update.time_ns):
                    before, state.told, state.told_ns = state.told, self._snapshot(track), update.time_ns
                    events.append(Event(EventType.UPDATE, before, state.told))
        return events

    def close(self, reason: EndReason) -> list[Event]:
        """End all that is open; a second call finds nothing."""
        return [self._end(track_id, reason) for track_id in list(self._open)]

    def _begin(self, track: Track, time_ns: int) -> Event:
        snapshot = self._snapshot(track)
        self._open[track.id] = _Open(told=snapshot, told_ns=time_ns, now=track)
        return Event(EventType.NEW, None, snapshot)

    def _end(self, track_id: int, reason: EndReason) -> Event:
        state = self._open.pop(track_id)
        end_time_ns = state.now.last.capture_time_ns
        return Event(EventType.END, state.told, replace(self._snapshot(state.now), end_time_ns=end_time_ns), reason)

    def _is_worth_telling(self, state: _Open, time_ns: int) -> bool:
        if time_ns - state.told_ns < self._settings.update_interval_ms * 1_000_000:
            return False
        has_better_score = state.now.top_score > state.told.top_score
        return has_better_score or iou(state.now.box, state.told.box) < self._settings.moved_iou

    def _snapshot(self, track: Track) -> EventSnapshot:
        return EventSnapshot(
            id=f"{self._settings.camera}-{track.id}",
            camera=self._settings.camera,
            label=self._settings.labels[track.label],
            score=track.score,
            top_score=track.top_score,
            box=track.box,
            frame=track.last,
            start_time_ns=track.first.capture_time_ns,
        )


def iou(a: Box, b: Box) -> float:
    """Intersection over union of two boxes that have an area."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0.0) * max(height, 0.0)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)

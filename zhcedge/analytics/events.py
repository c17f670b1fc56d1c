"""The event state machine: a confirmed track becomes new, any number of update, and exactly one end.

Pure: no I/O, no clock of its own; time is that of the tracker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from zhcedge.analytics.overlap import iou
from zhcedge.analytics.rules import LineCounts, Rules, RulesSettings, Whereabouts
from zhcedge.analytics.tracker import Track, TrackUpdate
from zhcedge.analytics.trail import Trail
from zhcedge.analytics.zones import Point, Sightings
from zhcedge.core.events import EndReason, Event, EventSnapshot, EventType


@dataclass(frozen=True)
class EventSettings:
    """Values of one channel.

    Attributes:
        camera: name of the channel; part of every id, so no two channels may share it.
        labels: class names by index.
        update_interval_ms: least time between two messages of one id that say no more than where the object is, how
            well it was seen, that it stopped or left a zone. What a rule says (a zone entered, loitering, a line
            crossed) is told at once.
        moved_iou: an object has moved when its box overlaps less than this with the box last told.
        required_zones: an event begins when its object enters one of these zones; empty when it is confirmed.
        has_clip: a recording is made of every event.
    """

    camera: str
    labels: tuple[str, ...]
    update_interval_ms: int = 1000
    moved_iou: float = 0.8
    required_zones: tuple[str, ...] = ()
    has_clip: bool = False


@dataclass(slots=True)
class _Watched:
    """A confirmed track: how it stands now and, once its event has begun, what was last told and when."""

    now: Track
    trail: Trail | None = None
    told: EventSnapshot | None = None
    told_ns: int = 0
    told_place: Whereabouts | None = None
    has_snapshot: bool = False


class EventMachine:
    """Turns one channel's track updates into events. Belongs to one thread.

    A channel that starts again gets a new tracker and a new machine, with the ids going on.

    Args:
        settings: of the channel.
        rules: its zones and lines, changed by `rules.replace`. They forget their tracks when this machine closes and
            keep their counts, so they may go on with the next one.
    """

    def __init__(self, settings: EventSettings, rules: Rules | None = None) -> None:
        self._settings = settings
        self._interval_ns = settings.update_interval_ms * 1_000_000
        self.rules = rules or Rules(RulesSettings(), settings.labels)
        self._watched: dict[int, _Watched] = {}

    @property
    def open_count(self) -> int:
        """Events that have begun and not ended."""
        return sum(1 for _ in self._open())

    def open_labels(self) -> Counter[str]:
        """How many open events there are of each label: the objects that are there now."""
        return Counter(told.label for _, told in self._open())

    def zone_counts(self) -> dict[str, Counter[str]]:
        """How many open events there are in each zone, of each label; every zone is there."""
        counts: dict[str, Counter[str]] = {zone.name: Counter() for zone in self.rules.settings.zones}
        for watched, told in self._open():
            for name in self.rules.of(watched.now.id).current:
                counts[name][told.label] += 1
        return counts

    def line_counts(self) -> LineCounts:
        """Crossings since the beginning, by line, direction and label, of all confirmed tracks: a copy."""
        return self.rules.line_counts()

    def replace(self, settings: EventSettings) -> None:
        """Other values from the next frame on; open events go on. The camera and the labels must be the same."""
        self._settings = settings
        self._interval_ns = settings.update_interval_ms * 1_000_000

    def note_snapshot(self, event_id: str) -> None:
        """A picture of an open event is kept: its next message says so. Nothing happens when it has ended."""
        for watched, told in self._open():
            if told.id == event_id:
                watched.has_snapshot = True

    def step(self, update: TrackUpdate, size_px: tuple[int, int] | None = None) -> list[Event]:
        """The events of one frame: ends first, then by order of id. Empty for most frames.

        Args:
            update: of `Tracker.update`, or of `Tracker.coast`.
            size_px: width and height of the source's picture. None: unknown, then there are no rules and no paths.
        """
        sightings = None if size_px is None else _sightings(update, size_px)
        if sightings is not None:
            self.rules.step(update, sightings)
        events = [event for track in update.lost for event in self._end(track.id, EndReason.LOST)]
        for track in update.confirmed:
            self._watched[track.id] = _Watched(track)
        feet = None if sightings is None else sightings.feet()
        for index, track in enumerate(update.seen):
            watched = self._watched.get(track.id)
            if watched is not None:
                watched.now = track
                if feet is not None:
                    _follow(watched, feet[index])
                place = self.rules.of(track.id)
                # Most objects of most frames: told a moment ago, and where they were then.
                if place is watched.told_place and update.time_ns - watched.told_ns < self._interval_ns:
                    continue
                event = self._tell(watched, place, update.time_ns)
                if event is not None:
                    events.append(event)
        return events

    def close(self, reason: EndReason) -> list[Event]:
        """End all that is open; a second call finds nothing. Tracks that go on all the same make no events."""
        events = [event for track_id in list(self._watched) for event in self._end(track_id, reason)]
        self.rules.forget_all()
        return events

    def _open(self) -> Iterator[tuple[_Watched, EventSnapshot]]:
        return ((watched, watched.told) for watched in self._watched.values() if watched.told is not None)

    def _tell(self, watched: _Watched, place: Whereabouts, time_ns: int) -> Event | None:
        """The new or the update of an object, if there is something to tell."""
        before = watched.told
        if before is None:
            required = self._settings.required_zones
            if required and not any(name in required for name in place.current):
                return None
        elif not self._is_worth_telling(watched, before, place, time_ns):
            return None
        after = watched.told = self._snapshot(watched, place)
        watched.told_ns, watched.told_place = time_ns, place
        return Event(EventType.NEW if before is None else EventType.UPDATE, before, after)

    def _is_worth_telling(self, watched: _Watched, told: EventSnapshot, place: Whereabouts, time_ns: int) -> bool:
        has_waited = time_ns - watched.told_ns >= self._interval_ns
        now = watched.now
        if place != watched.told_place and (has_waited or _says_more(told, place)):
            return True
        if not has_waited:
            return False
        if watched.has_snapshot and not told.has_snapshot:
            return True
        if now.is_stationary or told.is_stationary:
            return now.is_stationary != told.is_stationary
        return now.top_score > told.top_score or iou(now.box, told.box) < self._settings.moved_iou

    def _end(self, track_id: int, reason: EndReason) -> list[Event]:
        """The end of a track's event, if it has begun."""
        watched, place = self._watched.pop(track_id, None), self.rules.forget(track_id)
        if watched is None or watched.told is None:
            return []
        snapshot = self._snapshot(watched, place)
        # The wall clock may have been set back meanwhile; nothing ends before it began.
        after = replace(snapshot, end_time_ns=max(watched.now.last.capture_time_ns, snapshot.start_time_ns))
        return [Event(EventType.END, watched.told, after, reason)]

    def _snapshot(self, watched: _Watched, place: Whereabouts) -> EventSnapshot:
        track = watched.now
        return EventSnapshot(
            id=f"{self._settings.camera}-{track.id}",
            camera=self._settings.camera,
            label=self._settings.labels[track.label],
            score=track.score,
            top_score=track.top_score,
            box=track.box,
            frame=track.last,
            start_time_ns=track.first.capture_time_ns,
            current_zones=place.current,
            entered_zones=place.entered,
            loitering=place.loitering,
            line_crossings=dict(place.crossings),
            path=() if watched.trail is None else watched.trail.points,
            is_stationary=track.is_stationary,
            has_snapshot=watched.has_snapshot,
            has_clip=self._settings.has_clip,
        )


def _sightings(update: TrackUpdate, size_px: tuple[int, int]) -> Sightings:
    boxes = np.array([track.box for track in update.seen], np.float64).reshape(-1, 4)
    labels = np.array([track.label for track in update.seen], np.int64)
    return Sightings(boxes / (size_px * 2), labels)


def _follow(watched: _Watched, foot: Point) -> None:
    if watched.trail is None:
        watched.trail = Trail(foot)
    elif not watched.now.is_stationary:
        watched.trail.go(foot)


def _says_more(told: EventSnapshot, place: Whereabouts) -> bool:
    """Whether a rule says something that was not told yet; what has ceased to be so can wait."""
    has_entered = any(name not in told.current_zones for name in place.current)
    loiters = any(name not in told.loitering for name in place.loitering)
    return has_entered or loiters or dict(place.crossings) != told.line_crossings

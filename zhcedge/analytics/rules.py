"""The rules of a channel: its zones and lines, and what they say about every track."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple

import numpy as np

from zhcedge.analytics.lines import LineMap, LineSettings
from zhcedge.analytics.overlap import Floats, Ints
from zhcedge.analytics.tracker import Track, TrackUpdate
from zhcedge.analytics.zones import Mask, Sightings, ZoneMap, ZoneSettings, ZoneTimes
from zhcedge.core.events import Direction

_FIRST_ROWS = 16


@dataclass(frozen=True)
class RulesSettings:
    """Values of one channel.

    Attributes:
        zones, lines: no name twice among the zones, nor among the lines.
    """

    zones: tuple[ZoneSettings, ...] = ()
    lines: tuple[LineSettings, ...] = ()

    def __post_init__(self) -> None:
        for kind in (self.zones, self.lines):
            names = [rule.name for rule in kind]
            if len(set(names)) != len(names):
                raise ValueError("a name is used twice")


class Whereabouts(NamedTuple):
    """What the rules say about one track.

    Attributes:
        current: zones that it is in, in the order of the settings.
        entered: zones that it is or was in, in the order of entry.
        loitering: zones that it has been in for too long.
        crossings: the latest direction for every line that it has crossed, in the order of the first crossings.
    """

    current: tuple[str, ...] = ()
    entered: tuple[str, ...] = ()
    loitering: tuple[str, ...] = ()
    crossings: tuple[tuple[str, Direction], ...] = ()


NOWHERE = Whereabouts()

LineCounts = dict[str, dict[Direction, Counter[str]]]


class Rules:
    """Zones and lines of one channel. Belongs to one thread; times and ids are the tracker's.

    An object that stands still is where it stopped: its box's jitter neither enters nor crosses anything.

    Args:
        settings: zones and lines.
        labels: the model's, by index.
    """

    def __init__(self, settings: RulesSettings, labels: tuple[str, ...]) -> None:
        self._labels = labels
        self._row_of: dict[int, int] = {}
        self._label_of: dict[int, str] = {}
        self._free: list[int] = []
        self._whereabouts: dict[int, Whereabouts] = {}
        self._boxes: Floats = np.empty((0, 4))  # of the row's track, when it last moved
        self._line_counts: LineCounts = {}
        self._take(settings)

    @property
    def settings(self) -> RulesSettings:
        return self._settings

    def _take(self, settings: RulesSettings) -> None:
        self._settings = settings
        self._zone_map = ZoneMap(settings.zones, self._labels) if settings.zones else None
        self._zone_times = ZoneTimes(settings.zones)
        self._zone_names = [zone.name for zone in settings.zones]
        self._schedules = [
            (index, zone.schedule) for index, zone in enumerate(settings.zones) if zone.schedule is not None
        ]
        self._is_open = np.ones(len(settings.zones), bool)
        self._line_map = LineMap(settings.lines, self._labels) if settings.lines else None
        self._zone_times.grow(len(self._boxes))
        if self._line_map is not None:
            self._line_map.grow(len(self._boxes))
        self._line_counts = {
            line.name: self._line_counts.get(line.name, {way: Counter() for way in Direction})
            for line in settings.lines
        }

    def replace(self, settings: RulesSettings) -> None:
        """Other zones and lines from the next frame on.

        A zone that keeps its name keeps who is in it and since when, even if its outline has changed; what is not in
        it any more leaves it with the next frames. A line that keeps its name keeps its counts. What was entered and
        crossed stays so.
        """
        old, times, lines = self._settings, self._zone_times, self._line_map
        self._take(settings)
        columns = {zone.name: column for column, zone in enumerate(old.zones)}
        for index, zone in enumerate(settings.zones):
            if zone.name in columns:
                self._zone_times.adopt(times, index, columns[zone.name])
        kept = {(line.name, line.points, line.anchor): column for column, line in enumerate(old.lines)}
        for index, line in enumerate(settings.lines):
            column = kept.get((line.name, line.points, line.anchor))
            if column is not None and lines is not None and self._line_map is not None:
                self._line_map.adopt(lines, index, column)
        for track_id, row in self._row_of.items():
            self._note_zones(track_id, row)

    def line_counts(self) -> LineCounts:
        """Crossings since the beginning, by line, direction and label: a copy."""
        return {name: {way: Counter(count) for way, count in ways.items()} for name, ways in self._line_counts.items()}

    def of(self, track_id: int) -> Whereabouts:
        """What is known about a track; NOWHERE for one that was never seen."""
        return self._whereabouts.get(track_id, NOWHERE)

    def step(self, update: TrackUpdate, sightings: Sightings) -> None:
        """Take in one frame.

        Args:
            update: what the tracker says.
            sightings: the same tracks as `update.seen`, in the same order.
        """
        if not update.seen or (self._zone_map is None and self._line_map is None):
            return
        rows = self._rows(update.seen, sightings)
        places = Sightings(self._boxes[rows], sightings.labels)
        if self._zone_map is not None:
            inside = self._zone_map.inside(places)
            is_open = self._open_zones(update.seen[-1].last.capture_time_ns)
            for index in np.flatnonzero(self._zone_times.step(rows, inside, is_open, update.time_ns)).tolist():
                self._note_zones(update.seen[index].id, int(rows[index]))
        if self._line_map is not None:
            crossed = self._line_map.step(rows, places)
            for index, line in np.argwhere(crossed).tolist():
                self._note_crossings(update.seen[index].id, line, int(crossed[index, line]))

    def forget(self, track_id: int) -> Whereabouts:
        """A track has ended: what the rules say about it in the end. A second call says NOWHERE."""
        row = self._row_of.pop(track_id, None)
        if row is None:
            return self._whereabouts.pop(track_id, NOWHERE)
        if self._line_map is not None:
            # It went out of sight on the line: a door may be there.
            for line in np.flatnonzero(self._line_map.pending[row]).tolist():
                self._note_crossings(track_id, line, int(self._line_map.pending[row, line]))
            self._line_map.forget(row)
        self._zone_times.forget(row)
        self._free.append(row)
        del self._label_of[track_id]
        return self._whereabouts.pop(track_id, NOWHERE)

    def forget_all(self) -> None:
        """No track goes on; counts of lines stay."""
        for track_id in list(self._row_of):
            self.forget(track_id)

    def _rows(self, seen: Sequence[Track], sightings: Sightings) -> Ints:
        """The row of every track; new ones get one."""
        moved = []
        for index, track in enumerate(seen):
            if track.id not in self._row_of:
                self._add(track)
            elif track.is_stationary:
                continue
            moved.append(index)
        rows = np.array([self._row_of[track.id] for track in seen], np.int64)
        self._boxes[rows[moved]] = sightings.boxes[moved]
        return rows

    def _add(self, track: Track) -> None:
        if not self._free:
            size = len(self._boxes)
            larger = max(2 * size, _FIRST_ROWS)
            self._boxes = np.pad(self._boxes, ((0, larger - size), (0, 0)))
            self._zone_times.grow(larger)
            if self._line_map is not None:
                self._line_map.grow(larger)
            self._free = list(range(larger - 1, size - 1, -1))
        self._row_of[track.id] = self._free.pop()
        self._label_of[track.id] = self._labels[track.label]

    def _open_zones(self, wall_ns: int) -> Mask:
        for index, schedule in self._schedules:
            self._is_open[index] = schedule.is_open(wall_ns)
        return self._is_open

    def _note_zones(self, track_id: int, row: int) -> None:
        times, old = self._zone_times, self.of(track_id)
        current = tuple(compress(self._zone_names, times.current[row].tolist()))
        loitering = tuple(compress(self._zone_names, times.loiters[row].tolist()))
        entered = old.entered + tuple(name for name in current if name not in old.entered)
        self._whereabouts[track_id] = Whereabouts(current, entered, loitering, old.crossings)

    def _note_crossings(self, track_id: int, line: int, signed: int) -> None:
        name = self._settings.lines[line].name
        way = Direction.IN if signed > 0 else Direction.OUT
        self._line_counts[name][way][self._label_of[track_id]] += abs(signed)
        old = self.of(track_id)
        crossings = {**dict(old.crossings), name: way}
        self._whereabouts[track_id] = old._replace(crossings=tuple(crossings.items()))

"""What a minute of events adds to the history: a row for each event, and totals by the hour. Pure.

Lengths of time come from the monotonic clock, hours of the day from the wall clock: a clock that is set moves what
follows into another hour, and neither loses nor doubles any of it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from zhcedge.core.events import Direction, EndReason, Event, EventType

HOUR_NS = 3_600_000_000_000

MAX_ROWS = 10_000
"""Most events, and most totals, that wait in memory for a disk that does not take them: a few MB."""


@dataclass(frozen=True, slots=True)
class PastEvent:
    """One event.

    Attributes:
        boot_id, id: unique together.
        start_ns, end_ns: wall clock of the first and of the last frame in which the object was seen, as they were told.
        presence_ns: from the event's first message to its last frame, whatever the wall clock did meanwhile.
        top_score: 0..1.
        zones: that it has entered, in order.
        lines: the way it went last, by name of each line that it has crossed.
        end_reason: None while it goes on.
        has_snapshot, has_clip: a picture or a recording was made.
        clock_synced: the wall clock was set in all of that time.
    """

    boot_id: str
    id: str
    camera: str
    label: str
    start_ns: int
    end_ns: int
    presence_ns: int
    top_score: float
    zones: tuple[str, ...] = ()
    lines: tuple[tuple[str, Direction], ...] = ()
    end_reason: EndReason | None = None
    has_snapshot: bool = False
    has_clip: bool = False
    clock_synced: bool = False


class Place(str, enum.Enum):
    """What a total is of."""

    CAMERA = "camera"
    ZONE = "zone"
    LINE = "line"


class TotalKey(NamedTuple):
    """What a total is of.

    Attributes:
        hour: of the wall clock, since the epoch.
        clock_synced: whether the clock was set when the hour was told from it.
        name: of the zone or line; empty for a camera.
    """

    hour: int
    clock_synced: bool
    camera: str
    place: Place
    name: str
    label: str


@dataclass(slots=True)
class Tally:
    """One total.

    Attributes:
        events: that began, at a camera; objects that entered, at a zone.
        presence_ns: of all objects together, there or in the zone.
        went_in, went_out: across a line.
    """

    events: int = 0
    presence_ns: int = 0
    went_in: int = 0
    went_out: int = 0

    def add(self, other: Tally) -> None:
        self.events += other.events
        self.presence_ns += other.presence_ns
        self.went_in += other.went_in
        self.went_out += other.went_out


@dataclass
class Batch:
    """What is not on disk yet.

    Attributes:
        rows: by (boot_id, id); `presence_ns` is what came since the last batch.
        totals: what came since the last batch.
        lost: rows and totals that found no place.
    """

    rows: dict[tuple[str, str], PastEvent] = field(default_factory=dict)
    totals: dict[TotalKey, Tally] = field(default_factory=dict)
    lost: int = 0

    def __bool__(self) -> bool:
        return bool(self.rows or self.totals)

    def note(self, event: Event, boot_id: str) -> None:
        """One message of an event."""
        self._add_row(_row(event, boot_id))
        for key, tally in _totals(event):
            self._add_total(key, tally)

    def merge(self, later: Batch) -> None:
        """Add what came after this batch."""
        for row in later.rows.values():
            self._add_row(row)
        for key, tally in later.totals.items():
            self._add_total(key, tally)
        self.lost += later.lost

    def _add_row(self, row: PastEvent) -> None:
        key = (row.boot_id, row.id)
        earlier = self.rows.get(key)
        if earlier is not None:
            presence_ns = earlier.presence_ns + row.presence_ns
            clock_synced = earlier.clock_synced and row.clock_synced
            row = replace(row, presence_ns=presence_ns, clock_synced=clock_synced)
        elif len(self.rows) >= MAX_ROWS:
            self.lost += 1
            return
        self.rows[key] = row

    def _add_total(self, key: TotalKey, tally: Tally) -> None:
        total = self.totals.get(key)
        if total is not None:
            total.add(tally)
        elif len(self.totals) >= MAX_ROWS:
            self.lost += 1
        else:
            self.totals[key] = replace(tally)


def _row(event: Event, boot_id: str) -> PastEvent:
    now, before = event.after, event.before
    return PastEvent(
        boot_id=boot_id,
        id=now.id,
        camera=now.camera,
        label=now.label,
        start_ns=now.start_time_ns,
        end_ns=now.frame.capture_time_ns,
        presence_ns=_passed_ns(event),
        top_score=now.top_score,
        zones=now.entered_zones,
        lines=tuple(now.line_crossings.items()),
        end_reason=event.end_reason,
        has_snapshot=now.has_snapshot,
        has_clip=now.has_clip,
        clock_synced=now.frame.clock_synced and (before is None or before.frame.clock_synced),
    )


def _totals(event: Event) -> Iterator[tuple[TotalKey, Tally]]:
    """What one message adds. Whoever was in a zone at the message before was there until this one."""
    now, before = event.after, event.before
    frame = now.frame
    known = before.entered_zones if before is not None else ()

    def key(hour: int, place: Place, name: str = "") -> TotalKey:
        return TotalKey(hour, frame.clock_synced, now.camera, place, name, now.label)

    hour = frame.capture_time_ns // HOUR_NS
    if event.type is EventType.NEW:
        yield key(hour, Place.CAMERA), Tally(events=1)
    for zone in now.entered_zones:
        if zone not in known:
            yield key(hour, Place.ZONE, zone), Tally(events=1)
    for line, way in crossings(event):
        yield key(hour, Place.LINE, line), Tally(went_in=way is Direction.IN, went_out=way is Direction.OUT)
    for in_hour, passed_ns in _by_hour(frame.capture_time_ns, _passed_ns(event)):
        yield key(in_hour, Place.CAMERA), Tally(presence_ns=passed_ns)
        for zone in before.current_zones if before is not None else ():
            yield key(in_hour, Place.ZONE, zone), Tally(presence_ns=passed_ns)


def crossings(event: Event) -> list[tuple[str, Direction]]:
    """Lines that were crossed since the event's last message.

    A message says the last direction of each line. Who crosses one in the same direction again, having gone round its
    end, is not counted again.
    """
    known = event.before.line_crossings if event.before is not None else {}
    return [(line, way) for line, way in event.after.line_crossings.items() if known.get(line) is not way]


def _passed_ns(event: Event) -> int:
    """Time from the message before to the frame of this one; 0 for the first."""
    if event.before is None:
        return 0
    return max(event.after.frame.read_time_ns - event.before.frame.read_time_ns, 0)


def _by_hour(end_ns: int, length_ns: int) -> Iterator[tuple[int, int]]:
    """The hours, and how much of each, that a time of `length_ns` up to `end_ns` lies in; nothing for no length."""
    start_ns = end_ns - length_ns
    while start_ns < end_ns:
        hour = start_ns // HOUR_NS
        stop_ns = min((hour + 1) * HOUR_NS, end_ns)
        yield hour, stop_ns - start_ns
        start_ns = stop_ns

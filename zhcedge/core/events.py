"""Events: what a rule says about a tracked object. Made by analytics, turned into messages by publish."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from zhcedge.core.types import FrameInfo

Box = tuple[float, float, float, float]
"""x1, y1, x2, y2 in pixels of the source frame; each number is a float32 value, exactly."""


class EventType(str, enum.Enum):
    """The messages of one event id come as new, any number of update, end."""

    NEW = "new"
    UPDATE = "update"
    END = "end"


class EventKind(str, enum.Enum):
    """What an event is about."""

    OBJECT = "object"  # something that the detector saw
    PICTURE = "picture"  # the camera's picture as a whole; its label says what is wrong with it


class EndReason(str, enum.Enum):
    """Why an event ended."""

    LOST = "lost"  # the object was not seen any more, the fault of the picture is over
    CHANNEL_ENDED = "channel-ended"
    CHANNEL_DOWN = "channel-down"  # its source is away
    PAUSED = "paused"  # the channel is
    DETECTION_OFF = "detection-off"  # the channel goes on, and nobody looks at it any more
    SHUTDOWN = "shutdown"
    RELOAD = "reload"  # the configuration was changed, and the camera is opened anew
    CRASH = "crash"  # the daemon was killed, and has found the event open at its next start


class Direction(str, enum.Enum):
    """Which way a line was crossed, as seen in the picture by one who walks from its first point to its second."""

    IN = "in"  # from the left hand to the right
    OUT = "out"


@dataclass(frozen=True, slots=True)
class EventSnapshot:
    """An event at one moment.

    Attributes:
        id: unique together with the daemon's boot_id, never used twice.
        camera: name of the channel.
        label: class name.
        score, top_score: of the frame below, and the best so far; 0..1, float32 values.
        box: as the detector gave it in the frame below, bit for bit.
        frame: the last frame in which the object was seen.
        start_time_ns: wall clock of the first frame in which it was seen.
        end_time_ns: wall clock of the last frame in which it was seen; None until the event has ended.
        current_zones, entered_zones: names of the zones it is in, and of those it has been in, in order of entry.
        loitering: names of the zones that it has been in for longer than it should.
        line_crossings: by name of each line that it has crossed, the way it went last.
        path: where it stood, from its confirmation until now: at most 32 points x, y as fractions of the picture. Empty
            where the picture's size is unknown.
        is_stationary: it has stopped moving.
        has_snapshot, has_clip: a picture or a recording can be had.
        kind: what it is about. Of a picture the box is all of it, and the score says nothing.
    """

    id: str
    camera: str
    label: str
    score: float
    top_score: float
    box: Box
    frame: FrameInfo
    start_time_ns: int
    end_time_ns: int | None = None
    current_zones: tuple[str, ...] = ()
    entered_zones: tuple[str, ...] = ()
    loitering: tuple[str, ...] = ()
    line_crossings: Mapping[str, Direction] = field(default_factory=dict)
    path: tuple[tuple[float, float], ...] = ()
    is_stationary: bool = False
    has_snapshot: bool = False
    has_clip: bool = False
    kind: EventKind = EventKind.OBJECT


@dataclass(frozen=True, slots=True)
class Event:
    """One step of an event: `before` is what the previous message said, None for the first one."""

    type: EventType
    before: EventSnapshot | None
    after: EventSnapshot
    end_reason: EndReason | None = None

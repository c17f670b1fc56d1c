"""Events: what a rule says about a tracked object. Made by analytics, turned into messages by publish."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from zhcedge.core.types import FrameInfo

Box = tuple[float, float, float, float]
"""x1, y1, x2, y2 in pixels of the source frame; each number is a float32 value, exactly."""


class EventType(str, enum.Enum):
    """The messages of one event id come as new, any number of update, end."""

    NEW = "new"
    UPDATE = "update"
    END = "end"


class EndReason(str, enum.Enum):
    """Why an event ended."""

    LOST = "lost"  # the object was not seen any more
    CHANNEL_ENDED = "channel-ended"
    SHUTDOWN = "shutdown"


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
        is_stationary: it has stopped moving.
        has_snapshot, has_clip: a picture or a recording can be had.
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
    is_stationary: bool = False
    has_snapshot: bool = False
    has_clip: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """One step of an event: `before` is what the previous message said, None for the first one."""

    type: EventType
    before: EventSnapshot | None
    after: EventSnapshot
    end_reason: EndReason | None = None

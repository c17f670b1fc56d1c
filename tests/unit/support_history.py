"""Events for the history's tests: messages of one object after the other, by clocks that the test moves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from zhcedge.core.events import Direction, EndReason, Event, EventSnapshot, EventType
from zhcedge.core.types import FrameInfo

SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS
NOON_NS = 1_700_006_400 * SECOND_NS - 1_700_006_400 * SECOND_NS % HOUR_NS


@dataclass
class Scene:
    """One camera. `monotonic_ns` only grows; `wall_ns` may be set.

    Attributes:
        is_set: whether its frames say that the wall clock is synchronised.
    """

    camera: str = "gate"
    monotonic_ns: int = 5 * SECOND_NS
    wall_ns: int = NOON_NS
    is_set: bool = True
    _open: dict[str, EventSnapshot] = field(default_factory=dict)
    _count: int = 0

    def move(self, seconds: float) -> None:
        self.monotonic_ns += round(seconds * SECOND_NS)
        self.wall_ns += round(seconds * SECOND_NS)

    def new(self, label: str = "person", zones: tuple[str, ...] = ()) -> Event:
        self._count += 1
        frame = self._frame()
        after = EventSnapshot(
            id=f"{self.camera}-{self._count}",
            camera=self.camera,
            label=label,
            score=0.5,
            top_score=0.5,
            box=(0.0, 0.0, 1.0, 1.0),
            frame=frame,
            start_time_ns=frame.capture_time_ns,
            current_zones=zones,
            entered_zones=zones,
        )
        return self._told(EventType.NEW, None, after)

    def update(
        self, event_id: str, zones: tuple[str, ...] = (), lines: dict[str, Direction] | None = None, score: float = 0.5
    ) -> Event:
        before = self._open[event_id]
        after = replace(
            before,
            frame=self._frame(),
            current_zones=zones,
            entered_zones=(*before.entered_zones, *(zone for zone in zones if zone not in before.entered_zones)),
            line_crossings={**before.line_crossings, **(lines or {})},
            top_score=max(score, before.top_score),
        )
        return self._told(EventType.UPDATE, before, after)

    def end(self, event_id: str, reason: EndReason = EndReason.LOST) -> Event:
        before = self._open.pop(event_id)
        frame = self._frame()
        after = replace(before, frame=frame, end_time_ns=frame.capture_time_ns)
        return Event(EventType.END, before, after, reason)

    @property
    def open_ids(self) -> list[str]:
        return list(self._open)

    def _frame(self) -> FrameInfo:
        return FrameInfo(0, 0, self.wall_ns, self.monotonic_ns, -1.0, self.is_set)

    def _told(self, kind: EventType, before: EventSnapshot | None, after: EventSnapshot) -> Event:
        self._open[after.id] = after
        return Event(kind, before, after)

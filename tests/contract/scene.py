"""Made-up events in an order that real ones could have."""

from __future__ import annotations

import random
import time
from dataclasses import replace

from zhcedge.core.events import EndReason, Event, EventSnapshot, EventType
from zhcedge.core.types import FrameInfo


class Scene:
    """Objects that come, move and go as the dice say, never more than `most` at a time."""

    def __init__(self, draw: random.Random, most: int = 12) -> None:
        self._draw, self._most = draw, most
        self._frame = self._born = 0
        self._open: dict[str, EventSnapshot] = {}

    def frame(self, count: int) -> list[Event]:
        """The events of the next frame, about `count` of them, at most one an object."""
        self._frame += 1
        made = [self._move(name) for name in self._draw.sample(list(self._open), min(count, len(self._open)))]
        for _ in range(count - len(made)):
            if len(self._open) < self._most:
                made.append(self._begin())
        return made

    def end_all(self) -> list[Event]:
        self._frame += 1
        return [self._end(name, EndReason.SHUTDOWN) for name in list(self._open)]

    def _begin(self) -> Event:
        self._born += 1
        info = self._info()
        score = self._draw.random()
        box = (1.5, 2.5, 101.25 + self._draw.random(), 202.5)
        born = EventSnapshot(f"gate-{self._born}", "gate", "person", score, score, box, info, info.capture_time_ns)
        self._open[born.id] = born
        return Event(EventType.NEW, None, born)

    def _move(self, name: str) -> Event:
        if self._draw.random() < 0.15:
            return self._end(name, EndReason.LOST)
        before = self._open[name]
        self._open[name] = replace(before, score=self._draw.random(), frame=self._info())
        return Event(EventType.UPDATE, before, self._open[name])

    def _end(self, name: str, reason: EndReason) -> Event:
        before, info = self._open.pop(name), self._info()
        return Event(EventType.END, before, replace(before, frame=info, end_time_ns=info.capture_time_ns), reason)

    def _info(self) -> FrameInfo:
        return FrameInfo(0, self._frame, time.time_ns(), time.monotonic_ns(), clock_synced=True)

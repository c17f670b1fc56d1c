"""The way of an object through the picture, in a few points."""

from __future__ import annotations

from zhcedge.analytics.zones import Point

MAX_POINTS = 32
"""Most points of a path that is told."""

_FIRST_STEP = 0.01
"""Least distance of two points at first, as a share of the picture's side; it doubles whenever there are too many."""


class Trail:
    """Points at least a step apart, the first one and the present one among them. Belongs to one thread.

    Costs a comparison a frame. Each time MAX_POINTS are reached every second point goes, and the step doubles.
    """

    __slots__ = ("_now", "_points", "_step2")

    def __init__(self, start: Point) -> None:
        self._points = [_tidy(start)]
        self._now = start
        self._step2 = _FIRST_STEP**2

    def go(self, point: Point) -> None:
        """Take in where the object is, as shares of the picture."""
        self._now = point
        last = self._points[-1]
        if (point[0] - last[0]) ** 2 + (point[1] - last[1]) ** 2 < self._step2:
            return
        self._points.append(_tidy(point))
        if len(self._points) == MAX_POINTS:
            del self._points[1::2]
            self._step2 *= 4

    @property
    def points(self) -> tuple[Point, ...]:
        """At most MAX_POINTS points, kept inside the picture and rounded to 1/10000 of it; the last one is now."""
        now = _tidy(self._now)
        return tuple(self._points) if self._points[-1] == now else (*self._points, now)


def _tidy(point: Point) -> Point:
    return round(min(max(point[0], 0.0), 1.0), 4), round(min(max(point[1], 0.0), 1.0), 4)

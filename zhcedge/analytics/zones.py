"""Zones: which objects are in which areas of the picture, and for how long.

Places are fractions of the picture and times are the tracker's, so the answers depend neither on the size of the
picture nor on the rate of its frames.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zhcedge.analytics.overlap import Floats, Ints
from zhcedge.core.schedule import Schedule

Point = tuple[float, float]
"""x, y as fractions of the picture, from its top left corner."""

Mask = npt.NDArray[np.bool_]

_LEAVE_NS = 500_000_000
"""An object has left when it was outside for this long: a box that jitters on a border doesn't come and go."""

_EDGE = 1e-6
"""Objects that reach the border of the picture, or beyond it, count as this far inside, where a zone may hold them."""

_NEVER = np.iinfo(np.int64).max


class Anchor(str, enum.Enum):
    """The point of a box that says where the object is."""

    FOOT = "foot"  # the middle of the lower edge: where it stands
    CENTRE = "centre"


@dataclass(frozen=True)
class ZoneSettings:
    """One zone.

    Attributes:
        name: unique in its channel.
        points: corners of the polygon, at least 3; it may be concave. Where it crosses itself, what is enclosed an
            even number of times is outside.
        labels: objects of these labels only; None is all.
        min_dwell_s: an object has entered when it has been inside for this long.
        min_area, max_area: of an object's box, as shares of the picture; others are not seen by this zone.
        anchor: which point of its box must be inside.
        loiter_s: an object loiters when it has been inside for this long; None never.
        schedule: when the zone holds; None always.
    """

    name: str
    points: tuple[Point, ...]
    labels: tuple[str, ...] | None = None
    min_dwell_s: float = 0.0
    min_area: float = 0.0
    max_area: float = 1.0
    anchor: Anchor = Anchor.FOOT
    loiter_s: float | None = None
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        if len(self.points) < 3:
            raise ValueError("a zone needs at least 3 points")


@dataclass(frozen=True)
class Sightings:
    """The objects of one frame, n of them, as shares of the picture.

    Attributes:
        boxes: [n, 4] x1, y1, x2, y2.
        labels: [n] indices into the model's labels.
    """

    boxes: Floats
    labels: Ints

    def feet(self) -> list[Point]:
        """Where the objects stand, n of them."""
        return list(zip(((self.boxes[:, 0] + self.boxes[:, 2]) / 2).tolist(), self.boxes[:, 3].tolist(), strict=True))


class ZoneMap:
    """Which points are in which zones: the geometry and the filters, without a memory.

    Args:
        zones: z of them, at least one.
        labels: the model's, by index.
    """

    def __init__(self, zones: tuple[ZoneSettings, ...], labels: tuple[str, ...]) -> None:
        corners = [np.array(zone.points, np.float64) for zone in zones]
        # All edges of all zones in one row, those of zone i from _first[i] on.
        start = np.concatenate(corners)
        end = np.concatenate([np.roll(points, -1, axis=0) for points in corners])
        self._first = np.cumsum([0, *(len(points) for points in corners)])[:-1]
        self._start_y, self._end_y = start[:, 1].copy(), end[:, 1].copy()
        # An edge is where x = start_x + slope * (y - start_y); no ray to the side crosses a level one. One that is
        # almost level has a slope of up to 1e16: it is only multiplied with what is as small.
        rise = self._end_y - self._start_y
        self._slope = np.divide(end[:, 0] - start[:, 0], rise, out=np.zeros(len(rise)), where=rise != 0)
        self._start_x = start[:, 0].copy()
        by_centre = np.array([zone.anchor is Anchor.CENTRE for zone in zones], bool)
        self._edge_by_centre = np.repeat(by_centre, [len(points) for points in corners])
        self._min_area = np.array([zone.min_area for zone in zones])
        self._max_area = np.array([zone.max_area for zone in zones])
        self._takes = np.array([[zone.labels is None or label in zone.labels for zone in zones] for label in labels])

    def inside(self, sightings: Sightings) -> Mask:
        """[n, z]: an object's anchor is in the zone, and the zone sees objects like it."""
        boxes = sightings.boxes
        x = np.clip((boxes[:, 0] + boxes[:, 2]) / 2, _EDGE, 1 - _EDGE)[:, None]
        y = np.clip(boxes[:, 3], _EDGE, 1 - _EDGE)[:, None]
        if self._edge_by_centre.any():
            middle = np.clip((boxes[:, 1] + boxes[:, 3]) / 2, _EDGE, 1 - _EDGE)[:, None]
            y = np.where(self._edge_by_centre, middle, y)
        # A ray to the right from a point inside crosses the outline an odd number of times.
        crosses = (self._start_y > y) != (self._end_y > y)
        crosses &= x < self._start_x + self._slope * (y - self._start_y)
        result: Mask = np.bitwise_xor.reduceat(crosses, self._first, axis=1)
        area = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))[:, None]
        result &= (area >= self._min_area) & (area <= self._max_area)
        result &= self._takes[sightings.labels]
        return result


class ZoneTimes:
    """Since when each of n objects is in each of z zones. Belongs to one thread.

    Rows are the owner's; `move` gives them another meaning.
    """

    def __init__(self, zones: tuple[ZoneSettings, ...]) -> None:
        self._dwell_ns = np.array([round(zone.min_dwell_s * 1e9) for zone in zones], np.int64)
        self._loiter_ns = np.array(
            [_NEVER if zone.loiter_s is None else round(zone.loiter_s * 1e9) for zone in zones], np.int64
        )
        self._since_ns = np.empty((0, len(zones)), np.int64)  # -1: not in it
        self._outside_ns = np.empty((0, len(zones)), np.int64)  # since when in no frame; -1: it is inside
        self.current: Mask = np.empty((0, len(zones)), bool)
        """[n, z]: it has entered the zone and has not left it."""
        self.loiters: Mask = np.empty((0, len(zones)), bool)
        """[n, z]: it has been there for longer than it should."""

    def grow(self, rows: int) -> None:
        """At least so many rows; new ones are in no zone."""
        more = rows - len(self.current)
        if more > 0:
            pad = ((0, more), (0, 0))
            self._since_ns = np.pad(self._since_ns, pad, constant_values=-1)
            self._outside_ns = np.pad(self._outside_ns, pad, constant_values=-1)
            self.current, self.loiters = np.pad(self.current, pad), np.pad(self.loiters, pad)

    def forget(self, row: int) -> None:
        """This row is in no zone."""
        self._since_ns[row] = self._outside_ns[row] = -1
        self.current[row] = self.loiters[row] = False

    def adopt(self, other: ZoneTimes, zone: int, column: int) -> None:
        """Go on in `zone` where the zone `column` of `other`, of as many rows, has stopped."""
        self._since_ns[:, zone] = other._since_ns[:, column]
        self._outside_ns[:, zone] = other._outside_ns[:, column]
        self.current[:, zone], self.loiters[:, zone] = other.current[:, column], other.loiters[:, column]

    def step(self, rows: Ints, inside: Mask, is_open: Mask, time_ns: int) -> Mask:
        """Take in one frame. Returns [n]: `current` or `loiters` of the row have changed.

        Args:
            rows: [n], each once.
            inside: [n, z].
            is_open: [z]: the zone holds now.
            time_ns: of the frame; never goes back.
        """
        # Most objects are in few zones: only where one is, or has just been, is there anything to do.
        found, zones = np.nonzero(inside | (self._since_ns[rows] >= 0))
        here, is_in = (rows[found], zones), inside[found, zones]
        since, outside, was, loitered = (
            self._since_ns[here],
            self._outside_ns[here],
            self.current[here],
            self.loiters[here],
        )
        outside = np.where(is_in, -1, np.where(outside < 0, time_ns, outside))
        stays = (is_in | ((since >= 0) & (time_ns - outside < _LEAVE_NS))) & is_open[zones]
        since = np.where(stays, np.where(since < 0, time_ns, since), -1)
        here_ns = time_ns - since
        current = stays & (was | (is_in & (here_ns >= self._dwell_ns[zones])))
        loiters = current & (loitered | (is_in & (here_ns >= self._loiter_ns[zones])))
        self._since_ns[here], self._outside_ns[here] = since, np.where(stays, outside, -1)
        self.current[here], self.loiters[here] = current, loiters
        changed = np.zeros(len(rows), bool)
        changed[found[(current != was) | (loiters != loitered)]] = True
        return changed

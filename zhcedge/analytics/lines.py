"""Lines: who has crossed them, and which way.

A crossing is one of the path of an object's anchor point, from frame to frame, with the line between its two ends. It
is counted when the object has come clear of the line: what went over it and back meanwhile cancels out, so an object
that dithers on the line counts once or not at all, and in minus out is always what the path says.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zhcedge.analytics.overlap import Floats, Ints
from zhcedge.analytics.zones import Anchor, Point, Sightings

_CLEAR = 0.1
"""An object is clear of a line that is this share of its box's longer side away from its anchor."""


@dataclass(frozen=True)
class LineSettings:
    """One line.

    Attributes:
        name: unique in its channel.
        points: its two ends, in the order that gives its direction.
        labels: objects of these labels only; None is all.
        anchor: which point of a box must cross it.
    """

    name: str
    points: tuple[Point, Point]
    labels: tuple[str, ...] | None = None
    anchor: Anchor = Anchor.FOOT

    def __post_init__(self) -> None:
        if self.points[0] == self.points[1]:
            raise ValueError("the two ends of a line must differ")


class LineMap:
    """Crossings of l lines by n objects. Belongs to one thread. Rows are the owner's.

    Args:
        lines: at least one.
        labels: the model's, by index.
    """

    def __init__(self, lines: tuple[LineSettings, ...], labels: tuple[str, ...]) -> None:
        ends = np.array([line.points for line in lines], np.float64)
        self._from_x, self._from_y = ends[:, 0].T
        self._along_x, self._along_y = (ends[:, 1] - ends[:, 0]).T
        self._length2 = self._along_x**2 + self._along_y**2
        self._by_centre = np.array([line.anchor is Anchor.CENTRE for line in lines], bool)
        self._takes = np.array([[line.labels is None or label in line.labels for line in lines] for label in labels])
        # Where each row's anchor was last, in x, in y, and beside each line; NaN for a new row.
        self._x: Floats = np.empty((0, len(lines)))
        self._y: Floats = np.empty((0, len(lines)))
        self._side: Floats = np.empty((0, len(lines)))
        self.pending: Ints = np.empty((0, len(lines)), np.int64)
        """[n, l]: crossings in, minus those out, that are not counted yet."""

    def grow(self, rows: int) -> None:
        """At least so many rows; new ones have crossed nothing."""
        more = rows - len(self.pending)
        if more > 0:
            pad = ((0, more), (0, 0))
            self._x, self._y, self._side = (
                np.pad(values, pad, constant_values=np.nan) for values in (self._x, self._y, self._side)
            )
            self.pending = np.pad(self.pending, pad)

    def forget(self, row: int) -> None:
        """This row is another object's."""
        self._side[row] = np.nan
        self.pending[row] = 0

    def adopt(self, other: LineMap, line: int, column: int) -> None:
        """Go on at `line` where the line `column` of `other`, of as many rows, has stopped."""
        self._x[:, line], self._y[:, line] = other._x[:, column], other._y[:, column]
        self._side[:, line], self.pending[:, line] = other._side[:, column], other.pending[:, column]

    def step(self, rows: Ints, sightings: Sightings) -> Ints:
        """Take in one frame. Returns [n, l]: crossings to be counted now, in as positive and out as negative numbers.

        Args:
            rows: [n], each once.
        """
        boxes = sightings.boxes
        x = np.repeat((boxes[:, :1] + boxes[:, 2:3]) / 2, len(self._length2), axis=1)
        y = np.where(self._by_centre, (boxes[:, 1:2] + boxes[:, 3:]) / 2, boxes[:, 3:])
        # Above 0 on the right hand of the line; y grows downwards.
        side = self._along_x * (y - self._from_y) - self._along_y * (x - self._from_x)
        old_x, old_y, old_side = self._x[rows], self._y[rows], self._side[rows]
        self._x[rows], self._y[rows], self._side[rows] = x, y, side
        # A point on the line itself counts as on its left, so that a path which touches it is not counted twice.
        turns = ((side > 0) != (old_side > 0)) & ~np.isnan(old_side)
        told = np.zeros(side.shape, np.int64)
        pairs = np.nonzero(turns | (self.pending[rows] != 0))
        if not len(pairs[0]):
            return told
        # Few objects are near a line: from here on, only these pairs of an object and a line count.
        found, lines = pairs
        where = rows[found], lines
        share = np.where(turns[pairs], old_side[pairs] / np.where(turns, old_side - side, 1)[pairs], 0)
        meets_x = old_x[pairs] + share * (x[pairs] - old_x[pairs])
        meets_y = old_y[pairs] + share * (y[pairs] - old_y[pairs])
        along = self._along(meets_x, meets_y, lines)
        crosses = turns[pairs] & (along >= 0) & (along < 1) & self._takes[sightings.labels[found], lines]
        pending = self.pending[where] + crosses * np.where(side[pairs] > 0, 1, -1)
        sides = boxes[found, 2:] - boxes[found, :2]
        is_clear = self._distance(x[pairs], y[pairs], lines) > _CLEAR * sides.max(axis=1)
        told[pairs] = np.where(is_clear, pending, 0)
        self.pending[where] = np.where(is_clear, 0, pending)
        return told

    def _along(self, x: Floats, y: Floats, lines: Ints) -> Floats:
        """[k]: where points [k] lie beside lines [k], 0 at the first end and 1 at the second."""
        across, down = x - self._from_x[lines], y - self._from_y[lines]
        result: Floats = (across * self._along_x[lines] + down * self._along_y[lines]) / self._length2[lines]
        return result

    def _distance(self, x: Floats, y: Floats, lines: Ints) -> Floats:
        """[k]: of points [k] from the nearest point of lines [k]."""
        along = np.clip(self._along(x, y, lines), 0, 1)
        across = x - self._from_x[lines] - along * self._along_x[lines]
        down = y - self._from_y[lines] - along * self._along_y[lines]
        result: Floats = np.hypot(across, down)
        return result

"""Which objects stand still: those whose box has stayed where it was."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zhcedge.analytics.overlap import Floats, pairwise_iou

_STAYED_IOU = 0.6
"""A box that overlaps the place by this much is still there."""

_WAKE_NS = 500_000_000
"""A box that stands still must be elsewhere for this long: one bad box, or a passer-by in front, doesn't wake it."""


class Stillness:
    """The place of each of n tracks, and since when it is there. Belongs to the tracker's thread.

    Rows are the tracker's own order: `add` appends, `keep` removes.

    Args:
        after_ns: time in one place after which an object is stationary.
    """

    def __init__(self, after_ns: int) -> None:
        self.after_ns = after_ns
        self._place: Floats = np.empty((0, 4))
        self._since_ns = np.empty(0, np.int64)
        self._away_ns = np.empty(0, np.int64)  # since when it is elsewhere, -1 while it is not

    def see(self, rows: npt.NDArray[np.int64], boxes: Floats, time_ns: int) -> None:
        """Take in the smoothed boxes [k, 4] of the tracks `rows` [k], each row once."""
        is_away = pairwise_iou(boxes, self._place[rows]) < _STAYED_IOU
        away_ns = np.where(is_away, np.where(self._away_ns[rows] < 0, time_ns, self._away_ns[rows]), -1)
        patience_ns = np.where(self._is_stationary(rows, time_ns), _WAKE_NS, 0)
        has_left = is_away & (time_ns - away_ns >= patience_ns)
        self._away_ns[rows] = np.where(has_left, -1, away_ns)
        left = rows[has_left]
        self._place[left] = boxes[has_left]
        self._since_ns[left] = time_ns

    def stationary(self, time_ns: int) -> npt.NDArray[np.bool_]:
        """Which tracks stand still [n]."""
        return self._is_stationary(slice(None), time_ns)

    def _is_stationary(self, rows: npt.NDArray[np.int64] | slice, time_ns: int) -> npt.NDArray[np.bool_]:
        result: npt.NDArray[np.bool_] = time_ns - self._since_ns[rows] >= self.after_ns
        return result

    def add(self, boxes: Floats, time_ns: int) -> None:
        """New tracks [k, 4] at the end."""
        self._place = np.concatenate([self._place, boxes])
        self._since_ns = np.concatenate([self._since_ns, np.full(len(boxes), time_ns)])
        self._away_ns = np.concatenate([self._away_ns, np.full(len(boxes), -1)])

    def keep(self, kept: npt.NDArray[np.bool_]) -> None:
        """Forget the others; kept [n]."""
        self._place, self._since_ns, self._away_ns = self._place[kept], self._since_ns[kept], self._away_ns[kept]

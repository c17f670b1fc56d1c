"""Where objects should be now: a Kalman filter with constant velocity for all tracks of a channel at once.

The filter of SORT and ByteTrack (Bewley et al. 2016, https://arxiv.org/abs/1602.00763; Zhang et al. 2022,
https://arxiv.org/abs/2110.06864) with two differences. Noise is a density over time, so that dropped frames and a
detector that runs on every tenth frame are no special case. And noise is the same in x and y, in units of the box's
own side, so a covariance is three numbers instead of an 8 x 8 matrix. Sizes are smoothed and have no velocity: half a
box behind a lamp post would make it shrink through the wait.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# In sides of the object's box: the square root of its area.
_DETECTOR_NOISE = 0.05  # of a box's centre and of its size; 1/20 as in ByteTrack
_DRIFT = 0.25  # per square root of a second: ByteTrack's 1/20 a frame at 25 frames a second
_ACCELERATION = 1.0  # per second^1.5: its 1/160 a frame for the velocity
_FIRST_SPEED = 2.0  # per second: deviation of an object's velocity that was seen once


class Motion:
    """Position, size and velocity of n tracks, in pixels and seconds. Belongs to the tracker's thread.

    Rows are the tracker's own order: `add` appends, `keep` removes.
    """

    def __init__(self) -> None:
        self._centre: Floats = np.empty((0, 2))
        self._size: Floats = np.empty((0, 2))
        self._velocity: Floats = np.empty((0, 2))
        self._variance: Floats = np.empty((0, 3))  # of position, of both, of velocity
        self._size_variance: Floats = np.empty(0)

    def boxes(self) -> Floats:
        """The filtered boxes [n, 4], x1, y1, x2, y2."""
        half = self._size / 2
        return np.concatenate([self._centre - half, self._centre + half], axis=1)

    def predict(self, seconds: float) -> None:
        """Move everything on."""
        area = self._size[:, 0] * self._size[:, 1]
        drift, jerk = _DRIFT**2 * seconds * area, _ACCELERATION**2 * seconds * area
        position, both, speed = self._variance.T
        self._centre += self._velocity * seconds
        position += seconds * (2 * both + seconds * speed) + drift + jerk * seconds**2 / 3
        both += seconds * speed + jerk * seconds / 2
        speed += jerk
        self._size_variance += drift

    def correct(self, rows: npt.NDArray[np.int64], boxes: Floats) -> None:
        """Take in what was seen: boxes [k, 4] of the tracks `rows` [k], each row once."""
        size = boxes[:, 2:] - boxes[:, :2]
        noise = _DETECTOR_NOISE**2 * size[:, 0] * size[:, 1]
        position, both, speed = self._variance[rows].T
        gain = position / (position + noise)
        speed_gain = both / (position + noise)
        surprise = (boxes[:, :2] + boxes[:, 2:]) / 2 - self._centre[rows]
        self._centre[rows] += gain[:, None] * surprise
        self._velocity[rows] += speed_gain[:, None] * surprise
        self._variance[rows] = np.stack([(1 - gain) * position, (1 - gain) * both, speed - speed_gain * both], axis=1)
        size_variance = self._size_variance[rows]
        size_gain = size_variance / (size_variance + noise)
        self._size[rows] += size_gain[:, None] * (size - self._size[rows])
        self._size_variance[rows] = (1 - size_gain) * size_variance

    def stop(self, rows: npt.NDArray[np.int64]) -> None:
        """These objects stand still."""
        self._velocity[rows] = 0.0

    def add(self, boxes: Floats) -> None:
        """New tracks [k, 4] at the end."""
        size = boxes[:, 2:] - boxes[:, :2]
        area = size[:, 0] * size[:, 1]
        noise = _DETECTOR_NOISE**2 * area
        variance = np.stack([noise, np.zeros(len(boxes)), _FIRST_SPEED**2 * area], axis=1)
        self._centre = np.concatenate([self._centre, (boxes[:, :2] + boxes[:, 2:]) / 2])
        self._size = np.concatenate([self._size, size])
        self._velocity = np.concatenate([self._velocity, np.zeros((len(boxes), 2))])
        self._variance = np.concatenate([self._variance, variance])
        self._size_variance = np.concatenate([self._size_variance, noise])

    def keep(self, kept: npt.NDArray[np.bool_]) -> None:
        """Forget the others; kept [n]."""
        self._centre, self._size, self._velocity = self._centre[kept], self._size[kept], self._velocity[kept]
        self._variance, self._size_variance = self._variance[kept], self._size_variance[kept]

"""Keeps a stream's frames down to a wanted rate."""

from __future__ import annotations

_TOLERANCE = 0.25
"""Share of the wanted interval by which a frame may come early: cameras' timestamps are not regular."""


class Pace:
    """Chooses frames evenly in time. Pure; owned by the reader thread.

    Over any stretch no more than `fps` frames a second are kept, give or take one; a stream that is slower keeps all.

    Args:
        fps: frames a second to keep.
    """

    def __init__(self, fps: float) -> None:
        self._fps = fps
        self._interval_s = 1 / fps
        self.reset()

    def reset(self) -> None:
        """As before the first frame."""
        self._due_s: float | None = None

    def limit(self, fps: float) -> float:
        """The rate that is left of a stream of `fps`, 0 for an unknown one."""
        return min(fps, self._fps)

    def keeps(self, time_s: float) -> bool:
        """Whether the frame at `time_s` is kept; times must not go back."""
        due_s = self._due_s
        if due_s is None or time_s >= due_s + self._interval_s:
            # The first frame, or one after a pause or in a slow stream: the rhythm starts anew.
            self._due_s = time_s + self._interval_s
            return True
        if time_s < due_s - _TOLERANCE * self._interval_s:
            return False
        self._due_s = due_s + self._interval_s
        return True

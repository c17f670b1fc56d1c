"""Whether the frame process still answers: it counts seconds in shared memory, and a count that stands still is a hang.

A process inside a driver call that never returns holds the interpreter lock: it can't say so itself, nor end itself.
"""

from __future__ import annotations

from zhcedge.core.errors import HangError
from zhcedge.core.lifecycle import Phase

_WORKING_S = 60.0
_STARTING_S = 300.0  # loading a model may keep the interpreter lock for long
_CLOSING_S = 30.0  # closing what a lost GPU holds may never end

_HOLDING_S = 45.0  # the collector says of a launch that takes 30 s which lane it was

_STARTING = (Phase.INITIALISING, Phase.WARMING_UP)


class Liveness:
    """Watches one frame process. Times are seconds of the monotonic clock. The control loop's thread."""

    def __init__(self, now_s: float) -> None:
        self._beat, self._beat_s = -1, now_s
        self._failed_s: float | None = None
        self._frames, self._frames_s = -1, now_s

    def note_failed(self, now_s: float) -> None:
        """The process said that it failed: it should close and end."""
        if self._failed_s is None:
            self._failed_s = now_s

    def fault(self, beat: int, phase: Phase, now_s: float, frames: int = 0, in_hand: int = 0) -> HangError | None:
        """What is wrong, if anything: then the process is to be killed.

        Args:
            beat: its count now.
            frames: those that it has finished.
            in_hand: those that it works on. Silent cameras give it none, however long.
        """
        if beat != self._beat:
            self._beat, self._beat_s = beat, now_s
        if self._failed_s is not None and now_s - self._failed_s > _CLOSING_S:
            return HangError(f"the frame process failed and does not close within {_CLOSING_S:.0f} s")
        limit_s = _STARTING_S if phase in _STARTING else _WORKING_S
        if now_s - self._beat_s > limit_s:
            return HangError(f"the frame process has given no sign of life for {limit_s:.0f} s")
        if frames != self._frames or not in_hand or phase is not Phase.ACTIVE:
            self._frames, self._frames_s = frames, now_s
        if now_s - self._frames_s > _HOLDING_S:
            return HangError(f"a stage has held {in_hand} frames for {_HOLDING_S:.0f} s and finished none")
        return None

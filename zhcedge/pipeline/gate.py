"""Which frames of a channel the detector sees: every so many, or only while something moves. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from zhcedge.core.types import FrameInfo


@dataclass(frozen=True)
class MotionSettings:
    """When a still picture spares the detector.

    Attributes:
        threshold: share of the picture, 0..1, that must differ from what it showed lately.
        max_skip_ms: after so long the detector sees a frame whatever moves.
    """

    threshold: float
    max_skip_ms: int


class Gate:
    """Decides frame by frame. Belongs to the runner thread.

    Args:
        interval: of this many frames one is detected in.
        motion: None detects whatever moves.
    """

    def __init__(self, interval: int = 1, motion: MotionSettings | None = None) -> None:
        self._interval, self._motion = interval, motion
        self._next_sequence = 0
        self._detected_ns: int | None = None

    def wants(self, info: FrameInfo, changed: float | None) -> bool:
        """Whether this frame is to be detected in.

        Args:
            changed: share of the picture that differs from its running mean; None when nobody knows.
        """
        # By number and not by count, so that dropped frames don't stretch the interval.
        if info.sequence < self._next_sequence or self._is_still(info, changed):
            return False
        self._next_sequence = info.sequence + self._interval
        self._detected_ns = info.read_time_ns
        return True

    def forget(self) -> None:
        """The next frame is detected in, whatever was before."""
        self._next_sequence, self._detected_ns = 0, None

    def _is_still(self, info: FrameInfo, changed: float | None) -> bool:
        motion = self._motion
        if motion is None or changed is None or self._detected_ns is None:
            return False
        is_recent = info.read_time_ns - self._detected_ns < motion.max_skip_ms * 1_000_000
        return is_recent and changed < motion.threshold

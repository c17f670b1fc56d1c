"""The clock of a channel's tracks: that of its frames, never this computer's."""

from __future__ import annotations

from zhcedge.core.types import FrameInfo


class ChannelClock:
    """Nanoseconds since the channel's first frame. Belongs to the tracker's thread.

    Follows presentation times where both neighbours have one, so that a recording that is read faster than real time
    gives the same tracks; else the monotonic reading time. A step back (a camera that came back) counts as none.
    """

    def __init__(self) -> None:
        self._last: FrameInfo | None = None
        self._time_ns = 0

    def advance(self, info: FrameInfo) -> int:
        """The time of the next frame."""
        last, self._last = self._last, info
        if last is not None:
            if info.media_time_s >= 0 and last.media_time_s >= 0:
                step_ns = round((info.media_time_s - last.media_time_s) * 1e9)
            else:
                step_ns = info.read_time_ns - last.read_time_ns
            self._time_ns += max(step_ns, 0)
        return self._time_ns

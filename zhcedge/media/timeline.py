"""Presentation times that only grow, and the pace of a file that is played as if it were a camera."""

from __future__ import annotations

from fractions import Fraction

from zhcedge.core.ports import Clock
from zhcedge.core.requests import SourceRequest
from zhcedge.core.types import FrameInfo

MAX_GAP_S = 10.0
"""A larger step between two frames is a cut in the stream's clock, not a pause."""

MAX_LATE_S = 1.0
"""A player later than this gives up catching up and goes on from where it is."""


class Timeline:
    """Turns a stream's timestamps into seconds from its start. Pure; owned by the reader thread.

    Args:
        time_base: seconds per tick.
        start_ticks: timestamp of the stream's start, None to take the first one seen.
        interval_s: nominal time from frame to frame, used where a timestamp is missing, repeated or jumps.
    """

    def __init__(self, time_base: Fraction, start_ticks: int | None, interval_s: float) -> None:
        # Numbers, because a Fraction's properties cost as much as the whole sum, twice a frame.
        self._numerator, self._denominator = time_base.numerator, time_base.denominator
        self._declared_start = start_ticks
        self._interval_s = interval_s
        self._longest_gap_s = max(MAX_GAP_S, 10 * interval_s)
        self.reset()

    def reset(self) -> None:
        """Back to zero, as at the first open."""
        self._start_ticks = self._declared_start
        self._offset_s = 0.0
        self._last_s: float | None = None

    @property
    def last_s(self) -> float:
        """Time of the newest frame; 0 before the first."""
        return self._last_s or 0.0

    def position_s(self, ticks: int | None) -> float:
        """Where a timestamp lies, without advancing: for packets, which come in decoding order."""
        if ticks is None:
            return self.last_s
        start = ticks if self._start_ticks is None else self._start_ticks
        return self._offset_s + (ticks - start) * self._numerator / self._denominator

    def advance(self, ticks: int | None) -> float:
        """Time of the next frame in presentation order; always larger than the one before."""
        last_s, start = self._last_s, self._start_ticks
        if ticks is not None and start is not None and last_s is not None:
            time_s = self._offset_s + (ticks - start) * self._numerator / self._denominator
            if last_s < time_s <= last_s + self._longest_gap_s:
                self._last_s = time_s
                return time_s
        self._last_s = time_s = self._odd_time_s(ticks)
        return time_s

    def _odd_time_s(self, ticks: int | None) -> float:
        """Of a frame without a timestamp, the first one, or one whose timestamp does not follow on the last one."""
        last_s = self._last_s
        expected_s = 0.0 if last_s is None else last_s + self._interval_s
        if ticks is None:
            return expected_s
        time_s = self.position_s(ticks)
        if self._start_ticks is not None and last_s is None and 0.0 <= time_s <= self._longest_gap_s:
            return time_s
        # Counting anew from this frame, rather than shifting, keeps what follows exact however far it jumped.
        self._start_ticks, self._offset_s = ticks, expected_s
        return expected_s

    def next_pass(self) -> None:
        """The file starts again: its first frame follows the last one after one interval."""
        if self._last_s is not None:
            self._offset_s = self._last_s + self._interval_s
            self._start_ticks = self._declared_start


class Pacer:
    """Says how long a frame must wait to appear at its own time. Owned by the reader thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        self._start_ns: int | None = None

    def wait_s(self, media_time_s: float) -> float:
        """Seconds until the frame is due, 0 if it is due now. The first call starts the clock."""
        now_ns = self._clock.monotonic_ns()
        media_ns = round(media_time_s * 1e9)
        if self._start_ns is None:
            self._start_ns = now_ns - media_ns
        late_ns = now_ns - self._start_ns - media_ns
        if late_ns > MAX_LATE_S * 1e9:
            self._start_ns += late_ns
        return max(-late_ns, 0) / 1e9


def stamped(request: SourceRequest, sequence: int, media_time_s: float, captured_ns: int) -> FrameInfo:
    """Facts of a frame of the request's source that is handed over now; `captured_ns` of the wall clock."""
    return FrameInfo(
        channel=request.channel,
        sequence=sequence,
        capture_time_ns=captured_ns,
        read_time_ns=request.clock.monotonic_ns(),
        media_time_s=media_time_s,
        clock_synced=request.clock.is_synced(),
    )

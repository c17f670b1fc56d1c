"""Whether a live stream is late, and whether its picture is frozen. Pure: time comes in as numbers."""

from __future__ import annotations

_WINDOW_NS = 30_000_000_000
_REPEATS = 3


class Lateness:
    """How much later than it should a frame is handed over. Owned by the reader thread.

    The sender's clock is not known, so the quickest delivery of the last 30 to 60 s counts as on time: older ones are
    forgotten, because two clocks drift apart by some 100 ppm. A delay that all frames share is therefore not seen.
    """

    def __init__(self) -> None:
        self._best_ns: int | None = None  # least of arrival minus stream time, this window
        self._previous_ns: int | None = None  # the same, last window
        self._window_end_ns = 0

    def observe(self, arrival_ns: int, stream_ns: int) -> None:
        """A packet with the stream's time `stream_ns` arrived at the monotonic time `arrival_ns`."""
        if arrival_ns >= self._window_end_ns:
            self._previous_ns, self._best_ns = self._best_ns, None
            self._window_end_ns = arrival_ns + _WINDOW_NS
        offset_ns = arrival_ns - stream_ns
        if self._best_ns is None or offset_ns < self._best_ns:
            self._best_ns = offset_ns

    def age_ns(self, now_ns: int, stream_ns: int) -> int:
        """How late a frame with the stream's time `stream_ns` is at `now_ns`; 0 before the first packet."""
        known = [offset_ns for offset_ns in (self._best_ns, self._previous_ns) if offset_ns is not None]
        return now_ns - stream_ns - min(known) if known else 0


class FreezeWatch:
    """Tells a picture that does not change any more. Owned by the reader thread.

    Args:
        timeout_ns: for how long the picture must stay the same.
    """

    def __init__(self, timeout_ns: int) -> None:
        self._timeout_ns = timeout_ns
        self.reset()

    def reset(self) -> None:
        """As before the first picture."""
        self._signature: int | None = None
        self._since_ns = 0
        self._repeats = 0

    def saw(self, signature: int, now_ns: int) -> bool:
        """A picture came whose content stands in `signature`; whether it has been the same for the whole timeout.

        A few repeats are asked for besides the time: a pause is no frozen picture.
        """
        if signature != self._signature:
            self._signature, self._since_ns, self._repeats = signature, now_ns, 0
            return False
        self._repeats += 1
        return self._repeats >= _REPEATS and now_ns - self._since_ns >= self._timeout_ns

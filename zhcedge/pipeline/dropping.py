"""Says that a camera loses frames, while it happens: the summary of a daemon that runs for years comes too late."""

from __future__ import annotations

import logging
from typing import Generic

from zhcedge.core.message_ids import tagged
from zhcedge.core.types import B
from zhcedge.pipeline.channel import Channel

log = logging.getLogger(__name__)

FIRST_NS = 10_000_000_000
"""How long losses are counted before the first line, so that a hiccup is one line and not the first of many."""

INTERVAL_NS = 300_000_000_000
"""Least time between two lines of a channel."""


class DropWatch(Generic[B]):
    """The losses of one live channel, as warnings: one line, with counts, at most every five minutes.

    Belongs to the channel's reader thread. Counts that other threads write may be a frame behind.
    """

    def __init__(self, channel: Channel[B]) -> None:
        self._channel = channel
        self._look_at_ns = 0
        self._say_from_ns = 0
        self._said: tuple[int, int, tuple[str, ...]] = (0, 0, ())

    def look(self, now_ns: int) -> None:
        """Called after every read; says what is new when it is time for it."""
        if now_ns < self._look_at_ns:
            return
        is_first, self._look_at_ns = not self._look_at_ns, now_ns + FIRST_NS
        channel, said = self._channel, self._said
        if not channel.facts.is_live or is_first or now_ns < self._say_from_ns:
            return
        counts = (channel.dropped, channel.sink_dropped, channel.source.warnings)
        if counts == said:
            return
        self._said, self._say_from_ns = counts, now_ns + INTERVAL_NS
        clauses = [text for text in counts[2] if text not in said[2]]
        if counts[1] > said[1]:
            clauses.insert(0, f"{counts[1] - said[1]} frames did not reach a sink in time")
        if counts[0] > said[0]:
            clauses.insert(0, f"{counts[0] - said[0]} frames were dropped, because the detector was busy")
        if clauses:
            news = "; ".join(clauses)
            log.warning(
                "channel %s: %s; %d frames came since the start",
                channel.name,
                news,
                channel.frames,
                extra=tagged(camera=channel.name),
            )

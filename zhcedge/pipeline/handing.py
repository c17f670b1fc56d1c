"""Hands finished frames to sinks. A sink that is full costs a camera frames, and a file time; it stops nobody else."""

from __future__ import annotations

import logging
import threading
from typing import Generic

from zhcedge.core.errors import OutputError
from zhcedge.core.message_ids import tagged
from zhcedge.core.ports import FrameSlot
from zhcedge.core.types import B
from zhcedge.pipeline.channel import Channel, about

log = logging.getLogger(__name__)

_RETRY_S = 0.0005  # less than a fast encoder takes for what waits in its queue, so that it never runs dry
_GIVE_UP_S = 10.0  # a sink that takes nothing for so long after a stop is not waited for
_IDLE_S = 0.5


class SinkFeeder(Generic[B]):
    """Submits frames to their channel's sinks, in order.

    `hand` and `end` belong to the collector thread. What it can't submit at once for a file waits in the channel's
    backlog, bounded by the channel's slots, and `run` submits it in a thread of its own. For one channel at a time only
    one of the two submits: the collector while the backlog is empty, the feeder while it is not.

    Args:
        stopping, broken: of the pass.
    """

    def __init__(self, stopping: threading.Event, broken: threading.Event) -> None:
        self._stopping, self._broken = stopping, broken
        self._lock = threading.Lock()
        self._waiting: dict[int, Channel[B]] = {}  # channels with a backlog
        self._has_work = threading.Event()
        self._is_over = False

    def hand(self, channel: Channel[B], slot: FrameSlot[B]) -> None:
        """Give a finished frame, whose users have been counted (SharedSlot.begin), to the sinks, at least one."""
        left = list(range(len(channel.sinks)))
        if not channel.backlog and self._submit(channel, slot, left):
            return
        if channel.facts.is_live:
            for _ in left:
                self._drop(channel, slot)
            return
        with self._lock:
            channel.backlog.append((slot, left))
            self._waiting[channel.index] = channel
        self._has_work.set()

    def end(self, channel: Channel[B]) -> None:
        """The channel has no more frames: it is finished once its backlog is empty."""
        with self._lock:
            channel.has_ended = True
            if not channel.backlog:
                channel.finished.set()

    def finish(self) -> None:
        """No more frames of any channel come: `run` returns when the backlogs are empty. Any thread."""
        self._is_over = True
        self._has_work.set()

    def run(self) -> None:
        """Submit what waits, until `finish` was called and nothing is left. A thread of its own."""
        idle_s = 0.0
        while not self._broken.is_set():
            with self._lock:
                waiting = tuple(self._waiting.values())
            if not waiting:
                if self._is_over:
                    return
                self._has_work.wait(_IDLE_S)
                self._has_work.clear()
                continue
            if sum(self._advance(channel) for channel in waiting):
                idle_s = 0.0
                continue
            self._broken.wait(_RETRY_S)
            idle_s = idle_s + _RETRY_S if self._stopping.is_set() else 0.0
            if idle_s > _GIVE_UP_S:
                for channel in waiting:
                    self._give_up(channel)

    def _advance(self, channel: Channel[B]) -> bool:
        """Submit the oldest frame of a backlog as far as it goes; True when it went whole."""
        slot, left = channel.backlog[0]
        if not self._submit(channel, slot, left):
            return False
        self._pop(channel)
        return True

    def _pop(self, channel: Channel[B]) -> None:
        with self._lock:
            channel.backlog.popleft()
            if not channel.backlog:
                del self._waiting[channel.index]
                if channel.has_ended:
                    channel.finished.set()

    def _give_up(self, channel: Channel[B]) -> None:
        log.error(
            "channel %s: its sinks take nothing; %d frames are left out",
            channel.name,
            len(channel.backlog),
            extra=tagged(camera=channel.name),
        )
        while channel.backlog:
            slot, left = channel.backlog[0]
            for _ in left:
                self._drop(channel, slot)
            self._pop(channel)

    def _submit(self, channel: Channel[B], slot: FrameSlot[B], left: list[int]) -> bool:
        """Offer the frame to the sinks in `left`, those that take it are removed; True when none is left."""
        for position in tuple(left):
            name = channel.sink_names[position]
            slot.holder = name
            try:
                if name in channel.broken_sinks:
                    self._drop(channel, slot)
                elif not channel.sinks[position].submit(slot, channel.shared[slot.index].give_back):
                    continue
            except OutputError as error:
                # The other sinks and detection go on; the sink raises again when it is closed.
                log.error(
                    "channel %s, %s: %s",
                    channel.name,
                    name,
                    about(channel.name, error),
                    extra=tagged(camera=channel.name),
                )
                channel.broken_sinks.add(name)
                self._drop(channel, slot)
            left.remove(position)
        return not left

    def _drop(self, channel: Channel[B], slot: FrameSlot[B]) -> None:
        channel.sink_dropped += 1
        channel.shared[slot.index].give_back(slot)

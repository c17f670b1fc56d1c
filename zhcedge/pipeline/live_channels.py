"""What can be changed about a channel, or asked of it, while it runs, without taking memory for good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

from zhcedge.core.errors import NotNowError, UsageError
from zhcedge.core.pace import Pace
from zhcedge.core.types import B
from zhcedge.pipeline.channel import Channel
from zhcedge.pipeline.roster import Roster
from zhcedge.pipeline.snapshots import MAX_CROPS, Area, Snapshot, SnapshotDesk

MAX_FPS = 1000.0


class LiveChannels(Generic[B]):
    """Settings last as long as the channel does. Any thread, while the run is active.

    Every call raises UsageError for a name that nobody has and NotNowError for a channel whose source was never there
    yet or that has ended.
    """

    def __init__(self, roster: Roster[B], desk: SnapshotDesk[B]) -> None:
        self._roster, self._desk = roster, desk

    def detect(self, name: str, is_on: bool) -> bool:
        """Detect, or only hand frames to the sinks, with nothing but the masks drawn. The ring then says of every
        frame that it is unseen. Paused channels and those whose source is away keep it for later.
        """
        channel = self._roster.running(name)
        if not is_on:
            self._roster.make_drawable(channel)
        channel.is_detecting = is_on
        return is_on

    def limit_fps(self, name: str, fps: float) -> float:
        """Drop frames of a live source beyond so many a second, evenly, before they cost a slot; 0 keeps all.

        They count neither as frames nor as dropped. Raises UsageError for a number out of range, and for a file that is
        played as fast as it goes.
        """
        channel = self._roster.running(name)
        if not 0 <= fps <= MAX_FPS:  # a NaN neither
            raise UsageError(f"{fps!r} is no frame rate", where=name, fix=f"send a number from 0 to {MAX_FPS:g}")
        if fps and not channel.facts.is_live:
            raise UsageError(
                "it plays a file as fast as it can be worked on", where=name, fix="set source.realtime to true"
            )
        channel.pace = Pace(fps) if fps else None
        return fps

    def snapshot(self, name: str, areas: Sequence[Area] = ()) -> Snapshot:
        """The channel's next frame as a JPEG: masks blackened, boxes drawn. Blocks for some seconds at most.

        Args:
            areas: parts of the same frame that are wanted as pictures of their own.

        Raises UsageError for areas that are none, or too many; NotNowError while the channel is paused or its source
        away, and what SnapshotDesk.take raises.
        """
        channel = self._roster.running(name)
        _check_areas(name, areas)
        _check_that_frames_come(channel)
        if channel.gate is not None or not channel.is_drawn_by_lanes:
            self._roster.make_drawable(channel)
        return self._desk.take(channel, lambda: channel.is_over or not self._roster.is_active, areas)


def _check_areas(name: str, areas: Sequence[Area]) -> None:
    if len(areas) > MAX_CROPS:
        raise UsageError(f"{len(areas)} crops are too many", where=name, fix=f"ask for {MAX_CROPS} at most")
    for left, top, right, bottom in areas:
        if not (0 <= left < right <= 1 and 0 <= top < bottom <= 1):  # a NaN neither
            what = f"{left}, {top}, {right}, {bottom} is no part of a picture"
            raise UsageError(what, where=name, fix="send left, top, right, bottom from 0 to 1")


def _check_that_frames_come(channel: Channel[B]) -> None:
    if channel.is_paused:
        raise NotNowError("it is paused", where=channel.name, fix="resume it first")
    status = channel.source.status
    if not status.is_up:
        raise NotNowError(f"it is down: {status.reason}", where=channel.name, fix="try again when it is up")

"""Figures of a channel's picture, once in a while: for whoever tells whether the camera still sees what it should."""

from __future__ import annotations

from typing import Generic

from zhcedge.core.picture import PictureFigures
from zhcedge.core.ports import FrameSlot, PictureMeter
from zhcedge.core.types import B, FrameInfo

INTERVAL_NS = 1_000_000_000


class PictureWatch(Generic[B]):
    """Of one channel. `look` belongs to its reader, `take` to any other thread."""

    def __init__(self, meter: PictureMeter[B]) -> None:
        self._meter = meter
        self._measured: FrameInfo | None = None  # what the device works on
        self._next_ns = 0
        self._latest: PictureFigures | None = None

    def look(self, slot: FrameSlot[B], info: FrameInfo) -> None:
        """A frame has been ingested into `slot`. Never waits: figures are fetched with a later frame, when they are
        there."""
        if self._measured is not None:
            found = self._meter.figures()
            if found is None:
                return
            self._latest, self._measured = PictureFigures(self._measured, *found), None
        if info.read_time_ns >= self._next_ns:
            self._next_ns = info.read_time_ns + INTERVAL_NS
            self._meter.measure(slot)
            self._measured = info

    def take(self) -> PictureFigures | None:
        """The newest figures, once."""
        latest, self._latest = self._latest, None
        return latest

"""Draws results into frames after they were collected: of tiles once they are merged, and of frames not detected in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

from zhcedge.core.ports import Device, Fence, FrameSlot
from zhcedge.core.types import B, ModelFacts


class Drawer(Generic[B]):
    """A lane for the overlay stage alone, one frame at a time.

    Made in the initialising phase or under the arena's lease; `draw` belongs to the collector thread.

    Args:
        index: of the lane, beyond those of the detector.
    """

    def __init__(self, device: Device[B], index: int, model: ModelFacts, labels: Sequence[str]) -> None:
        lane = device.create_lane(index, model.with_batch(1))
        self._program = device.compile([device.overlay(lane, labels)], lane, 1)

    def draw(self, slot: FrameSlot[B]) -> Fence:
        """Start drawing `slot.results` into `slot.surface`; wait for the fence before the next call.

        The slot is one that the detector's programs don't draw into.
        """
        slot.is_drawn = True
        return self._program.launch((slot,))

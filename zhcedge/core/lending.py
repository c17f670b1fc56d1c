"""A source's surface on loan, the same for every source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from zhcedge.core.errors import PhaseError
from zhcedge.core.ports import Fence
from zhcedge.core.types import B, FrameInfo, Surface


class SurfaceLease(Generic[B]):
    """Implements core.ports.Lease. One holder at a time, any thread.

    Args:
        take_back: called by the first `release` with what is still in flight; None where nobody needs to know.
        ready: what must be done before anyone reads the surface; None when it is complete.
    """

    __slots__ = ("_info", "_ready", "_surface", "_take_back")

    def __init__(
        self,
        surface: Surface[B],
        info: FrameInfo,
        take_back: Callable[[Fence | None], None] | None = None,
        ready: Fence | None = None,
    ) -> None:
        self._surface: Surface[B] | None = surface
        self._info, self._take_back, self._ready = info, take_back, ready

    @property
    def surface(self) -> Surface[B]:
        """Raises PhaseError once released."""
        if self._surface is None:
            raise PhaseError("the frame was given back already", where=f"frame {self._info.sequence}")
        return self._surface

    @property
    def info(self) -> FrameInfo:
        return self._info

    @property
    def ready(self) -> Fence | None:
        """Of use only before `release`: it may stand for another surface's work later."""
        return self._ready

    def release(self, after: Fence | None = None) -> None:
        """Give the surface back; its source overwrites it only once `after` is done. Twice is fine."""
        if self._surface is None:
            return
        self._surface = None
        if self._take_back is not None:
            self._take_back(after)

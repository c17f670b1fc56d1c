"""The life of a run as a pure state machine: which phase may follow which, and who is told.

initialising -> warming-up -> active -> draining -> stopped; any but stopped -> failed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from zhcedge.core.errors import PhaseError


class Phase(str, enum.Enum):
    """A phase of the frame path. The value is the word used on MQTT, in logs and in messages."""

    INITIALISING = "initialising"
    WARMING_UP = "warming-up"
    ACTIVE = "active"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"

    def __str__(self) -> str:
        return self.value

    @property
    def number(self) -> int:
        """Position in declaration order: how a phase is written into shared memory."""
        return PHASES.index(self)


PHASES: tuple[Phase, ...] = tuple(Phase)

_NEXT: dict[Phase, frozenset[Phase]] = {
    Phase.INITIALISING: frozenset({Phase.WARMING_UP, Phase.STOPPED, Phase.FAILED}),
    Phase.WARMING_UP: frozenset({Phase.ACTIVE, Phase.STOPPED, Phase.FAILED}),
    Phase.ACTIVE: frozenset({Phase.DRAINING, Phase.FAILED}),
    Phase.DRAINING: frozenset({Phase.STOPPED, Phase.FAILED}),
    Phase.STOPPED: frozenset(),
    Phase.FAILED: frozenset(),
}


class Lifecycle:
    """Holds the current phase and tells one listener about each change.

    Not thread-safe: the thread that owns the run is the only one that calls `to`.
    """

    def __init__(self, on_change: Callable[[Phase], None] = lambda phase: None) -> None:
        self._phase = Phase.INITIALISING
        self._on_change = on_change
        on_change(self._phase)

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def is_sealed(self) -> bool:
        """True once warm-up is over: from then on an allocation in the frame path is a violation."""
        return self._phase in (Phase.ACTIVE, Phase.DRAINING, Phase.STOPPED)

    def to(self, phase: Phase) -> None:
        """Move to `phase`. Raises PhaseError when it can't follow the current one."""
        if phase not in _NEXT[self._phase]:
            raise PhaseError(f"phase {phase} can't follow {self._phase}")
        self._phase = phase
        self._on_change(phase)

"""The life of a run: only the stated phases follow each other, and the listener hears each one once."""

from __future__ import annotations

import itertools

import pytest

from zhcedge.core.errors import PhaseError
from zhcedge.core.lifecycle import Lifecycle, Phase

ORDER = [Phase.INITIALISING, Phase.WARMING_UP, Phase.ACTIVE, Phase.DRAINING, Phase.STOPPED]


def test_the_regular_life_is_heard_in_order() -> None:
    heard: list[Phase] = []
    lifecycle = Lifecycle(heard.append)
    for phase in ORDER[1:]:
        lifecycle.to(phase)
    assert heard == ORDER


@pytest.mark.parametrize(("first", "then"), list(itertools.product(Phase, Phase)))
def test_no_phase_is_skipped_and_none_follows_the_end(first: Phase, then: Phase) -> None:
    lifecycle = Lifecycle()
    path = ORDER[1 : ORDER.index(first) + 1] if first in ORDER else [first]
    for phase in path:
        lifecycle.to(phase)
    is_next = first in ORDER[:-1] and then is ORDER[ORDER.index(first) + 1]
    is_failure = then is Phase.FAILED and first in ORDER[:-1]
    is_early_stop = then is Phase.STOPPED and first in (Phase.INITIALISING, Phase.WARMING_UP)
    if is_next or is_failure or is_early_stop:
        lifecycle.to(then)
        assert lifecycle.phase is then
    else:
        with pytest.raises(PhaseError):
            lifecycle.to(then)
        assert lifecycle.phase is first


def test_the_seal_is_between_warm_up_and_active() -> None:
    lifecycle = Lifecycle()
    lifecycle.to(Phase.WARMING_UP)
    assert not lifecycle.is_sealed
    lifecycle.to(Phase.ACTIVE)
    assert lifecycle.is_sealed

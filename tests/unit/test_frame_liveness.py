"""A frame process that stands still is found out, and one that has nothing to do is not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zhcedge.core.lifecycle import Phase
from zhcedge.service.liveness import Liveness


def faults(steps: list[tuple[int, int]], phase: Phase = Phase.ACTIVE) -> list[str]:
    """What is said, a second a step, of a process that has finished and holds so many frames."""
    watch = Liveness(0.0)
    found = [watch.fault(second, phase, float(second), *step) for second, step in enumerate(steps)]
    return [error.what for error in found if error is not None]


def test_a_stage_that_keeps_frames_is_found_out() -> None:
    said = faults([(7, 2)] * 60)
    assert said
    assert "held 2 frames" in said[0]


@given(st.lists(st.integers(0, 3), min_size=100, max_size=200))
def test_silent_cameras_are_no_fault(gains: list[int]) -> None:
    total, steps = 0, []
    for gain in gains:
        total += gain
        steps.append((total, 2 if gain else 0))
    assert faults(steps) == []


def test_a_slow_stage_that_finishes_a_frame_now_and_then_is_no_fault() -> None:
    assert faults([(second // 40, 4) for second in range(400)]) == []


def test_before_the_active_phase_frames_may_take_long() -> None:
    assert faults([(0, 4)] * 200, Phase.WARMING_UP) == []


def test_a_count_that_stands_still_is_found_out_in_every_phase() -> None:
    for phase, limit_s in ((Phase.ACTIVE, 60), (Phase.WARMING_UP, 300)):
        watch = Liveness(0.0)
        said = [watch.fault(5, phase, float(second)) for second in range(limit_s + 10)]
        assert any(error is not None and "sign of life" in error.what for error in said)
        assert not any(said[:limit_s])

"""Which frames the detector sees."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from zhcedge.core.types import FrameInfo
from zhcedge.pipeline.gate import Gate, MotionSettings


def frame(sequence: int, ms: float | None = None) -> FrameInfo:
    return FrameInfo(0, sequence, 0, round((40 * sequence if ms is None else ms) * 1e6))


@given(st.integers(1, 50), st.integers(1, 300))
def test_without_drops_every_so_many_frames_are_detected_in(interval: int, frames: int) -> None:
    gate = Gate(interval)
    wanted = [sequence for sequence in range(frames) if gate.wants(frame(sequence), None)]
    assert wanted == list(range(0, frames, interval))


@given(st.integers(1, 10), st.sets(st.integers(0, 200), min_size=1))
def test_dropped_frames_do_not_stretch_the_interval(interval: int, there: set[int]) -> None:
    gate, sequences = Gate(interval), sorted(there)
    wanted = [sequence for sequence in sequences if gate.wants(frame(sequence), None)]
    assert wanted[0] == sequences[0]
    for before, after in itertools.pairwise(wanted):
        assert after - before >= interval
        assert not [sequence for sequence in sequences if before + interval <= sequence < after]


def test_a_still_picture_spares_the_detector_until_the_longest_pause_is_over() -> None:
    gate = Gate(motion=MotionSettings(threshold=0.05, max_skip_ms=200))
    wanted = [sequence for sequence in range(12) if gate.wants(frame(sequence), 0.0)]
    assert wanted == [0, 5, 10]


@given(st.floats(0, 1))
def test_what_moves_enough_is_detected_in(changed: float) -> None:
    gate = Gate(motion=MotionSettings(threshold=0.05, max_skip_ms=60_000))
    assert gate.wants(frame(0), 0.0)
    assert gate.wants(frame(1), changed) == (changed >= 0.05)


def test_unknown_motion_is_motion() -> None:
    gate = Gate(motion=MotionSettings(threshold=0.5, max_skip_ms=60_000))
    assert all(gate.wants(frame(sequence), None) for sequence in range(5))

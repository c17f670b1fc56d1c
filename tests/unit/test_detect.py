"""Decode and NMS against a slow reference in exact arithmetic, and what must never pass."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.backends.cpu.arena import CpuArena
from zhcedge.backends.cpu.detect import MAX_CANDIDATES, Detector
from zhcedge.core.geometry import Letterbox
from zhcedge.core.types import GUARDED_BYTES, MAX_DETECTIONS, RESULT_DTYPE, DetectorSettings

Output = npt.NDArray[np.float32]
Detection = tuple[tuple[float, ...], float, int]

CLASSES = 3
SAME_SIZE = Letterbox.fit(64, 64, 64, 64)


def detect(
    output: Output,
    *,
    threshold: float = 0.5,
    nms_iou: float = 0.5,
    labels: tuple[int, ...] | None = None,
    letterbox: Letterbox = SAME_SIZE,
) -> tuple[list[Detection], int]:
    """Detections in order, and the number of candidates."""
    settings = DetectorSettings(threshold, nms_iou, labels)
    detector = Detector(output.shape[0] - 4, output.shape[1], settings, CpuArena(), "test")
    result = np.zeros(1, RESULT_DTYPE)
    detector(output, letterbox, result)
    found = result["detections"][0][: int(result["count"][0])]
    boxes = [tuple(box) for box in found["box"].tolist()]
    return list(zip(boxes, found["score"].tolist(), found["label"].tolist(), strict=True)), int(result["candidates"][0])


def output_of(rows: Sequence[tuple[tuple[float, float, float, float], list[float]]]) -> Output:
    """An output from (x1, y1, x2, y2) boxes and class scores, one for each anchor."""
    output = np.zeros((4 + CLASSES, len(rows)), np.float32)
    for anchor, ((x1, y1, x2, y2), scores) in enumerate(rows):
        output[:, anchor] = [(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1, *scores]
    return output


def brute_force(
    rows: list[tuple[tuple[int, int, int, int], list[float]]],
    threshold: float,
    nms_iou: float,
    labels: tuple[int, ...] | None,
) -> tuple[list[Detection], int]:
    """The definition, word for word, with fractions instead of floats."""
    candidates = []
    for anchor, (box, scores) in enumerate(rows):
        best = max(scores)
        label = scores.index(best)
        if best > threshold and (labels is None or label in labels) and box[2] > box[0] and box[3] > box[1]:
            candidates.append((-best, anchor, box, label))
    kept: list[tuple[float, int, tuple[int, int, int, int], int]] = []
    for candidate in sorted(candidates):
        is_free = all(candidate[3] != k[3] or overlap(candidate[2], k[2]) <= Fraction(nms_iou) for k in kept)
        if is_free and len(kept) < MAX_DETECTIONS:
            kept.append(candidate)
    result = []
    for score, _, box, label in kept:
        clipped = tuple(float(min(max(edge, 0), 64)) for edge in box)
        if clipped[2] > clipped[0] and clipped[3] > clipped[1]:
            result.append((clipped, -score, label))
    return result, len(candidates)


def overlap(a: tuple[int, ...], b: tuple[int, ...]) -> Fraction:
    intersection = max(min(a[2], b[2]) - max(a[0], b[0]), 0) * max(min(a[3], b[3]) - max(a[1], b[1]), 0)
    area_a, area_b = (a[2] - a[0]) * (a[3] - a[1]), (b[2] - b[0]) * (b[3] - b[1])
    return Fraction(intersection, area_a + area_b - intersection)


# A coarse grid and few scores: equal scores, touching, equal and nested boxes come up all the time. Everything is a
# small multiple of a power of two, so float32 is exact and must agree with fractions to the bit.
edges = st.integers(-4, 20).map(lambda n: 4 * n)
scores = st.lists(st.integers(0, 8).map(lambda n: n / 8), min_size=CLASSES, max_size=CLASSES)
boxes = st.tuples(edges, edges, st.integers(0, 8), st.integers(0, 8)).map(
    lambda b: (b[0], b[1], b[0] + 4 * b[2], b[1] + 4 * b[3])
)


@given(
    rows=st.lists(st.tuples(boxes, scores), min_size=1, max_size=60),
    threshold=st.integers(0, 8).map(lambda n: n / 8),
    nms_iou=st.sampled_from([0.0, 0.25, 0.5, 0.625, 0.75, 1.0]),
    labels=st.none() | st.lists(st.integers(0, CLASSES - 1), max_size=CLASSES, unique=True).map(tuple),
)
def test_equal_to_brute_force(
    rows: list[tuple[tuple[int, int, int, int], list[float]]],
    threshold: float,
    nms_iou: float,
    labels: tuple[int, ...] | None,
) -> None:
    expected = brute_force(rows, threshold, nms_iou, labels)
    assert detect(output_of(rows), threshold=threshold, nms_iou=nms_iou, labels=labels) == expected


def test_equal_to_brute_force_over_many_anchors() -> None:
    generator = np.random.default_rng(8)
    corners = generator.integers(-4, 20, (5000, 2)) * 4
    extents = generator.integers(1, 8, (5000, 2)) * 4
    rows = [
        ((int(x), int(y), int(x + w), int(y + h)), [0.0, score, 0.0])
        for (x, y), (w, h), score in zip(corners, extents, generator.random(5000, np.float32).tolist(), strict=True)
    ]
    expected = brute_force(rows, 0.875, 0.5, None)
    assert 500 < expected[1] < MAX_CANDIDATES
    assert detect(output_of(rows), threshold=0.875) == expected


def test_a_score_at_the_threshold_does_not_pass() -> None:
    assert detect(output_of([((0, 0, 8, 8), [0.5, 0, 0])])) == ([], 0)


def test_an_overlap_at_the_limit_stays() -> None:
    rows = [((0.0, 0.0, 8.0, 8.0), [0.75, 0.0, 0.0]), ((0.0, 0.0, 8.0, 4.0), [0.625, 0.0, 0.0])]
    assert len(detect(output_of(rows), nms_iou=0.5)[0]) == 2
    assert len(detect(output_of(rows), nms_iou=0.49)[0]) == 1


def test_equal_scores_go_to_the_lower_class_and_the_lower_anchor() -> None:
    rows = [((0.0, 0.0, 8.0, 8.0), [0.0, 0.75, 0.75]), ((0.0, 0.0, 8.0, 7.0), [0.0, 0.75, 0.75])]
    assert detect(output_of(rows))[0] == [((0, 0, 8, 8), 0.75, 1)]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("row", range(4))
def test_a_box_that_is_not_finite_never_passes(bad: float, row: int) -> None:
    output = output_of([((0, 0, 8, 8), [0.75, 0, 0]), ((20, 20, 28, 28), [0.75, 0, 0])])
    output[row, 0] = bad
    assert detect(output) == ([((20, 20, 28, 28), 0.75, 0)], 1)


def test_a_box_that_overflows_never_passes() -> None:
    output = output_of([((0, 0, 8, 8), [0.75, 0, 0])])
    output[2:4, 0] = 3e38
    output[0:2, 0] = 3e38
    assert detect(output)[1] == 0


def test_a_score_that_is_nan_is_no_score_and_infinity_drops_the_anchor() -> None:
    nan, inf = np.nan, np.inf
    boxes = [(float(x), 0.0, float(x + 8), 8.0) for x in (0, 10, 20, 30)]
    class_scores = [[nan, nan, nan], [nan, 0.75, nan], [inf, 0.75, 0.0], [-inf, 0.75, 0.0]]
    found, candidates = detect(output_of(list(zip(boxes, class_scores, strict=True))))
    assert found == [((10, 0, 18, 8), 0.75, 1), ((30, 0, 38, 8), 0.75, 1)]
    assert candidates == 2


@given(seed=st.integers(0, 10_000))
def test_whatever_the_output_detections_are_sane(seed: int) -> None:
    generator = np.random.default_rng(seed)
    output = generator.normal(0, 40, (4 + CLASSES, 50)).astype(np.float32)
    output[4:] = generator.random((CLASSES, 50))
    wild = generator.random(output.shape) < 0.05
    output[wild] = generator.choice([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45], np.count_nonzero(wild))
    for (x1, y1, x2, y2), score, label in detect(output, letterbox=Letterbox.fit(100, 50, 64, 64))[0]:
        assert 0 <= x1 < x2 <= 100
        assert 0 <= y1 < y2 <= 50
        assert 0.5 < score < np.inf
        assert 0 <= label < CLASSES


def test_only_the_best_candidates_enter_and_ties_go_to_lower_anchors() -> None:
    """All boxes apart from each other, more than may enter: the first of the equal ones get the last places."""
    count = 3 * MAX_CANDIDATES
    output = np.zeros((4 + CLASSES, count), np.float32)
    output[0], output[1] = np.arange(count) % 64 + 0.5, np.arange(count) // 64 + 0.5
    output[2:4] = 1
    output[4] = 0.75
    output[4, -10:] = 0.875
    found, candidates = detect(output)
    assert candidates == count
    assert len(found) == MAX_DETECTIONS
    assert [score for _, score, _ in found[:11]] == [0.875] * 10 + [0.75]
    assert [box[0] for box, _, _ in found[10:20]] == list(range(10))


def test_a_candidate_beyond_the_limit_neither_shows_nor_suppresses() -> None:
    """1024 copies of one box crowd out everything weaker."""
    rows = [((0.0, 0.0, 8.0, 8.0), [0.75, 0.0, 0.0])] * MAX_CANDIDATES + [((20.0, 20.0, 28.0, 28.0), [0.625, 0.0, 0.0])]
    assert len(detect(output_of(rows))[0]) == 1
    assert len(detect(output_of(rows[1:]))[0]) == 2


def test_boxes_come_back_in_source_pixels_and_clipped() -> None:
    letterbox = Letterbox.fit(128, 64, 64, 64)  # half size, rows 16 to 47
    rows = [((-4.0, 20.0, 10.0, 100.0), [0.75, 0.0, 0.0]), ((10.0, 0.0, 20.0, 10.0), [0.75, 0.0, 0.0])]
    assert detect(output_of(rows), letterbox=letterbox) == ([((0, 8, 20, 64), 0.75, 0)], 2)


def test_a_frame_allocates_less_than_a_guarded_buffer_however_many_boxes_there_are() -> None:
    generator = np.random.default_rng(9)
    arena = CpuArena()
    detector = Detector(80, 8400, DetectorSettings(0.5, 0.5), arena, "test")
    output = generator.random((84, 8400), np.float32)
    output[:2] *= 640
    output[2:4] *= 100
    result = np.zeros(1, RESULT_DTYPE)
    letterbox = Letterbox.fit(1920, 1080, 640, 640)
    detector(output, letterbox, result)
    assert int(result["candidates"][0]) == 8400
    tracemalloc.start()
    try:
        detector(output, letterbox, result)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # All of a frame's temporaries together, not only the largest one.
    assert peak < GUARDED_BYTES

"""Every head decodes to the same detections, in both precisions; both orders of colours; heads told by their shapes."""

from __future__ import annotations

import contextlib
import tracemalloc
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.devices import tiny_model
from tests.unit.support_models import Row, encode
from zhcedge.backends.cpu.arena import CpuArena, tensor_values
from zhcedge.backends.cpu.detect import DetectStage
from zhcedge.backends.cpu.device import CpuDevice
from zhcedge.backends.cpu.heads import make_rewriter
from zhcedge.backends.cpu.letterbox import PictureLetterbox
from zhcedge.core.errors import ModelError, PipelineError
from zhcedge.core.ports import FrameSlot
from zhcedge.core.requests import DeviceSettings
from zhcedge.core.types import GUARDED_BYTES, DetectorSettings, HeadKind, ImageFormat, ModelFacts, PixelFormat
from zhcedge.models.head_guess import NAMES, chosen_head, grid, guess_head, name_of

CLASSES, ANCHORS, SIDE = 3, 40, 64
LABELS = tuple("abc")
HEADS = list(HeadKind)


def facts_of(head: HeadKind, dtype: str = "float32") -> ModelFacts:
    shape = encode(head, [], CLASSES, ANCHORS).shape
    return tiny_model(
        labels=LABELS,
        input_shape=(1, 3, SIDE, SIDE),
        output_shape=(1, *shape),
        head=head,
        output_dtype=dtype,
    )


def decode(
    head: HeadKind, output: npt.NDArray[np.float32], *, dtype: str = "float32", labels: tuple[int, ...] | None = None
) -> list[tuple[list[float], float, int]]:
    facts = facts_of(head, dtype)
    device = CpuDevice(DeviceSettings())
    try:
        lane = device.create_lane(0, facts)
        stage = DetectStage(lane, facts, DetectorSettings(0.25, 1.0, labels), CpuArena())
        with np.errstate(over="ignore"):
            tensor_values(lane.output)[0] = output
        slot = FrameSlot(0, 0, device.arena.surface(ImageFormat(SIDE, SIDE), "t"), device.arena.results("t"))
        lane.slots = (slot,)
        stage.enqueue(1)
    finally:
        device.close()
    found = slot.results["detections"][0][: int(slot.results["count"][0])]
    return list(zip(found["box"].tolist(), found["score"].tolist(), found["label"].tolist(), strict=True))


edges = st.integers(0, 15).map(lambda n: 4.0 * n)
sides = st.integers(1, 6).map(lambda n: 4.0 * n)
rows = st.lists(
    st.tuples(
        st.tuples(edges, edges, sides, sides).map(lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3])),
        st.integers(0, 16).map(lambda n: n / 16),
        st.integers(0, CLASSES - 1),
    ),
    max_size=ANCHORS,
)


@given(rows=rows, labels=st.none() | st.just((1,)))
def test_the_same_boxes_come_out_of_every_head(rows: list[Row], labels: tuple[int, ...] | None) -> None:
    expected = decode(
        HeadKind.YOLO_ANCHOR_FREE, encode(HeadKind.YOLO_ANCHOR_FREE, rows, CLASSES, ANCHORS), labels=labels
    )
    above = [row for row in rows if row[1] > 0.25 and (labels is None or row[2] in labels)]
    assert len(expected) == len(above)
    for head in HEADS:
        for dtype in ("float32", "float16"):  # everything is a small multiple of a power of two: exact in both
            output = encode(head, rows, CLASSES, ANCHORS)
            assert decode(head, output, dtype=dtype, labels=labels) == expected, (head, dtype)


@given(seed=st.integers(0, 10_000))
@pytest.mark.parametrize("head", HEADS)
def test_whatever_a_head_says_detections_are_sane(head: HeadKind, seed: int) -> None:
    generator = np.random.default_rng(seed)
    output = generator.normal(0, 40, encode(head, [], CLASSES, ANCHORS).shape).astype(np.float32)
    wild = generator.random(output.shape) < 0.1
    output[wild] = generator.choice([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45], np.count_nonzero(wild))
    for (x1, y1, x2, y2), score, label in decode(head, output):
        assert 0 <= x1 < x2 <= SIDE
        assert 0 <= y1 < y2 <= SIDE
        assert 0.25 < score < np.inf
        assert 0 <= label < CLASSES


@pytest.mark.parametrize("label", [-1.0, float(CLASSES), 1e30, np.nan, np.inf])
def test_a_class_that_the_model_does_not_have_is_dropped(label: float) -> None:
    output = encode(HeadKind.END_TO_END, [((0, 0, 8, 8), 0.75, 0), ((20, 20, 28, 28), 0.75, 1)], CLASSES, ANCHORS)
    output[0, 5] = label
    assert decode(HeadKind.END_TO_END, output) == [([20, 20, 28, 28], 0.75, 1)]


@pytest.mark.parametrize(("written", "label"), [(1.3, 1), (0.5, 0), (1.5, 2), (-0.4, 0)])
def test_a_class_between_two_is_the_nearest_and_halves_go_to_the_even_one(written: float, label: int) -> None:
    output = encode(HeadKind.END_TO_END, [((0, 0, 8, 8), 0.75, 0)], CLASSES, ANCHORS)
    output[0, 5] = written
    assert decode(HeadKind.END_TO_END, output) == [([0, 0, 8, 8], 0.75, label)]


def test_an_end_to_end_head_keeps_boxes_that_overlap() -> None:
    rows: list[Row] = [((0, 0, 8, 8), 0.75, 0), ((0, 0, 8, 8), 0.5, 0)]
    assert len(decode(HeadKind.END_TO_END, encode(HeadKind.END_TO_END, rows, CLASSES, ANCHORS))) == 2


@pytest.mark.parametrize("head", HEADS)
def test_a_label_that_the_head_does_not_have_is_refused(head: HeadKind) -> None:
    with pytest.raises(PipelineError, match="labels"):
        decode(head, encode(head, [], CLASSES, ANCHORS), labels=(CLASSES,))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_frame_allocates_less_than_a_guarded_buffer_whatever_the_head(head: HeadKind, dtype: str) -> None:
    anchors = 25_200 if head.has_objectness else 8400
    shape = encode(head, [], 80, anchors).shape
    facts = tiny_model(labels=tuple(map(str, range(80))), output_shape=(1, *shape), head=head, output_dtype=dtype)
    rewrite = make_rewriter(facts, CpuArena(), "test")
    output = np.random.default_rng(4).random(shape, np.float32).astype(dtype)
    rewrite(output)
    tracemalloc.start()
    try:
        rewrite(output)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < GUARDED_BYTES


@pytest.mark.parametrize("pixel_format", [PixelFormat.NV12, PixelFormat.RGB24])
def test_float16_inputs_are_the_float32_ones_rounded_once_and_bgr_is_rgb_turned(pixel_format: PixelFormat) -> None:
    image = ImageFormat(70, 50, pixel_format)
    surface = CpuArena().surface(image, "t")
    for plane in surface.planes:
        plane.buffer[:] = np.random.default_rng(3).integers(0, 256, plane.buffer.shape, dtype=np.uint8)

    def letterboxed(dtype: str, is_bgr: bool) -> npt.NDArray[np.generic]:
        facts = replace(tiny_model(input_shape=(1, 3, 48, 32)), input_dtype=dtype, is_bgr=is_bgr)
        target = np.zeros(facts.input_shape[1:], dtype)
        letterbox = PictureLetterbox(image, facts, CpuArena(), "t")
        letterbox.fill_border(target)
        letterbox(surface, target)
        return target

    whole = letterboxed("float32", False)
    assert np.array_equal(letterboxed("float16", False), whole.astype(np.float16))
    assert np.array_equal(letterboxed("float32", True), whole[::-1])
    assert not np.array_equal(whole, whole[::-1])


# -- guessing --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("shape", "size", "labels", "head", "classes"),
    [
        ((1, 84, 8400), (640, 640), 80, "yolov8", 80),
        ((1, 84, 8400), (640, 640), None, "yolov8", 80),
        ((1, 84, 3549), (416, 416), 80, "yolov8", 80),
        ((1, 5, 5040), (640, 384), None, "yolov8", 1),
        ((1, 84, 34000), (1280, 1280), None, "yolov8", 80),
        ((1, 84, 2100), (320, 320), None, "yolov8", 80),
        ((1, 8400, 84), (640, 640), 80, "yolov8-transposed", 80),
        ((1, 8400, 6), (640, 640), 2, "yolov8-transposed", 2),
        ((1, 25200, 85), (640, 640), None, "yolov5", 80),
        ((1, 25200, 6), (640, 640), 1, "yolov5", 1),
        ((1, 102000, 85), (1280, 1280), 80, "yolov5", 80),
        ((1, 85, 25200), (640, 640), None, "yolov5-transposed", 80),
        ((1, 8400, 85), (640, 640), 80, "yolov5", 80),  # YOLOX
        ((1, 300, 6), (640, 640), 80, "end2end", None),
        ((1, 100, 6), (640, 640), None, "end2end", None),
        ((1, 84, 84), (64, 64), 80, None, None),
    ],
    ids=str,
)
def test_a_head_is_told_from_shape_size_and_labels(
    shape: tuple[int, int, int], size: tuple[int, int], labels: int | None, head: str | None, classes: int | None
) -> None:
    if head is None:
        with pytest.raises(ModelError, match="could be") as caught:
            guess_head(shape, size, frozenset(), labels)
        assert "--head" in caught.value.fix
        return
    guess = guess_head(shape, size, frozenset(), labels)
    assert (guess.name, guess.classes) == (head, classes)
    assert str(guess.anchors) in guess.reason


@pytest.mark.parametrize(
    ("shape", "labels"),
    [
        ((1, 8400, 85), None),  # YOLOX's 80 classes, or 81 of a transposed YOLOv8
        ((1, 8400, 85), 79),
        ((1, 84, 8400), 79),  # an objectness, or a label too few
        ((1, 84, 8001), 80),  # no grid
        ((1, 300, 84), 80),  # DETR
        ((1, 300, 6), 2),
        ((1, 6, 300), None),
    ],
    ids=str,
)
def test_what_can_be_read_in_two_ways_is_refused_with_both(shape: tuple[int, int, int], labels: int | None) -> None:
    with pytest.raises(ModelError, match="could be") as caught:
        guess_head(shape, (640, 640), frozenset(), labels)
    assert "--head" in caught.value.fix


@pytest.mark.parametrize(("operators", "selects"), [({"TopK"}, False), ({"NonMaxSuppression"}, False), (set(), True)])
def test_operators_or_metadata_tell_an_end_to_end_head_where_labels_leave_a_doubt(
    operators: set[str], selects: bool
) -> None:
    guess = guess_head((1, 300, 6), (640, 640), operators, 2, selects=selects)
    assert guess.name == "end2end"


@given(
    size=st.tuples(st.integers(2, 40), st.integers(2, 40)).map(lambda s: (32 * s[0], 32 * s[1])),
    classes=st.integers(1, 300),
    name=st.sampled_from([name for name in NAMES if name != "end2end"]),
)
def test_what_a_yolo_of_any_size_and_classes_gives_is_told_or_refused_but_never_mistaken(
    size: tuple[int, int], classes: int, name: str
) -> None:
    head = NAMES[name]
    cells = sum((size[0] // stride) * (size[1] // stride) for stride in (8, 16, 32))
    anchors = 3 * cells if head.has_objectness else cells
    values = 4 + head.has_objectness + classes
    shape = (1, anchors, values) if head.is_rows else (1, values, anchors)
    guess = None
    with contextlib.suppress(ModelError):
        guess = guess_head(shape, size, frozenset(), classes)
    if guess is None:  # only where both axes are grids of this size
        assert grid(size, values) is not None
    else:
        assert (guess.head, guess.classes, guess.anchors) == (head, classes, anchors)


def test_a_named_head_must_have_room_for_its_values() -> None:
    assert chosen_head(HeadKind.YOLO_OBJECTNESS, (1, 77, 9)).classes == 4
    for head, shape in ((HeadKind.END_TO_END, (1, 300, 7)), (HeadKind.YOLO_ANCHOR_FREE, (1, 4, 100))):
        with pytest.raises(ModelError, match=name_of(head)):
            chosen_head(head, shape)

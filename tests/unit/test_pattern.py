"""Patterns and the engine that finds them: boxes equal the truth, for every channel, place in a batch, and lane."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.contract.test_source import ManualClock
from zhcedge.app.wiring import make_guard
from zhcedge.backends.cpu.arena import CpuArena, CpuBuffer
from zhcedge.backends.cpu.detect import Detector
from zhcedge.backends.cpu.device import CpuDevice
from zhcedge.backends.cpu.letterbox import PictureLetterbox
from zhcedge.backends.cpu.pattern_source import PatternSource
from zhcedge.backends.cpu.program import CpuLane
from zhcedge.backends.engines.pattern import SCORE, BoxFinder, PatternEngine, PatternStage, open_pattern
from zhcedge.backends.registry import ENGINES, SOURCES
from zhcedge.core.errors import ModelError, PipelineError
from zhcedge.core.lifecycle import Lifecycle
from zhcedge.core.ports import Lane
from zhcedge.core.requests import DeviceSettings, EngineRequest, SourceRequest
from zhcedge.core.types import (
    DETECTION_DTYPE,
    RESULT_DTYPE,
    DetectorSettings,
    HeadKind,
    ImageFormat,
    ModelFacts,
    Surface,
)
from zhcedge.media.pattern import (
    LABELS,
    Pattern,
    PatternCanvas,
    PatternSpec,
    Truth,
    parse_pattern,
    pattern_facts,
    read_stamp,
)
from zhcedge.pipeline.guard import GuardPolicy
from zhcedge.pipeline.plan import ChannelParts, Plan, PlanSettings
from zhcedge.pipeline.ring import RingRecord
from zhcedge.pipeline.segment import Segment
from zhcedge.service.clock import SystemClock

Bytes = npt.NDArray[np.uint8]
SETTINGS = DetectorSettings(0.5, 0.5)
SIZES = [(1280, 720), (640, 480), (333, 217), (720, 1280), (1920, 1080), (64, 64)]


def assert_equals_truth(detections: npt.NDArray[np.void], truth: Truth, tolerance_px: float = 1.0) -> None:
    """Every object once, with its label, every edge within the tolerance."""
    assert len(detections) == len(truth.boxes)
    found = detections[np.lexsort(detections["box"].T)]
    for box, label in zip(truth.boxes, truth.labels, strict=True):
        distances = np.abs(found["box"] - box).max(axis=1)
        nearest = int(distances.argmin())
        assert distances[nearest] <= tolerance_px
        assert found["label"][nearest] == label


# -- the pattern ---------------------------------------------------------------------------------------------------
specs = st.builds(
    lambda size, objects, seed: PatternSpec(
        objects=min(objects, PatternSpec(width_px=size[0], height_px=size[1]).most_objects),
        width_px=size[0],
        height_px=size[1],
        seed=seed,
    ),
    st.sampled_from(SIZES),
    st.integers(0, 40),
    st.integers(0, 2**31 - 1),
)


@given(specs, st.integers(0, 63), st.integers(0, 2**24 - 1))
def test_objects_lie_inside_the_picture_below_the_stamp_and_never_touch(
    spec: PatternSpec, channel: int, frame: int
) -> None:
    truth = Pattern(spec, channel).truth(frame)
    boxes, gap = truth.boxes, 2 * spec.unit_px
    assert len(boxes) == spec.objects
    assert (boxes[:, 0] >= gap).all()
    assert (boxes[:, 1] >= gap + spec.stamp_height_px).all()
    assert (boxes[:, 2] <= spec.width_px - gap).all()
    assert (boxes[:, 3] <= spec.height_px - gap).all()
    for index, box in enumerate(boxes):
        for other in boxes[index + 1 :]:
            apart = max(other[0] - box[2], box[0] - other[2], other[1] - box[3], box[1] - other[3])
            assert apart >= 2 * gap


@given(specs, st.integers(0, 63), st.integers(0, 2**24 - 2))
def test_tracks_are_smooth_and_the_same_whenever_they_are_asked_for(
    spec: PatternSpec, channel: int, frame: int
) -> None:
    pattern = Pattern(spec, channel)
    now, then = pattern.truth(frame), Pattern(spec, channel).truth(frame + 1)
    assert np.array_equal(pattern.truth(frame).boxes, now.boxes)
    assert np.array_equal(now.ids, then.ids)
    assert np.array_equal(now.labels, then.labels)
    assert np.abs(then.boxes - now.boxes).max(initial=0) <= 2 * spec.unit_px


@given(st.integers(0, 255), st.integers(0, 2**24 - 1), st.sampled_from(SIZES))
def test_the_stamp_is_read_back_from_the_picture(channel: int, frame: int, size: tuple[int, int]) -> None:
    spec = PatternSpec(objects=0, width_px=size[0], height_px=size[1])
    canvas = PatternCanvas(Pattern(spec, channel))
    canvas.draw(frame)
    assert read_stamp(canvas.luma, spec.block_px) == (channel, frame)
    canvas.luma[spec.block_px // 2, spec.block_px // 2] ^= 0xFF
    assert read_stamp(canvas.luma, spec.block_px) is None


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=5))
def test_a_drawing_does_not_depend_on_what_was_drawn_before(frames: list[int]) -> None:
    pattern = Pattern(PatternSpec(width_px=320, height_px=240), 3)
    used, fresh = PatternCanvas(pattern), PatternCanvas(pattern)
    for frame in frames:
        used.draw(frame)
    fresh.draw(frames[-1])
    assert np.array_equal(used.luma, fresh.luma)
    assert np.array_equal(used.chroma, fresh.chroma)


def test_every_key_of_the_address_is_read() -> None:
    spec = parse_pattern("pattern:boxes?objects=3&size=640x480&fps=12.5&seed=9&frames=300", "test")
    assert spec == PatternSpec("boxes", 3, 640, 480, 12.5, 9, 300)
    assert parse_pattern("pattern:boxes", "test") == PatternSpec()


# -- the engine ----------------------------------------------------------------------------------------------------
@cache
def chain(width: int, height: int, side: int) -> tuple[PictureLetterbox, Surface[CpuBuffer], CpuArena]:
    arena, image = CpuArena(), ImageFormat(width, height)
    return PictureLetterbox(image, pattern_facts(side), arena, "test"), arena.surface(image, "test"), arena


class OneLane:
    """As much of a lane as the engine asks for."""

    index, stream_handle = 0, 0

    def __init__(self, facts: ModelFacts) -> None:
        arena = CpuArena()
        self.input = arena.tensor("i", facts.input_shape, facts.input_dtype, "test")
        self.output = arena.tensor("o", facts.output_shape, facts.output_dtype, "test")


@settings(max_examples=40)
@given(specs, st.integers(0, 63), st.integers(0, 2**20), st.sampled_from([320, 416, 640]))
def test_detections_equal_the_truth_at_every_size(spec: PatternSpec, channel: int, frame: int, side: int) -> None:
    pattern, facts = Pattern(spec, channel), pattern_facts(side)
    canvas = PatternCanvas(pattern)
    canvas.draw(frame)
    letterbox, surface, _ = chain(spec.width_px, spec.height_px, side)
    for plane, pixels in zip(surface.planes, (canvas.luma, canvas.chroma), strict=True):
        plane.buffer[: plane.rows, : plane.width_bytes] = pixels
    lane = OneLane(facts)
    stage = PatternEngine(facts).bind(lane)
    tensor = lane.input.buffer.view(np.float32).reshape(facts.input_shape)[0]
    letterbox.fill_border(tensor)
    letterbox(surface, tensor)
    stage.enqueue(1)
    result = np.zeros(1, RESULT_DTYPE)
    output = lane.output.buffer.view(np.float32).reshape(facts.output_shape)[0]
    Detector(len(LABELS), facts.anchors, SETTINGS, CpuArena(), "test")(output, letterbox.box, result)
    detections = result["detections"][0][: int(result["count"][0])]
    assert_equals_truth(detections, pattern.truth(frame), tolerance_px=0.25)
    assert (detections["score"] == np.float32(SCORE)).all()
    assert read_stamp(tensor[1], spec.block_px, letterbox.box) == (channel, frame)


def test_an_object_that_a_crop_cuts_ends_at_the_border_of_the_letterbox() -> None:
    spec = PatternSpec(objects=1, width_px=640, height_px=480)
    pattern = Pattern(spec, 0)
    canvas = PatternCanvas(pattern)
    canvas.draw(0)
    x1, y1, _, y2 = (int(edge) for edge in pattern.truth(0).boxes[0])
    cut = x1 + (int(pattern.truth(0).boxes[0][2]) - x1) * 3 // 4 & ~1
    image, facts = ImageFormat(cut, 480), pattern_facts(416)
    arena = CpuArena()
    surface, letterbox = arena.surface(image, "test"), PictureLetterbox(image, facts, arena, "test")
    surface.planes[0].buffer[:, :cut] = canvas.luma[:, :cut]
    surface.planes[1].buffer[:, :cut] = canvas.chroma[:, :cut]
    lane = OneLane(facts)
    stage = PatternEngine(facts).bind(lane)
    tensor = lane.input.buffer.view(np.float32).reshape(facts.input_shape)[0]
    letterbox.fill_border(tensor)
    letterbox(surface, tensor)
    stage.enqueue(1)
    result = np.zeros(1, RESULT_DTYPE)
    output = lane.output.buffer.view(np.float32).reshape(facts.output_shape)[0]
    Detector(len(LABELS), facts.anchors, SETTINGS, CpuArena(), "test")(output, letterbox.box, result)
    assert int(result["count"][0]) == 1
    assert np.abs(result["detections"][0]["box"][0] - (x1, y1, cut, y2)).max() <= 1


def test_results_of_the_last_picture_are_gone() -> None:
    facts = pattern_facts(320)
    lane = OneLane(facts)
    stage = PatternEngine(facts).bind(lane)
    lane.output.buffer.fill(7)
    stage.enqueue(1)
    assert not lane.output.buffer.any()


@pytest.mark.parametrize(
    "changes",
    [
        {"output_dtype": "float16"},
        {"head": HeadKind.END_TO_END, "output_shape": (1, 300, 6)},
        {"output_shape": (1, 6, 300)},
    ],
)
def test_a_model_that_it_can_not_answer_for_is_refused(changes: dict[str, object]) -> None:
    device = CpuDevice(DeviceSettings())
    with pytest.raises(ModelError):
        open_pattern(EngineRequest(Path(), replace(pattern_facts(), **changes)), device)  # type: ignore[arg-type]
    device.close()


def test_another_device_is_refused() -> None:
    class OtherDevice(CpuDevice):
        name = "cuda:0"  # type: ignore[assignment]

    with pytest.raises(PipelineError, match="cuda:0"):
        ENGINES.get("pattern")(EngineRequest(Path(), pattern_facts()), OtherDevice(DeviceSettings()))  # type: ignore[arg-type]


# -- through the pipeline ------------------------------------------------------------------------------------------
class WatchingStage(PatternStage):
    """Reads the stamp off every input and compares it with the frame that the lane believes to hold."""

    def __init__(self, lane: CpuLane, engine: WatchingEngine) -> None:
        super().__init__(lane, engine.facts)
        self._slots, self._engine = lane, engine

    def enqueue(self, batch: int) -> None:
        engine = self._engine
        for place, slot in enumerate(self._slots.slots[:batch]):
            stamp = read_stamp(self._input[place, 1], engine.spec.block_px, engine.box)
            engine.places[(self._slots.index, place)] += 1
            engine.mixed += stamp != (slot.info.channel, slot.info.sequence)
        super().enqueue(batch)


class WatchingEngine(PatternEngine):
    def __init__(self, facts: ModelFacts, spec: PatternSpec) -> None:
        super().__init__(facts)
        self.spec = spec
        self.box = chain(spec.width_px, spec.height_px, facts.input_shape[2])[0].box
        self.places: Counter[tuple[int, int]] = Counter()
        self.mixed = 0

    def bind(self, lane: Lane[CpuBuffer]) -> WatchingStage:
        assert isinstance(lane, CpuLane)
        return WatchingStage(lane, self)


def run(engine: WatchingEngine, uri: str, channels: int, lanes: int, source: str = "pattern") -> list[RingRecord]:
    device, segment, clock = CpuDevice(DeviceSettings()), Segment(), SystemClock()
    plan = Plan(
        device,
        engine,
        [
            ChannelParts(
                f"c{index}",
                SOURCES.get(source)(SourceRequest(index, f"c{index}", uri, False, False, clock), device),
                [],
            )  # type: ignore[arg-type]
            for index in range(channels)
        ],
        PlanSettings(lanes, 0, 4, SETTINGS),
        make_guard(device, GuardPolicy.FAIL, is_audit=False),
        segment.frame_recorder,
        Lifecycle(lambda phase: None),
        clock,
        ring=segment.ring,
    )
    with plan:
        runtime = plan.warm_up()
        engine.places.clear()
        engine.mixed = 0  # warm-up also launches empty slots
        runtime.process()
    return list(segment.ring.drain())


@pytest.mark.parametrize(("channels", "batch", "lanes"), [(1, 1, 1), (3, 1, 2), (16, 8, 2), (16, 5, 3), (5, 3, 1)])
def test_detections_equal_the_truth_of_their_channel_and_frame_through_the_whole_pipeline(
    channels: int, batch: int, lanes: int
) -> None:
    """Under guard policy `fail`: the sources and the engine allocate nothing large either."""
    frames = 96 // channels
    uri = f"pattern:boxes?size=320x240&objects=6&frames={frames}"
    spec = parse_pattern(uri, "test")
    engine = WatchingEngine(pattern_facts(320, batch), spec)
    records = run(engine, uri, channels, lanes)
    for channel in range(channels):
        pattern = Pattern(spec, channel)
        mine = [record for record in records if record.info.channel == channel and not record.is_end]
        assert [record.info.sequence for record in mine] == list(range(frames))
        for record in mine:
            assert_equals_truth(record.detections, pattern.truth(record.info.sequence))
    assert engine.mixed == 0
    assert {place for _, place in engine.places} == set(range(batch))
    assert {lane for lane, _ in engine.places} == set(range(lanes))


def as_rgb(canvas: PatternCanvas) -> Bytes:
    """The drawing as RGB, BT.601, limited range; every chroma sample twice each way."""
    height, width = canvas.luma.shape
    spread = canvas.chroma.reshape(canvas.chroma.shape[0], -1, 2).repeat(2, axis=0).repeat(2, axis=1)
    y = (canvas.luma.astype(float) - 16) * 255 / 219
    u, v = (spread[:height, :width, plane].astype(float) - 128 for plane in (0, 1))
    u, v = u * 255 / 224, v * 255 / 224
    rgb = np.stack([y + 1.402 * v, y - 0.344136 * u - 0.714136 * v, y + 1.772 * u], axis=-1)
    return np.rint(np.clip(rgb, 0, 255)).astype(np.uint8)


def test_a_folder_of_images_goes_through_the_pipeline_as_the_pattern_that_it_shows(tmp_path: Path) -> None:
    """Under guard policy `fail`: reading images allocates nothing that the guard sees."""
    spec = PatternSpec(width_px=642, height_px=361, objects=6)
    canvas = PatternCanvas(Pattern(spec, 0))
    for frame in range(12):
        canvas.draw(frame)
        Image.fromarray(as_rgb(canvas)).save(tmp_path / f"{frame}.png")
    engine = WatchingEngine(pattern_facts(416, 2), spec)
    records = run(engine, str(tmp_path), 1, 2, source="image")
    assert len(records) == 13
    for record in records[:-1]:
        assert_equals_truth(record.detections, Pattern(spec, 0).truth(record.info.sequence))
    assert engine.mixed == 0


def test_the_watch_sees_a_mix_up() -> None:
    """What the test above relies on: a wrong frame number is noticed."""
    clock = ManualClock()
    source = PatternSource(SourceRequest(2, "gate", "pattern:boxes?size=320x240", False, False, clock), None)
    facts = source.open()
    lease = source.read(0.0)
    pixels = lease.surface.planes[0].buffer  # type: ignore[union-attr]
    block_px = parse_pattern("pattern:boxes?size=320x240", "test").block_px
    assert facts.fps == 30.0
    assert read_stamp(pixels, block_px) == (2, 0)
    assert read_stamp(pixels, block_px) != (2, 1)
    truth = Pattern(PatternSpec(width_px=320, height_px=240), 2).truth(0)
    found = np.zeros(len(truth.boxes), DETECTION_DTYPE)
    found["box"], found["label"] = truth.boxes, truth.labels
    assert_equals_truth(found, truth)
    found["box"][0, 0] += 2
    with pytest.raises(AssertionError):
        assert_equals_truth(found, truth)


@settings(max_examples=10)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["noise", "smooth"]))
def test_any_picture_is_survived(seed: int, kind: str) -> None:
    generator = np.random.default_rng(seed)
    shape = (3, 320, 320) if kind == "noise" else (3, 5, 5)
    picture = generator.random(shape, np.float32)
    if kind == "smooth":
        picture = picture.repeat(64, axis=1).repeat(64, axis=2)
    for _, box in BoxFinder((320, 320), 1 / 255, (0, 1, 2))(picture):
        assert np.isfinite(box).all()

"""Every kernel against its numpy twin, on random pictures and outputs of many shapes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest

from tests.gpu import support_cuda as support
from zhcedge.backends.cpu.arena import CpuArena
from zhcedge.backends.cpu.detect import Detector
from zhcedge.backends.cpu.heads import make_rewriter
from zhcedge.backends.cpu.ingest import ingest
from zhcedge.backends.cpu.letterbox import PictureLetterbox
from zhcedge.backends.cpu.overlay import Hidden, TextTiles, draw, text_scale
from zhcedge.core.geometry import Letterbox
from zhcedge.core.ports import FrameSlot
from zhcedge.core.types import (
    RESULT_DTYPE,
    ColorMatrix,
    DetectorSettings,
    HeadKind,
    ImageFormat,
    PixelFormat,
)
from zhcedge.pipeline.masks import rasterise

if TYPE_CHECKING:
    from zhcedge.backends.cuda.device import CudaDevice

pytestmark = pytest.mark.gpu

SIZES = [(1, 1), (2, 3), (7, 5), (64, 48), (65, 33), (768, 576), (1919, 1079), (1920, 1080)]


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    with support.open_device() as opened:
        yield opened


# -- letterbox -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("pixel_format", [PixelFormat.NV12, PixelFormat.P010, PixelFormat.RGB24], ids=lambda f: f.value)
def test_letterbox_equals_its_twin(device: CudaDevice, size: tuple[int, int], pixel_format: PixelFormat) -> None:
    from zhcedge.backends.cuda.descriptor import pack

    for number, (target, matrix, is_full_range) in enumerate(
        [
            ((416, 416), ColorMatrix.BT601, False),
            ((64, 200), ColorMatrix.BT709, False),
            ((97, 33), ColorMatrix.BT709, True),
        ]
    ):
        image = ImageFormat(*size, pixel_format, matrix=matrix, is_full_range=is_full_range)
        source = support.cpu_picture(image, seed=number)
        facts = support.model(*target)
        expected = np.empty(facts.input_shape[1:], np.float32)
        twin = PictureLetterbox(image, facts, CpuArena(), "test")
        twin.fill_border(expected)
        twin(source, expected)
        surface = device.arena.surface(image, "test")
        support.write_surface(device, source, surface)
        lane = device.create_lane(0, facts)
        support.to_device(device, lane.table, np.frombuffer(pack(surface, 0, target), np.uint8))
        device.preprocess(lane, facts).enqueue(1)
        lane.stream.synchronize()
        found = support.to_host(device, lane.input.buffer, np.full(expected.shape, np.nan, np.float32))
        # Both work in float32 on samples up to 255: 2e-5 is a two-hundredth of one of 255 grey levels.
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("pixel_format", [PixelFormat.NV12, PixelFormat.P010, PixelFormat.RGB24], ids=lambda f: f.value)
@pytest.mark.parametrize("is_bgr", [False, True], ids=["rgb", "bgr"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_letterbox_in_any_precision_and_order_of_colours_equals_its_twin(
    device: CudaDevice, pixel_format: PixelFormat, is_bgr: bool, dtype: str
) -> None:
    from zhcedge.backends.cuda.descriptor import pack

    image, target = ImageFormat(333, 222, pixel_format), (97, 130)
    source = support.cpu_picture(image, seed=9)
    facts = replace(support.model(*target), input_dtype=dtype, is_bgr=is_bgr)
    expected = np.empty(facts.input_shape[1:], dtype)
    twin = PictureLetterbox(image, facts, CpuArena(), "test")
    twin.fill_border(expected)
    twin(source, expected)
    surface = device.arena.surface(image, "test")
    support.write_surface(device, source, surface)
    lane = device.create_lane(0, facts)
    support.to_device(device, lane.table, np.frombuffer(pack(surface, 0, target), np.uint8))
    device.preprocess(lane, facts).enqueue(1)
    lane.stream.synchronize()
    found = support.to_host(device, lane.input.buffer, np.full(expected.shape, np.nan, dtype))
    # What differs by 2e-5 in float32 may be rounded to two neighbours in float16, 2 ** -11 apart.
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 if dtype == "float32" else 6e-4)


# -- detect ----------------------------------------------------------------------------------------------------
def random_output(
    generator: np.random.Generator, classes: int, anchors: int, candidates: float
) -> npt.NDArray[np.float32]:
    """An output like a model's: `candidates` of the anchors above 0.5, boxes in clusters, scores with many ties."""
    output = np.empty((4 + classes, anchors), np.float32)
    centres = generator.uniform(0, 416, (2, max(anchors // 40, 1)))
    output[:2] = centres[:, generator.integers(0, centres.shape[1], anchors)] + generator.normal(0, 6, (2, anchors))
    output[2:4] = generator.uniform(-2, 120, (2, anchors))
    output[4:] = generator.uniform(0, 0.5, (classes, anchors)) ** 2
    chosen = np.flatnonzero(generator.random(anchors) < candidates)
    output[4 + generator.integers(0, classes, len(chosen)), chosen] = np.round(
        generator.uniform(0.5, 1, len(chosen)), 2
    )
    return output


def poison(generator: np.random.Generator, output: npt.NDArray[np.float32]) -> None:
    """NaN and infinities in boxes and scores."""
    for value in (np.nan, np.inf, -np.inf, 3e38):
        rows = generator.integers(0, output.shape[0], 40)
        output[rows, generator.integers(0, output.shape[1], 40)] = value


@pytest.mark.parametrize("size", [(768, 576), (1920, 1080), (33, 700)], ids=str)
@pytest.mark.parametrize(
    ("classes", "anchors", "candidates"),
    [
        (80, 3549, 0.01),
        (80, 8400, 0.3),
        (2, 32, 0.9),
        (1, 21504, 0.6),
        (7, 1025, 1.0),
        (3, 1, 1.0),
        (80, 100, 0.0),
        (1, 260, 1.0),
        (1, 900, 1.0),
        (2, 600, 0.9),
    ],
)
@pytest.mark.parametrize("labels", [None, (0,)], ids=str)
def test_detect_equals_its_twin_bit_for_bit(
    device: CudaDevice,
    size: tuple[int, int],
    classes: int,
    anchors: int,
    candidates: float,
    labels: tuple[int, ...] | None,
) -> None:
    from zhcedge.backends.cuda.descriptor import pack

    generator = np.random.default_rng([*size, classes, anchors])
    facts = support.model(416, 416, classes, anchors, batch=3)
    settings = DetectorSettings(0.5, 0.45, labels)
    outputs = np.stack([random_output(generator, classes, anchors, candidates) for _ in range(3)])
    poison(generator, outputs[1])
    outputs[2] = outputs[0][:, ::-1]

    lane = device.create_lane(0, facts)
    stage = device.detect(lane, facts, settings)
    slots = [support.make_slot(device, ImageFormat(*size), index) for index in range(3)]
    table = b"".join(pack(s.surface, device.arena.device_address(s.results), (416, 416)) for s in slots)
    support.to_device(device, lane.table, np.frombuffer(table, np.uint8))
    support.to_device(device, lane.output.buffer, outputs)
    for _ in range(2):  # the second run finds the counters as the first one left them
        for slot in slots:
            slot.results["count"] = -1
        stage.enqueue(3)
        lane.stream.synchronize()
        for output, slot in zip(outputs, slots, strict=True):
            expected = np.zeros(1, RESULT_DTYPE)
            Detector(classes, anchors, settings, CpuArena(), "test")(output, Letterbox.fit(*size, 416, 416), expected)
            count = int(expected["count"][0])
            assert int(slot.results["candidates"][0]) == int(expected["candidates"][0])
            assert int(slot.results["count"][0]) == count
            found, wanted = slot.results["detections"][0][:count], expected["detections"][0][:count]
            for name in ("score", "label", "box"):
                np.testing.assert_array_equal(found[name], wanted[name])


def test_boxes_that_each_overlap_only_their_neighbours_are_settled_one_by_one(device: CudaDevice) -> None:
    """The longest chain of decisions: a box goes, so the next one stays, so the one after it goes."""
    from zhcedge.backends.cuda.descriptor import pack

    output = np.zeros((5, 1000), np.float32)
    output[0], output[1] = np.arange(1000) * 4 + 50, 50
    output[2:4], output[4] = 10, np.linspace(0.99, 0.51, 1000)
    facts, settings = support.model(4096, 64, 1, 1000), DetectorSettings(0.5, 0.3, None)
    lane = device.create_lane(0, facts)
    stage = device.detect(lane, facts, settings)
    slot = support.make_slot(device, ImageFormat(4096, 64))
    table = pack(slot.surface, device.arena.device_address(slot.results), (4096, 64))
    support.to_device(device, lane.table, np.frombuffer(table, np.uint8))
    support.to_device(device, lane.output.buffer, output)
    stage.enqueue(1)
    lane.stream.synchronize()
    expected = np.zeros(1, RESULT_DTYPE)
    Detector(1, 1000, settings, CpuArena(), "test")(output, Letterbox.fit(4096, 64, 4096, 64), expected)
    assert int(expected["count"][0]) == 256
    for name in ("count", "candidates", "detections"):
        np.testing.assert_array_equal(slot.results[name], expected[name])


def written_as(
    generator: np.random.Generator, output: npt.NDArray[np.float32], head: HeadKind
) -> npt.NDArray[np.float32]:
    """An output of YOLOv8's layout, [4 + classes, anchors], in that of another head."""
    if head is HeadKind.END_TO_END:
        centres, sizes = output[:2], output[2:4] / 2
        labels = output[4:].argmax(0).astype(np.float32)
        labels[::7] += generator.choice([-1, 0.3, 0.5, 1000], len(labels[::7]))
        return np.stack([*(centres - sizes), *(centres + sizes), output[4:].max(0), labels], axis=1)
    if head.has_objectness:
        objectness = generator.uniform(0.6, 1, (1, output.shape[1])).astype(np.float32)
        output = np.concatenate([output[:4], objectness, output[4:]])
    return np.ascontiguousarray(output.T) if head.is_rows else output


@pytest.mark.parametrize("head", list(HeadKind), ids=lambda head: head.value)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("classes", "anchors"), [(80, 8400), (1, 33), (3, 1), (80, 300), (27, 32), (28, 31)])
def test_every_head_equals_its_twin_bit_for_bit(
    device: CudaDevice, head: HeadKind, dtype: str, classes: int, anchors: int
) -> None:
    from zhcedge.backends.cuda.descriptor import pack

    generator = np.random.default_rng([classes, anchors])
    plain = [random_output(generator, classes, anchors, 0.1) for _ in range(3)]
    outputs = np.stack([written_as(generator, output, head) for output in plain])
    poison(generator, outputs[1])
    with np.errstate(over="ignore"):
        outputs = outputs.astype(dtype)
    facts = replace(
        support.model(416, 416, classes, anchors, batch=3), output_shape=outputs.shape, head=head, output_dtype=dtype
    )
    settings = DetectorSettings(0.5, 0.45)
    size = (1920, 1080)
    lane = device.create_lane(0, facts)
    stage = device.detect(lane, facts, settings)
    slots = [support.make_slot(device, ImageFormat(*size), index) for index in range(3)]
    table = b"".join(pack(s.surface, device.arena.device_address(s.results), (416, 416)) for s in slots)
    support.to_device(device, lane.table, np.frombuffer(table, np.uint8))
    support.to_device(device, lane.output.buffer, outputs)
    stage.enqueue(3)
    lane.stream.synchronize()
    if head is HeadKind.END_TO_END:
        settings = replace(settings, nms_iou=math.inf)
    rewrite = make_rewriter(facts, CpuArena(), "test")
    for output, slot in zip(outputs, slots, strict=True):
        expected = np.zeros(1, RESULT_DTYPE)
        detector = Detector(classes, anchors, settings, CpuArena(), "test")
        detector(rewrite(output), Letterbox.fit(*size, 416, 416), expected)
        count = int(expected["count"][0])
        assert int(slot.results["candidates"][0]) == int(expected["candidates"][0])
        assert int(slot.results["count"][0]) == count
        found, wanted = slot.results["detections"][0][:count], expected["detections"][0][:count]
        for name in ("score", "label", "box"):
            np.testing.assert_array_equal(found[name], wanted[name])


# -- overlay ---------------------------------------------------------------------------------------------------
POLYGONS = ([(0.1, 0.1), (0.8, 0.05), (0.4, 0.9)], [(0.7, 0.6), (1.0, 0.6), (1.0, 1.0), (0.7, 1.0)])
LABELS = ("person", "fire hydrant", "ümläut and a name far longer than fits", "", *(f"label {n}" for n in range(10)))


@pytest.mark.parametrize("size", [*SIZES, (3840, 2160), (1, 40), (300, 17)], ids=str)
@pytest.mark.parametrize("count", [0, 1, 9, 256])
@pytest.mark.parametrize("is_masked", [False, True], ids=["bare", "masked"])
def test_overlay_equals_its_twin_byte_for_byte(
    device: CudaDevice, size: tuple[int, int], count: int, is_masked: bool
) -> None:
    from zhcedge.backends.cuda.descriptor import pack

    image = ImageFormat(*size, is_full_range=count == 9)
    generator = np.random.default_rng([*size, count])
    results = np.zeros(1, RESULT_DTYPE)
    results["count"] = count
    detections = results["detections"][0][:count]
    corners = generator.uniform(0, 1, (count, 2, 2)) * np.array(size)
    detections["box"] = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)
    detections["box"][::3] = np.round(detections["box"][::3] * 2) / 2  # halves, where rounding matters
    detections["score"] = np.round(generator.uniform(0, 1, count), 3)
    detections["score"][:1] = 1.0
    detections["label"] = generator.integers(0, len(LABELS), count)

    mask = rasterise(POLYGONS, *size)
    facts = replace(support.model(416, 416), labels=LABELS)
    lane = device.create_lane(0, facts)
    slots = [support.make_slot(device, image, index) for index in range(3)]
    for slot in slots:
        slot.mask = device.arena.plane(mask, "test") if is_masked else None
        slot.results[:] = results
    slots[2].is_drawn = False

    def draw_on_gpu(slot: FrameSlot[int]) -> list[npt.NDArray[np.uint8]]:
        support.write_surface(device, support.cpu_picture(image, seed=5), slot.surface)
        address = device.arena.device_address(slot.results)
        descriptor = pack(slot.surface, address, mask=slot.mask, is_drawn=slot.is_drawn)
        support.to_device(device, lane.table, np.frombuffer(descriptor, np.uint8))
        device.overlay(lane, LABELS).enqueue(1)
        lane.stream.synchronize()
        return support.read_surface(device, slot.surface)

    by_slot = draw_on_gpu(slots[0])  # nothing detects on this lane yet: results come from the slot
    device.detect(lane, facts, DetectorSettings(0.5, 0.5))
    support.to_device(device, lane.records, results.view(np.uint8))
    slots[1].results["count"] = 0  # not what is drawn: the lane's own copy is
    by_lane, untouched = draw_on_gpu(slots[1]), draw_on_gpu(slots[2])

    picture = support.cpu_picture(image, seed=5)
    for found, expected in zip(untouched, support.pixels_of(picture), strict=True):
        np.testing.assert_array_equal(found, expected)
    hidden = Hidden(CpuArena().plane(mask, "test")) if is_masked else None
    draw(picture, results, TextTiles(LABELS, text_scale(size[1]), CpuArena(), "test"), hidden)
    for drawn in (by_slot, by_lane):
        for found, expected in zip(drawn, support.pixels_of(picture), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_a_mask_hides_the_whole_picture_when_it_says_so(device: CudaDevice) -> None:
    from zhcedge.backends.cuda.descriptor import pack

    image = ImageFormat(1919, 1079)
    slot = support.make_slot(device, image)
    support.write_surface(device, support.cpu_picture(image, seed=3), slot.surface)
    lane = device.create_lane(0, support.model(416, 416))
    mask = device.arena.plane(np.ones((540, 960), np.uint8), "test")
    descriptor = pack(slot.surface, device.arena.device_address(slot.results), mask=mask)
    support.to_device(device, lane.table, np.frombuffer(descriptor, np.uint8))
    device.overlay(lane, LABELS).enqueue(1)
    lane.stream.synchronize()
    luma, chroma = support.read_surface(device, slot.surface)
    assert (luma == 16).all()
    assert (chroma == 128).all()


# -- ingest and downscale --------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("pixel_format", [PixelFormat.NV12, PixelFormat.I420], ids=lambda f: f.value)
def test_ingest_equals_its_twin(device: CudaDevice, size: tuple[int, int], pixel_format: PixelFormat) -> None:
    source = support.cpu_picture(ImageFormat(*size, pixel_format), seed=6)
    expected = CpuArena().surface(ImageFormat(*size), "test")
    ingest(source, expected)
    surface = device.arena.surface(source.format, "test")
    support.write_surface(device, source, surface)
    slot = support.make_slot(device, ImageFormat(*size))
    assert device.ingest(surface, slot).wait(support.PATIENCE_S)
    for found, wanted in zip(support.read_surface(device, slot.surface), support.pixels_of(expected), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_ingest_rounds_ten_bits_to_the_nearest_eight(device: CudaDevice, size: tuple[int, int]) -> None:
    source = support.cpu_picture(ImageFormat(*size, PixelFormat.P010), seed=7)
    surface = device.arena.surface(source.format, "test")
    support.write_surface(device, source, surface)
    slot = support.make_slot(device, ImageFormat(*size))
    assert device.ingest(surface, slot).wait(support.PATIENCE_S)
    for found, wide in zip(support.read_surface(device, slot.surface), support.pixels_of(source), strict=True):
        wanted = np.minimum((np.ascontiguousarray(wide).view("<u2").astype(np.int64) + 128) // 256, 255)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("target", [(640, 360), (33, 17), (1, 1), (1920, 1080), (400, 1000)], ids=str)
def test_downscale_averages_the_pixels_that_an_output_pixel_covers(device: CudaDevice, target: tuple[int, int]) -> None:
    source = support.cpu_picture(ImageFormat(1919, 1079), seed=8)
    surface = device.arena.surface(source.format, "test")
    support.write_surface(device, source, surface)
    small = device.arena.surface(ImageFormat(*target), "test")
    assert device.downscale(surface, small).wait(support.PATIENCE_S)
    luma, chroma = support.read_surface(device, small)
    pixels = support.pixels_of(source)
    np.testing.assert_array_equal(luma, area_mean(pixels[0], *target))
    half = ((target[0] + 1) // 2, (target[1] + 1) // 2)
    for component in range(2):
        np.testing.assert_array_equal(chroma[:, component::2], area_mean(pixels[1][:, component::2], *half))


def area_mean(plane: npt.NDArray[np.uint8], width: int, height: int) -> npt.NDArray[np.int64]:
    """Means of the pixels from floor(i * source / target) to the next, at least one; halves round up."""

    def edges(samples: int, pixels: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        low = np.arange(pixels) * samples // pixels
        return low, np.maximum((np.arange(pixels) + 1) * samples // pixels, low + 1)

    x0, x1 = edges(plane.shape[1], width)
    y0, y1 = edges(plane.shape[0], height)
    total = np.zeros((plane.shape[0] + 1, plane.shape[1] + 1), np.int64)
    total[1:, 1:] = plane.astype(np.int64).cumsum(0).cumsum(1)
    rows = total[y1] - total[y0]
    sums = rows[:, x1] - rows[:, x0]
    counts = (y1 - y0)[:, None] * (x1 - x0)[None]
    return np.asarray((sums + counts // 2) // counts)

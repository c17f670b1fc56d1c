"""The whole chain on the packaged clip: the GPU's detections against the CPU's, and lanes in flight against one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import resources
from typing import TYPE_CHECKING

import av
import numpy as np
import numpy.typing as npt
import pytest

from tests.gpu import support_cuda as support
from zhcedge.backends.cpu.arena import CpuArena, CpuBuffer
from zhcedge.backends.cpu.device import CpuDevice
from zhcedge.backends.engines.onnxruntime import open_cpu
from zhcedge.core.ports import Fence, FrameSlot
from zhcedge.core.requests import DeviceSettings, EngineRequest
from zhcedge.core.types import DetectorSettings, ImageFormat, PixelFormat, Surface
from zhcedge.models.bundle import Bundle, load_bundle

if TYPE_CHECKING:
    from zhcedge.backends.cuda.device import CudaDevice
    from zhcedge.backends.cuda.program import CudaProgram

pytestmark = pytest.mark.gpu

SETTINGS = DetectorSettings(0.45, 0.5)
Detections = npt.NDArray[np.void]


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    with support.open_device() as opened:
        yield opened


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return load_bundle("nanodet-g-416")


@pytest.fixture(scope="module")
def pictures() -> list[Surface[CpuBuffer]]:
    """Every twentieth picture of the clip, as I420 in host memory."""
    found = []
    with (
        resources.as_file(resources.files("zhcedge") / "data" / "walkers.mp4") as path,
        av.open(str(path)) as container,
    ):
        for number, frame in enumerate(container.decode(video=0)):
            if number % 20:
                continue
            surface = CpuArena().surface(ImageFormat(frame.width, frame.height, PixelFormat.I420), "test")
            samples = frame.to_ndarray(format="yuv420p").reshape(-1)
            for plane in surface.planes:
                size = plane.rows * plane.width_bytes
                plane.buffer[: plane.rows, : plane.width_bytes] = samples[:size].reshape(plane.rows, -1)
                samples = samples[size:]
            found.append(surface)
    return found


def compile_chain(device: CudaDevice, bundle: Bundle, lanes: int, *, is_fused: bool = False) -> list[CudaProgram]:
    """Without the overlay, which would draw on the pictures that are looked at again."""
    from zhcedge.backends.engines.onnxruntime_cuda import open_cuda

    engine = open_cuda(EngineRequest(bundle.model_path, bundle.facts, is_fused=is_fused), device)
    programs = []
    for index in range(lanes):
        lane = device.create_lane(index, bundle.facts)
        stages = [
            device.preprocess(lane, bundle.facts),
            engine.bind(lane),
            device.detect(lane, bundle.facts, SETTINGS),
        ]
        programs += [device.compile(stages, lane, 1) for _ in range(device.depth)]
    return programs


def fill_slots(device: CudaDevice, pictures: Sequence[Surface[CpuBuffer]]) -> list[FrameSlot[int]]:
    slots = []
    for index, picture in enumerate(pictures):
        source = device.arena.surface(picture.format, "source")
        support.write_surface(device, picture, source)
        slot = support.make_slot(device, ImageFormat(picture.format.width_px, picture.format.height_px), index)
        assert device.ingest(source, slot).wait(support.PATIENCE_S)
        slots.append(slot)
    return slots


def cpu_detections(bundle: Bundle, pictures: Sequence[Surface[CpuBuffer]]) -> list[Detections]:
    device = CpuDevice(DeviceSettings())
    try:
        engine = open_cpu(EngineRequest(bundle.model_path, bundle.facts), device)
        lane = device.create_lane(0, bundle.facts)
        image = ImageFormat(pictures[0].format.width_px, pictures[0].format.height_px)
        slot = FrameSlot(0, 0, device.arena.surface(image, "slot"), device.arena.results("slot"))
        stages = [device.preprocess(lane, bundle.facts), engine.bind(lane), device.detect(lane, bundle.facts, SETTINGS)]
        program = device.compile(stages, lane, 1)
        found = []
        for picture in pictures:
            device.ingest(picture, slot)
            assert program.launch([slot]).wait(support.PATIENCE_S)
            found.append(detections_of(slot.results))
    finally:
        device.close()
    return found


def detections_of(results: npt.NDArray[np.void]) -> Detections:
    found: Detections = results["detections"][0][: int(results["count"][0])].copy()
    return found


def iou(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> float:
    size = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    both = float(np.prod(np.maximum(size, 0)))
    return both / float(np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - both)


def matched(wanted: Detections, found: Detections) -> int:
    """Detections of `wanted` with one of `found` of the same label, IoU above 0.9, and a score within 0.02."""
    return sum(
        any(
            w["label"] == f["label"] and iou(w["box"], f["box"]) > 0.9 and abs(float(w["score"] - f["score"])) < 0.02
            for f in found
        )
        for w in wanted
    )


@pytest.mark.parametrize("is_fused", [False, True], ids=["plain", "fused"])
def test_the_chain_finds_what_the_cpu_finds(
    device: CudaDevice, bundle: Bundle, pictures: list[Surface[CpuBuffer]], is_fused: bool
) -> None:
    expected = cpu_detections(bundle, pictures)
    (program, *_) = compile_chain(device, bundle, 1, is_fused=is_fused)
    slots = fill_slots(device, pictures)
    found = []
    for slot in slots:
        assert program.launch([slot]).wait(support.PATIENCE_S)
        found.append(detections_of(slot.results))
    total = sum(len(detections) for detections in expected)
    assert total > 100
    # Scores near the threshold may fall on either side of it: the two engines round differently.
    assert sum(map(matched, expected, found)) >= 0.97 * total
    assert sum(map(matched, found, expected)) >= 0.97 * sum(len(detections) for detections in found)


def test_lanes_and_launches_in_flight_do_not_disturb_each_other(
    device: CudaDevice, bundle: Bundle, pictures: list[Surface[CpuBuffer]]
) -> None:
    programs = compile_chain(device, bundle, 2)
    slots = fill_slots(device, pictures)
    alone = []
    for slot in slots:
        assert programs[0].launch([slot]).wait(support.PATIENCE_S)
        alone.append(detections_of(slot.results))
    for start in range(0, len(slots) - len(programs), 3):
        together = slots[start : start + len(programs)]
        for slot in together:
            slot.results["count"] = -1
        fences = [program.launch([slot]) for program, slot in zip(programs, together, strict=True)]
        assert all(fence.wait(support.PATIENCE_S) for fence in fences)
        for slot, wanted in zip(together, alone[start:], strict=False):
            found = detections_of(slot.results)
            # Equal but for a convolution algorithm that another session may have chosen.
            assert matched(wanted, found) >= len(wanted) - 1
            assert matched(found, wanted) >= len(found) - 1


@pytest.mark.parametrize("is_fused", [False, True], ids=["plain", "fused"])
def test_frames_in_flight_allocate_free_copy_and_synchronise_nothing(
    device: CudaDevice, bundle: Bundle, pictures: list[Surface[CpuBuffer]], is_fused: bool
) -> None:
    from zhcedge.backends.cuda.cupti.instrument import CuptiInstrument

    programs = compile_chain(device, bundle, 2, is_fused=is_fused)
    source = device.arena.surface(pictures[0].format, "source")
    support.write_surface(device, pictures[0], source)
    slots = fill_slots(device, pictures[:8])
    fences: list[Fence | None] = [None] * len(programs)

    def run(frames: int) -> None:
        for number in range(frames):
            position, slot = number % len(programs), slots[number % len(slots)]
            waiting = fences[position]
            assert waiting is None or waiting.wait(support.PATIENCE_S)
            device.ingest(source, slot)
            fences[position] = programs[position].launch([slot])
        assert all(fence is None or fence.wait(support.PATIENCE_S) for fence in fences)

    run(16)
    instrument = CuptiInstrument(device.context)
    instrument.start()
    try:
        assert instrument.problem == ""
        before = instrument.counts()
        run(1000)
        assert instrument.counts() == before, instrument.rows()
    finally:
        instrument.stop()

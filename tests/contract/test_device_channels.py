"""What every device does for channels: views of a picture, motion, and channels that come and go."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.contract.devices import Bytes, DeviceCase, each_device, make_slot, tiny_model
from zhcedge.backends.cpu.motion import COLUMNS, ROWS, THRESHOLD, WEIGHT, grid
from zhcedge.backends.cpu.picture import LumaPicture
from zhcedge.core.errors import PipelineError
from zhcedge.core.ports import Device, FrameSlot
from zhcedge.core.types import ImageFormat, MemoryDomain, PixelFormat, Plane, Surface

PATIENCE_S = 30.0
PICTURE = ImageFormat(96, 70)


def random_picture(seed: int, image: ImageFormat = PICTURE) -> tuple[Bytes, Bytes]:
    generator = np.random.default_rng(seed)
    rows, columns = (image.height_px + 1) // 2, (image.width_px + 1) // 2
    luma = generator.integers(0, 256, (image.height_px, image.width_px), dtype=np.uint8)
    return luma, generator.integers(0, 256, (rows, 2 * columns), dtype=np.uint8)


def put(case: DeviceCase, device: Device[object], slot: FrameSlot[object], pixels: tuple[Bytes, Bytes]) -> None:
    source = device.arena.surface(replace(slot.surface.format, pixel_format=PixelFormat.NV12), "source")
    for plane, samples in zip(source.planes, pixels, strict=True):
        case.write(plane, samples)
    assert device.ingest(source, slot).wait(PATIENCE_S)


def letterboxed(case: DeviceCase, device: Device[object], slots: list[FrameSlot[object]]) -> np.ndarray:
    model = tiny_model(input_shape=(len(slots), 3, 8, 8), output_shape=(len(slots), 6, 32))
    for slot in slots:
        device.admit(slot)
    lane = device.create_lane(0, model)
    program = device.compile([device.preprocess(lane, model)], lane, len(slots))
    assert program.launch(slots).wait(PATIENCE_S)
    return case.read_tensor(lane.input)


@each_device
@pytest.mark.parametrize("where", [(0, 0, 96, 70), (10, 6, 40, 30), (94, 68, 2, 2), (50, 0, 46, 70)], ids=str)
def test_a_view_is_detected_in_as_if_it_were_a_picture_of_its_own(
    case: DeviceCase, where: tuple[int, int, int, int]
) -> None:
    left, top, width, height = where
    luma, chroma = random_picture(1)
    part = (
        luma[top : top + height, left : left + width],
        chroma[top // 2 : (top + height + 1) // 2, left : left + width + width % 2],
    )
    with case.open() as device:
        whole, cut = make_slot(device, PICTURE), make_slot(device, ImageFormat(width, height), 1)
        put(case, device, whole, (luma, chroma))
        put(case, device, cut, part)
        view = replace(whole, surface=device.arena.view(whole.surface, *where), part=0)
        found = letterboxed(case, device, [view, cut])
    assert np.array_equal(found[0], found[1])


@each_device
@pytest.mark.parametrize("where", [(1, 0, 4, 4), (0, 3, 4, 4), (90, 0, 8, 4), (0, 0, 0, 4), (-2, 0, 4, 4)], ids=str)
def test_a_view_that_is_not_inside_or_begins_at_an_odd_pixel_is_refused(
    case: DeviceCase, where: tuple[int, int, int, int]
) -> None:
    with case.open() as device, pytest.raises(PipelineError, match="no part of"):
        device.arena.view(make_slot(device, PICTURE).surface, *where)


@each_device
def test_motion_is_the_share_of_points_that_differ_from_their_running_mean(case: DeviceCase) -> None:
    pictures = [random_picture(seed) for seed in (1, 1, 2, 2, 3)]
    rows, columns = grid(PICTURE.height_px, ROWS)[:, None], grid(PICTURE.width_px, COLUMNS)[None, :]
    mean = pictures[0][0][rows, columns].astype(np.float32)
    with case.open() as device:
        slot = make_slot(device, PICTURE)
        device.admit(slot)
        meter = device.motion_meter(slot, 1, "test")
        for pixels in pictures:
            put(case, device, slot, pixels)
            meter.measure(slot)
            found = None
            while found is None:
                found = meter.changed(slot)
            change = pixels[0][rows, columns].astype(np.float32) - mean
            assert found == np.count_nonzero(np.abs(change) > THRESHOLD) / (ROWS * COLUMNS)
            mean += change * np.float32(WEIGHT)


@each_device
def test_figures_of_a_picture_are_those_of_the_reference(case: DeviceCase) -> None:
    reference = LumaPicture(PICTURE)
    with case.open() as device:
        slot = make_slot(device, PICTURE)
        device.admit(slot)
        meter = device.picture_meter(slot, "test")
        for seed in (1, 2, 2):
            pixels = random_picture(seed)
            put(case, device, slot, pixels)
            meter.measure(slot)
            found = None
            while found is None:
                found = meter.figures()
            planes = tuple(Plane(plane, plane.shape[1], plane.shape[0], plane.shape[1]) for plane in pixels)
            reference.measure(FrameSlot(0, 0, Surface(planes, PICTURE, MemoryDomain.HOST), slot.results))
            wanted = reference.figures()
            assert wanted is not None
            assert np.array_equal(found[0], wanted[0])
            assert np.array_equal(found[1], wanted[1])


@each_device
def test_channels_that_come_and_go_take_no_more_memory(case: DeviceCase) -> None:
    with case.open() as device:
        device.arena.seal()
        totals = []
        for channel in range(10):
            owner = f"channel {channel}"
            with device.arena.lease():
                surface = device.arena.surface(PICTURE, owner)
                slot = FrameSlot(0, channel, surface, device.arena.results(owner))
                device.admit(slot)
                device.motion_meter(slot, 2, owner)
                device.picture_meter(slot, owner)
            device.dismiss(channel)
            device.arena.release(owner)
            totals.append(device.arena.total_bytes)
    assert set(totals) == {totals[0]}

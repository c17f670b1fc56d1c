"""Graphs of the cuda device: what is refused, launches in flight, fences, threads, closing."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.gpu import support_cuda as support
from zhcedge.core.errors import BackendUnavailableError, PhaseError, PipelineError
from zhcedge.core.requests import DeviceSettings
from zhcedge.core.types import DetectorSettings, ImageFormat, Payload, PixelFormat, Provenance

if TYPE_CHECKING:
    from zhcedge.backends.cuda.context import CudaStream
    from zhcedge.backends.cuda.device import CudaDevice
    from zhcedge.backends.cuda.program import CudaProgram
    from zhcedge.backends.cuda.stages import CudaLane

pytestmark = pytest.mark.gpu


@pytest.fixture
def device() -> Iterator[CudaDevice]:
    with support.open_device() as opened:
        yield opened


def delay(device: CudaDevice, stream: CudaStream) -> None:
    """Keep a stream busy for a few milliseconds, longer than the host takes to go on."""
    from zhcedge.backends.cuda import _vendor

    size = 1 << 29
    memory = device.arena.memory(size, "delay")
    for _ in range(40):
        _vendor._do("cuMemsetD8Async", memory, 0, size, _vendor.stream_handle(stream.handle))


def compile_all(device: CudaDevice, count: int = 1, batch: int = 1) -> tuple[list[CudaProgram], CudaLane]:
    """Programs of one lane with all of our stages, and the lane."""
    facts = support.model(64, 64, batch=batch)
    lane = device.create_lane(0, facts)
    stages = [
        device.preprocess(lane, facts),
        device.detect(lane, facts, DetectorSettings(0.5, 0.5)),
        device.overlay(lane, facts.labels),
    ]
    return [device.compile(stages, lane, batch) for _ in range(count)], lane


class CopyToHost:
    """A stage that breaks the rule."""

    name = "leak"

    def __init__(self, device: CudaDevice, lane: object, address: int) -> None:
        self._lane, self._address = lane, address
        self._pinned, _ = device.arena.pinned(4096, "test")

    def enqueue(self, batch: int) -> None:
        from zhcedge.backends.cuda import _vendor

        stream = self._lane.stream_handle  # type: ignore[attr-defined]
        _vendor._do("cuMemcpyDtoHAsync", self._pinned.ctypes.data, self._address, 4096, _vendor.stream_handle(stream))


class CopyFromHost:
    """An engine's habit: a small constant copied from its own pinned memory, which it then uses for other things."""

    name = "constants"

    def __init__(self, device: CudaDevice, lane: object, target: int) -> None:
        self._lane, self._target = lane, target
        self.pinned, _ = device.arena.pinned(256, "test")

    def enqueue(self, batch: int) -> None:
        from zhcedge.backends.cuda import _vendor

        stream = self._lane.stream_handle  # type: ignore[attr-defined]
        _vendor.copy_to_device_async(self._target, self.pinned.ctypes.data, 256, stream)


class Synchronise:
    """A stage that can't be captured."""

    name = "wait"

    def __init__(self, lane: object) -> None:
        self._lane = lane

    def enqueue(self, batch: int) -> None:
        self._lane.stream.synchronize()  # type: ignore[attr-defined]


def test_the_graph_holds_kernels_and_one_copy_of_parameters(device: CudaDevice) -> None:
    programs, _ = compile_all(device, batch=4)
    assert programs[0].facts.parameter_bytes == 4 * 96
    assert dict(programs[0].facts.nodes) == {"KERNEL": 5, "MEMCPY": 1}
    (row,) = [hop for hop in device.hops(support.model(64, 64), []) if hop.payload is Payload.PARAMETERS]
    assert (row.bytes_per_frame, row.provenance) == (96, Provenance.STATIC)


def test_a_copy_to_the_host_is_refused_and_the_lane_still_works(device: CudaDevice) -> None:
    facts = support.model(64, 64)
    lane = device.create_lane(0, facts)
    with pytest.raises(PipelineError, match="4096 bytes to the host"):
        device.compile([CopyToHost(device, lane, lane.input.buffer)], lane, 1)
    assert device.compile([device.preprocess(lane, facts)], lane, 1).batch == 1


def test_constants_that_an_engine_copies_from_the_host_are_frozen_on_the_device(device: CudaDevice) -> None:
    lane = device.create_lane(0, support.model(64, 64))
    slot = support.make_slot(device, ImageFormat(64, 64))
    stage = CopyFromHost(device, lane, lane.input.buffer)
    stage.pinned[:] = 7
    program = device.compile([stage], lane, 1)
    assert (program.facts.parameter_bytes, program.facts.frozen_bytes) == (96, 256)
    stage.pinned[:] = 9
    assert program.launch([slot]).wait(support.PATIENCE_S)
    assert support.to_host(device, lane.input.buffer, np.zeros(256, np.uint8)).tolist() == [7] * 256


def test_a_stage_that_synchronises_is_refused_and_the_lane_still_works(device: CudaDevice) -> None:
    facts = support.model(64, 64)
    lane = device.create_lane(0, facts)
    with pytest.raises(PipelineError):
        device.compile([Synchronise(lane)], lane, 1)
    assert device.compile([device.preprocess(lane, facts)], lane, 1).batch == 1


def test_two_launches_of_a_lane_in_flight_keep_their_slots_apart(device: CudaDevice) -> None:
    programs, lane = compile_all(device, count=2)
    output = np.zeros((6, 32), np.float32)
    output[:, 5] = [32, 32, 16, 16, 0.25, 0.75]
    support.to_device(device, lane.output.buffer, output)
    images = [ImageFormat(64, 64), ImageFormat(640, 640)]
    slots = [support.make_slot(device, image, index) for index, image in enumerate(images)]
    for _ in range(5):
        fences = []
        delay(device, lane.stream)
        for program, slot in zip(programs, slots, strict=True):
            slot.results["count"] = -1
            fences.append(program.launch([slot]))
        assert all(fence.wait(support.PATIENCE_S) for fence in fences)
        boxes = [slot.results["detections"][0][0]["box"].tolist() for slot in slots]
        assert boxes == [[24, 24, 40, 40], [240, 240, 400, 400]]
        assert [int(slot.results["count"][0]) for slot in slots] == [1, 1]


def test_a_launch_waits_on_the_gpu_for_the_ingest_of_its_slot(device: CudaDevice) -> None:
    facts = support.model(1920, 1080)
    lane = device.create_lane(0, facts)
    program = device.compile([device.preprocess(lane, facts)], lane, 1)
    image = ImageFormat(1920, 1080)
    slot = support.make_slot(device, image)
    sources = [device.arena.surface(image, "source") for _ in range(2)]
    for value, source in zip((16, 235), sources, strict=True):
        for plane, level in zip(source.planes, (value, 128), strict=True):
            support.to_device(device, plane.buffer, np.full(plane.rows * plane.pitch_bytes, level, np.uint8))
    for turn in range(4):
        delay(device, device._ingest.stream(slot.channel))
        device.ingest(sources[turn % 2], slot)
        assert program.launch([slot]).wait(support.PATIENCE_S)
        picture = support.to_host(device, lane.input.buffer, np.empty(facts.input_shape, np.float32))
        assert np.allclose(picture, turn % 2, atol=1e-5)


def test_a_slot_that_is_not_nv12_or_not_ours_is_refused(device: CudaDevice) -> None:
    (program,), _ = compile_all(device)
    wrong = support.make_slot(device, ImageFormat(64, 64, PixelFormat.I420))
    with pytest.raises(PipelineError, match="i420"):
        program.launch([wrong])
    foreign = support.make_slot(device, ImageFormat(64, 64))
    foreign.results = np.zeros(1, foreign.results.dtype)
    with pytest.raises(PipelineError, match="results"):
        program.launch([foreign])


def test_launches_and_waits_work_from_threads_that_end(device: CudaDevice) -> None:
    (program,), _ = compile_all(device)
    slot = support.make_slot(device, ImageFormat(64, 64))
    problems: list[Exception] = []

    def work() -> None:
        try:
            assert program.launch([slot]).wait(support.PATIENCE_S)
        except (AssertionError, PipelineError) as error:  # handed to the test's own thread
            problems.append(error)

    for _ in range(5):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert not problems


def test_stage_times_follow_each_other_when_they_are_asked_for(device: CudaDevice) -> None:
    (plain,), _ = compile_all(device)
    device.is_timed = True
    (timed,), _ = compile_all(device)
    slot = support.make_slot(device, ImageFormat(640, 480))
    for program in (plain, timed):
        assert program.launch([slot]).wait(support.PATIENCE_S)
    assert plain.stage_times() == ()
    times = timed.stage_times()
    assert [time.name for time in times] == ["letterbox", "detect", "overlay"]
    assert all(time.end_ns >= time.start_ns for time in times)
    assert all(before.end_ns == after.start_ns for before, after in itertools.pairwise(times))


def test_nothing_is_launched_after_the_device_closed(device: CudaDevice) -> None:
    (program,), _ = compile_all(device)
    slot = support.make_slot(device, ImageFormat(64, 64))
    device.close()
    device.close()
    with pytest.raises(PhaseError):
        program.launch([slot])
    with pytest.raises(PhaseError):
        device.arena.tensor("t", (1,), "float32", "test")


def test_too_much_memory_is_refused_with_a_table_of_owners(device: CudaDevice) -> None:
    device.arena.tensor("t", (1000, 1000), "float32", "lane 7")
    with pytest.raises(PipelineError, match=r"MiB are free.*lane 7: 3\.8 MiB") as caught:
        device.arena.tensor("t", (1 << 44,), "uint8", "greedy")
    assert caught.value.where == "greedy"
    device.arena.tensor("t", (1000, 1000), "float32", "lane 8")


def test_another_gpu_than_there_are_is_refused() -> None:
    with support.open_device():
        from zhcedge.backends.cuda.device import CudaDevice

        with pytest.raises(BackendUnavailableError, match="there is no GPU 99"):
            CudaDevice(DeviceSettings(index=99))


def test_a_process_that_forgets_to_close_still_ends_cleanly() -> None:
    with support.open_device():
        pass
    script = (
        "from zhcedge.backends.cuda.device import CudaDevice\n"
        "from zhcedge.core.requests import DeviceSettings\n"
        "device = CudaDevice(DeviceSettings()); device.arena.results('x')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

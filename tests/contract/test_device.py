"""What every device does: memory before the seal, ingest, lanes, programs, fences, threads."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
import pytest

from tests.contract.devices import DeviceCase, each_device, fill_at_random, make_slot, tiny_model
from tests.leftovers import nothing_left
from zhcedge.core.errors import PhaseError, PipelineError, ZhcEdgeError
from zhcedge.core.ports import FrameSlot, Stage
from zhcedge.core.types import RESULT_DTYPE, DetectorSettings, ImageFormat, Payload, PixelFormat

PATIENCE_S = 30.0
SIZES = [(1, 1), (2, 2), (7, 5), (64, 48), (65, 33)]


@dataclass
class HostStage:
    """A stage of the test's own. `action` runs on the lane's thread."""

    name: str = "test"
    batches: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    gate: threading.Event | None = None
    error: Exception | None = None

    def enqueue(self, batch: int) -> None:
        if self.gate is not None:
            assert self.gate.wait(PATIENCE_S)
        self.batches.append(batch)
        self.threads.append(threading.get_ident())
        if self.error is not None:
            raise self.error


@each_device
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("pixel_format", [PixelFormat.NV12, PixelFormat.I420], ids=lambda f: f.value)
def test_ingest_keeps_every_sample(case: DeviceCase, size: tuple[int, int], pixel_format: PixelFormat) -> None:
    with case.open() as device:
        source = device.arena.surface(ImageFormat(*size, pixel_format), "source")
        slot = make_slot(device, ImageFormat(*size))
        luma, *chroma = fill_at_random(case, source, seed=1)
        assert device.ingest(source, slot).wait(PATIENCE_S)
        assert np.array_equal(case.read(slot.surface.planes[0]), luma)
        if pixel_format is PixelFormat.NV12:
            assert np.array_equal(case.read(slot.surface.planes[1]), chroma[0])
        else:
            pairs = case.read(slot.surface.planes[1])
            assert np.array_equal(pairs[:, 0::2], chroma[0])
            assert np.array_equal(pairs[:, 1::2], chroma[1])


@each_device
def test_ingest_refuses_another_size_and_leaves_the_slot_alone(case: DeviceCase) -> None:
    with case.open() as device:
        slot = make_slot(device, ImageFormat(8, 6))
        before = fill_at_random(case, slot.surface, seed=2)
        source = device.arena.surface(ImageFormat(6, 8), "source")
        with pytest.raises(PipelineError, match="6x8"):
            device.ingest(source, slot)
        assert all(
            np.array_equal(case.read(plane), old) for plane, old in zip(slot.surface.planes, before, strict=True)
        )


@each_device
def test_ingest_refuses_a_format_that_it_does_not_know(case: DeviceCase) -> None:
    with case.open() as device:
        slot = make_slot(device, ImageFormat(8, 6))
        with pytest.raises(PipelineError, match="rgb24"):
            device.ingest(device.arena.surface(ImageFormat(8, 6, PixelFormat.RGB24), "source"), slot)


@each_device
def test_the_arena_counts_its_bytes_and_refuses_after_the_seal(case: DeviceCase) -> None:
    with case.open() as device:
        assert device.arena.total_bytes == 0
        device.arena.tensor("t", (2, 3), "float32", "test")
        assert device.arena.total_bytes >= 24
        assert device.arena.results("test").shape == (1,)
        device.arena.seal()
        total = device.arena.total_bytes
        for request in (
            lambda: device.arena.tensor("t", (1,), "float32", "test"),
            lambda: device.arena.surface(ImageFormat(2, 2), "test"),
            lambda: device.arena.results("test"),
            lambda: device.create_lane(0, tiny_model()),
        ):
            with pytest.raises(PhaseError):
                request()
        assert device.arena.refused == 4
        assert device.arena.total_bytes == total


@each_device
def test_a_thread_with_a_lease_gets_memory_after_the_seal_and_no_other_does(case: DeviceCase) -> None:
    with case.open() as device:
        arena = device.arena
        arena.seal()
        refused: list[Exception] = []

        def ask() -> None:
            try:
                arena.tensor("t", (1,), "float32", "other thread")
            except PhaseError as error:
                refused.append(error)

        with arena.lease():
            slot = make_slot(device, ImageFormat(8, 6))
            thread = threading.Thread(target=ask)
            thread.start()
            thread.join()
        assert [plane.rows for plane in slot.surface.planes] == [6, 3]
        assert (len(refused), arena.refused) == (1, 1)
        with pytest.raises(PhaseError):
            arena.results("late")


@each_device
def test_memory_that_was_given_back_is_used_again_zeroed_and_stays_flat(case: DeviceCase) -> None:
    with case.open() as device:
        arena = device.arena
        kept = arena.surface(ImageFormat(16, 8), "kept")
        pixels = fill_at_random(case, kept, seed=5)
        arena.seal()
        total = 0
        for number in range(1000 if case.device == "cpu" else 50):
            with arena.lease():
                surface, results = arena.surface(ImageFormat(16, 8), "channel"), arena.results("channel")
                arena.tensor("t", (3, 5), "float32", "channel")
            assert int(results["count"][0]) == 0
            results["count"][0] = 7
            if number in (0, 1, 49):
                assert not any(case.read(plane).any() for plane in surface.planes)
                fill_at_random(case, surface, seed=number)
            total = total or arena.total_bytes
            arena.release("channel")
        assert arena.total_bytes == total
        assert all(np.array_equal(case.read(plane), old) for plane, old in zip(kept.planes, pixels, strict=True))
        arena.release("nobody")
        assert arena.refused == 0


@each_device
def test_two_owners_never_share_memory_that_was_given_back(case: DeviceCase) -> None:
    with case.open() as device:
        arena = device.arena
        for owner in ("a", "b"):
            arena.surface(ImageFormat(16, 8), owner)
        arena.release("a")
        arena.release("a")
        arena.release("b")
        again = [arena.surface(ImageFormat(16, 8), f"new {number}") for number in range(3)]
        pictures = [fill_at_random(case, surface, seed=number) for number, surface in enumerate(again)]
        for surface, picture in zip(again, pictures, strict=True):
            assert all(np.array_equal(case.read(p), old) for p, old in zip(surface.planes, picture, strict=True))


@each_device
def test_results_are_records_that_the_host_reads(case: DeviceCase) -> None:
    with case.open() as device:
        results = device.arena.results("test")
        assert results.dtype == RESULT_DTYPE
        assert int(results["count"][0]) == 0


@each_device
@pytest.mark.parametrize("size", [(1, 1), (7, 5), (64, 48)], ids=str)
def test_the_overlay_hides_what_is_masked_and_leaves_views_and_other_channels_alone(
    case: DeviceCase, size: tuple[int, int]
) -> None:
    blocks = np.random.default_rng(6).integers(0, 2, ((size[1] + 1) // 2, (size[0] + 1) // 2), dtype=np.uint8)
    with case.open() as device:
        slots = [make_slot(device, ImageFormat(*size), index) for index in range(3)]
        before = [fill_at_random(case, slot.surface, seed=index) for index, slot in enumerate(slots)]
        for slot in slots[:2]:
            slot.mask = device.arena.plane(blocks, "test")
        slots[1].is_drawn = False
        lane = device.create_lane(0, tiny_model())
        program = device.compile([device.overlay(lane, ("cat",))], lane, 1)
        for slot in slots:
            assert program.launch([slot]).wait(PATIENCE_S)
        hidden = blocks.astype(np.bool_)
        luma, chroma = (case.read(plane) for plane in slots[0].surface.planes)
        wide = hidden.repeat(2, axis=0).repeat(2, axis=1)[: size[1], : size[0]]
        assert np.array_equal(luma, np.where(wide, 16, before[0][0]))
        assert np.array_equal(chroma, np.where(hidden.repeat(2, axis=1), 128, before[0][1]))
        for slot, pixels in zip(slots[1:], before[1:], strict=True):
            assert all(np.array_equal(case.read(p), old) for p, old in zip(slot.surface.planes, pixels, strict=True))


@each_device
def test_an_overlay_by_itself_draws_the_slots_own_results(case: DeviceCase) -> None:
    with case.open() as device:
        slot = make_slot(device, ImageFormat(200, 100))
        slot.results["count"] = 1
        slot.results["detections"][0][0] = ((20.0, 40.0, 120.0, 90.0), 0.5, 0)
        lane = device.create_lane(0, tiny_model())
        assert device.compile([device.overlay(lane, ("cat",))], lane, 1).launch([slot]).wait(PATIENCE_S)
        luma = case.read(slot.surface.planes[0])
        assert luma[85:90, 21].all()
        assert luma[88:90, 20:120].all()
        assert not luma[60:80, 30:100].any()


@each_device
def test_hops_cover_ingest_tensors_and_results_with_exact_bytes(case: DeviceCase) -> None:
    with case.open() as device:
        hops = device.hops(tiny_model(), [ImageFormat(7, 5), ImageFormat(7, 5), ImageFormat(2, 2)])
        pixels = [hop.bytes_per_frame for hop in hops if hop.payload is Payload.PIXELS]
        assert pixels == [7 * 5 + 8 * 3, 6]
        assert sorted(hop.bytes_per_frame for hop in hops if hop.payload is Payload.TENSOR) == [768, 768]
        assert [h.bytes_per_frame for h in hops if h.payload is Payload.RESULTS] == [RESULT_DTYPE.itemsize]


@each_device
def test_a_program_takes_a_picture_from_slot_to_results(case: DeviceCase) -> None:
    facts = tiny_model()
    with case.open() as device:
        lane = device.create_lane(0, facts)
        slot = make_slot(device, ImageFormat(16, 8))
        fill_at_random(case, slot.surface, seed=3)
        output = np.zeros(facts.output_shape, np.float32)
        output[0, :, 5] = [4, 4, 4, 2, 0.25, 0.75]  # centre and size in 8x8 input pixels, then the two scores
        case.write_tensor(lane.output, output)
        settings = DetectorSettings(0.5, 0.5)
        stages: list[Stage] = [
            device.preprocess(lane, facts),
            device.detect(lane, facts, settings),
            device.overlay(lane, facts.labels),
        ]
        program = device.compile(stages, lane, 1)
        device.arena.seal()
        before = case.read(slot.surface.planes[0])
        assert program.launch([slot]).wait(PATIENCE_S)
        count = int(slot.results["count"][0])
        found = slot.results["detections"][0][:count]
        # The 16x8 picture fills rows 2 to 5 of the input at half its size.
        assert found["box"].tolist() == [[4, 2, 12, 6]]
        assert found["score"].tolist() == [0.75]
        assert found["label"].tolist() == [1]
        assert np.count_nonzero(case.read(slot.surface.planes[0]) != before) > 0
        picture = case.read_tensor(lane.input)
        assert np.allclose(picture[:, :, :2, :], 114 / 255)
        assert device.arena.refused == 0


@each_device
def test_a_launch_returns_at_once_and_its_fence_says_when_it_is_done(case: DeviceCase) -> None:
    if case.device != "cpu":
        pytest.skip("cannot run here: stages of the host run on the cpu device only")
    with case.open() as device:
        lane = device.create_lane(0, tiny_model())
        slot = make_slot(device, ImageFormat(4, 4))
        gate = threading.Event()
        stage = HostStage(gate=gate)
        program = device.compile([stage], lane, 1)
        fence = program.launch([slot])
        assert not fence.is_done()
        assert not fence.wait(0.0)
        with pytest.raises(PipelineError, match="before the last launch was done"):
            program.launch([slot])
        gate.set()
        assert fence.wait(PATIENCE_S)
        assert fence.is_done()
        assert stage.batches == [1]
        assert stage.threads != [threading.get_ident()]
        assert [time.name for time in program.stage_times()] == ["test"]
        assert all(time.end_ns >= time.start_ns > 0 for time in program.stage_times())


@each_device
def test_lanes_run_at_the_same_time(case: DeviceCase) -> None:
    if case.device != "cpu":
        pytest.skip("cannot run here: stages of the host run on the cpu device only")
    with case.open() as device:
        gate = threading.Event()
        fences = []
        for index, stage in enumerate((HostStage(gate=gate), HostStage())):
            lane = device.create_lane(index, tiny_model())
            fences.append(device.compile([stage], lane, 1).launch([make_slot(device, ImageFormat(4, 4), index)]))
        assert fences[1].wait(PATIENCE_S)
        assert not fences[0].is_done()
        gate.set()
        assert fences[0].wait(PATIENCE_S)


@each_device
@pytest.mark.parametrize("error", [ValueError("bad luck"), PhaseError("bad luck", fix="try again")], ids=repr)
def test_a_failing_stage_is_raised_by_wait_and_the_lane_lives_on(case: DeviceCase, error: Exception) -> None:
    if case.device != "cpu":
        pytest.skip("cannot run here: stages of the host run on the cpu device only")
    with case.open() as device:
        lane = device.create_lane(3, tiny_model())
        slot = make_slot(device, ImageFormat(4, 4))
        stage = HostStage("wobbly", error=error)
        program = device.compile([stage], lane, 1)
        for _ in range(2):
            with pytest.raises(PipelineError, match=r"lane 3, stage wobbly.*bad luck"):
                program.launch([slot]).wait(PATIENCE_S)
        stage.error = None
        assert program.launch([slot]).wait(PATIENCE_S)


@each_device
def test_every_lane_thread_runs_every_hook_once_before_its_work(case: DeviceCase) -> None:
    if case.device != "cpu":
        pytest.skip("cannot run here: the device has no threads of its own")
    with case.open() as device:
        seen: list[tuple[str, int]] = []
        stages = [HostStage(), HostStage()]
        lanes = [device.create_lane(index, tiny_model()) for index in range(2)]
        slots = [make_slot(device, ImageFormat(4, 4), index) for index in range(2)]
        device.watch_threads(lambda: seen.append(("first", threading.get_ident())))
        device.watch_threads(lambda: seen.append(("second", threading.get_ident())))
        for stage, lane, slot in zip(stages, lanes, slots, strict=True):
            program = device.compile([stage], lane, 1)
            for _ in range(3):
                assert program.launch([slot]).wait(PATIENCE_S)
        threads = [stage.threads[0] for stage in stages]
        assert len(set(threads)) == 2
        assert seen == [(hook, thread) for thread in threads for hook in ("first", "second")]


@each_device
def test_a_failing_hook_fails_the_launch(case: DeviceCase) -> None:
    if case.device != "cpu":
        pytest.skip("cannot run here: the device has no threads of its own")

    def hook() -> None:
        raise RuntimeError("no eyes")

    with case.open() as device:
        lane = device.create_lane(0, tiny_model())
        device.watch_threads(hook)
        program = device.compile([HostStage()], lane, 1)
        with pytest.raises(PipelineError, match="no eyes"):
            program.launch([make_slot(device, ImageFormat(4, 4))]).wait(PATIENCE_S)


@each_device
@pytest.mark.parametrize("batch", [0, 3])
def test_a_batch_outside_the_model_is_refused(case: DeviceCase, batch: int) -> None:
    with case.open() as device:
        facts = tiny_model(input_shape=(2, 3, 8, 8), output_shape=(2, 6, 32))
        lane = device.create_lane(0, facts)
        with pytest.raises(ZhcEdgeError):
            device.compile([device.preprocess(lane, facts)], lane, batch)


@each_device
def test_a_batch_fills_one_part_of_the_input_for_each_slot(case: DeviceCase) -> None:
    with case.open() as device:
        facts = tiny_model(input_shape=(2, 3, 8, 8), output_shape=(2, 6, 32))
        lane = device.create_lane(0, facts)
        slots: list[FrameSlot[object]] = [make_slot(device, ImageFormat(8, 8), index) for index in range(2)]
        for slot in slots:
            fill_at_random(case, slot.surface, seed=slot.index)
        both = device.compile([device.preprocess(lane, facts)], lane, 2)
        assert both.batch == 2
        assert both.launch(slots).wait(PATIENCE_S)
        forward = case.read_tensor(lane.input)
        assert both.launch(slots[::-1]).wait(PATIENCE_S)
        assert np.array_equal(case.read_tensor(lane.input), forward[::-1])
        assert not np.array_equal(forward[0], forward[1])
        with pytest.raises(PipelineError):
            both.launch(slots[:1])


@each_device
def test_a_smaller_picture_leaves_nothing_of_the_last_one_in_the_border(case: DeviceCase) -> None:
    with case.open() as device:
        facts = tiny_model()
        lane = device.create_lane(0, facts)
        whole, wide = make_slot(device, ImageFormat(8, 8)), make_slot(device, ImageFormat(8, 2))
        program = device.compile([device.preprocess(lane, facts)], lane, 1)
        for slot in (whole, wide):
            fill_at_random(case, slot.surface, seed=4)
            assert program.launch([slot]).wait(PATIENCE_S)
        picture = case.read_tensor(lane.input)[0]
        assert np.allclose(picture[:, [0, 1, 2, 5, 6, 7]], 114 / 255)


@each_device
def test_a_picture_size_first_seen_after_the_seal_fails_its_launch(case: DeviceCase) -> None:
    if case.device != "cpu":
        pytest.skip("cannot run here: only the cpu device makes tables for each size")
    with case.open() as device:
        facts = tiny_model()
        lane = device.create_lane(0, facts)
        program = device.compile([device.preprocess(lane, facts)], lane, 1)
        late = make_slot(device, ImageFormat(6, 6))
        device.arena.seal()
        with pytest.raises(PipelineError, match="after the seal"):
            program.launch([late]).wait(PATIENCE_S)
        assert device.arena.refused == 1


@each_device
def test_close_ends_the_threads_and_a_second_close_is_fine(case: DeviceCase) -> None:
    with case.open() as device:
        with nothing_left():
            lanes = [device.create_lane(index, tiny_model()) for index in range(2)]
            program = device.compile([device.preprocess(lanes[0], tiny_model())], lanes[0], 1)
            slot = make_slot(device, ImageFormat(8, 8))
            device.close()
        with pytest.raises(PhaseError):
            program.launch([slot])

#!/usr/bin/env python3
"""Times every kernel of ours by itself on this machine's GPU, and compares it with what its bytes cost at least.

usage: tools/bench/kernels.py --out FILE [--batches 1,8]

Each kernel is captured REPEATS times in a row into a CUDA graph on realistic input (1080p NV12, a head of 84 x 21504
with about 50 boxes, masks over a fifth of the picture), between two events, and the graph is run RUNS times: the median
over REPEATS is the kernel's time, the wait between two nodes included. The same data is used again and again, so what
fits into the GPU's cache comes from there, as it does in the pipeline, where the stage before has just written it.
`collect` and `suppress` need their counters set before each run: a copy of a few bytes, whose own time (0.8 us on an
H200) is measured and taken off. A kernel is good when it takes at most 3 times its bytes over the GPU's bandwidth, or
less than 8 us. For a launch of several frames the table also says whether a frame's share of it is good.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from zhcedge.backends.cpu.arena import CpuArena
from zhcedge.backends.cpu.overlay import TextTiles, draw, text_scale
from zhcedge.core.picture import SAMPLES
from zhcedge.core.requests import DeviceSettings
from zhcedge.core.types import DetectorSettings, HeadKind, ImageFormat, ModelFacts, PixelFormat
from zhcedge.pipeline.masks import rasterise

REPEATS, RUNS, WARM_RUNS = 100, 20, 3
MAX_US, MAX_RATIO = 8.0, 3.0
CLASSES, ANCHORS, INPUT_PX, OBJECTS = 80, 21504, 1024, 50
WIDTH, HEIGHT = 1920, 1080
PREVIEW = ImageFormat(640, 360)
THRESHOLD = DetectorSettings(0.45, 0.5)
POLYGONS = ([(0.1, 0.1), (0.4, 0.05), (0.3, 0.6)], [(0.7, 0.6), (1.0, 0.6), (1.0, 1.0), (0.7, 1.0)])
LABELS = tuple(f"class {number}" for number in range(CLASSES))
CANDIDATE_BYTES, DETECTION_BYTES, RECORD_BYTES = 28, 24, 8  # key, box and label; a detection; the counts before them


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--batches", default="1,8", help="batch sizes, comma-separated")
    args = parser.parse_args()
    found = measure([int(text) for text in args.batches.split(",")])
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    for row in found["kernels"]:
        print(row)
    return 0 if all(row["is_met"] for row in found["kernels"]) and not found["problems"] else 1


def facts_of(batch: int) -> ModelFacts:
    return ModelFacts(
        name="bench",
        sha256="",
        labels=LABELS,
        input_name="images",
        output_name="output0",
        input_shape=(batch, 3, INPUT_PX, INPUT_PX),
        output_shape=(batch, 4 + CLASSES, ANCHORS),
        scale=1 / 255,
        pad_value=114,
        head=HeadKind.YOLO_ANCHOR_FREE,
        score_threshold=THRESHOLD.score_threshold,
        nms_iou=THRESHOLD.nms_iou,
    )


def synthetic_head(random: np.random.Generator) -> npt.NDArray[np.float32]:
    """A head's output, [84, 21504]: noise below the threshold, and 50 objects seen by four anchors each."""
    output = random.uniform(0, 0.2, (4 + CLASSES, ANCHORS)).astype(np.float32)
    # Inside the letterbox of a 16:9 picture, on a grid, so that objects don't hide each other.
    cells = random.choice(10 * 5, OBJECTS, replace=False)
    centres = np.stack([60 + cells % 10 * 100, 264 + cells // 10 * 124]) + random.uniform(-15, 15, (2, OBJECTS))
    for row in random.choice(ANCHORS, (4, OBJECTS), replace=False):
        output[0:2, row] = centres + random.uniform(-2, 2, (2, OBJECTS))
        output[2:4, row] = random.uniform(90, 150, (2, 1)) + random.uniform(0, 5, (2, OBJECTS))
        output[4 + np.arange(OBJECTS), row] = random.uniform(0.5, 0.95, OBJECTS)
    return output


def painted_bytes(results: npt.NDArray[np.void]) -> int:
    """Bytes of a 1080p picture that the overlay writes: its twin, which never draws a 0, draws into one of zeroes."""
    surface = CpuArena().surface(ImageFormat(WIDTH, HEIGHT), "bench")
    draw(surface, results, TextTiles(LABELS, text_scale(HEIGHT), CpuArena(), "bench"))
    return sum(int(np.count_nonzero(plane.buffer)) for plane in surface.planes)


def row_of(name: str, batch: int, size_bytes: int, us: float, bandwidth: float | None) -> dict[str, Any]:
    """One measured kernel; `bandwidth` in bytes a second, None where it is unknown."""
    least_us = 1e6 * size_bytes / bandwidth if bandwidth else None
    ratio = us / least_us if least_us else None
    is_near_bandwidth = ratio is not None and ratio <= MAX_RATIO
    return {
        "kernel": name,
        "batch": batch,
        "bytes": size_bytes,
        "us": us,
        "us_a_frame": us / batch,
        "us_at_bandwidth": least_us,
        "ratio": ratio,
        "is_met": us < MAX_US or is_near_bandwidth,
        "is_met_a_frame": us / batch < MAX_US or is_near_bandwidth,
    }


# -- what needs the GPU ----------------------------------------------------------------------------------------
def measure(batches: list[int]) -> dict[str, Any]:
    """Every kernel with every batch size. A kernel that fails is a problem in the answer, and the others go on."""
    from zhcedge.backends.cuda.device import CudaDevice
    from zhcedge.backends.cuda.kernels import FUNCTIONS

    device = CudaDevice(DeviceSettings())
    try:
        bandwidth = bandwidth_of(device.index)
        found: dict[str, Any] = {"gpu": device.context.name, "bandwidth_bytes_per_s": bandwidth}
        rows: list[dict[str, Any]] = []
        problems: list[str] = []
        with device.context.push():
            for batch in batches:
                try:
                    bench = Bench(device, batch)
                except Exception as error:  # noqa: BLE001  as in `attempt`
                    problems.append(f"batch {batch}: {type(error).__name__}: {error}")
                    continue
                works = (bench.letterbox, bench.heads, bench.collect, bench.suppress, bench.mask, bench.overlay)
                for work in works:
                    attempt(work, batch, rows, problems, bandwidth)
                if batch == batches[0]:
                    for work in (bench.ingest, bench.motion, bench.picture, bench.downscale):  # one frame at a time
                        attempt(work, 1, rows, problems, bandwidth)
        measured = {row["kernel"].partition(",")[0] for row in rows}
        return found | {"kernels": rows, "not_measured": sorted(set(FUNCTIONS) - measured), "problems": problems}
    finally:
        device.close()


Measured = list[tuple[str, int, float]]
"""Name, bytes, microseconds."""


def attempt(
    work: Callable[[], Measured],
    batch: int,
    rows: list[dict[str, Any]],
    problems: list[str],
    bandwidth: float | None,
) -> None:
    try:
        rows += [row_of(name, batch, size_bytes, us, bandwidth) for name, size_bytes, us in work()]
    except Exception as error:  # noqa: BLE001  lent minutes: keep what there is
        problems.append(f"{work.__name__}, batch {batch}: {type(error).__name__}: {error}")


def bandwidth_of(index: int) -> float | None:
    """Bytes a second that the memory can move: clock x 2 (double data rate) x bus width. None where nobody says."""
    from zhcedge.backends.cuda._vendor import pycuda

    attributes, gpu = pycuda.device_attribute, pycuda.Device(index)
    bits = int(gpu.get_attribute(attributes.GLOBAL_MEMORY_BUS_WIDTH))
    try:
        hertz = 1e3 * int(gpu.get_attribute(attributes.MEMORY_CLOCK_RATE))
    except pycuda.Error:
        hertz = 0.0
    return 2 * (hertz or _clock_by_smi(gpu.pci_bus_id())) * bits / 8 or None


def _clock_by_smi(bus_id: str) -> float:
    """Newer drivers no longer tell the clock as an attribute."""
    query = ["nvidia-smi", "-i", bus_id, "--query-gpu=clocks.max.memory", "--format=csv,noheader,nounits"]
    try:
        return 1e6 * float(subprocess.run(query, capture_output=True, text=True, check=True).stdout)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return 0.0


class Switch:
    """The kernels of a device, of which only the chosen ones are launched."""

    def __init__(self, kernels: Any) -> None:
        self._kernels = kernels
        self.chosen = ""

    def __getitem__(self, name: str) -> Any:
        switch, kernel = self, self._kernels[name]

        class Switched:
            def launch(self, *arguments: Any) -> None:
                if switch.chosen == name:
                    kernel.launch(*arguments)

        return Switched()


class Bench:
    """A lane with frames in front of it and results behind it. The context is pushed."""

    def __init__(self, device: Any, batch: int) -> None:
        from zhcedge.backends.cuda.descriptor import pack

        self._device, self._batch, arena = device, batch, device.arena
        facts, image = facts_of(batch), ImageFormat(WIDTH, HEIGHT)
        random = np.random.default_rng(1)
        self._lane = device.create_lane(0, facts)
        self._mask_plane = rasterise(POLYGONS, WIDTH, HEIGHT)
        mask = arena.plane(self._mask_plane, "bench")
        tables: list[list[bytes]] = [[], []]
        for _ in range(batch):
            surface, results = arena.surface(image, "bench"), arena.results("bench")
            for plane in surface.planes:
                self._write(plane.buffer, random.integers(16, 235, (plane.rows, plane.pitch_bytes), dtype=np.uint8))
            address = arena.device_address(results)
            for table, hidden in zip(tables, (None, mask), strict=True):
                table.append(pack(surface, address, (INPUT_PX, INPUT_PX), hidden))
        self._bare, self._masked = (np.frombuffer(b"".join(table), np.uint8) for table in tables)
        self._results, self._slot_surface = results, surface
        heads = np.stack([synthetic_head(random) for _ in range(batch)])
        self._write(self._lane.table, self._bare)
        self._write(self._lane.output.buffer, heads)
        self._zeros, self._counts = arena.memory(4 * batch, "bench"), arena.memory(4 * batch, "bench")

        kernels = device._kernels
        self._switch = device._kernels = Switch(kernels)
        try:
            self._letterbox = device.preprocess(self._lane, facts)
            self._detect = device.detect(self._lane, facts, THRESHOLD)
            self._overlay = device.overlay(self._lane, LABELS)
        finally:
            device._kernels = kernels
        self._launch("collect", self._detect)
        self._copy(self._counts, self._detect._counters)
        self._launch("suppress", self._detect)
        self._lane.stream.synchronize()
        self._candidates, self._boxes = int(results["candidates"][0]), int(results["count"][0])
        if self._boxes < OBJECTS // 2:
            raise RuntimeError(f"{self._boxes} boxes of {self._candidates} candidates are not a realistic load")

    # -- kernels -----------------------------------------------------------------------------------------------
    def letterbox(self) -> Measured:
        size = self._batch * (WIDTH * HEIGHT * 3 // 2 + 3 * 4 * INPUT_PX * INPUT_PX)
        return [("letterbox", size, self._time(lambda: self._launch("letterbox", self._letterbox)))]

    def heads(self) -> Measured:
        """Both ways through it: rows that become columns, and halves that become floats. The values don't matter."""
        facts, values = facts_of(self._batch), 4 + CLASSES
        rows = replace(facts, head=HeadKind.YOLO_ANCHOR_FREE_ROWS, output_shape=(self._batch, ANCHORS, values))
        halves = replace(facts, output_dtype="float16")
        elements = self._batch * values * ANCHORS
        return [
            ("heads, rows", (4 + 4) * elements, self._time_heads(rows)),
            ("heads, float16", (2 + 4) * elements, self._time_heads(halves)),
        ]

    def _time_heads(self, facts: ModelFacts) -> float:
        from zhcedge.backends.cuda.stages import _HeadRewriter

        rewriter = _HeadRewriter(self._lane, facts, self._device._kernels["heads"], self._device.arena, "bench")
        return self._time(lambda: rewriter.enqueue(self._batch))

    def collect(self) -> Measured:
        size = self._batch * (4 * CLASSES * ANCHORS + CANDIDATE_BYTES * self._candidates)
        return [("collect", size, self._time_counted("collect", self._zeros))]

    def suppress(self) -> Measured:
        size = self._batch * (CANDIDATE_BYTES * self._candidates + 2 * (RECORD_BYTES + DETECTION_BYTES * self._boxes))
        return [("suppress", size, self._time_counted("suppress", self._counts))]

    def mask(self) -> Measured:
        work = lambda: self._launch("mask", self._overlay)  # noqa: E731
        without_us = self._time(work)
        self._write(self._lane.table, self._masked)
        try:
            with_us = self._time(work)
        finally:
            self._write(self._lane.table, self._bare)
        size = self._batch * (self._mask_plane.size + 6 * int(self._mask_plane.sum()))
        return [("mask", size, with_us), ("mask, no masks", 0, without_us)]

    def overlay(self) -> Measured:
        size = self._batch * (RECORD_BYTES + DETECTION_BYTES * self._boxes + painted_bytes(self._results))
        return [("overlay", size, self._time(lambda: self._launch("overlay", self._overlay)))]

    def ingest(self) -> Measured:
        """I420: NV12 goes by copies."""
        from zhcedge.backends.cuda.descriptor import pack

        target = self._slot_surface
        source = self._device.arena.surface(replace(target.format, pixel_format=PixelFormat.I420), "bench")
        return [self._by_value("ingest", pack(source), pack(target), target.format, 2 * WIDTH * HEIGHT * 3 // 2)]

    def motion(self) -> Measured:
        from zhcedge.backends.cuda import motion
        from zhcedge.backends.cuda.descriptor import pack

        kernel, arena, frame = self._device._kernels["motion"], self._device.arena, pack(self._slot_surface)
        points = motion.COLUMNS * motion.ROWS
        means = arena.memory(4 * points, "bench")
        _, result = arena.pinned(8, "bench")
        values = (frame, means, 2, motion.WEIGHT, motion.THRESHOLD, result)  # the second frame: there are means
        work = lambda: kernel.launch(self._lane.stream, (1, 1, 1), motion._BLOCK, *values)  # noqa: E731
        return [("motion", (1 + 4 + 4) * points + 8, self._time(work))]

    def picture(self) -> Measured:
        from zhcedge.backends.cuda import picture
        from zhcedge.backends.cuda.descriptor import pack

        kernel, frame = self._device._kernels["picture"], pack(self._slot_surface)
        _, result = self._device.arena.pinned(8 * picture._CELLS, "bench")
        values = (frame, 1, result)
        work = lambda: kernel.launch(self._lane.stream, picture._GRID, picture._BLOCK, *values)  # noqa: E731
        return [("picture", (3 * SAMPLES + 8) * picture._CELLS, self._time(work))]

    def downscale(self) -> Measured:
        from zhcedge.backends.cuda.descriptor import pack

        source, target = self._slot_surface, self._device.arena.surface(PREVIEW, "bench")
        size = (WIDTH * HEIGHT + PREVIEW.width_px * PREVIEW.height_px) * 3 // 2
        return [self._by_value("downscale", pack(source), pack(target), PREVIEW, size)]

    def _by_value(
        self, name: str, source: bytes, target: bytes, image: ImageFormat, size: int
    ) -> tuple[str, int, float]:
        kernel = self._device._kernels[name]
        grid = (-(-image.width_px // 64), -(-image.height_px // 16), 1)
        return name, size, self._time(lambda: kernel.launch(self._lane.stream, grid, (32, 8, 1), source, target))

    # -- timing ------------------------------------------------------------------------------------------------
    def _launch(self, name: str, stage: Any) -> None:
        self._switch.chosen = name
        stage.enqueue(self._batch)

    def _time_counted(self, name: str, counters: int) -> float:
        """Of a kernel that finds its counters in a certain state and leaves them in another one."""
        prepare = lambda: self._copy(self._detect._counters, counters)  # noqa: E731

        def work() -> None:
            prepare()
            self._launch(name, self._detect)

        us = self._time(work) - self._time(prepare)
        self._copy(self._detect._counters, self._zeros)
        return us

    def _time(self, work: Callable[[], None]) -> float:
        """Median microseconds of one `work` in a row of REPEATS."""
        from zhcedge.backends.cuda import _vendor

        stream = self._lane.stream
        start, end = _vendor.TimingEvent(), _vendor.TimingEvent()
        _vendor.begin_capture(stream.handle)
        try:
            start.capture(stream.handle)
            for _ in range(REPEATS):
                work()
            end.capture(stream.handle)
        finally:
            graph = _vendor.end_capture(stream.handle)
        program = _vendor.GraphExec(graph, stream.handle)
        _vendor.destroy_graph(graph)
        times_ms = []
        for run in range(WARM_RUNS + RUNS):
            program.launch()
            stream.synchronize()
            if run >= WARM_RUNS:
                times_ms.append(end.milliseconds_since(start))
        program.close()
        start.close()
        end.close()
        return 1e3 * statistics.median(times_ms) / REPEATS

    # -- memory ------------------------------------------------------------------------------------------------
    def _write(self, address: int, array: npt.NDArray[Any]) -> None:
        from zhcedge.backends.cuda._vendor import pycuda

        pycuda.memcpy_htod(address, np.ascontiguousarray(array))
        pycuda.Context.synchronize()

    def _copy(self, destination: int, source: int) -> None:
        """The batch's counters, on the lane's stream, also while it is captured."""
        from cuda.bindings import driver

        result = driver.cuMemcpyDtoDAsync(
            destination, source, 4 * self._batch, driver.CUstream(self._lane.stream_handle)
        )
        if int(result[0]):
            raise RuntimeError(f"cuMemcpyDtoDAsync: {result[0].name}")


if __name__ == "__main__":
    sys.exit(main())

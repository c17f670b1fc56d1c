"""Parts of the benchmark that need one process only: post-processing alone, and memory over many frames."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np

from zhcedge.app.bench_statistics import Interval, slope
from zhcedge.app.wiring import RunContext, build_plan
from zhcedge.backends.cpu.arena import CpuArena
from zhcedge.backends.cpu.detect import Detector
from zhcedge.config.schema import Config
from zhcedge.core.geometry import Letterbox
from zhcedge.core.lifecycle import Lifecycle
from zhcedge.core.types import RESULT_DTYPE, DetectorSettings
from zhcedge.pipeline.segment import Segment
from zhcedge.service.clock import SystemClock

_CLASSES, _ANCHORS, _INPUT_PX, _BOXES = 80, 8400, 640, 50
_SETTLED = 0.5  # the first half, while the packet ring and the allocators' arenas fill, is left out


def detect_ms(runs: int = 200) -> float:
    """Median milliseconds of decode and NMS of an 84 x 8400 head in which about 50 boxes survive; one core."""
    output = synthetic_head(np.random.default_rng(0))
    detector = Detector(_CLASSES, _ANCHORS, DetectorSettings(0.45, 0.5), CpuArena(), "bench")
    letterbox = Letterbox.fit(1920, 1080, _INPUT_PX, _INPUT_PX)
    result = np.zeros(1, RESULT_DTYPE)
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        detector(output, letterbox, result)
        times.append(time.perf_counter() - started)
    return float(np.median(times)) * 1e3


def synthetic_head(random: np.random.Generator) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """A head's output, [84, 8400]: noise below the threshold, and 50 objects seen by four anchors each."""
    output = random.uniform(0, 0.2, (4 + _CLASSES, _ANCHORS)).astype(np.float32)
    centres = random.uniform(60, _INPUT_PX - 60, (2, _BOXES))
    anchors = random.choice(_ANCHORS, (4, _BOXES), replace=False)
    labels = random.integers(0, _CLASSES, _BOXES)
    for row in anchors:
        output[0:2, row] = centres + random.uniform(-2, 2, (2, _BOXES))
        output[2:4, row] = random.uniform(30, 60, (2, _BOXES))
        output[4 + labels, row] = random.uniform(0.5, 0.95, _BOXES)
    return output


def rss_slope(config: Config, frames: int) -> Interval:
    """MiB of resident memory that 10,000 frames of the running pipeline add. `config` must loop its source."""
    segment = Segment()
    at: list[float] = []
    resident: list[float] = []
    is_over = threading.Event()

    def sample() -> None:
        while not is_over.wait(0.25):
            at.append(segment.counters["heartbeat"] / 10_000)
            resident.append(_resident_mib())

    with build_plan(config, RunContext(segment, SystemClock(), Lifecycle())) as plan:
        runtime = plan.warm_up()
        sampler = threading.Thread(target=sample, daemon=True)
        sampler.start()
        runtime.process(frames)
        is_over.set()
        sampler.join()
    first = int(len(at) * _SETTLED)
    return slope(at[first:], resident[first:])


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

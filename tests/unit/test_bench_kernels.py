"""The kernel benchmark's parts that need no GPU: its input, the bytes it counts, its verdict, its table."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from zhcedge.backends.cpu.arena import CpuArena
from zhcedge.backends.cpu.detect import Detector
from zhcedge.core.geometry import Letterbox
from zhcedge.core.types import RESULT_DTYPE

FOLDER = Path(__file__).parents[2] / "tools" / "bench"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.path[:]
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


kernels, results = load("kernels"), load("results")


def test_the_head_holds_about_fifty_boxes_whose_paint_is_counted() -> None:
    head = kernels.synthetic_head(np.random.default_rng(1))
    record = np.zeros(1, RESULT_DTYPE)
    detector = Detector(kernels.CLASSES, kernels.ANCHORS, kernels.THRESHOLD, CpuArena(), "test")
    detector(head, Letterbox.fit(kernels.WIDTH, kernels.HEIGHT, kernels.INPUT_PX, kernels.INPUT_PX), record)
    assert int(record["candidates"][0]) == 4 * kernels.OBJECTS
    assert int(record["count"][0]) == kernels.OBJECTS
    boxes = record["detections"][0]["box"][: kernels.OBJECTS]
    around = float((2 * (boxes[:, 2:] - boxes[:, :2]).sum(axis=1) * 3).sum())
    assert 0.7 * around < kernels.painted_bytes(record) < 3 * around


@pytest.mark.parametrize(
    ("us", "size_bytes", "is_met"), [(7.9, 0, True), (8.1, 0, False), (29, 10_000_000, True), (31, 10_000_000, False)]
)
def test_a_kernel_is_good_within_three_times_its_bytes_or_below_eight_microseconds(
    us: float, size_bytes: int, is_met: bool
) -> None:
    assert kernels.row_of("k", 1, size_bytes, us, 1e12)["is_met"] is is_met


def test_a_launch_of_many_frames_may_be_slow_while_a_frames_share_is_not() -> None:
    row = kernels.row_of("k", 8, 1_000_000, 40.0, 1e12)
    assert (row["us_a_frame"], row["is_met"], row["is_met_a_frame"]) == (5.0, False, True)


def test_without_a_known_bandwidth_only_the_time_counts() -> None:
    row = kernels.row_of("k", 1, 10**9, 9.0, None)
    assert (row["ratio"], row["is_met"]) == (None, False)


def test_the_table_has_a_line_for_every_kernel() -> None:
    rows = [kernels.row_of("overlay", 8, 4_800_000, 6.0, 4.8e12), kernels.row_of("mask, no masks", 1, 0, 1.5, 4.8e12)]
    found = {"bandwidth_bytes_per_s": 4.8e12, "kernels": rows, "not_measured": ["ingest"]}
    lines = results._kernel_table(found)
    assert "| overlay | 8 | 4800000 | 6 | 0.75 | 1 | 6 | yes | yes |" in lines
    assert "| mask, no masks | 1 | 0 | 1.5 | 1.5 | 0 | - | yes | - |" in lines
    assert lines[-1] == "- not measured: ingest"

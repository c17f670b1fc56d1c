"""Patterns detected in by tiles and crops: boxes equal the truth, whatever part of the picture saw them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.test_pattern import SETTINGS, assert_equals_truth
from zhcedge.app.wiring import make_guard
from zhcedge.backends.cpu.device import CpuDevice
from zhcedge.backends.engines.pattern import PatternEngine
from zhcedge.backends.registry import SOURCES
from zhcedge.core.lifecycle import Lifecycle
from zhcedge.core.requests import DeviceSettings, SourceRequest
from zhcedge.media.pattern import Pattern, Truth, parse_pattern, pattern_facts
from zhcedge.pipeline.channel import ChannelParts, ChannelSettings
from zhcedge.pipeline.guard import GuardPolicy
from zhcedge.pipeline.plan import Plan, PlanSettings
from zhcedge.pipeline.ring import RingRecord
from zhcedge.pipeline.segment import Segment
from zhcedge.pipeline.tiles import Regions
from zhcedge.service.clock import SystemClock

URI = "pattern:boxes?size=640x480&objects=6&frames=24"
SPEC = parse_pattern(URI, "test")


def run(regions: list[Regions], batch: int, lanes: int) -> list[RingRecord]:
    """One channel for each of `regions`, under guard policy `fail`."""
    device, segment, clock = CpuDevice(DeviceSettings()), Segment(), SystemClock()
    plan = Plan(
        device,
        PatternEngine(pattern_facts(320, batch)),
        [
            ChannelParts(
                f"c{index}",
                SOURCES.get("pattern")(SourceRequest(index, f"c{index}", URI, False, False, clock), device),  # type: ignore[arg-type]
                [],
                ChannelSettings(regions=chosen),
            )
            for index, chosen in enumerate(regions)
        ],
        PlanSettings(lanes, 0, 4, SETTINGS),
        make_guard(device, GuardPolicy.FAIL, is_audit=False),
        segment.frame_recorder,
        Lifecycle(),
        clock,
        ring=segment.ring,
    )
    with plan:
        plan.warm_up().process()
    return [record for record in segment.ring.drain() if not record.is_end]


@pytest.mark.parametrize(
    ("batch", "lanes"), [(3, 2), pytest.param(1, 1, marks=pytest.mark.slow), pytest.param(8, 2, marks=pytest.mark.slow)]
)
def test_tiled_and_whole_channels_beside_each_other_all_equal_the_truth(batch: int, lanes: int) -> None:
    regions = [Regions(columns=2, rows=2, overlap=0.4), Regions(), Regions(columns=3, overlap=0.45), Regions()]
    records = run(regions, batch, lanes)
    for channel in range(len(regions)):
        pattern = Pattern(SPEC, channel)
        mine = [record for record in records if record.info.channel == channel]
        assert [record.info.sequence for record in mine] == list(range(24))
        for record in mine:
            assert_equals_truth(record.detections, pattern.truth(record.info.sequence), tolerance_px=2.0)


def test_a_crop_sees_what_lies_in_it_at_its_place_in_the_picture() -> None:
    corner = np.array([160, 120], np.float32)
    for record in run([Regions((0.25, 0.25, 1.0, 1.0))], 1, 1):
        truth = Pattern(SPEC, 0).truth(record.info.sequence)
        sides = truth.boxes[:, 2:] - np.maximum(truth.boxes[:, :2], corner)
        if ((sides.min(axis=1) > 0) & (sides.min(axis=1) < 16)).any():
            continue  # the crop's edge leaves a sliver of an object: too thin to be found
        boxes = np.maximum(truth.boxes, np.tile(corner, 2))[is_there := sides.min(axis=1) > 0]
        seen = Truth(boxes, truth.labels[is_there], truth.ids[is_there])
        assert_equals_truth(record.detections, seen, tolerance_px=2.0)

"""Sixteen channels that ask for far more than two cores can give: nobody starves."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from zhcedge.app.wiring import RunContext, build_plan
from zhcedge.config.schema import Config
from zhcedge.core.lifecycle import Lifecycle
from zhcedge.core.ports import FrameSlot
from zhcedge.pipeline.segment import Segment
from zhcedge.service.clock import SystemClock

CHANNELS = 16
FRAMES = 640  # detected in all channels together


@pytest.mark.slow
def test_sixteen_channels_share_two_cores_evenly() -> None:
    source = {"uri": "pattern:boxes?size=640x480&fps=15&frames=100000", "realtime": True}
    config = Config.model_validate({"channels": {f"c{index}": {"source": source} for index in range(CHANNELS)}})
    segment, counts, enough = Segment(), Counter[int](), threading.Event()

    def count(slot: FrameSlot[object]) -> None:
        counts[slot.channel] += 1
        if counts.total() >= FRAMES:
            enough.set()

    with build_plan(config, RunContext(segment, SystemClock(), Lifecycle())) as plan:
        runtime = plan.warm_up()

        def stop_when_enough() -> None:
            enough.wait(120)
            runtime.stop()

        thread = threading.Thread(target=stop_when_enough)
        thread.start()
        report = runtime.process(on_frame=count)
        thread.join()
    assert report.dropped > 0, "it was not too much, so nothing was shared"
    assert min(counts.values()) >= 0.95 * counts.total() / CHANNELS
    assert len(counts) == CHANNELS

"""A daemon whose wanted plan is built as soon as frames come through; run by test_plan_swap.py as a script."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from zhcedge.app.build_process import BuildProcess
from zhcedge.app.control import ControlLoop
from zhcedge.app.model_build import BuildReport, BuildRequest
from zhcedge.app.plan_swap import PlanSwap
from zhcedge.config.schema import Config
from zhcedge.models.bundle import load_bundle
from zhcedge.models.plans import PlanIdentity
from zhcedge.service.clock import SystemClock
from zhcedge.service.log import set_up_logging


def build(request: BuildRequest, watch: Callable[[BuildProcess], None]) -> BuildReport:
    identity = PlanIdentity("0" * 64, "m", "fp16", (1, 3, 8, 8), 1, "tensorrt", "10.3.0", ("sm87",))
    return BuildReport(identity, Path("a.plan"), 1, was_there=False)


def main(is_looped: bool, store: Path | None = None, memory_mib: int = 0) -> None:
    """With a store: the real builder of TensorRT for RTX, allowed so much memory."""
    set_up_logging("INFO")
    source = {"uri": "clip:walkers", "realtime": True, "loop": is_looped}
    config = Config.model_validate({"channels": {"a": {"source": source}}, "mqtt": {"enabled": False}})
    request, swap = BuildRequest("m"), PlanSwap(lambda: None, build)
    if store is not None:
        swap = PlanSwap(lambda: None)
        request = BuildRequest(
            config.model.bundle, "tensorrt_rtx", targets=("sm86",), memory_mib=memory_mib, store=store
        )
    with ControlLoop(config, load_bundle(config.model.bundle), SystemClock(), "INFO", swap) as loop:

        def wait_for_frames(count: int) -> None:
            until = int(loop.segment.counters["heartbeat"]) + count
            while loop.segment.counters["heartbeat"] < until:
                time.sleep(0.05)

        def begin() -> None:
            wait_for_frames(1)
            swap.start(request)
            while not (swap.is_ready or swap.failure):
                time.sleep(0.05)
            if swap.failure:
                wait_for_frames(10)
                logging.getLogger(__name__).info("ten more frames came through")

        threading.Thread(target=begin, daemon=True).start()
        loop.run()


if __name__ == "__main__":
    main(sys.argv[1] == "looped")

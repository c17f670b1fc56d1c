"""One block of tools/bench/steps: a warm pipeline over a looped video, measured from the seal to the last frame.

python steps_worker.py REQUEST: JSON with "config", "frames" and "has_graph". Prints one JSON line.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from zhcedge.app.bench_parts import _resident_mib
from zhcedge.app.wiring import RunContext, build_plan
from zhcedge.config.schema import Config
from zhcedge.core.lifecycle import Lifecycle
from zhcedge.core.ports import Device, Fence, FrameSlot, Lane, Program, Stage
from zhcedge.pipeline.segment import Segment
from zhcedge.service.clock import SystemClock
from zhcedge.service.log import set_up_logging


class Launches:
    """Counts launches and the frames in them, of every program of a device."""

    def __init__(self) -> None:
        self.count = self.frames = 0

    def watch(self, device: Device[object], has_graph: bool) -> None:
        """From now on count what is compiled; without graphs let each launch enqueue its stages one by one."""
        compiled = device.compile

        def compile(stages: Sequence[Stage], lane: Lane[object], batch: int) -> Program[object]:
            program = compiled(stages, lane, batch)
            if not has_graph:
                _without_graph(program)
            launched = program.launch

            def launch(slots: Sequence[FrameSlot[object]]) -> Fence:
                self.count += 1
                self.frames += len(slots)
                return launched(slots)

            program.launch = launch  # type: ignore[method-assign]
            return program

        device.compile = compile  # type: ignore[method-assign]


def _without_graph(program: Any) -> None:
    """Let a program of the cuda device enqueue its stages anew for every launch; the cpu device has no graphs."""
    graph = getattr(program, "_exec", None)
    if graph is None:
        return

    class Eager:
        def launch(self) -> None:
            program._enqueue()

        def close(self) -> None:
            graph.close()

    program._exec = Eager()


def main() -> None:
    request = json.loads(sys.argv[1])
    set_up_logging("ERROR")
    launches = Launches()
    context = RunContext(
        Segment(),
        SystemClock(),
        Lifecycle(),
        on_device=lambda device: launches.watch(device, request["has_graph"]),
    )
    with build_plan(Config.model_validate(request["config"]), context) as plan:
        runtime = plan.warm_up()
        launches.count = launches.frames = 0
        cpu_s = time.process_time()
        report = runtime.process(request["frames"])
        cpu_s = time.process_time() - cpu_s
        resident_mib = _resident_mib()
    answer = {
        "frames": report.frames,
        "fps": report.fps,
        "cpu_ms": cpu_s * 1e3 / report.frames,
        "rss_mib": resident_mib,
        "mean_batch": launches.frames / launches.count,
        "verdict": report.ledger.verdict.value,
    }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

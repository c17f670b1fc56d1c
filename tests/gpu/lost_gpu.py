"""A running rtx pipeline whose GPU is lost, or hangs, on purpose. A script: a lost GPU takes the process with it.

python lost_gpu.py FOLDER trap|spin: two JSON lines: what `process` raised and after how many seconds, and how long
closing took. The first may stand alone: then closing crashed, or hung.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np

from zhcedge.app.wiring import RunContext, build_plan
from zhcedge.backends.cuda._vendor import pycuda
from zhcedge.backends.cuda.device import CudaDevice
from zhcedge.backends.cuda.kernels import Kernel
from zhcedge.backends.cuda.nvrtc import KernelSource, Nvrtc
from zhcedge.backends.cuda.stages import CudaLane
from zhcedge.config.schema import Config
from zhcedge.core.errors import ZhcEdgeError
from zhcedge.core.lifecycle import Lifecycle
from zhcedge.core.requests import EngineRequest
from zhcedge.pipeline.segment import Segment
from zhcedge.service.clock import SystemClock

TRAP, SPIN = 1, 2
KERNEL = """
extern "C" __global__ void fault(const volatile int* flag)
{
    if (*flag == 1) __trap();
    while (*flag == 2) {}
}
"""


class FaultyEngine:
    """Finds nothing, until `break_gpu`: then its kernel traps or never ends."""

    description = "faulty"

    def __init__(self, request: EngineRequest, device: CudaDevice) -> None:
        self.facts, self._context = request.facts, device.context
        self._flag = device.arena.memory(256, "fault")
        major, minor = device.context.compute_capability
        source = KernelSource("fault", KERNEL, "", ("--std=c++17",))
        cubin = Nvrtc(device.context.driver_version[0]).compile(source, 10 * major + minor)
        with device.context.push():
            self._module = pycuda.module_from_buffer(cubin)
            self._kernel = Kernel(self._module.get_function("fault"), "P", "fault")

    def bind(self, lane: CudaLane) -> FaultyStage:
        return FaultyStage(self, lane)

    def enqueue(self, lane: CudaLane) -> None:
        self._kernel.launch(lane.stream, (1, 1, 1), (1, 1, 1), self._flag)

    def break_gpu(self, how: int) -> None:
        with self._context.push():
            pycuda.memcpy_htod(self._flag, np.array([how], np.int32))

    def close(self) -> None:
        """Ends with the device."""


class FaultyStage:
    name = "engine"

    def __init__(self, engine: FaultyEngine, lane: CudaLane) -> None:
        self._engine, self._lane = engine, lane

    def enqueue(self, batch: int) -> None:
        self._engine.enqueue(self._lane)


def main(folder: Path, how: int) -> None:
    source, sink = {"uri": "clip:walkers", "loop": True}, {"kind": "mp4", "path": str(folder / "out.mp4")}
    channels = {"gate": {"source": source, "sinks": [sink]}}
    config = Config.model_validate({"profile": "rtx", "channels": channels, "mqtt": {"enabled": False}})
    engines: list[FaultyEngine] = []

    def open_engine(request: EngineRequest, device: object) -> FaultyEngine:
        assert isinstance(device, CudaDevice)
        engines.append(FaultyEngine(request, device))
        return engines[0]

    broken_s = [0.0]

    def break_gpu() -> None:
        broken_s[0] = time.monotonic()
        engines[0].break_gpu(how)

    lifecycle = Lifecycle()
    context = RunContext(Segment(), SystemClock(), lifecycle, publishes=True, engine=open_engine)  # type: ignore[arg-type]
    plan = build_plan(config, context)
    runtime = plan.warm_up()
    threading.Timer(2.0, break_gpu).start()
    try:
        runtime.process()
    except ZhcEdgeError as error:
        seconds = time.monotonic() - broken_s[0]
        say(error=str(error), kind=type(error).__name__, phase=lifecycle.phase.value, seconds=seconds)
    started_s = time.monotonic()
    plan.close()
    say(closed_s=time.monotonic() - started_s, left=sorted(path.name for path in folder.iterdir()))
    os._exit(0)


def say(**values: object) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), {"trap": TRAP, "spin": SPIN}[sys.argv[2]])

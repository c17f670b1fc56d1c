"""The engine alone on the GPU, for tools/bench/gpu: imports nothing of ours, so that nothing of ours can help it.

Run as a script: python engine_cuda.py MODEL SIZE ANCHORS. It captures each lane's run into a CUDA graph and keeps two
launches of every lane in flight, so that the GPU never waits for the host: the most that ONNX Runtime's CUDA provider
gives. A command is a JSON line on standard input, {"batch": N, "lanes": L, "seconds": S}, answered by one with "frames"
and "seconds". Each combination of lane and batch gets a session and a stream of its own, made when first asked for.
"""

import ctypes
import json
import sys
import time

import numpy as np
import onnxruntime
from cuda.bindings import driver

WARM_RUNS = 3
DEPTH = 2


def main() -> None:
    model, size, anchors = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    options = json.loads(sys.argv[4]) if len(sys.argv) > 4 else {}
    onnxruntime.set_default_logger_severity(3)
    open_gpu()
    ours = [name for name in sys.modules if name.partition(".")[0] == "zhcedge"]
    print(json.dumps({"version": onnxruntime.__version__, "ours": ours}), flush=True)
    lanes = {}
    for line in sys.stdin:
        command = json.loads(line)
        started = time.perf_counter()
        chosen = []
        for index in range(command["lanes"]):
            key = index, command["batch"]
            if key not in lanes:
                lanes[key] = Lane(model, command["batch"], size, anchors, options)
            chosen.append(lanes[key])
        ready_s = time.perf_counter() - started
        answer = run(chosen, command["batch"], command["seconds"])
        print(json.dumps({**answer, "ready_s": ready_s}), flush=True)


def run(lanes: list["Lane"], batch: int, seconds: float) -> dict[str, float]:
    launches = 0
    for _ in range(2 * DEPTH):
        for lane in lanes:
            lane.launch()
    started, began_cpu_s = time.perf_counter(), time.thread_time()
    while time.perf_counter() - started < seconds:
        for lane in lanes:
            lane.launch()
        launches += len(lanes)
    elapsed, cpu_s = time.perf_counter() - started, time.thread_time() - began_cpu_s
    for lane in lanes:
        lane.finish()
    return {
        "frames": launches * batch,
        "seconds": elapsed,
        "fps": launches * batch / elapsed,
        "cpu_ms_per_launch": 1e3 * cpu_s / launches,
    }


def do(call: str, *arguments):
    result, *values = getattr(driver, call)(*arguments)
    if int(result):
        raise SystemExit(f"{call}: {result}")
    return values[0] if len(values) == 1 else tuple(values)


def open_gpu() -> None:
    """The primary context, with waits that sleep, as the pipeline has it."""
    do("cuInit", 0)
    device = do("cuDeviceGet", 0)
    do("cuDevicePrimaryCtxSetFlags", device, 4)
    do("cuCtxSetCurrent", do("cuDevicePrimaryCtxRetain", device))


class Lane:
    def __init__(self, model: str, batch: int, size: int, anchors: int, options: dict[str, str]) -> None:
        self.stream = do("cuStreamCreate", 1)
        provider = {
            "device_id": "0",
            "user_compute_stream": str(int(self.stream)),
            "cudnn_conv_algo_search": "HEURISTIC",
            "prefer_nhwc": "1",
            "fuse_conv_bias": "1",
            **options,
        }
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 3
        session = onnxruntime.InferenceSession(model, settings, providers=[("CUDAExecutionProvider", provider)])
        if session.get_providers()[0] != "CUDAExecutionProvider":
            raise SystemExit("the CUDA provider does not load")
        source, result = session.get_inputs()[0], session.get_outputs()[0]
        picture = np.random.default_rng(0).random((batch, 3, size, size), np.float32)
        shape = (batch, result.shape[1], anchors)
        self.session, self.binding = session, session.io_binding()
        memory = do("cuMemAlloc", picture.nbytes)
        do("cuMemcpyHtoD", memory, picture.ctypes.data, picture.nbytes)
        output = do("cuMemAlloc", 4 * int(np.prod(shape)))
        self.binding.bind_input(source.name, "cuda", 0, np.float32, picture.shape, int(memory))
        self.binding.bind_output(result.name, "cuda", 0, np.float32, shape, int(output))
        self.options = onnxruntime.RunOptions()
        self.options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        for _ in range(WARM_RUNS):
            self.session.run_with_iobinding(self.binding, self.options)
        do("cuStreamSynchronize", self.stream)
        self.graph = self.capture()
        self.events = [do("cuEventCreate", 3) for _ in range(DEPTH)]  # blocking sync, no timing
        self.count = 0

    def capture(self):
        do("cuStreamBeginCapture", self.stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
        self.session.run_with_iobinding(self.binding, self.options)
        graph = do("cuStreamEndCapture", self.stream)
        _, count = do("cuGraphGetNodes", graph, 0)
        nodes, _ = do("cuGraphGetNodes", graph, count)
        for node in nodes[:count]:
            freeze(node)
        executable = do("cuGraphInstantiate", graph, 0)
        do("cuGraphUpload", executable, self.stream)
        do("cuStreamSynchronize", self.stream)
        return executable

    def launch(self) -> None:
        """Wait until at most one launch of this lane is in flight, then start the next."""
        event = self.events[self.count % DEPTH]
        if self.count >= DEPTH:
            do("cuEventSynchronize", event)
        do("cuGraphLaunch", self.graph, self.stream)
        do("cuEventRecord", event, self.stream)
        self.count += 1

    def finish(self) -> None:
        do("cuStreamSynchronize", self.stream)


def freeze(node) -> None:
    """Constants that the engine copies from its own pinned memory: that memory is reused, so they move to the GPU."""
    if do("cuGraphNodeGetType", node) != driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMCPY:
        return
    copy = do("cuGraphMemcpyNodeGetParams", node)
    host = driver.CUmemorytype.CU_MEMORYTYPE_HOST
    unified = driver.CUmemorytype.CU_MEMORYTYPE_UNIFIED
    address = int(copy.srcHost or 0) if copy.srcMemoryType == host else int(copy.srcDevice)
    if copy.srcMemoryType == unified:
        attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        kind = do("cuPointerGetAttribute", attribute, driver.CUdeviceptr(address))
        if int(kind) != int(host):
            return
    elif copy.srcMemoryType != host:
        return
    size = copy.WidthInBytes * max(copy.Height, 1) * max(copy.Depth, 1)
    constants = ctypes.string_at(address, size)
    memory = do("cuMemAlloc", size)
    do("cuMemcpyHtoD", memory, constants, size)
    copy.srcMemoryType, copy.srcHost, copy.srcDevice = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE, 0, memory
    copy.srcXInBytes = 0
    do("cuGraphMemcpyNodeSetParams", node, copy)


if __name__ == "__main__":
    main()

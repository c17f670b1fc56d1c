"""The engine alone, for `bench`: imports nothing of ours, so that nothing of ours can slow or help it.

Run as a script in isolated mode: python -I engine_only.py MODEL THREADS. A command is a JSON line on standard input,
{"frames": N, "lanes": L, "interval_ms": M}, answered by one with "seconds", "frames" and "times_ms". L threads call one
session at the same time, each with tensors of its own bound once, and begin a call every M milliseconds (0: at once).
"""

import json
import sys
import threading
import time

import numpy as np
import onnxruntime


def main() -> None:
    model, threads = sys.argv[1], int(sys.argv[2])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    print(json.dumps({"version": onnxruntime.__version__, "ours": ours()}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(run(session, **command)), flush=True)


def ours() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "zhcedge"]


def run(session: onnxruntime.InferenceSession, frames: int, lanes: int, interval_ms: float) -> dict[str, object]:
    bindings = [bind(session, lane) for lane in range(lanes)]
    times: list[float] = []
    share = frames // lanes

    def work(binding: onnxruntime.IOBinding) -> None:
        begin = time.perf_counter()
        for number in range(share):
            time.sleep(max(0.0, begin + number * interval_ms / 1e3 - time.perf_counter()))
            started = time.perf_counter()
            session.run_with_iobinding(binding)
            times.append((time.perf_counter() - started) * 1e3)

    workers = [threading.Thread(target=work, args=(binding,)) for binding, _ in bindings]
    started = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return {"seconds": time.perf_counter() - started, "frames": share * lanes, "times_ms": times}


def bind(session: onnxruntime.InferenceSession, lane: int) -> tuple[onnxruntime.IOBinding, list[np.ndarray]]:
    source, result = session.get_inputs()[0], session.get_outputs()[0]
    data = np.random.default_rng(lane).random(source.shape, np.float32)
    output = np.empty(result.shape, np.float32)
    binding = session.io_binding()
    binding.bind_input(source.name, "cpu", 0, np.float32, data.shape, data.ctypes.data)
    binding.bind_output(result.name, "cpu", 0, np.float32, output.shape, output.ctypes.data)
    return binding, [data, output]


if __name__ == "__main__":
    main()

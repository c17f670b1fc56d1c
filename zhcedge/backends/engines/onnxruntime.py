"""ONNX Runtime on the CPU: inference straight from and into a lane's own arrays."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zhcedge.backends.engines._onnx_checks import check_session, check_tensors
from zhcedge.backends.engines._vendor import IoBinding, Session, open_session
from zhcedge.core.errors import PhaseError, PipelineError
from zhcedge.core.ports import Device, Lane
from zhcedge.core.requests import EngineRequest
from zhcedge.core.types import ModelFacts, Tensor

CpuBuffer = npt.NDArray[np.uint8]
"""The cpu device's buffer type: a tensor's is 1-D bytes."""

_SOON_NS = 10_000_000
"""A lane that has just run the model is back within this time when frames are waiting."""

_PRECISION = {"float32": "FP32", "float16": "FP16"}

INSTALL = "pip install 'zhcedge[cpu]'"


def open_cpu(request: EngineRequest, device: Device[CpuBuffer]) -> OnnxRuntimeEngine:
    """Load a model for the cpu device. Initialising phase.

    Raises BackendUnavailableError without onnxruntime; ModelError for a file that does not load, or whose input and
    output differ from the request's facts.
    """
    if device.name != "cpu":
        raise PipelineError(f"onnxruntime-cpu can't work on the memory of device {device.name!r}")
    cores = request.threads or len(os.sched_getaffinity(0))
    wide = _open(request, cores, spins=True)
    return OnnxRuntimeEngine(wide, _open(request, cores // 2, spins=False) if cores > 1 else wide, request.facts)


def _open(request: EngineRequest, threads: int, *, spins: bool) -> Session:
    session = open_session(
        request.model_path,
        install=INSTALL,
        providers=[("CPUExecutionProvider", {})],
        threads=threads,
        # Spinning threads would take the cores from decoding and the numpy stages: measured on 2 cores, one lane 30
        # against 27 frames a second and 62 against 70 ms of CPU a frame.
        config={"session.intra_op.allow_spinning": str(int(spins))},
    )
    check_session(session, request.facts)
    return session


class OnnxRuntimeEngine:
    """Implements core.ports.Engine. Lanes run at the same time, each over its own binding.

    A lone frame is soonest done with every core, two frames at once with half of the cores each: threads that wait
    for each other at every layer cost more than they bring. So there are two sessions of the same model, and each run
    takes the one that suits what the other lanes do: measured on 2 cores, 23 to 28 ms for a lone frame against 55
    with one thread, and 32 against 27 frames a second for two lanes.

    Args:
        wide, narrow: sessions with all threads, and with half of them; may be the same one.
    """

    def __init__(self, wide: Session, narrow: Session, facts: ModelFacts) -> None:
        self._sessions: tuple[Session, Session] | None = (wide, narrow)
        self._facts = facts
        self._description = f"onnxruntime {wide.version} CPU {_PRECISION[facts.input_dtype]}"
        self._load = _Load()
        self._stages: list[InferenceStage] = []

    @property
    def facts(self) -> ModelFacts:
        return self._facts

    @property
    def description(self) -> str:
        return self._description

    def bind(self, lane: Lane[CpuBuffer]) -> InferenceStage:
        """Bind the lane's input and output arrays. Raises PipelineError when they don't fit the model."""
        if self._sessions is None:
            raise PhaseError("the engine is closed", where=self._description)
        check_tensors(lane, self._facts)
        sizes = self._facts.batch_sizes
        wide, narrow = (
            _BoundSession(session, {size: self._bind(session, lane, size) for size in sizes})
            for session in self._sessions
        )
        self._stages.append(InferenceStage(wide, narrow, self._load, lane))
        return self._stages[-1]

    def _bind(self, session: Session, lane: Lane[CpuBuffer], batch: int) -> IoBinding:
        """Over the first `batch` frames where the model takes any number, else over all of them."""
        count = batch if self._facts.has_free_batch else self._facts.input_shape[0]
        binding = session.io_binding()
        for bind, tensor in ((binding.bind_input, lane.input), (binding.bind_output, lane.output)):
            bind(tensor.name, "cpu", 0, np.dtype(tensor.dtype).type, (count, *tensor.shape[1:]), _address(tensor))
        return binding

    def close(self) -> None:
        """Let go of the sessions, their threads and their memory, also where somebody still holds a stage."""
        self._sessions = None
        while self._stages:
            self._stages.pop().close()


class _Load:
    """Whether the lanes keep each other company."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._ended_ns: dict[int, int] = {}

    def begin(self, lane: int) -> bool:
        """A run begins. True when another lane's is going on or ended just now: that lane will soon be back."""
        now_ns = time.monotonic_ns()
        with self._lock:
            recent = (other for other, at in self._ended_ns.items() if now_ns - at < _SOON_NS)
            is_shared = self._running > 0 or any(other != lane for other in recent)
            self._running += 1
        return is_shared

    def end(self, lane: int) -> None:
        with self._lock:
            self._running -= 1
            self._ended_ns[lane] = time.monotonic_ns()


@dataclass(frozen=True)
class _BoundSession:
    session: Session
    bindings: dict[int, IoBinding]

    def run(self, batch: int) -> None:
        self.session.run(self.bindings[batch])


class InferenceStage:
    """Implements core.ports.Stage. Runs on the lane's thread; a model with a fixed batch always runs whole."""

    name = "engine"

    def __init__(self, wide: _BoundSession, narrow: _BoundSession, load: _Load, lane: Lane[CpuBuffer]) -> None:
        self._sessions: tuple[_BoundSession, _BoundSession] | None = (wide, narrow)
        self._load = load
        # The bindings know addresses only; this keeps the memory behind them alive.
        self._lane = lane
        self._is_first = True

    def enqueue(self, batch: int) -> None:
        """Raises PhaseError once the engine is closed."""
        if self._sessions is None:
            raise PhaseError("the engine is closed", where=self.name)
        wide, narrow = self._sessions
        if self._is_first:
            # A session makes its scratch memory in its first run: both have theirs in warm-up, whatever the load.
            self._is_first = False
            narrow.run(batch)
        is_shared = self._load.begin(self._lane.index)
        try:
            (narrow if is_shared else wide).run(batch)
        finally:
            self._load.end(self._lane.index)

    def close(self) -> None:
        """Let go of the sessions; a run in flight keeps them until it is done."""
        self._sessions = None


def _address(tensor: Tensor[CpuBuffer]) -> int:
    return tensor.buffer.ctypes.data

"""ONNX Runtime's CUDA provider: inference on a lane's stream, from and into the lane's device memory.

The run is captured inside the cuda device's own graph. For that the session enqueues on the lane's stream, is bound to
fixed addresses, and does not synchronise at the end of a run; its first runs, outside any capture, choose convolution
algorithms and grow its memory arena. One session a lane, because a session's scratch belongs to one stream; and one a
batch size, because a session that sees another shape throws away what it had prepared for the last one, and a captured
graph may still use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from zhcedge.backends.engines._onnx_checks import check_session, check_tensors
from zhcedge.backends.engines._vendor import IoBinding, Session, open_session, run_options
from zhcedge.core.errors import BackendUnavailableError, PhaseError, PipelineError
from zhcedge.core.ports import Lane
from zhcedge.core.requests import EngineRequest
from zhcedge.core.types import ModelFacts

INSTALL = "pip install 'zhcedge[rtx-cuda13]' (or [rtx-cuda12]), whose onnxruntime-gpu must match the driver's CUDA"

_PROVIDER = "CUDAExecutionProvider"
_OPTIONS = {
    # As fast as the exhaustive search on an H200, and a session is ready in 1 s instead of 3.
    "cudnn_conv_algo_search": "HEURISTIC",
    "arena_extend_strategy": "kSameAsRequested",  # no slack: a board's memory is short
    # What tensor cores want: the same FP16 network 509 against 429 frames a second on an H200, batch 4 620 against 548.
    "prefer_nhwc": "1",
}
# cuDNN compiles a kernel for each shape. A YOLOv8m of 1024x1024, FP16, batch 8, two lanes on an H200: 810 frames a
# second instead of 657, and the two sessions are ready in 8 s (20 s the first time on a machine) instead of 1.5 s.
_FUSED = {"fuse_conv_bias": "1"}
_RUN_OPTIONS = {"disable_synchronize_execution_providers": "1"}  # a synchronisation would end the capture


class GpuDevice(Protocol):
    """What the engine needs of the cuda device: which GPU it is."""

    @property
    def name(self) -> str: ...


def open_cuda(request: EngineRequest, device: GpuDevice) -> OnnxRuntimeCudaEngine:
    """Load a model for the cuda device, which must be open already. Initialising phase.

    Raises BackendUnavailableError without onnxruntime-gpu or when its CUDA provider does not load; ModelError for a
    file that does not load, or whose input and output differ from the request's facts.
    """
    kind, _, index = device.name.partition(":")
    if kind != "cuda" or not index.isdigit():
        raise PipelineError(f"onnxruntime-cuda can't work on the memory of device {device.name!r}")
    return OnnxRuntimeCudaEngine(request, int(index))


class OnnxRuntimeCudaEngine:
    """Implements core.ports.Engine over device addresses.

    The constructor loads the model once to check it and lets go of it again, because a session keeps the stream that
    it was made with; `bind` makes the session of a lane.
    """

    def __init__(self, request: EngineRequest, device_index: int) -> None:
        self._path, self._facts, self._device_index = request.model_path, request.facts, device_index
        self._fused = _FUSED if request.is_fused else {}
        self._is_open = True
        session = _open(self._path, self._options())
        check_session(session, self._facts)
        # A graph's own precision; cuDNN and cuBLAS take TF32 for FP32 where the GPU has it.
        self._description = f"onnxruntime {session.version} CUDA, precision of the graph"
        if self._fused:
            self._description += ", fused"

    @property
    def facts(self) -> ModelFacts:
        return self._facts

    @property
    def description(self) -> str:
        return self._description

    def bind(self, lane: Lane[int]) -> InferenceStage:
        """Load a session on the lane's stream and bind the lane's tensors. Initialising phase.

        Raises PipelineError when the tensors don't fit the model, PhaseError once closed.
        """
        if not self._is_open:
            raise PhaseError("the engine is closed", where=self._description)
        check_tensors(lane, self._facts)
        return InferenceStage(lambda batch: self._bind(lane, batch), self._facts)

    def _bind(self, lane: Lane[int], batch: int) -> tuple[Session, IoBinding]:
        """A session on the lane's stream over the first `batch` frames of its tensors."""
        session = _open(self._path, {**self._options(), "user_compute_stream": str(lane.stream_handle)})
        binding = session.io_binding()
        for bind, tensor in ((binding.bind_input, lane.input), (binding.bind_output, lane.output)):
            shape, element = (batch, *tensor.shape[1:]), np.dtype(tensor.dtype).type
            bind(tensor.name, "cuda", self._device_index, element, shape, tensor.buffer)
        return session, binding

    def close(self) -> None:
        """Bind no more lanes. Sessions live as long as the stages that were bound; programs must not run after it."""
        self._is_open = False

    def _options(self) -> dict[str, str]:
        return {"device_id": str(self._device_index), **_OPTIONS, **self._fused}


class InferenceStage:
    """Implements core.ports.Stage: enqueues one run on the lane's stream.

    A model with a free batch gets a session for each batch size, made the first time that size is asked for, which is
    when a program is compiled. One with a fixed batch always runs whole.
    """

    name = "engine"

    def __init__(self, bind: Callable[[int], tuple[Session, IoBinding]], facts: ModelFacts) -> None:
        self._bind, self._facts = bind, facts
        self._run_options = run_options(_RUN_OPTIONS)
        self._bound: dict[int, tuple[Session, IoBinding]] = {}
        self._prepare(facts.input_shape[0])  # here, so that a model that does not fit fails in `bind`

    def enqueue(self, batch: int) -> None:
        session, binding = self._prepare(batch if self._facts.has_free_batch else self._facts.input_shape[0])
        session.run(binding, self._run_options)

    def _prepare(self, batch: int) -> tuple[Session, IoBinding]:
        if batch not in self._bound:
            self._bound[batch] = self._bind(batch)
        return self._bound[batch]


def _open(path: Path, options: Mapping[str, str]) -> Session:
    session = open_session(path, install=INSTALL, providers=[(_PROVIDER, options)], threads=1, config={})
    # A provider that does not load is left out with a line on stderr, and the CPU would do the work.
    if _PROVIDER not in session.providers:
        raise BackendUnavailableError(
            f"onnxruntime {session.version} can't load its CUDA provider (CUDA, cuDNN or cuBLAS libraries are missing, "
            "or this is the CPU package)",
            where="onnxruntime",
            fix=INSTALL,
        )
    return session

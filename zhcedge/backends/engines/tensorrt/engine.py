"""A plan on the GPU: one execution context a lane and batch size, on the lane's stream, into the lane's own memory.

Contexts of one lane share its scratch, because their launches follow each other on one stream; lanes share nothing. A
batch size has a context of its own, because a captured graph holds a context's shapes, and another shape would change
them under it. Nothing of this has run on hardware yet: the tests have a simulator of the library's interface.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Protocol

from zhcedge.backends.engines.tensorrt import _vendor, versions
from zhcedge.backends.engines.tensorrt._vendor import Context, Vendor
from zhcedge.backends.engines.tensorrt.builder import Messages
from zhcedge.backends.engines.tensorrt.memory import ArenaAllocator, DeviceArena
from zhcedge.core.errors import ModelError, OutputError, PhaseError, PipelineError
from zhcedge.core.files import write_whole
from zhcedge.core.ports import Lane
from zhcedge.core.requests import EngineRequest
from zhcedge.core.types import ModelFacts

log = logging.getLogger(__name__)

_ELEMENTS = {"float32": "FLOAT", "float16": "HALF"}  # numpy's name -> the library's
_REBUILD = "build the plan again: zhc-edge model build"


class GpuDevice(Protocol):
    """What the engine needs of the cuda device: which one it is, and memory."""

    @property
    def name(self) -> str: ...
    @property
    def arena(self) -> DeviceArena: ...


def open_tensorrt(request: EngineRequest, device: GpuDevice) -> TensorRtEngine:
    """Load the request's plan with TensorRT, for the cuda device, which must be open already. Initialising phase.

    Raises BackendUnavailableError without TensorRT; ModelError for a plan that does not load or fit the facts.
    """
    return _open("tensorrt", request, device)


def open_tensorrt_rtx(request: EngineRequest, device: GpuDevice) -> TensorRtEngine:
    """The same with TensorRT for RTX."""
    return _open("tensorrt_rtx", request, device)


def _open(kind: str, request: EngineRequest, device: GpuDevice) -> TensorRtEngine:
    if not device.name.startswith("cuda:"):
        raise PipelineError(f"{kind} can't work on the memory of device {device.name!r}")
    return TensorRtEngine(_vendor.load(kind), kind, request, device.arena)


class TensorRtEngine:
    """Implements core.ports.Engine over device addresses.

    Args:
        request: with the plan's bytes; `runtime_cache` names the file where TensorRT for RTX keeps compiled kernels.

    The device's context must be current in the calling thread, as it is in the thread that opened the device.
    """

    def __init__(self, trt: Vendor, kind: str, request: EngineRequest, arena: DeviceArena) -> None:
        self._kind, self._facts, self._arena = kind, request.facts, arena
        self._where = request.facts.name
        if not request.plan:
            raise ModelError("there is no plan for this model", where=self._where, fix=_REBUILD)
        self.allocator = ArenaAllocator(arena)
        self._messages = Messages()
        self._keep = (  # the library holds plain pointers to these
            _vendor.make_logger(trt, self._messages.add),
            _vendor.make_allocator(trt, self.allocator.allocate, self.allocator.free),
        )
        runtime: _vendor.Runtime = trt.Runtime(self._keep[0])
        runtime.gpu_allocator = self._keep[1]  # type: ignore[attr-defined]
        self._runtime: _vendor.Runtime | None = runtime
        self._engine: _vendor.Engine | None = _vendor.call(
            "loading the plan", self._where, runtime.deserialize_cuda_engine, request.plan
        )
        if self._engine is None:
            raise ModelError(f"the plan does not load: {self._reason()}", where=self._where, fix=_REBUILD)
        _check(trt, self._engine, self._facts)
        self._cache_path = request.runtime_cache
        self._cache = versions.RuntimeCache(trt, kind, self._engine, _read(self._cache_path))
        self._kept = hashlib.sha256(b"").digest()
        self._description = f"{kind} {_vendor.version(trt)}, {request.precision or 'precision of the plan'}"

    @property
    def facts(self) -> ModelFacts:
        return self._facts

    @property
    def description(self) -> str:
        return self._description

    def bind(self, lane: Lane[int]) -> InferenceStage:
        """Make a lane's scratch and its context for the largest batch. Initialising phase.

        Raises PipelineError when the tensors don't fit or memory is short, PhaseError once closed.
        """
        engine = self._engine
        if engine is None:
            raise PhaseError("the engine is closed", where=self._description)
        for tensor, shape, dtype in (
            (lane.input, self._facts.input_shape, self._facts.input_dtype),
            (lane.output, self._facts.output_shape, self._facts.output_dtype),
        ):
            if tensor.shape != shape or tensor.dtype != dtype:
                raise PipelineError(f"tensor {tensor.name!r} is {tensor.dtype} {tensor.shape}, not {dtype} {shape}")
        size = max(engine.device_memory_size_v2, 1)
        scratch = self._arena.tensor("scratch", (size,), "uint8", f"lane {lane.index}, engine scratch").buffer
        stage = InferenceStage(lambda batch: self._context(lane, batch, scratch, size), lane, self._facts, self._reason)
        self._keep_kernels()
        return stage

    def _context(self, lane: Lane[int], batch: int, scratch: int, size: int) -> Context:
        """A context over the first `batch` frames of the lane's tensors."""
        engine = self._engine
        if engine is None:
            raise PhaseError("the engine is closed", where=self._description)
        context = self._cache.create_context(engine)
        if context is None:
            raise PipelineError(f"no execution context can be made: {self._reason()}", where=self._where)
        context.set_device_memory(scratch, size)
        is_ready = True
        if self._facts.has_free_batch:
            is_ready = context.set_input_shape(lane.input.name, (batch, *lane.input.shape[1:]))
        for tensor in (lane.input, lane.output):
            is_ready = is_ready and context.set_tensor_address(tensor.name, tensor.buffer)
        if not is_ready:
            raise PipelineError(f"lane {lane.index} can't be bound: {self._reason()}", where=self._where)
        return context

    def close(self) -> None:
        """Bind no more lanes. Contexts live as long as the stages that were bound; programs must not run after it."""
        if self._engine is not None:
            self._keep_kernels()
        self._engine = self._runtime = None

    def _keep_kernels(self) -> None:
        """Write down what was compiled, when it has changed. A start without it is slower, not wrong."""
        data = self._cache.bytes()
        digest = hashlib.sha256(data).digest()
        if self._cache_path is None or digest == self._kept:
            return
        try:
            write_whole(self._cache_path, data, "the runtime cache")
            self._kept = digest
        except OutputError as error:
            log.warning("compiled kernels are not kept for the next start: %s", error)

    def _reason(self) -> str:
        """Why the library gave up: what our allocator refused comes first, the library only sees a null pointer."""
        if self.allocator.failure is not None:
            return str(self.allocator.failure)
        return self._messages.last_error() or f"{self._kind} does not say why"


class InferenceStage:
    """Implements core.ports.Stage: enqueues one run on the lane's stream.

    The context of a batch size is made the first time that size is asked for, which is when its program is compiled.
    """

    name = "engine"

    def __init__(self, create: _CreateContext, lane: Lane[int], facts: ModelFacts, reason: _Reason) -> None:
        self._create, self._facts, self._reason = create, facts, reason
        self._stream, self._where = lane.stream_handle, f"lane {lane.index}"
        self._contexts: dict[int, Context] = {}
        self._prepare(facts.input_shape[0])  # here, so that a plan that does not fit fails in `bind`

    def enqueue(self, batch: int) -> None:
        """Raises PipelineError when the library refuses to enqueue."""
        context = self._prepare(batch if self._facts.has_free_batch else self._facts.input_shape[0])
        if not context.execute_async_v3(self._stream):
            raise PipelineError(f"inference failed: {self._reason()}", where=self._where)

    def _prepare(self, batch: int) -> Context:
        if batch not in self._contexts:
            self._contexts[batch] = self._create(batch)
        return self._contexts[batch]


class _CreateContext(Protocol):
    def __call__(self, batch: int, /) -> Context: ...


class _Reason(Protocol):
    def __call__(self) -> str: ...


def _check(trt: Vendor, engine: _vendor.Engine, facts: ModelFacts) -> None:
    """Raises ModelError when the plan's tensors are not those of the model."""
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    for name, mode, shape, dtype in (
        (facts.input_name, "INPUT", facts.input_shape, facts.input_dtype),
        (facts.output_name, "OUTPUT", facts.output_shape, facts.output_dtype),
    ):
        where = facts.name
        if name not in names or engine.get_tensor_mode(name) != _vendor.member(trt.TensorIOMode, mode):
            raise ModelError(f"the plan has no {mode.lower()} {name!r} (it has {', '.join(names)})", where=where)
        if engine.get_tensor_dtype(name) != _vendor.member(trt.DataType, _ELEMENTS[dtype]):
            raise ModelError(f"{mode.lower()} {name!r} of the plan is not {dtype}", where=where, fix=_REBUILD)
        found = tuple(engine.get_tensor_shape(name))
        if len(found) != len(shape) or any(have not in (-1, want) for have, want in zip(found, shape, strict=True)):
            raise ModelError(f"{name!r} of the plan is {list(found)}, not {list(shape)}", where=where, fix=_REBUILD)
        if facts.has_free_batch and found[0] != -1:
            raise ModelError(f"the plan has a fixed batch of {found[0]}", where=where, fix=_REBUILD)
    if facts.has_free_batch:
        most = engine.get_tensor_profile_shape(facts.input_name, 0)[2][0]
        if most < facts.input_shape[0]:
            raise ModelError(
                f"the plan takes batches up to {most}, {facts.input_shape[0]} are wanted",
                where=facts.name,
                fix=f"{_REBUILD} --batch {facts.input_shape[0]}",
            )


def _read(path: Path | None) -> bytes:
    """A file's bytes; b"" where there is none to read."""
    try:
        return b"" if path is None else path.read_bytes()
    except OSError:
        return b""

"""A TensorRT without a GPU: the part of its interface that we use, strict where the real one would fail or corrupt.

tests/unit/test_tensorrt_interface.py compares it with TensorRT's type stubs, and with TensorRT for RTX where that is
installed. What goes wrong is chosen by the attributes of SimTensorRt. A "plan" is JSON that names its tensors.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

DataType = enum.IntEnum("DataType", {"FLOAT": 0, "HALF": 1, "INT8": 2})
TensorIOMode = enum.IntEnum("TensorIOMode", {"NONE": 0, "INPUT": 1, "OUTPUT": 2})
MemoryPoolType = enum.IntEnum("MemoryPoolType", {"WORKSPACE": 0})
NetworkDefinitionCreationFlag = enum.IntEnum("NetworkDefinitionCreationFlag", {"STRONGLY_TYPED": 1})
ExecutionContextAllocationStrategy = enum.IntEnum(
    "ExecutionContextAllocationStrategy", {"STATIC": 0, "ON_PROFILE_CHANGE": 1, "USER_MANAGED": 2}
)
DynamicShapesKernelSpecializationStrategy = enum.IntEnum(
    "DynamicShapesKernelSpecializationStrategy", {"LAZY": 0, "EAGER": 1, "NONE": 2}
)
CudaGraphStrategy = enum.IntEnum("CudaGraphStrategy", {"DISABLED": 0, "WHOLE_GRAPH_CAPTURE": 1})
BuilderFlag = enum.IntEnum("BuilderFlag", {"DEBUG": 2, "TF32": 6})
ErrorCode = enum.IntEnum("ErrorCode", {"INVALID_NODE": 6, "UNSUPPORTED_NODE": 8})
Severity = enum.IntEnum("Severity", {"INTERNAL_ERROR": 0, "ERROR": 1, "WARNING": 2, "INFO": 3, "VERBOSE": 4})


class ILogger:
    def __init__(self) -> None:
        """As the real one, which must be called by subclasses."""
        self.is_made = True

    def log(self, severity: Severity, msg: str) -> None:
        raise NotImplementedError


class IProgressMonitor:
    def __init__(self) -> None:
        self.is_made = True

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        raise NotImplementedError

    def step_complete(self, phase_name: str, step: int) -> bool:
        raise NotImplementedError

    def phase_finish(self, phase_name: str) -> None:
        raise NotImplementedError


class IGpuAllocator:
    def __init__(self) -> None:
        self.is_made = True

    def allocate(self, size: int, alignment: int, flags: int) -> int:
        raise NotImplementedError

    def allocate_async(self, size: int, alignment: int, flags: int, stream: int) -> int:
        raise NotImplementedError

    def deallocate(self, memory: int) -> bool:
        raise NotImplementedError

    def deallocate_async(self, memory: int, stream: int) -> bool:
        raise NotImplementedError

    def reallocate(self, address: int, alignment: int, new_size: int) -> int:
        raise NotImplementedError


@dataclass
class ParserError:
    """One complaint of the parser."""

    _code: ErrorCode
    _desc: str
    _node: int
    _name: str
    _operator: str

    def code(self) -> ErrorCode:
        return self._code

    def desc(self) -> str:
        return self._desc

    def node(self) -> int:
        return self._node

    def node_name(self) -> str:
        return self._name

    def node_operator(self) -> str:
        return self._operator


@dataclass
class ITensor:
    name: str
    shape: tuple[int, ...]
    dtype: DataType = DataType.FLOAT


@dataclass
class INetworkDefinition:
    flags: int
    inputs: list[ITensor] = field(default_factory=list)
    outputs: list[ITensor] = field(default_factory=list)

    @property
    def num_inputs(self) -> int:
        return len(self.inputs)

    @property
    def num_outputs(self) -> int:
        return len(self.outputs)

    def get_input(self, index: int) -> ITensor:
        return self.inputs[index]


class OnnxParser:
    def __init__(self, sim: SimTensorRt, network: INetworkDefinition, logger: ILogger) -> None:
        self._sim, self._network = sim, network

    @property
    def num_errors(self) -> int:
        return len(self._sim.parser_errors)

    def get_error(self, index: int) -> ParserError:
        return self._sim.parser_errors[index]

    def parse(self, model: bytes, path: str | None = None) -> bool:
        if self._sim.parser_errors:
            return False
        self._network.inputs += self._sim.inputs
        self._network.outputs += self._sim.outputs
        return True


@dataclass
class IOptimizationProfile:
    shapes: dict[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)

    def set_shape(self, input: str, min: Sequence[int], opt: Sequence[int], max: Sequence[int]) -> None:
        self.shapes[input] = (tuple(min), tuple(opt), tuple(max))


@dataclass
class ITimingCache:
    data: bytes

    def serialize(self) -> bytes:
        return self.data + b"+1"


class IBuilderConfig:
    def __init__(self, sim: SimTensorRt) -> None:
        self._sim = sim
        self.max_aux_streams = -1
        self.progress_monitor: IProgressMonitor | None = None
        self.limits: dict[MemoryPoolType, int] = {}
        self.profiles: list[IOptimizationProfile] = []
        self.flags: list[BuilderFlag] = []
        self.timing: ITimingCache | None = None

    def set_memory_pool_limit(self, pool: MemoryPoolType, pool_size: int) -> None:
        self.limits[pool] = pool_size

    def set_flag(self, flag: BuilderFlag) -> None:
        self.flags.append(flag)

    def add_optimization_profile(self, profile: IOptimizationProfile) -> int:
        self.profiles.append(profile)
        return len(self.profiles) - 1

    def create_timing_cache(self, serialized_timing_cache: bytes) -> ITimingCache | None:
        return None if serialized_timing_cache == b"rubbish" else ITimingCache(serialized_timing_cache)

    def set_timing_cache(self, cache: ITimingCache, ignore_mismatch: bool) -> bool:
        self.timing = cache
        return cache.data != b"other GPU"


class Builder:
    def __init__(self, sim: SimTensorRt, logger: ILogger) -> None:
        self._sim, self._logger = sim, logger

    def create_network(self, flags: int = 0) -> INetworkDefinition:
        return INetworkDefinition(flags)

    def create_builder_config(self) -> IBuilderConfig:
        return IBuilderConfig(self._sim)

    def create_optimization_profile(self) -> IOptimizationProfile:
        return IOptimizationProfile()

    def build_serialized_network(self, network: INetworkDefinition, config: IBuilderConfig) -> bytes | None:
        self._sim.built.append((network, config))
        if network.flags != 1 << NetworkDefinitionCreationFlag.STRONGLY_TYPED:
            raise RuntimeError("weakly typed networks are gone")
        monitor = config.progress_monitor
        if monitor is not None:
            monitor.phase_start("Building engine", None, 2)
            monitor.phase_start("Timing", "Building engine", 4)
            for step in range(4):
                monitor.step_complete("Timing", step)
            monitor.phase_finish("Timing")
            monitor.step_complete("Building engine", 0)
            monitor.step_complete("Building engine", 1)
            monitor.phase_finish("Building engine")
        for severity, text in self._sim.build_says:
            self._logger.log(severity, text)
        return self._sim.plan if self._sim.builds else None


class IExecutionContext:
    """Refuses to run before it has memory, shapes and addresses; writes down each run."""

    def __init__(self, sim: SimTensorRt, engine: ICudaEngine) -> None:
        self._sim, self._engine = sim, engine
        self.memory: tuple[int, int] | None = None
        self.addresses: dict[str, int] = {}
        self.shape: tuple[int, ...] | None = None

    def set_device_memory(self, memory: int, size: int) -> None:
        if memory % 256 or size < self._engine.device_memory_size_v2:
            raise RuntimeError("unaligned or too small")
        self.memory = (memory, size)

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        least, _, most = self._engine.get_tensor_profile_shape(name, 0)
        self.shape = shape
        return all(low <= size <= high for low, size, high in zip(least, shape, most, strict=True))

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self.addresses[name] = memory
        return name in self._engine.tensors

    def execute_async_v3(self, stream_handle: int) -> bool:
        self._sim.on_run()
        needs_shape = any(-1 in tensor.shape for tensor in self._engine.tensors.values())
        is_ready = self.memory is not None and set(self.addresses) == set(self._engine.tensors)
        if self._sim.fails_to_run or not is_ready or (needs_shape and self.shape is None):
            self._sim.say(Severity.ERROR, "enqueueV3 failed")
            return False
        self._sim.runs.append((stream_handle, self.memory, dict(self.addresses), self.shape))
        return True


class IRuntimeCache:
    """Of TensorRT for RTX only."""

    def __init__(self) -> None:
        self.data = b""

    def deserialize(self, blob: bytes) -> bool:
        if blob != b"kernels":
            return False
        self.data = blob
        return True

    def serialize(self) -> bytes:
        return self.data


class IRuntimeConfig:
    """Of TensorRT for RTX only, in the parts that we use."""

    def __init__(self) -> None:
        self.strategy = ExecutionContextAllocationStrategy.STATIC
        self.cache: IRuntimeCache | None = None
        self.dynamic_shapes_kernel_specialization_strategy = DynamicShapesKernelSpecializationStrategy.LAZY
        self.cuda_graph_strategy = CudaGraphStrategy.WHOLE_GRAPH_CAPTURE

    def set_execution_context_allocation_strategy(self, strategy: ExecutionContextAllocationStrategy) -> None:
        self.strategy = strategy

    def create_runtime_cache(self) -> IRuntimeCache:
        return IRuntimeCache()

    def set_runtime_cache(self, cache: IRuntimeCache) -> bool:
        self.cache = cache
        return True


class ICudaEngine:
    def __init__(self, sim: SimTensorRt, data: dict[str, object]) -> None:
        self._sim = sim
        self.tensors: dict[str, ITensor] = {}
        self.modes: dict[str, TensorIOMode] = {}
        for mode, name, shape, dtype in data["tensors"]:  # type: ignore[attr-defined]
            self.tensors[name] = ITensor(name, tuple(shape), DataType[dtype])
            self.modes[name] = TensorIOMode[mode]
        self._most = int(str(data["batch"]))

    @property
    def num_io_tensors(self) -> int:
        return len(self.tensors)

    @property
    def device_memory_size_v2(self) -> int:
        return self._sim.scratch_bytes

    def get_tensor_name(self, index: int) -> str:
        return list(self.tensors)[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return self.modes[name]

    def get_tensor_dtype(self, name: str) -> DataType:
        return self.tensors[name].dtype

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[tuple[int, ...]]:
        rest = self.tensors[name].shape[1:]
        return [(1, *rest), (self._most, *rest), (self._most, *rest)]

    def create_runtime_config(self) -> IRuntimeConfig:
        return IRuntimeConfig()

    def create_execution_context(
        self,
        strategy: ExecutionContextAllocationStrategy | IRuntimeConfig = ExecutionContextAllocationStrategy.STATIC,
    ) -> IExecutionContext | None:
        if isinstance(strategy, IRuntimeConfig):
            self._compile(strategy)
            strategy = strategy.strategy
        if strategy is not ExecutionContextAllocationStrategy.USER_MANAGED:
            raise RuntimeError("that would allocate")
        return None if self._sim.fails_to_make_contexts else IExecutionContext(self._sim, self)

    def _compile(self, config: IRuntimeConfig) -> None:
        is_eager = config.dynamic_shapes_kernel_specialization_strategy is not (
            DynamicShapesKernelSpecializationStrategy.LAZY
        )
        if not is_eager or config.cuda_graph_strategy is not CudaGraphStrategy.DISABLED or config.cache is None:
            raise RuntimeError("it would compile or capture in the frame path")
        if not config.cache.data:
            self._sim.compiled += 1
            config.cache.data = b"kernels"


class Runtime:
    def __init__(self, sim: SimTensorRt, logger: ILogger) -> None:
        self._sim = sim
        sim.logger = logger
        self.gpu_allocator: IGpuAllocator | None = None

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> ICudaEngine | None:
        if self.gpu_allocator is None:
            raise RuntimeError("it would allocate by itself")
        try:
            data = json.loads(serialized_engine)
        except ValueError:
            self._sim.say(Severity.ERROR, "Serialization assertion header.magicTag failed")
            return None
        for size in self._sim.weights_bytes:
            if not self.gpu_allocator.allocate_async(size, 256, 0, 0):
                self._sim.say(Severity.ERROR, "Requested size was not allocated")
                return None
        self._sim.allocator = self.gpu_allocator
        return ICudaEngine(self._sim, data)


@dataclass
class SimTensorRt:
    """The module. Attributes say what is parsed, what is built, and what fails."""

    __version__: str = "10.13.0"
    inputs: list[ITensor] = field(default_factory=lambda: [ITensor("images", (1, 3, 8, 8))])
    outputs: list[ITensor] = field(default_factory=lambda: [ITensor("output0", (1, 6, 32))])
    parser_errors: list[ParserError] = field(default_factory=list)
    build_says: list[tuple[Severity, str]] = field(default_factory=list)
    plan: bytes = b"a plan"
    builds: bool = True
    scratch_bytes: int = 1000
    weights_bytes: tuple[int, ...] = (5000, 300)
    fails_to_make_contexts: bool = False
    fails_to_run: bool = False
    on_run: Callable[[], None] = lambda: None
    built: list[tuple[INetworkDefinition, IBuilderConfig]] = field(default_factory=list)
    compiled: int = 0
    runs: list[tuple[object, ...]] = field(default_factory=list)
    logger: ILogger | None = None
    allocator: IGpuAllocator | None = None
    ILogger: type = ILogger
    IProgressMonitor: type = IProgressMonitor
    IGpuAllocator: type = IGpuAllocator
    DataType: type[DataType] = DataType
    TensorIOMode: type[TensorIOMode] = TensorIOMode
    MemoryPoolType: type[MemoryPoolType] = MemoryPoolType
    BuilderFlag: type[BuilderFlag] = BuilderFlag
    NetworkDefinitionCreationFlag: type[NetworkDefinitionCreationFlag] = NetworkDefinitionCreationFlag
    ExecutionContextAllocationStrategy: type[ExecutionContextAllocationStrategy] = ExecutionContextAllocationStrategy

    DynamicShapesKernelSpecializationStrategy: type[DynamicShapesKernelSpecializationStrategy] = (
        DynamicShapesKernelSpecializationStrategy
    )
    CudaGraphStrategy: type[CudaGraphStrategy] = CudaGraphStrategy

    @property
    def Builder(self) -> Callable[[ILogger], Builder]:
        return lambda logger: Builder(self, logger)

    @property
    def OnnxParser(self) -> Callable[[INetworkDefinition, ILogger], OnnxParser]:
        return lambda network, logger: OnnxParser(self, network, logger)

    @property
    def Runtime(self) -> Callable[[ILogger], Runtime]:
        return lambda logger: Runtime(self, logger)

    def say(self, severity: Severity, text: str) -> None:
        if self.logger is not None:
            self.logger.log(severity, text)


def plan_of(
    *,
    batch: int = 1,
    is_free: bool = False,
    input_shape: tuple[int, ...] = (3, 8, 8),
    output_shape: tuple[int, ...] = (6, 32),
    input_name: str = "images",
    dtype: str = "FLOAT",
) -> bytes:
    """What SimTensorRt's runtime takes for a plan."""
    first = -1 if is_free else batch
    tensors = [
        ("INPUT", input_name, (first, *input_shape), dtype),
        ("OUTPUT", "output0", (first, *output_shape), dtype),
    ]
    return json.dumps({"batch": batch, "tensors": tensors}).encode()

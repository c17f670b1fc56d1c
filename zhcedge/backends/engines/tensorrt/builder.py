"""From an ONNX graph to a plan: a strongly typed network, so that what the graph says is what runs.

Nothing here touches the GPU but TensorRT itself. Run it in a process of its own: it takes gigabytes, and a crash of the
library must not be ours.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zhcedge.backends.engines.tensorrt import _vendor, versions
from zhcedge.backends.engines.tensorrt._vendor import BuilderConfig, Network, ParserError, Vendor
from zhcedge.core.errors import ModelError, PipelineError

Report = Callable[[float, str], None]
"""Told how much is done, 0..1, and what is being done. Any thread of the library, one at a time."""


@dataclass(frozen=True)
class BuildOrder:
    """What to build.

    Attributes:
        name: of the model, for messages.
        onnx: the serialised graph, already in the precision wanted.
        onnx_path: where it came from, for weights that lie beside it.
        opset: of the graph.
        input_name, input_shape: of the one picture, [batch, 3, height, width]; the batch is the largest that runs.
        targets: compute capabilities, such as "sm86".
        workspace_bytes: most scratch memory that a kernel may use.
        timing_cache: measurements of an earlier build on this GPU; b"" for none.
    """

    name: str
    onnx: bytes
    onnx_path: str
    opset: int
    input_name: str
    input_shape: tuple[int, ...]
    targets: tuple[str, ...]
    workspace_bytes: int
    timing_cache: bytes = b""


@dataclass(frozen=True)
class BuiltPlan:
    """A plan, the measurements to keep for the next build on this GPU, and the library's warnings."""

    plan: bytes
    timing_cache: bytes
    warnings: tuple[str, ...]


def build(trt: Vendor, kind: str, order: BuildOrder, report: Report = lambda done, what: None) -> BuiltPlan:
    """Build a plan. Blocks for seconds to many minutes.

    Raises ModelError for a graph that the library does not take, naming every node that is at fault; PipelineError
    when the build itself fails.
    """
    messages = Messages()
    logger = _vendor.make_logger(trt, messages.add)
    versions.check_opset(kind, _vendor.version(trt), order.opset, order.name)
    builder: _vendor.Builder = trt.Builder(logger)
    network: Network = builder.create_network(versions.network_flags(trt))
    _parse(trt, network, logger, order, messages)
    config: BuilderConfig = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, order.workspace_bytes)
    # One stream a lane: a second lane overlaps better than kernels of one frame, and a captured graph stays simple.
    config.max_aux_streams = 0  # type: ignore[attr-defined]
    versions.set_targets(trt, config, kind, order.targets)
    versions.forbid_own_memory(trt, config)
    monitor = _vendor.make_monitor(trt, ProgressTree(report))
    config.progress_monitor = monitor  # type: ignore[attr-defined]
    _set_shapes(builder, network, config, order)
    cache = None
    if versions.has_timing_cache(kind):
        cache = _timing_cache(config, order.timing_cache)
    memory: _vendor.Memory | None = _vendor.call(
        "the build", order.name, builder.build_serialized_network, network, config
    )
    if memory is None:
        raise PipelineError(
            f"the plan can't be built: {messages.last_error() or 'the library does not say why'}",
            where=order.name,
            fix="give it more --workspace, or another --precision",
        )
    kept = b"" if cache is None else _vendor.as_bytes(cache.serialize())
    return BuiltPlan(_vendor.as_bytes(memory), kept, messages.warnings())


def _parse(trt: Vendor, network: Network, logger: object, order: BuildOrder, messages: Messages) -> None:
    parser: _vendor.Parser = trt.OnnxParser(network, logger)
    is_parsed = _vendor.call("reading the graph", order.name, parser.parse, order.onnx, order.onnx_path)
    errors = _vendor.parser_errors(parser)
    if errors or not is_parsed:
        found = "; ".join(_describe(error) for error in errors) or messages.last_error() or "no reason is given"
        raise ModelError(
            f"the graph can't be used: {found}",
            where=order.name,
            fix="export the model without these operators, or run it with ONNX Runtime",
        )
    if network.num_outputs == 0:  # the parser takes any bytes for an empty graph
        raise ModelError("is no ONNX model, or an empty one", where=order.name, fix="export the model again")


def _describe(error: ParserError) -> str:
    """ "operator Det is not supported (node 3, '/model/Det_3')", with the parser's reason where it has one."""
    place = f"node {error.node()}, {error.node_name()!r}" if error.node_name() else f"node {error.node()}, unnamed"
    code = str(getattr(error.code(), "name", error.code()))
    reason = error.desc().removeprefix("Assertion failed: ")
    if reason == "false" or "Plugin not found" in reason:  # what the parser says of an operator that it does not know
        return f"operator {error.node_operator()} is not supported ({place})"
    if code == "UNSUPPORTED_NODE":
        return f"operator {error.node_operator()} is not supported as it is used here: {reason} ({place})"
    return f"operator {error.node_operator()}: {reason} ({code}, {place})"


def _set_shapes(builder: _vendor.Builder, network: Network, config: BuilderConfig, order: BuildOrder) -> None:
    """Give every open dimension its range: the picture's are known, and nobody knows another input's."""
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        shape = tuple(tensor.shape)
        if tensor.name != order.input_name:
            raise ModelError(
                f"the graph wants an input {tensor.name!r} {list(shape)}; one picture is what we can give",
                where=order.name,
            )
        _check_shape(shape, order)
        if -1 not in shape:
            continue
        profile: _vendor.Profile = builder.create_optimization_profile()
        most = order.input_shape
        least = most if shape[0] != -1 else (1, *most[1:])
        _vendor.call("the range of shapes", order.name, profile.set_shape, tensor.name, least, most, most)
        if config.add_optimization_profile(profile) < 0:
            raise PipelineError(f"the library refuses the shapes {list(least)} to {list(most)}", where=order.name)


def _check_shape(shape: Sequence[int], order: BuildOrder) -> None:
    wanted = order.input_shape
    if len(shape) != len(wanted) or any(have not in (-1, want) for have, want in zip(shape, wanted, strict=True)):
        shown = ["?" if size == -1 else size for size in shape]
        raise ModelError(
            f"the graph takes {shown}, not {list(wanted)}",
            where=order.name,
            fix="leave --batch out, or export the model with a free batch",
        )


def _timing_cache(config: BuilderConfig, data: bytes) -> _vendor.TimingCache:
    """The measurements of an earlier build, or none where those are another version's."""
    cache = config.create_timing_cache(data) or config.create_timing_cache(b"")
    if not config.set_timing_cache(cache, False):
        cache = config.create_timing_cache(b"")
        config.set_timing_cache(cache, False)
    found: _vendor.TimingCache = cache
    return found


class Messages:
    """What the library says. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said: list[tuple[int, str]] = []

    def add(self, severity: int, text: str) -> None:
        with self._lock:
            self._said.append((severity, " ".join(text.split())))

    def last_error(self) -> str:
        """The last error, "" without one."""
        with self._lock:
            return next((text for severity, text in reversed(self._said) if severity < _vendor.WARNING), "")

    def warnings(self) -> tuple[str, ...]:
        """Warnings in order, each once."""
        with self._lock:
            return tuple(dict.fromkeys(text for severity, text in self._said if severity == _vendor.WARNING))


class ProgressTree:
    """Phases inside phases, as one share of the whole. Implements _vendor.Progress; any thread.

    A phase is worth one step of the phase that it is in. The share never falls: the library begins phases late.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._open: dict[str, tuple[int, int]] = {}  # name -> (steps, done), outermost first
        self._most = 0.0

    def begin(self, phase: str, parent: str | None, steps: int) -> None:
        with self._lock:
            self._open[phase] = (max(steps, 1), 0)
            self._tell(phase)

    def step(self, phase: str, done: int) -> None:
        with self._lock:
            if phase in self._open:
                steps, _ = self._open[phase]
                self._open[phase] = (steps, min(done, steps))
                self._tell(phase)

    def end(self, phase: str) -> None:
        with self._lock:
            self._open.pop(phase, None)

    def _tell(self, phase: str) -> None:
        share, worth = 0.0, 1.0
        for steps, done in self._open.values():
            share += worth * done / steps
            worth /= steps
        self._most = max(self._most, min(share, 1.0))
        self._report(self._most, phase)

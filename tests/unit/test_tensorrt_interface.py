"""The simulator and our Protocols have the shape of the real libraries: names, and parameters' names in order.

TensorRT's shape comes from its type stubs (tensorrt-stubs, whose text is not quite valid Python, so each signature is
read by itself); that of TensorRT for RTX from its own docstrings.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import inspect
import re
from collections.abc import Iterator

import pytest

from tests import needs
from tests.sim import tensorrt as sim
from zhcedge.backends.engines.tensorrt import _vendor

CLASSES = (
    "Builder",
    "IBuilderConfig",
    "ICudaEngine",
    "IExecutionContext",
    "IGpuAllocator",
    "ILogger",
    "INetworkDefinition",
    "IOptimizationProfile",
    "IProgressMonitor",
    "ITimingCache",
    "OnnxParser",
    "ParserError",
    "Runtime",
)
RTX_CLASSES = ("IRuntimeCache", "IRuntimeConfig")
PROTOCOLS = {
    _vendor.Builder: "Builder",
    _vendor.BuilderConfig: "IBuilderConfig",
    _vendor.Engine: "ICudaEngine",
    _vendor.Context: "IExecutionContext",
    _vendor.Network: "INetworkDefinition",
    _vendor.Profile: "IOptimizationProfile",
    _vendor.TimingCache: "ITimingCache",
    _vendor.Parser: "OnnxParser",
    _vendor.ParserError: "ParserError",
    _vendor.Runtime: "Runtime",
}
ENUMERATIONS = (
    "DataType",
    "TensorIOMode",
    "MemoryPoolType",
    "NetworkDefinitionCreationFlag",
    "ExecutionContextAllocationStrategy",
    "BuilderFlag",
    "ErrorCode",
)
# What 11 and TensorRT for RTX have no more: TensorRT 10 may call them.
GONE_IN_11 = {("IGpuAllocator", "allocate"), ("IGpuAllocator", "deallocate")}


def members(kind: type) -> Iterator[tuple[str, list[str] | None]]:
    """Public methods with their parameters, and properties with None."""
    for name, value in vars(kind).items():
        if isinstance(value, property):
            yield name, None
        elif inspect.isfunction(value) and not name.startswith("_"):
            yield name, list(inspect.signature(value).parameters)[1:]


def ours() -> Iterator[tuple[str, str, list[str] | None]]:
    """(class of the library, member, parameters), of the simulator and of the Protocols."""
    for name in (*CLASSES, *RTX_CLASSES):
        for member, parameters in members(getattr(sim, name)):
            yield name, member, parameters
    for protocol, name in PROTOCOLS.items():
        for member, parameters in members(protocol):
            yield name, member, parameters


def stubs() -> str:
    try:
        distribution = importlib.metadata.distribution("tensorrt-stubs")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("tensorrt-stubs is not installed (pip install --no-deps)")
    return str(distribution.locate_file("tensorrt_bindings/tensorrt.pyi"))


def stub_signatures(text: str, name: str) -> dict[str, list[list[str]]]:
    """Member -> parameter names of each overload."""
    block = re.search(rf"^class {name}\b.*?(?=^class |\Z)", text, re.DOTALL | re.MULTILINE)
    assert block is not None, f"the stubs have no {name}"
    found: dict[str, list[list[str]]] = {}
    for member, rest in re.findall(r"^    def (\w+)(\(.*\)(?: -> .*)?):$", block[0], re.MULTILINE):
        try:
            tree = ast.parse(f"def {member}{rest}: ...").body[0]
        except SyntaxError:
            continue
        assert isinstance(tree, ast.FunctionDef)
        found.setdefault(member, []).append([argument.arg for argument in tree.args.args][1:])
    return found


def test_simulator_and_protocols_have_the_shape_of_the_stubs() -> None:
    with open(stubs(), encoding="utf-8") as stream:
        text = stream.read()
    signatures = {name: stub_signatures(text, name) for name in CLASSES}
    wrong = []
    for name, member, parameters in ours():
        if name in RTX_CLASSES:
            continue
        known = signatures[name].get(member)
        # A bound method of no arguments and a property look alike in the stubs of pybind11's read-only members.
        if (name, member) in {("ILogger", "log")}:
            continue  # the stubs leave the method out that subclasses must have
        if known is None or (parameters is not None and parameters not in known):
            wrong.append((name, member, parameters, known))
    assert wrong == []


def test_simulated_enumerations_have_the_members_and_values_of_the_stubs() -> None:
    with open(stubs(), encoding="utf-8") as stream:
        text = stream.read()
    wrong = []
    for name in ENUMERATIONS:
        for member in getattr(sim, name):
            value = rf"# value = <{name}\.{member.name}: {member.value}>"
            if not re.search(rf"\b{member.name}: typing\.ClassVar\[.*{value}", text):
                wrong.append((name, member))
    assert wrong == []


def test_simulated_enumerations_are_those_of_tensorrt_for_rtx() -> None:
    if importlib.util.find_spec("tensorrt_rtx") is None:
        pytest.skip(needs.wheel("tensorrt-rtx-cu13 is not installed"))
    trt = _vendor.load("tensorrt_rtx")
    names = (*ENUMERATIONS, "DynamicShapesKernelSpecializationStrategy", "CudaGraphStrategy")
    ours = {(name, member.name, member.value) for name in names for member in getattr(sim, name)}
    real = {(name, key, int(value)) for name in names for key, value in getattr(trt, name).__members__.items()}
    renumbered = ("BuilderFlag", "NetworkDefinitionCreationFlag")  # in 11; we go by names
    assert {one for one in ours - real if one[0] not in renumbered} == set()


def test_simulator_and_protocols_have_the_shape_of_tensorrt_for_rtx() -> None:
    if importlib.util.find_spec("tensorrt_rtx") is None:
        pytest.skip(needs.wheel("tensorrt-rtx-cu13 is not installed"))
    trt = _vendor.load("tensorrt_rtx")
    wrong = []
    for name, member, parameters in ours():
        real = getattr(getattr(trt, name), member, None)
        if (name, member) in GONE_IN_11 or (name, member) == ("IBuilderConfig", "create_timing_cache"):
            continue  # the latter is decorated as deprecated and has no signature
        if real is None:
            wrong.append((name, member, parameters))
        elif parameters is not None:
            overloads = [
                re.findall(r"(\w+): ", re.sub("<.*?>", "", line))[1:]
                for line in (real.__doc__ or "").splitlines()
                if re.match(rf"(\d+\. )?{member}\(self: ", line)
            ]
            if overloads and parameters not in overloads:
                wrong.append((name, member, parameters))
    assert wrong == []

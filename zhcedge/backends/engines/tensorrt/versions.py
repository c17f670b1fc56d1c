"""What differs between TensorRT 10.3 (JetPack 6.2), 10.13, 10.16, 11 and TensorRT for RTX, all in one place.

Read off the bindings of 10.3.0, 10.13.0, 11.4.0 and tensorrt_rtx 1.7.1:

- Networks are strongly typed by a flag; where the flag is gone there is no other kind of network.
- Allocators: 10.3 knows allocate/deallocate and their _async forms, 11 the _async forms only. We give all of them.
- Compute capabilities: TensorRT for RTX builds for others, several in one plan; TensorRT builds for the GPU at hand.
- Timing cache: TensorRT's own; for RTX it is a no-op since 1.2, because tactics are chosen at run time.
- Run-time kernels: TensorRT for RTX compiles them when a context is made, and keeps them in a runtime cache.
- REQUIRE_USER_ALLOCATION (RTX) makes the builder refuse what would allocate inside of a captured graph.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import cast

from zhcedge.backends.engines.tensorrt._vendor import BuilderConfig, Context, Engine, Vendor, member
from zhcedge.core.errors import BackendUnavailableError, ModelError, UsageError

RTX_TARGETS = ("sm75", "sm80", "sm86", "sm89", "sm120", "sm121")
"""What TensorRT for RTX can build for; 8.7 (Orin), 9.0 (H100) and 11.0 (Thor) are not among them."""

OLDEST_OPSET = 9

_NEWEST_OPSETS = (((11, 5), 25), ((10, 15), 24), ((10, 9), 22), ((0,), 20))
_RTX_NEWEST_OPSET = 22


def is_rtx(kind: str) -> bool:
    return kind == "tensorrt_rtx"


def newest_opset(kind: str, version: str) -> int:
    """The newest ONNX opset that this library is documented to understand.

    The parser itself takes any number and reads newer operators as if they were old ones. Where sources differ, the
    lower number counts; it is a limit and no promise for each operator (NVIDIA/TensorRT issue 4336: of
    GroupNormalization 10.7 read opset 17's). Sources, of github.com/onnx/onnx-tensorrt unless another is named:

    - 9 to 20: docs/operators.md of the tags release/10.0-GA and 10.1-GA, and still the maintainer's answer in February
      2025, with 10.8 (the same issue). So it holds for 10.3, whose own file could not be had.
    - 9 to 22: from 10.9, the first whose docs/Changelog.md has operators beyond opset 20 (GroupNormalization 21; ONNX
      1.17, which is opset 22, came with 10.6); docs/operators.md as deepwiki.com indexed it in 2025. So it holds for
      10.13, by inference.
    - 9 to 24: docs/operators.md of 10.15, and of 11.2 as other repositories quote it. docs.nvidia.com's "ONNX Opset
      Guide" of 11.x already says 25.
    - 9 to 25: release notes of 11.5.
    - TensorRT for RTX, 9 to 22: docs.nvidia.com, "ONNX Conversion Guide" of 1.4 and 1.5. Nothing newer was found for
      1.7, whose parser is linked with ONNX 1.20 or later (IR version 13).
    """
    if is_rtx(kind):
        return _RTX_NEWEST_OPSET
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    return next(opset for oldest, opset in _NEWEST_OPSETS if numbers >= oldest)


def check_opset(kind: str, version: str, opset: int, where: str) -> None:
    """Raises ModelError for an opset that the library would misread."""
    newest = newest_opset(kind, version)
    if not OLDEST_OPSET <= opset <= newest:
        raise ModelError(
            f"is written for ONNX opset {opset}, {kind} {version} reads {OLDEST_OPSET} to {newest}",
            where=where,
            fix=f"export the model again with an opset from {OLDEST_OPSET} to {newest}",
        )


def choose_targets(kind: str, wanted: Sequence[str], own: str) -> tuple[str, ...]:
    """Compute capabilities to build for, sorted: ("sm86", "sm89").

    Args:
        wanted: by the user; empty for the GPU at hand.
        own: of the GPU at hand, "" without one.

    Raises UsageError for a target that the library can't build for; BackendUnavailableError without a GPU where one is
    needed.
    """
    if not is_rtx(kind):
        if not own:
            raise BackendUnavailableError(
                "TensorRT measures kernels while it builds, and there is no NVIDIA GPU here",
                where=kind,
                fix="build on the machine that will run the plan, or use --engine tensorrt_rtx",
            )
        if tuple(wanted) not in ((), (own,)):
            raise UsageError(
                f"TensorRT builds for the GPU that it runs on ({own}), not for {', '.join(wanted)}",
                fix="leave --target out, and build on the machine that will run the plan",
            )
        return (own,)
    targets = tuple(sorted(set(wanted or ((own,) if own else ())), key=lambda name: (len(name), name)))
    if not targets:
        raise UsageError(
            "there is no NVIDIA GPU here to build for", fix=f"say which with --target: {', '.join(RTX_TARGETS)}"
        )
    if unknown := [name for name in targets if name not in RTX_TARGETS]:
        raise UsageError(
            f"TensorRT for RTX does not build for {', '.join(unknown)}",
            fix=f"choose among {', '.join(RTX_TARGETS)}, or build with --engine tensorrt on that machine",
        )
    return targets


# -- building --------------------------------------------------------------------------------------------------
def network_flags(trt: Vendor) -> int:
    """Flags of a strongly typed network."""
    flag = member(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")
    return 0 if flag is None else 1 << int(flag)


def set_targets(trt: Vendor, config: BuilderConfig, kind: str, targets: Sequence[str]) -> None:
    """Tell the builder what to build for. Raises ModelError when it refuses."""
    if not is_rtx(kind):
        return  # for the GPU at hand
    capabilities = trt.ComputeCapability  # type: ignore[attr-defined]
    config.num_compute_capabilities = len(targets)  # type: ignore[attr-defined]
    for index, name in enumerate(targets):
        capability = member(capabilities, name.upper())
        if capability is None or not config.set_compute_capability(capability, index):  # type: ignore[attr-defined]
            raise ModelError(f"this version of {kind} does not build for {name}", where=kind)


def forbid_own_memory(trt: Vendor, config: BuilderConfig) -> None:
    """Let the build fail when the plan would allocate while it runs, where the library can be asked that."""
    flag = member(trt.BuilderFlag, "REQUIRE_USER_ALLOCATION")
    if flag is not None:
        config.set_flag(flag)


def has_timing_cache(kind: str) -> bool:
    return not is_rtx(kind)


# -- running ---------------------------------------------------------------------------------------------------
class RuntimeCache:
    """Kernels that TensorRT for RTX compiled on this machine, so that the next start need not.

    Args:
        data: what an earlier start gave back by `bytes`; b"" for none.
    """

    def __init__(self, trt: Vendor, kind: str, engine: Engine, data: bytes) -> None:
        self._config = self._cache = None
        self._strategy = trt.ExecutionContextAllocationStrategy.USER_MANAGED
        if not is_rtx(kind):
            return
        self._config = config = engine.create_runtime_config()  # type: ignore[attr-defined]
        config.set_execution_context_allocation_strategy(self._strategy)
        # Compiled before the first frame, not when some shape is first seen; and the graph is captured by us.
        config.dynamic_shapes_kernel_specialization_strategy = trt.DynamicShapesKernelSpecializationStrategy.EAGER  # type: ignore[attr-defined]
        config.cuda_graph_strategy = trt.CudaGraphStrategy.DISABLED  # type: ignore[attr-defined]
        self._cache = config.create_runtime_cache()
        if data and not self._cache.deserialize(data):
            self._cache = config.create_runtime_cache()  # of another version: made anew
        config.set_runtime_cache(self._cache)

    def create_context(self, engine: Engine) -> Context | None:
        """An execution context whose device memory is ours to give; None when the library can't make one."""
        context = engine.create_execution_context(self._strategy if self._config is None else self._config)
        return cast("Context | None", context)

    def bytes(self) -> bytes:
        """What to keep for the next start; b"" where nothing is compiled at run time."""
        return b"" if self._cache is None else bytes(memoryview(self._cache.serialize()))

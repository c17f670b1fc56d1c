"""Whether a loaded ONNX graph has the input and output that a bundle's facts promise."""

from __future__ import annotations

from collections.abc import Sequence

from zhcedge.backends.engines._vendor import NodeArg, Session
from zhcedge.core.errors import ModelError, PipelineError
from zhcedge.core.ports import Lane
from zhcedge.core.types import B, ModelFacts

TENSOR_TYPES = {"float32": "tensor(float)", "float16": "tensor(float16)"}
"""numpy's name of an element type -> ONNX Runtime's."""


def check_session(session: Session, facts: ModelFacts) -> None:
    """Raises ModelError, naming what was found and what the manifest says, when they differ."""
    if facts.has_free_batch and any(node.shape and isinstance(node.shape[0], int) for node in session.inputs):
        raise ModelError(
            f"the graph has a fixed batch of {session.inputs[0].shape[0]}, the manifest says that it takes any",
            where=facts.name,
            fix="correct the bundle's manifest",
        )
    _check("input", session.inputs, facts.input_name, facts.input_shape, facts.input_dtype, facts.name)
    _check("output", session.outputs, facts.output_name, facts.output_shape, facts.output_dtype, facts.name)


def check_tensors(lane: Lane[B], facts: ModelFacts) -> None:
    """Raises PipelineError when a lane's tensors are not those of the model."""
    for tensor, shape, dtype in (
        (lane.input, facts.input_shape, facts.input_dtype),
        (lane.output, facts.output_shape, facts.output_dtype),
    ):
        if tensor.shape != shape or tensor.dtype != dtype:
            raise PipelineError(f"tensor {tensor.name!r} is {tensor.dtype} {tensor.shape}, not {dtype} {shape}")


def _check(kind: str, found: Sequence[NodeArg], name: str, shape: tuple[int, ...], dtype: str, model: str) -> None:
    fix = "correct the bundle's manifest"
    by_name = {node.name: node for node in found}
    if name not in by_name:
        names = ", ".join(by_name) or "none"
        raise ModelError(f"the graph has no {kind} {name!r} (it has {names})", where=model, fix=fix)
    if kind == "input" and len(found) > 1:
        raise ModelError(f"the graph has {len(found)} inputs, one picture is what we can give", where=model)
    node = by_name[name]
    if node.type != TENSOR_TYPES[dtype]:
        raise ModelError(f"{kind} {name!r} is {node.type}, not {TENSOR_TYPES[dtype]}", where=model, fix=fix)
    if not node.shape:
        return  # the graph does not even say how many dimensions it has: a wrong one fails in the first run
    # A free dimension (a name or None) takes any size. A batch that the manifest calls free must be.
    dimensions_fit = len(node.shape) == len(shape) and all(
        not isinstance(have, int) or have == want for have, want in zip(node.shape, shape, strict=True)
    )
    if not dimensions_fit:
        raise ModelError(
            f"{kind} {name!r} is {list(node.shape)}, the manifest says {list(shape)}", where=model, fix=fix
        )

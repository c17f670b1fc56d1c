"""What precision a graph has, and the same graph with FP16 in the middle; onnx and ONNX Runtime's converter.

TensorRT's networks are strongly typed here: what the graph says is what runs, so FP16 is a property of the graph. Its
input and output keep their types, with a Cast at each end. Scales of Q/DQ nodes become FP16 too, because TensorRT takes
a DequantizeLinear's output type from its scale; opsets below 19 have no such scales on paper, and the parsers of
TensorRT and TensorRT for RTX take them all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zhcedge.core.errors import BackendUnavailableError, ModelError

INSTALL = "pip install 'zhcedge[models]'"

_QUANTISED = frozenset({"QuantizeLinear", "DequantizeLinear"})

_MOST_SCALE_ERROR = 0.01
"""A scale that FP16 changes by more than this would shift what the calibration found."""


@dataclass(frozen=True)
class GraphPrecision:
    """What a graph is made of.

    Attributes:
        opset: of the standard operators.
        is_quantised: it has Q/DQ nodes.
        is_half: weights are FP16 already.
    """

    opset: int
    is_quantised: bool
    is_half: bool


def read_precision(path: Path) -> GraphPrecision:
    """Look at a graph, its weights unread where they lie beside it.

    Raises BackendUnavailableError without the onnx package, ModelError for what is no ONNX model.
    """
    model = _load(path, with_weights=False)
    from onnx import TensorProto

    halves = sum(weight.data_type == TensorProto.FLOAT16 for weight in model.graph.initializer)
    floats = sum(weight.data_type == TensorProto.FLOAT for weight in model.graph.initializer)
    return GraphPrecision(
        opset=max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0),
        is_quantised=any(node.op_type in _QUANTISED for node in model.graph.node),
        is_half=halves > floats,
    )


def half_precision(path: Path) -> bytes:
    """The graph, serialised, with FP16 for all that was FP32 inside; input and output keep their types.

    Takes memory for the model three times. Raises as `read_precision`, and ModelError where a weight or a scale of the
    quantisation can't be said in FP16, or the conversion fails.
    """
    model = _load(path, with_weights=True)
    try:
        from onnxruntime.transformers import float16
    except ImportError as error:
        raise BackendUnavailableError(
            f"FP16 needs ONNX Runtime's converter, which can't be imported ({error})", fix=INSTALL
        ) from error
    _check_values(model, path)
    # Min and Max have FP16 since opset 8; its default keeps them FP32 and puts casts around them.
    kept = [name for name in float16.DEFAULT_OP_BLOCK_LIST if name not in ("Min", "Max")]
    try:
        half = float16.convert_float_to_float16(model, keep_io_types=True, op_block_list=kept)
        data: bytes = half.SerializeToString()
    # What the converter, onnx's shape inference and protobuf raise has no common base but Exception.
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"the graph can't be turned into FP16 ({first})", where=str(path), fix="build it with --precision fp32"
        ) from error
    return data


def _check_values(model: Any, path: Path) -> None:
    """Raises ModelError for weights beyond FP16's range, and for scales that lose their meaning in it."""
    from onnx import TensorProto, numpy_helper

    scales = {node.input[1] for node in model.graph.node if node.op_type in _QUANTISED}
    most = float(np.finfo(np.float16).max)
    for weight in model.graph.initializer:
        if weight.data_type != TensorProto.FLOAT:
            continue
        values = np.asarray(numpy_helper.to_array(weight), np.float64)
        if weight.name in scales:
            with np.errstate(over="ignore"):
                change = np.abs(values.astype(np.float16).astype(np.float64) / values - 1)
            if change.max(initial=0) > _MOST_SCALE_ERROR:
                worst = float(values.ravel()[np.argmax(change)])
                raise ModelError(
                    f"scale {weight.name!r} of the quantisation is {worst:.3g}, which FP16 can't say closely enough",
                    where=str(path),
                    fix="quantise the model with another --method",
                )
        elif np.abs(values[np.isfinite(values)]).max(initial=0) > most and values.size > 1:
            raise ModelError(
                f"weight {weight.name!r} has values beyond FP16's largest, {most:.0f}",
                where=str(path),
                fix="build it with --precision fp32",
            )


def _load(path: Path, *, with_weights: bool) -> Any:
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError as error:
        raise BackendUnavailableError(
            f"a plan is built with the onnx package, which can't be imported ({error})", fix=INSTALL
        ) from error
    try:
        model = onnx.load(str(path), load_external_data=with_weights)
    except (DecodeError, RuntimeError, ValueError) as error:
        first = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"is no ONNX model, or a damaged one ({first})", where=str(path), fix="export the model again"
        ) from error
    except OSError as error:
        raise ModelError(f"can't be read: {error.strerror}", where=str(path), fix="check its permissions") from error
    if not model.graph.node or not model.graph.output:
        raise ModelError("is no ONNX model, or an empty one", where=str(path), fix="export the model again")
    return model

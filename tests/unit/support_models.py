"""Tiny ONNX graphs whose output is a constant, written in any head's layout; boxes that every head can say exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from zhcedge.core.types import HeadKind

Array = npt.NDArray[np.float32]
Row = tuple[tuple[float, float, float, float], float, int]
"""Corners in input pixels, score, class."""

SIDE = 64
ANCHORS = 84
"""Cells of 64 x 64 pixels at strides 8, 16 and 32."""


def encode(head: HeadKind, rows: list[Row], classes: int, anchors: int) -> Array:
    """One frame's output, [a, b], with `rows` in the first anchors and nothing in the others."""
    if head is HeadKind.END_TO_END:
        output = np.zeros((anchors, 6), np.float32)
        for index, (corners, score, label) in enumerate(rows):
            output[index] = [*corners, score, label]
        return output
    first = 4 + head.has_objectness
    values = np.zeros((first + classes, anchors), np.float32)
    for index, ((x1, y1, x2, y2), score, label) in enumerate(rows):
        values[:4, index] = [(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1]
        # 2 * score and a half: exact, and a reader that takes either for the score is found out.
        values[first + label, index] = 2 * score if head.has_objectness else score
        if head.has_objectness:
            values[4, index] = 0.5
    return np.ascontiguousarray(values.T) if head.is_rows else values


def write_constant_model(
    path: Path,
    output: npt.NDArray[np.generic],
    *,
    batch: int | str = 1,
    size: tuple[int | str, int | str] = (SIDE, SIDE),
    element: int = TensorProto.FLOAT,
    metadata: dict[str, str] | None = None,
    opset: int = 13,
    ir_version: int = 8,
    inside: Literal["any", "one", "mean"] = "any",
) -> Path:
    """A graph that gives `output`, [a, b], for every picture of the batch, whatever it shows.

    Args:
        size: (width, height) of the input; a text leaves that side open.
        inside: what the graph does with a batch, whatever it declares: each picture by itself; fail where there are
            several; give one output for all of them together.
    """
    width, height = size
    dtype = np.float16 if element == TensorProto.FLOAT16 else np.float32
    constant = numpy_helper.from_array(output.astype(dtype)[None], "constant")
    zero = numpy_helper.from_array(np.zeros((), dtype), "zero")
    shape = numpy_helper.from_array(np.array([1, 1, 1] if inside == "one" else [-1, 1, 1], np.int64), "shape")
    axes = [0, 1, 2, 3] if inside == "mean" else [1, 2, 3]
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], axes=axes, keepdims=0),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
        helper.make_node("Reshape", ["nothing", "shape"], ["column"]),
        helper.make_node("Add", ["column", "constant"], ["output0"]),
    ]
    graph = helper.make_graph(
        nodes,
        "constant",
        [helper.make_tensor_value_info("images", element, [batch, 3, height, width])],
        [helper.make_tensor_value_info("output0", element, [batch, *output.shape])],
        [constant, zero, shape],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
    helper.set_model_props(model, metadata or {})
    onnx.save(model, str(path))
    return path

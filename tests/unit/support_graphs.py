"""Small networks with the shape of a detector, as ONNX files: a stem, a residual, shared features, two heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIDE, STRIDE, CLASSES, BINS = 32, 4, 3, 4
CELLS = (SIDE // STRIDE) ** 2
CHANNELS = 8


class NetworkWriter:
    """Adds nodes to a graph. Names say nothing about what a node is for, as in the worst of exports."""

    def __init__(self, seed: int = 1, opset: int = 13, *, named: bool = False) -> None:
        self._random = np.random.default_rng(seed)
        self._opset, self._named = opset, named
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._count = 0

    def constant(self, values: np.ndarray) -> str:
        self._count += 1
        self.weights.append(numpy_helper.from_array(values, f"w{self._count}"))
        return f"w{self._count}"

    def add(self, op: str, inputs: Sequence[str], output: str = "", **attributes: object) -> str:
        self._count += 1
        output = output or f"t{self._count}"
        name = f"node{self._count}" if self._named else ""
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=name, **attributes))
        return output

    def conv(self, source: str, width: int, out: int, size: int = 3, stride: int = 1, *, bias: bool = True) -> str:
        weight = self._random.normal(0, 1 / np.sqrt(width * size * size), (out, width, size, size)).astype(np.float32)
        inputs = [source, self.constant(weight)]
        if bias:
            inputs.append(self.constant(self._random.normal(0, 0.1, out).astype(np.float32)))
        pad = size // 2
        return self.add("Conv", inputs, pads=[pad] * 4, strides=[stride] * 2, kernel_shape=[size] * 2)

    def shape(self, *sides: int) -> str:
        return self.constant(np.array(sides, np.int64))

    def save(self, path: Path, batch: int | str = 1, element: int = TensorProto.FLOAT) -> Path:
        graph = helper.make_graph(
            self.nodes,
            "detector",
            [helper.make_tensor_value_info("images", element, [batch, 3, SIDE, SIDE])],
            [helper.make_tensor_value_info("output0", element, [batch, 4 + CLASSES, CELLS])],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self._opset)], ir_version=8)
        helper.set_model_props(model, {"names": "{0: 'person', 1: 'car', 2: 'dog'}", "task": "detect"})
        onnx.save(model, str(path))
        return path


def write_detector(
    path: Path,
    *,
    seed: int = 1,
    batch: int | str = 1,
    opset: int = 13,
    residuals: int = 1,
    bias: bool = True,
    dfl_by: str = "Conv",
    named: bool = False,
    change: Callable[[NetworkWriter], None] = lambda writer: None,
) -> Path:
    """A YOLOv8-shaped detector: SiLU, residual blocks, a box head with DFL and a class head with a sigmoid.

    Args:
        bias: whether convolutions have one.
        dfl_by: what projects the distribution of an edge: "Conv", "MatMul" or "ReduceSum".
        change: called before the file is written.
    """
    net = NetworkWriter(seed, opset, named=named)

    def layer(source: str, width: int, out: int, size: int = 3, stride: int = 1) -> str:
        value = net.conv(source, width, out, size, stride, bias=bias)
        return net.add("Mul", [value, net.add("Sigmoid", [value])])

    features = layer(layer("images", 3, CHANNELS, stride=2), CHANNELS, CHANNELS, stride=2)
    for _ in range(residuals):
        features = net.add("Add", [features, layer(layer(features, CHANNELS, CHANNELS), CHANNELS, CHANNELS)])
    box = net.conv(layer(features, CHANNELS, CHANNELS), CHANNELS, 4 * BINS, 1, bias=bias)
    score = net.conv(layer(features, CHANNELS, CHANNELS), CHANNELS, CLASSES, 1, bias=bias)
    edges = _edges(net, box, dfl_by)
    cell = net.constant(np.arange(CELLS, dtype=np.float32)[None, None] % 8 * STRIDE)
    scaled = net.add("Mul", [edges, net.constant(np.float32([STRIDE]))])
    boxes = net.add("Add", [net.add("Add", [scaled, scaled]), cell])  # of two activations, in the head
    scores = net.add("Sigmoid", [net.add("Reshape", [score, net.shape(-1, CLASSES, CELLS)])])
    net.add("Concat", [boxes, scores], "output0", axis=1)
    change(net)
    return net.save(path, batch)


def _edges(net: NetworkWriter, box: str, dfl_by: str) -> str:
    """[batch, 4, cells]: the mean of the distribution of each edge."""
    bins = np.arange(BINS, dtype=np.float32)
    split = net.add("Reshape", [box, net.shape(-1, 4, BINS, CELLS)])
    if dfl_by == "ReduceSum":
        share = net.add("Softmax", [split], axis=2)
        weighted = net.add("Mul", [share, net.constant(bins[None, None, :, None])])
        return net.add("ReduceSum", [weighted, net.shape(2)], keepdims=0)
    if dfl_by == "MatMul":
        last = net.add("Softmax", [net.add("Transpose", [split], perm=[0, 1, 3, 2])], axis=3)
        return net.add("Reshape", [net.add("MatMul", [last, net.constant(bins[:, None])]), net.shape(-1, 4, CELLS)])
    first = net.add("Softmax", [net.add("Transpose", [split], perm=[0, 2, 1, 3])], axis=1)
    weight = net.constant(bins[None, :, None, None])
    return net.add("Reshape", [net.add("Conv", [first, weight], kernel_shape=[1, 1]), net.shape(-1, 4, CELLS)])

"""What a Q/DQ graph must look like so that TensorRT builds it and the head keeps its precision. Pure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from zhcedge.models.graph import QUANTISED_OPERATORS, WEIGHTED, Graph, Node, find_head

Constant = Callable[[str], npt.NDArray[np.generic]]
"""Values of a constant by its name."""

_QUANTISE, _DEQUANTISE = "QuantizeLinear", "DequantizeLinear"


def rule_faults(graph: Graph, constant: Constant) -> list[str]:
    """What is wrong with a quantised graph, in words; empty when it is right.

    Every pair is whole, int8 and symmetric; weights have a scale per channel; no bias is quantised; of a weighted node
    or a residual both inputs are quantised or none; the head has no pairs.
    """
    faults = []
    for node in graph.nodes:
        if node.op in QUANTISED_OPERATORS:
            faults += _pair_faults(graph, node, constant)
        elif node.op in WEIGHTED or node.op == "Add":
            faults += _input_faults(graph, node, constant)
    bare = _without_pairs(graph)
    for node in bare.nodes:
        if node.name in find_head(bare) and any(_is_dequantised(graph, tensor) for tensor in _node(graph, node).inputs):
            faults.append(f"{node.name} belongs to the head and reads a quantised tensor")
    return faults


def _pair_faults(graph: Graph, node: Node, constant: Constant) -> list[str]:
    zero = constant(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] in graph.constants else None
    faults = []
    if zero is None or zero.dtype != np.int8:
        faults.append(f"{node.name} has no zero point of int8")
    elif np.any(zero != 0):
        faults.append(f"{node.name} has a zero point other than 0")
    if not np.all(constant(node.inputs[1]).astype(np.float64) > 0):
        faults.append(f"{node.name} has a scale that is not positive")
    readers = graph.consumers.get(node.outputs[0], [])
    if node.op == _QUANTISE and [reader.op for reader in readers] != [_DEQUANTISE]:
        faults.append(f"{node.name} is not followed by one DequantizeLinear")
    if node.op == _DEQUANTISE and (maker := graph.producers.get(node.inputs[0])) is not None and maker.op != _QUANTISE:
        faults.append(f"{node.name} does not follow a QuantizeLinear")
    return faults


def _input_faults(graph: Graph, node: Node, constant: Constant) -> list[str]:
    quantised = [_is_dequantised(graph, tensor) for tensor in node.inputs[:2]]
    faults = []
    if any(quantised) and not all(quantised):
        faults.append(f"{node.name} has one quantised input of two")
    if len(node.inputs) > 2 and _is_dequantised(graph, node.inputs[2]):
        faults.append(f"{node.name} has a quantised bias")
    if node.op == "Conv" and all(quantised):
        dequantise = graph.producers[node.inputs[1]]
        weight = graph.producers[dequantise.inputs[0]].inputs[0] if dequantise.inputs[0] in graph.producers else ""
        if weight not in graph.constants or constant(weight).dtype != np.float32:
            faults.append(f"the weights of {node.name} are not kept as float32 behind a pair")
        elif constant(dequantise.inputs[1]).shape != (constant(weight).shape[0],):
            faults.append(f"the weights of {node.name} have no scale per channel")
    return faults


def _is_dequantised(graph: Graph, tensor: str) -> bool:
    maker = graph.producers.get(tensor)
    return maker is not None and maker.op == _DEQUANTISE


def _node(graph: Graph, bare: Node) -> Node:
    return graph.producers[bare.outputs[0]]


def _without_pairs(graph: Graph) -> Graph:
    """The graph as it was before: every reader of a pair reads what goes into it."""
    source: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        if node.op in QUANTISED_OPERATORS:
            source[node.outputs[0]] = source.get(node.inputs[0], node.inputs[0])
        else:
            inputs = tuple(source.get(tensor, tensor) for tensor in node.inputs)
            nodes.append(Node(node.name, node.op, inputs, node.outputs))
    return Graph(tuple(nodes), graph.inputs, graph.outputs, graph.constants, graph.floats)

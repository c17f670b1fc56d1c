"""A model's graph as plain values, and the parts of it that quantisation treats differently. Pure.

Everything is found by how the graph is connected, nothing by the names that an exporter gave.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

WEIGHTED = frozenset({"Conv", "Gemm", "MatMul"})
"""Operators that multiply and accumulate: where integers pay."""

QUANTISED_OPERATORS = frozenset({"QuantizeLinear", "DequantizeLinear"})

_RESHAPING = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Split", "Slice"})
_BARRIERS = WEIGHTED | {"ConvTranspose"}

PARTS = ("first", "before-head")
"""Parts that can be left in floating point besides the head, see `leave_float`."""


@dataclass(frozen=True)
class Node:
    """One operator. `name` is unique in its graph; an input that was left out is ""."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order.

    Attributes:
        inputs, outputs: tensors that come from and go to the outside.
        constants: tensors with fixed values.
        floats: tensors that are known to hold float32.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: frozenset[str]
    floats: frozenset[str]

    @cached_property
    def producers(self) -> dict[str, Node]:
        """Who makes a tensor; constants and inputs have nobody."""
        return {tensor: node for node in self.nodes for tensor in node.outputs}

    @cached_property
    def consumers(self) -> dict[str, list[Node]]:
        """Who reads a tensor."""
        readers: defaultdict[str, list[Node]] = defaultdict(list)
        for node in self.nodes:
            for tensor in set(node.inputs):
                readers[tensor].append(node)
        return dict(readers)

    def activations(self, node: Node) -> tuple[str, ...]:
        """The inputs of a node that depend on the picture, each once."""
        return tuple(dict.fromkeys(tensor for tensor in node.inputs if tensor and tensor not in self.constants))

    def behind(self, tensors: Iterable[str]) -> Iterator[Node]:
        """The makers of tensors."""
        for tensor in tensors:
            if tensor in self.producers:
                yield self.producers[tensor]


@dataclass(frozen=True)
class Sites:
    """Where Q/DQ pairs go.

    Attributes:
        nodes: names of the nodes whose inputs are quantised, in the graph's order.
        tensors: the activations that need a range: what those nodes read.
        excluded: names of weighted nodes that stay in floating point, in the graph's order.
    """

    nodes: tuple[str, ...]
    tensors: tuple[str, ...]
    excluded: tuple[str, ...]


def find_head(graph: Graph) -> frozenset[str]:
    """Names of the nodes that make boxes and scores of features: the last weighted nodes and all that comes after.

    Found by walking back from the outputs up to the first weighted node on every path. One that projects a softmax is
    passed: the distribution of a box's edge (DFL, Li et al. 2020, "Generalized Focal Loss") is read off by a fixed
    convolution or product, and the layer that is wanted lies before it.
    """
    head: set[str] = set()
    waiting = list(graph.behind(graph.outputs))
    while waiting:
        node = waiting.pop()
        if node.name in head:
            continue
        head.add(node.name)
        if node.op not in _BARRIERS or _reads_softmax(graph, node):
            waiting.extend(graph.behind(node.inputs))
    return frozenset(head)


def _reads_softmax(graph: Graph, node: Node) -> bool:
    """Whether the only thing that varies in the input is a softmax that was merely put into another shape."""
    varying = graph.activations(node)
    while len(varying) == 1 and varying[0] in graph.producers:
        node = graph.producers[varying[0]]
        if node.op == "Softmax":
            return True
        if node.op not in _RESHAPING:
            return False
        varying = graph.activations(node)
    return False


def leave_float(graph: Graph, parts: Iterable[str]) -> frozenset[str]:
    """Names of the nodes that stay in floating point: the head, and the named parts.

    Args:
        parts: of PARTS. "first": the weighted nodes that the picture reaches first. "before-head": those that the head
            reads, with nothing weighted in between.
    """
    left = head = find_head(graph)
    if "before-head" in parts:
        seen: set[str] = set()
        waiting = [node for name in _last_weighted(graph, head) for node in graph.behind(name.inputs)]
        while waiting:
            node = waiting.pop()
            if node.name in seen | head:
                continue
            seen.add(node.name)
            if node.op in _BARRIERS:
                left |= {node.name}
            else:
                waiting.extend(graph.behind(node.inputs))
    if "first" in parts:
        left |= _first_weighted(graph)
    return left


def _last_weighted(graph: Graph, head: frozenset[str]) -> list[Node]:
    return [node for node in graph.nodes if node.name in head and node.op in _BARRIERS]


def _first_weighted(graph: Graph) -> frozenset[str]:
    first: set[str] = set()
    reached = set(graph.inputs)
    for node in graph.nodes:  # in topological order, so one pass is enough
        if reached.isdisjoint(node.inputs):
            continue
        if node.op in _BARRIERS:
            first.add(node.name)
        else:
            reached.update(node.outputs)
    return frozenset(first)


def find_sites(graph: Graph, left_float: frozenset[str]) -> Sites:
    """Where Q/DQ pairs go: weighted nodes, and additions of two activations (residuals), outside of `left_float`.

    A residual's both inputs are quantised, so that TensorRT can run it, and the convolution before it, in integers.
    """
    nodes, tensors = [], dict[str, None]()
    for node in graph.nodes:
        varying = graph.activations(node)
        is_residual = node.op == "Add" and len(varying) == 2
        is_weighted = node.op in WEIGHTED and bool(varying)
        if (is_residual or is_weighted) and node.name not in left_float and graph.floats.issuperset(varying):
            nodes.append(node.name)
            tensors.update(dict.fromkeys(varying))
    chosen = set(nodes)
    excluded = tuple(node.name for node in graph.nodes if node.op in WEIGHTED and node.name not in chosen)
    return Sites(tuple(nodes), tuple(tensors), excluded)

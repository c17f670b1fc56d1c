"""The one home of the onnx package (Apache-2.0), which only an import needs; its untyped surface ends here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zhcedge.core.errors import BackendUnavailableError, ModelError

INSTALL = "pip install 'zhcedge[models]'"

_EXTERNAL = 1  # onnx.proto, TensorProto.DataLocation

_KNOWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview.training", "org.pytorch.aten")
"""Domains of operators that ONNX defines or ONNX Runtime brings; "com.microsoft..." besides."""


@dataclass(frozen=True)
class GraphValue:
    """An input or output. A dimension is a number, or None where the graph leaves it open.

    Attributes:
        element: onnx.proto's name of the element type, such as "FLOAT16"; "" for what is no tensor.
    """

    name: str
    element: str
    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class OnnxFile:
    """What an ONNX file says about itself, weights left out.

    Attributes:
        producer: what wrote it, with its version.
        operators: every operator that occurs, those inside of branches, loops and functions included.
        foreign: those of somebody else's domain that the file does not define, each with its place.
        external_data: files beside it that hold weights, as it names them.
        metadata: its key-value pairs.
    """

    ir_version: int
    opset: int
    producer: str
    inputs: tuple[GraphValue, ...]
    outputs: tuple[GraphValue, ...]
    operators: frozenset[str]
    foreign: tuple[str, ...]
    external_data: tuple[str, ...]
    metadata: dict[str, str]


def read_onnx(path: Path) -> OnnxFile:
    """Parse a file without its external data.

    Raises BackendUnavailableError without the package; ModelError for a file that is no ONNX model.
    """
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError as error:
        raise BackendUnavailableError(
            f"a model is imported with the onnx package, which can't be imported ({error})", fix=INSTALL
        ) from error
    try:
        model = onnx.load(str(path), load_external_data=False)
    except (DecodeError, RuntimeError, ValueError) as error:
        raise ModelError(
            f"is no ONNX model, or a damaged one ({_first_line(error)})", where=str(path), fix="export the model again"
        ) from error
    except OSError as error:
        raise ModelError(f"can't be read: {error.strerror}", where=str(path), fix="check its permissions") from error
    graphs = list(_graphs(model.graph))
    nodes = [node for graph in graphs for node in graph.node]
    nodes += [node for function in model.functions for node in function.node]
    weights = {weight.name for weight in model.graph.initializer}
    return OnnxFile(
        ir_version=model.ir_version,
        opset=max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0),
        producer=f"{model.producer_name} {model.producer_version}".strip(),
        inputs=tuple(_value(value) for value in model.graph.input if value.name not in weights),
        outputs=tuple(_value(value) for value in model.graph.output),
        operators=frozenset(node.op_type for node in nodes),
        foreign=_foreign(model),
        external_data=tuple(sorted({name for graph in graphs for name in _external_data(graph)})),
        metadata={entry.key: entry.value for entry in model.metadata_props},
    )


def _foreign(model: Any) -> tuple[str, ...]:
    """ "acme.MyNms (node 1, '/model/nms')": what no domain that we know and no function of the file explains, once."""
    own = {(function.domain, function.name) for function in model.functions}
    found: dict[str, str] = {}
    for graph in _graphs(model.graph):
        for index, node in enumerate(graph.node):
            is_standard = node.domain in _KNOWN_DOMAINS or node.domain.startswith("com.microsoft")
            if not is_standard and (node.domain, node.op_type) not in own:
                place = f"node {index}, {node.name!r}" if node.name else f"node {index}, unnamed"
                found.setdefault(f"{node.domain}.{node.op_type}", place)
    return tuple(f"{name} ({place})" for name, place in found.items())


def _graphs(graph: Any) -> Iterator[Any]:
    """The graph and every one inside of it. protobuf itself bounds the depth."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ())):
                yield from _graphs(inner)


def _external_data(graph: Any) -> Iterator[str]:
    constants = (attribute.t for node in graph.node for attribute in node.attribute if attribute.HasField("t"))
    for tensor in (*graph.initializer, *constants):
        if tensor.data_location == _EXTERNAL:
            yield next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def _value(value: Any) -> GraphValue:
    from onnx import TensorProto

    if not value.type.HasField("tensor_type"):
        return GraphValue(value.name, "", ())
    tensor = value.type.tensor_type
    shape = tuple(d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else None for d in tensor.shape.dim)
    names = {number: name for name, number in TensorProto.DataType.items()}
    return GraphValue(value.name, names.get(tensor.elem_type, str(tensor.elem_type)), shape)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]

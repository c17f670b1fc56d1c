"""The one home of onnxruntime.quantization (MIT), and of the graph surgery around it; the untyped surface ends here."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zhcedge.core.errors import BackendUnavailableError, ModelError
from zhcedge.core.files import write_whole
from zhcedge.models.graph import QUANTISED_OPERATORS, Graph, Node, Sites

INSTALL = "pip install 'zhcedge[quantize]'"

_LEAST_OPSET = 13
"""The first one whose QuantizeLinear has an axis, which weights per channel need."""

_LOG_ERRORS_ONLY = 3
_TWIN, _MEAN = "/twin", "/mean"
_INTEGER_OPERATORS = QUANTISED_OPERATORS | {
    "ConvInteger",
    "DynamicQuantizeLinear",
    "MatMulInteger",
    "QLinearConv",
    "QLinearMatMul",
}

Floats = npt.NDArray[np.float32]


class FloatModel:
    """An ONNX file of single precision, with unique names of nodes.

    Raises BackendUnavailableError without the packages, ModelError for a file that can't be quantised.
    """

    def __init__(self, path: Path) -> None:
        onnx = _require()
        from google.protobuf.message import DecodeError

        self._where = str(path)
        try:
            model = onnx.load(str(path))
        except (DecodeError, RuntimeError, ValueError, OSError) as error:
            raise ModelError(f"can't be read as ONNX ({_first_line(error)})", where=self._where) from error
        operators = {node.op_type for node in model.graph.node}
        if found := sorted(operators & _INTEGER_OPERATORS):
            raise ModelError(
                f"is quantised already (it has {', '.join(found)})",
                where=self._where,
                fix="quantise the model of single precision that it was made of",
            )
        self._model = _prepared(model, self._where)
        self._is_single = all(
            value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
            for value in (*self._model.graph.input, *self._model.graph.output)
        )
        if not self._is_single:
            raise ModelError(
                "is not of single precision",
                where=self._where,
                fix="export the model without half=True; the int8 file is made from float32",
            )
        self.graph = _view(self._model)

    def reader(self, tensors: Sequence[str]) -> TensorReader:
        """Runs the model and gives these tensors."""
        model = _copy(self._model)
        _expose(model, tensors)
        return TensorReader(model, self.graph.inputs[0], tensors, self._where)

    def quantised(self, sites: Sites, thresholds: Mapping[str, float]) -> QuantisedModel:
        """A copy with Q/DQ pairs at `sites`: symmetric int8, weights per channel, biases as they are.

        Args:
            thresholds: of every one of `sites.tensors`.
        """
        from onnxruntime.quantization import QuantType
        from onnxruntime.quantization.calibrate import CalibrationMethod, TensorData, TensorsData
        from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

        model = _copy(self._model)
        _give_biases(model, frozenset(sites.nodes))
        ranges = {
            tensor: TensorData(lowest=np.float32(-limit), highest=np.float32(limit))
            for tensor, limit in thresholds.items()
        }
        kinds = sorted({node.op for node in self.graph.nodes if node.name in sites.nodes})
        quantiser = QDQQuantizer(
            model,
            per_channel=True,
            reduce_range=False,
            weight_qType=QuantType.QInt8,
            activation_qType=QuantType.QInt8,
            tensors_range=TensorsData(CalibrationMethod.MinMax, ranges),
            nodes_to_quantize=list(sites.nodes),
            nodes_to_exclude=[],
            op_types_to_quantize=kinds,
            extra_options={
                "ActivationSymmetric": True,
                "WeightSymmetric": True,
                # TensorRT refuses a bias of int32, and scales of weights need not be bent to make one fit.
                "QuantizeBias": False,
                "QDQDisableWeightAdjustForInt32Bias": True,
                # Weights stay float32 in the file, each behind a pair: a builder casts the rest to half precision.
                "AddQDQPairToWeight": True,
                # Inputs alone: a pair behind a convolution would round what the activation function still has to see.
                "OpTypesToExcludeOutputQuantization": kinds,
            },
        )
        root = logging.getLogger()  # the library warns on it about pre-processing that is done already
        level = root.level
        root.setLevel(logging.ERROR)
        try:
            quantiser.quantize_model()
        # The library signals what it can't do by a bare ValueError, KeyError, RuntimeError or AssertionError.
        except (ValueError, KeyError, RuntimeError, AssertionError, TypeError) as error:
            raise ModelError(f"can't be quantised: {_first_line(error)}", where=self._where) from error
        finally:
            root.setLevel(level)
        _keep_others_float(quantiser.model.model, frozenset(sites.nodes))
        quantiser.model.topological_sort()  # pairs were added at the end, which ONNX forbids
        return QuantisedModel(self._model, quantiser.model.model, frozenset(sites.nodes), self._where)


class TensorReader:
    """Runs a model on the CPU and gives tensors of it."""

    def __init__(self, model: Any, input_name: str, tensors: Sequence[str], where: str) -> None:
        os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # read at import; see backends/engines/_vendor.py
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = _LOG_ERRORS_ONLY
        self._input, self._tensors, self._where = input_name, list(tensors), where
        try:
            self._session = onnxruntime.InferenceSession(
                _serialised(model, where), options, providers=["CPUExecutionProvider"]
            )
        # The package's errors share no base class of their own: Exception and RuntimeError are what they derive from.
        except Exception as error:
            raise ModelError(f"can't be run: {_first_line(error)}", where=where) from error

    def read(self, values: Floats) -> dict[str, Floats]:
        """The tensors for one input. Raises ModelError when the graph can't be run on it."""
        try:
            found = self._session.run(self._tensors, {self._input: values})
        # As above.
        except Exception as error:
            raise ModelError(f"can't be run on a picture: {_first_line(error)}", where=self._where) from error
        return dict(zip(self._tensors, found, strict=True))


class QuantisedModel:
    """A model with Q/DQ pairs."""

    def __init__(self, original: Any, model: Any, quantised: frozenset[str], where: str) -> None:
        self._original, self._model, self._where = original, model, where
        constants = {weight.name for weight in model.graph.initializer}
        self._convolutions = [  # those with a bias that can be corrected
            node
            for node in model.graph.node
            if node.op_type == "Conv" and node.name in quantised and len(node.input) > 2 and node.input[2] in constants
        ]

    @property
    def graph(self) -> Graph:
        return _view(self._model)

    def constant(self, tensor: str) -> npt.NDArray[np.generic]:
        """The values of a constant. Raises KeyError for anything else."""
        from onnx import numpy_helper

        values: npt.NDArray[np.generic] = numpy_helper.to_array(
            {weight.name: weight for weight in self._model.graph.initializer}[tensor]
        )
        return values

    def error_reader(self) -> TensorReader:
        """Runs the original model with a quantised twin beside each convolution, fed from the same tensor, and gives
        the mean of `original - twin` per output channel, by the convolution's name."""
        from onnx import helper

        model = _copy(self._original)
        ours = {weight.name: weight for weight in self._model.graph.initializer}
        has = {weight.name for weight in model.graph.initializer}
        model.graph.initializer.extend(weight for weight in self._model.graph.initializer if weight.name not in has)
        model.graph.node.extend(node for node in self._model.graph.node if node.op_type in QUANTISED_OPERATORS)
        for node in self._convolutions:
            twin, output = _copy(node), node.output[0]
            twin.name, twin.output[0] = f"{node.name}{_TWIN}", f"{output}{_TWIN}"
            bias = _copy(ours[node.input[2]])  # the original has another one of that name
            bias.name = twin.input[2] = f"{node.name}{_TWIN}/bias"
            model.graph.initializer.append(bias)
            model.graph.node.extend(
                [
                    twin,
                    helper.make_node("Sub", [output, twin.output[0]], [f"{output}{_TWIN}/error"]),
                    *_mean_nodes(f"{output}{_TWIN}/error", f"{node.name}{_MEAN}", self._model, node),
                ]
            )
        names = [f"{node.name}{_MEAN}" for node in self._convolutions]
        _expose(model, names)
        return TensorReader(model, self._original.graph.input[0].name, names, self._where)

    def correct_biases(self, means: Mapping[str, Floats]) -> None:
        """Add means of `error_reader` to the biases."""
        from onnx import numpy_helper

        weights = {weight.name: weight for weight in self._model.graph.initializer}
        readers: dict[str, int] = {}
        for node in self._model.graph.node:
            for tensor in node.input:
                readers[tensor] = readers.get(tensor, 0) + 1
        for node in self._convolutions:
            bias = numpy_helper.to_array(weights[node.input[2]]) + means[f"{node.name}{_MEAN}"]
            name = node.input[2]
            if readers[name] > 1:  # shared with another node, which has an error of its own
                name = f"{node.name}/bias"
                node.input[2] = name
                self._model.graph.initializer.append(numpy_helper.from_array(bias.astype(np.float32), name))
            else:
                weights[name].CopyFrom(numpy_helper.from_array(bias.astype(np.float32), name))

    def save(self, path: Path) -> None:
        """Write one file. Raises OutputError and then leaves none."""
        write_whole(path, _serialised(self._model, self._where), "the model")


def _require() -> Any:
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # read at import; see backends/engines/_vendor.py
    try:
        import onnx
        import onnx.version_converter
        import onnxruntime.quantization  # noqa: F401
    except (ImportError, AttributeError) as error:
        # AttributeError: a half-removed package leaves an empty namespace behind.
        raise BackendUnavailableError(
            f"a model is quantised with onnx and onnxruntime, which can't be imported ({error})", fix=INSTALL
        ) from error
    return onnx


def _prepared(model: Any, where: str) -> Any:
    """A model of an opset that has what we need, constants as initializers, nodes with names of their own."""
    import onnx
    from onnx import numpy_helper, shape_inference, version_converter

    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    try:
        if opset < _LEAST_OPSET:
            model = version_converter.convert_version(model, _LEAST_OPSET)
        nodes = []
        for node in model.graph.node:
            value = next((attribute for attribute in node.attribute if attribute.name == "value"), None)
            if node.op_type == "Constant" and value is not None:
                model.graph.initializer.append(numpy_helper.from_array(numpy_helper.to_array(value.t), node.output[0]))
            else:
                nodes.append(node)
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        model = shape_inference.infer_shapes(model)
    # ONNX's converter and inference raise RuntimeError, ValueError, or errors of their own that derive from them.
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(
            f"opset {opset} can't be raised to {_LEAST_OPSET}: {_first_line(error)}"
            if opset < _LEAST_OPSET
            else f"its shapes make no sense: {_first_line(error)}",
            where=where,
            fix=f"export the model again, with opset {_LEAST_OPSET} or later",
        ) from error
    seen: set[str] = set()
    for index, node in enumerate(model.graph.node):
        if not node.name or node.name in seen:
            node.name = f"{node.op_type}_{index}"
        seen.add(node.name)
    return model


def _view(model: Any) -> Graph:
    from onnx import TensorProto

    graph = model.graph
    weights = {weight.name: weight.data_type for weight in graph.initializer}
    values = (*graph.input, *graph.output, *graph.value_info)
    floats = {value.name for value in values if value.type.tensor_type.elem_type == TensorProto.FLOAT}
    return Graph(
        nodes=tuple(Node(node.name, node.op_type, tuple(node.input), tuple(node.output)) for node in graph.node),
        inputs=tuple(value.name for value in graph.input if value.name not in weights),
        outputs=tuple(value.name for value in graph.output),
        constants=frozenset(weights),
        floats=frozenset(floats | {name for name, kind in weights.items() if kind == TensorProto.FLOAT}),
    )


def _keep_others_float(model: Any, quantised: frozenset[str]) -> None:
    """Let nodes that aren't quantised read the float tensors again: the library gives a pair to every reader."""
    behind = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    original = {
        node.output[0]: behind[node.input[0]]
        for node in model.graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in behind
    }
    for node in model.graph.node:
        if node.name not in quantised and node.op_type not in QUANTISED_OPERATORS:
            for index, tensor in enumerate(node.input):
                node.input[index] = original.get(tensor, tensor)


def _give_biases(model: Any, names: frozenset[str]) -> None:
    """A bias of zeros for every named convolution without one, so that it can be corrected."""
    from onnx import numpy_helper

    weights = {weight.name: weight for weight in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type != "Conv" or node.name not in names or (len(node.input) > 2 and node.input[2]):
            continue
        if node.input[1] in weights:
            del node.input[2:]
            node.input.append(f"{node.name}/bias")
            zeros = np.zeros(weights[node.input[1]].dims[0], np.float32)
            model.graph.initializer.append(numpy_helper.from_array(zeros, node.input[2]))


def _mean_nodes(source: str, target: str, model: Any, convolution: Any) -> list[Any]:
    """ReduceMean over everything but the channels; its axes are an attribute before opset 18, an input since."""
    from onnx import helper

    weights = {weight.name: len(weight.dims) for weight in model.graph.initializer}
    quantised = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type in QUANTISED_OPERATORS}
    weight = convolution.input[1]
    while weight in quantised:
        weight = quantised[weight]
    axes = [0, *range(2, weights.get(weight, 4))]
    opset = max(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    if opset < 18:
        return [helper.make_node("ReduceMean", [source], [target], axes=axes, keepdims=0)]
    constant = helper.make_node("Constant", [], [f"{target}/axes"], value_ints=axes)
    return [constant, helper.make_node("ReduceMean", [source, f"{target}/axes"], [target], keepdims=0)]


def _expose(model: Any, tensors: Sequence[str]) -> None:
    """Make tensors outputs of the graph."""
    import onnx

    has = {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=tensor) for tensor in tensors if tensor not in has)


def _copy(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _serialised(model: Any, where: str) -> bytes:
    from google.protobuf.message import EncodeError

    try:
        data: bytes = model.SerializeToString()
    except (EncodeError, ValueError) as error:  # more than protobuf's 2 GiB
        raise ModelError(f"is too large for one ONNX file: {_first_line(error)}", where=where) from error
    return data


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]

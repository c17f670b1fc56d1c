#!/usr/bin/env python3
"""Copies a model bundle that is made for one picture, and leaves the batch of its graph open.

usage: tools/bench/free_batch.py BUNDLE FOLDER

For benchmarks of batches on a small model. Handles what keeps exported detectors at one picture: the first number of a
Reshape, and a Resize that names sizes where factors would do. The result is run with two pictures and must equal the
original's. Needs numpy, onnx and onnxruntime.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper, shape_inference

TOLERANCE = 1e-3  # of values up to 416; batches are summed in another order


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    free_bundle(Path(sys.argv[1]), Path(sys.argv[2]))


def free_bundle(bundle: Path, folder: Path) -> None:
    """Write the copy. Raises SystemExit when the graph does something that can't be left open."""
    shutil.copytree(bundle, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    path = folder / manifest["model"]
    before = onnx.load(str(path))
    after = free(before)
    check(before, after)
    onnx.save(after, str(path))
    manifest["name"] += "-free"
    manifest["input"]["shape"][0] = manifest["output"]["shape"][0] = -1
    manifest["sha256"][manifest["model"]] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


def free(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph for any number of pictures."""
    shapes = {
        value.name: [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
        for value in shape_inference.infer_shapes(model).graph.value_info
    }
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    constants = {constant.name: constant for constant in graph.initializer}
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    del graph.value_info[:]
    for node in graph.node:
        if node.op_type == "Reshape" and (target := constants.get(node.input[1])) is not None:
            shape = numpy_helper.to_array(target).copy()
            if shape[0] == 1:
                shape[0] = 0  # as it comes in
                target.CopyFrom(numpy_helper.from_array(shape, target.name))
        elif node.op_type == "Resize" and len(node.input) == 4:
            sizes = numpy_helper.to_array(constants[node.input[3]])
            factors = np.array([1, 1, *(sizes[2:] / shapes[node.input[0]][2:])], np.float32)
            name = f"{node.name or node.output[0]}_factors"
            graph.initializer.append(numpy_helper.from_array(factors, name))
            node.input[2] = name
            del node.input[3:]
    used = {name for node in graph.node for name in node.input}
    for constant in [constant for constant in graph.initializer if constant.name not in used]:
        graph.initializer.remove(constant)
    return copy


def check(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    one, many = (
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        for model in (before, after)
    )
    facts = one.get_inputs()[0]
    pictures = np.random.default_rng(0).random((2, *facts.shape[1:]), np.float32)
    wanted = np.concatenate([one.run(None, {facts.name: picture[None]})[0] for picture in pictures])
    difference = float(np.abs(many.run(None, {facts.name: pictures})[0] - wanted).max())
    if difference > TOLERANCE:
        raise SystemExit(f"with two pictures the graph gives other values, by up to {difference:g}")


if __name__ == "__main__":
    main()

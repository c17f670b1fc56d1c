#!/usr/bin/env python3
"""Writes the network that GPU figures are made with, as a model bundle: shaped like YOLOv8m, with random FP16 weights.

Same layers, channels and strides as YOLOv8m (depth 0.67, width 0.75, at most 768 channels): 26 M parameters, about 200
GFLOP for a picture of 1024x1024; or as YOLOv8n with --scale n, 3 M parameters. Random weights detect nothing, and then
NMS has nothing to do; so a constant is added to the class scores, which makes about OBJECTS boxes of every frame, each
seen by four anchors. The same bytes for the same arguments and numpy. Needs numpy and onnx.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

CLASSES = 80
OBJECTS = 50
BINS = 16  # of the distribution over distances, for each side of a box
STRIDES = (8, 16, 32)
THRESHOLD = 0.45
SCALES = {
    "n": ((16, 32, 64, 128, 256), (1, 2, 2, 1)),
    "m": ((48, 96, 192, 384, 576), (2, 4, 4, 2)),
}
"""Channels of the stem and the four stages, and blocks of each stage."""

_BACKGROUND, _OBJECT = -8.0, 4.0  # logits: 0.0003 and 0.98


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the bundle, made if it is missing")
    parser.add_argument("--size", type=int, default=1024, help="side of the input, a multiple of 32")
    parser.add_argument("--scale", choices=sorted(SCALES), default="m", help="of the architecture (%(default)s)")
    parser.add_argument("--fp32", action="store_true", help="FP32 weights, for quantisation")
    args = parser.parse_args()
    write_bundle(args.folder, args.size, args.scale, is_half=not args.fp32)


def write_bundle(folder: Path, size_px: int = 1024, scale: str = "m", *, is_half: bool = True) -> None:
    """Model, labels, notice and a manifest with a free batch dimension."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(build(size_px, scale, is_half=is_half), str(folder / "model.onnx"))
    (folder / "labels.txt").write_text("".join(f"class {number}\n" for number in range(CLASSES)))
    (folder / "NOTICE").write_text("Random weights: made by tools/bench/model.py for benchmarks. Apache-2.0.\n")
    anchors = sum((size_px // stride) ** 2 for stride in STRIDES)
    manifest = {
        "format": 1,
        "name": f"yolov8{scale}-shaped-{size_px}",
        "model": "model.onnx",
        "labels": "labels.txt",
        "notice": "NOTICE",
        "input": {
            "name": "images",
            "shape": [-1, 3, size_px, size_px],
            "layout": "nchw",
            "colour": "rgb",
            "scale": 1 / 255,
            "pad": 114,
        },
        "output": {"name": "output0", "shape": [-1, 4 + CLASSES, anchors], "head": "yolo-anchor-free"},
        "thresholds": {"score": THRESHOLD, "nms_iou": 0.5},
        "licence": "Apache-2.0",
        "source": "tools/bench/model.py",
        "sha256": {
            name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
            for name in ("NOTICE", "labels.txt", "model.onnx")
        },
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


def build(size_px: int, scale: str = "m", *, is_half: bool = True) -> onnx.ModelProto:
    """The graph: images [batch, 3, size, size] float32 -> output0 [batch, 84, anchors] float32.

    In between everything is FP16 where `is_half`.
    """
    widths, depths = SCALES[scale]
    low, middle, high = widths[2:]
    net = Network(is_half=is_half)
    x = net.node("Cast", ["images"], to=TensorProto.FLOAT16) if is_half else "images"
    x = net.conv(x, 3, widths[0], 3, 2)
    levels = []
    for number, depth in enumerate(depths):
        width = widths[number + 1]
        x = net.conv(x, widths[number], width, 3, 2)
        x = net.c2f(x, width, width, depth, has_shortcut=True)
        levels.append(x)
    _, p3, p4, p5 = levels
    p5 = net.sppf(p5, high)
    blocks = depths[0]
    up4 = net.c2f(net.concat([net.upsample(p5), p4]), high + middle, middle, blocks)
    out3 = net.c2f(net.concat([net.upsample(up4), p3]), middle + low, low, blocks)
    out4 = net.c2f(net.concat([net.conv(out3, low, low, 3, 2), up4]), low + middle, middle, blocks)
    out5 = net.c2f(net.concat([net.conv(out4, middle, middle, 3, 2), p5]), middle + high, high, blocks)
    boxes, scores = [], []
    box_width, score_width = max(low // 4, 4 * BINS), max(low, CLASSES)
    for level, width in ((out3, low), (out4, middle), (out5, high)):
        box = net.conv(net.conv(level, width, box_width, 3), box_width, box_width, 3)
        boxes.append(net.flat(net.conv(box, box_width, 4 * BINS, 1, is_active=False, gain=0.5), 4 * BINS))
        score = net.conv(net.conv(level, width, score_width, 3), score_width, score_width, 3)
        scores.append(net.flat(net.conv(score, score_width, CLASSES, 1, is_active=False, gain=0.05), CLASSES))
    net.detect(net.concat(boxes, 2), net.concat(scores, 2), size_px)
    return net.model(size_px, f"yolov8{scale}-shaped")


class Network:
    """Collects nodes and weights. Convolutions come with their batch normalisation folded in, as exporters do it."""

    def __init__(self, *, is_half: bool = True) -> None:
        self._is_half = is_half
        self._dtype = np.float16 if is_half else np.float32
        self._random = np.random.default_rng(8)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._count = 0

    def node(self, kind: str, inputs: list[str], output: str = "", **attributes: object) -> str:
        self._count += 1
        output = output or f"{kind.lower()}_{self._count}"
        self._nodes.append(helper.make_node(kind, inputs, [output], name=f"{kind}_{self._count}", **attributes))
        return output

    def constant(self, values: npt.NDArray[np.generic]) -> str:
        self._count += 1
        name = f"constant_{self._count}"
        self._weights.append(numpy_helper.from_array(values, name))
        return name

    def conv(
        self,
        x: str,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int = 1,
        *,
        is_active: bool = True,
        gain: float = 1.41,
    ) -> str:
        """A convolution and SiLU. A gain of the root of 2 keeps the spread of values through SiLU, as through ReLU."""
        spread = gain / math.sqrt(inputs * kernel * kernel)
        weights = self._random.standard_normal((outputs, inputs, kernel, kernel), np.float32) * spread
        bias = self._random.standard_normal(outputs, np.float32) * 0.1
        names = [x, self.constant(weights.astype(self._dtype)), self.constant(bias.astype(self._dtype))]
        pad = kernel // 2
        y = self.node("Conv", names, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4)
        return self.node("Mul", [y, self.node("Sigmoid", [y])]) if is_active else y

    def c2f(self, x: str, inputs: int, outputs: int, depth: int, *, has_shortcut: bool = False) -> str:
        half = outputs // 2
        x = self.conv(x, inputs, outputs, 1)
        parts = [self._slice(x, 0, half), self._slice(x, half, outputs)]
        for _ in range(depth):
            # Less where it is added to its input, so that sums over many blocks stay inside FP16.
            gain = 0.7 if has_shortcut else 1.41
            y = self.conv(self.conv(parts[-1], half, half, 3), half, half, 3, gain=gain)
            parts.append(self.node("Add", [parts[-1], y]) if has_shortcut else y)
        return self.conv(self.concat(parts), (2 + depth) * half, outputs, 1)

    def sppf(self, x: str, width: int) -> str:
        parts = [self.conv(x, width, width // 2, 1)]
        for _ in range(3):
            parts.append(self.node("MaxPool", [parts[-1]], kernel_shape=[5, 5], strides=[1, 1], pads=[2] * 4))
        return self.conv(self.concat(parts), 2 * width, width, 1)

    def upsample(self, x: str) -> str:
        scales = self.constant(np.array([1, 1, 2, 2], np.float32))
        options = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self.node("Resize", [x, "", scales], **options)

    def concat(self, parts: list[str], axis: int = 1) -> str:
        return self.node("Concat", parts, axis=axis)

    def flat(self, x: str, channels: int) -> str:
        """[batch, channels, rows, columns] -> [batch, channels, anchors]."""
        return self.node("Reshape", [x, self.constant(np.array([0, channels, -1], np.int64))])

    def _slice(self, x: str, start: int, end: int) -> str:
        bounds = [self.constant(np.array([value], np.int64)) for value in (start, end, 1)]
        return self.node("Slice", [x, *bounds])

    def detect(self, boxes: str, scores: str, size_px: int) -> None:
        """Distances as the mean of their distributions, boxes as centre and size, scores as probabilities."""
        centres, strides = _anchors(size_px)
        anchors = centres.shape[1]
        bins = self.node("Reshape", [boxes, self.constant(np.array([0, 4, BINS, anchors], np.int64))])
        bins = self.node("Softmax", [self.node("Transpose", [bins], perm=[0, 2, 1, 3])], axis=1)
        mean = self.constant(np.arange(BINS, dtype=self._dtype).reshape(1, BINS, 1, 1))
        sides = self.node("Reshape", [self.node("Conv", [bins, mean]), self.constant(np.array([0, 4, anchors]))])
        near, far = self._slice(sides, 0, 2), self._slice(sides, 2, 4)
        points = self.constant(centres[None].astype(self._dtype))
        low, high = self.node("Sub", [points, near]), self.node("Add", [points, far])
        centre = self.node("Mul", [self.node("Add", [low, high]), self.constant(np.array(0.5, self._dtype))])
        box = self.concat([centre, self.node("Sub", [high, low])])
        box = self.node("Mul", [box, self.constant(strides[None, None].astype(self._dtype))])
        logits = self.node("Add", [scores, self.constant(_objects(size_px, anchors)[None].astype(self._dtype))])
        parts = [box, self.node("Sigmoid", [logits])]
        if self._is_half:
            self.node("Cast", [self.concat(parts)], output="output0", to=TensorProto.FLOAT)
        else:
            self.node("Concat", parts, output="output0", axis=1)

    def model(self, size_px: int, name: str) -> onnx.ModelProto:
        anchors = sum((size_px // stride) ** 2 for stride in STRIDES)
        picture = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, size_px, size_px])
        result = helper.make_tensor_value_info("output0", TensorProto.FLOAT, ["batch", 4 + CLASSES, anchors])
        graph = helper.make_graph(self._nodes, name, [picture], [result], self._weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _anchors(size_px: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Centres in cells, [2, anchors], and strides, [anchors]."""
    centres, strides = [], []
    for stride in STRIDES:
        cells = size_px // stride
        rows, columns = np.mgrid[:cells, :cells]
        centres.append(np.stack([columns.ravel(), rows.ravel()]) + 0.5)
        strides.append(np.full(cells * cells, stride, np.float64))
    return np.concatenate(centres, 1), np.concatenate(strides)


def _objects(size_px: int, anchors: int) -> npt.NDArray[np.float16]:
    """What is added to the class logits, [classes, anchors]: OBJECTS places where four neighbours agree on a label."""
    random = np.random.default_rng(50)
    logits = np.full((CLASSES, anchors), _BACKGROUND, np.float16)
    cells = size_px // STRIDES[0]
    # On a grid of distinct corners, two cells apart, so that no two objects share an anchor.
    places = random.choice((cells // 2) ** 2, min(OBJECTS, (cells // 2) ** 2), replace=False)
    labels = random.permutation(np.arange(len(places)) % CLASSES)  # distinct where they can be: NMS keeps them all
    for place, label in zip(places, labels, strict=True):
        row, column = place // (cells // 2) * 2, place % (cells // 2) * 2
        for anchor in (0, 1, cells, cells + 1):
            logits[label, row * cells + column + anchor] = _OBJECT + random.uniform(-1, 1)
    return logits


if __name__ == "__main__":
    main()

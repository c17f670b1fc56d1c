"""nvidia-modelopt's int8 against ours on the bundled model, as a Markdown table.

usage: tools/bench/compare-modelopt PYTHON [--frames N]

PYTHON is that of modelopt's environment; tools/bench/compare-modelopt says how to make it. Both are given the same
pictures and looked at on the same frames as in tools/bench/quantize_table.py, by the same stages of a run; the columns
are that table's. modelopt with its two methods, each with its own choice of what to quantise; with the pooling left in
floating point, whose input this network pads with -65504, so that a range over it leaves nothing of the picture; and
with the head left too, as we leave it. Then each is made a bundle of and built by TensorRT for RTX. A quarter of an
hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from tools.bench.quantize_table import (
    BUNDLE,
    HEAD,
    Variant,
    choose_frames,
    load_reference,
    look,
    rows,
    tell,
)
from zhcedge.app.frame_set import FrameSet
from zhcedge.app.model_build import BuildRequest, build_model
from zhcedge.app.model_quantize import feed
from zhcedge.core.errors import ZhcEdgeError
from zhcedge.models.bundle import Bundle, load_bundle
from zhcedge.models.calibration import Method
from zhcedge.models.graph import find_head
from zhcedge.models.quantize import collect, open_float_model, quantise
from zhcedge.models.write import NewBundle, bundle_in_progress, put_in_place

WORKER = Path(__file__).with_name("modelopt_worker.py")
TARGETS = ("sm86", "sm89")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", type=Path)
    parser.add_argument("--frames", type=int, default=0)
    arguments = parser.parse_args()
    bundle = load_bundle(BUNDLE)
    reference = load_reference(bundle.facts.labels)
    calibration, evaluation = choose_frames(reference, arguments.frames)
    with tempfile.TemporaryDirectory(prefix="zhc-edge-") as name:
        work = Path(name)
        variants = [Variant("float32", "everything", bundle), ours(bundle, calibration, work)]
        variants += theirs(bundle, calibration, work, arguments.python)
        look(variants, evaluation)
        lines = [*HEAD, *rows(variants, reference), ""]
        lines += [f"{one.method}, {one.left_float}: {built(one.bundle, work)}" for one in variants]
    print("\n".join(lines))


def ours(bundle: Bundle, frames: FrameSet, work: Path) -> Variant:
    """What `model quantize` makes by default."""
    samples = feed(frames, bundle.facts, tell)
    seen = collect(open_float_model(bundle.model_path), samples)
    path = work / "ours.onnx"
    quantise(seen, seen.calibrate(Method.L4), samples).save(path)
    return Variant("ours, l4", "head", as_bundle(bundle, path, work))


def theirs(bundle: Bundle, frames: FrameSet, work: Path, python: Path) -> Iterator[Variant]:
    """modelopt's, by every method and choice."""
    named, data = work / "named.onnx", work / "pictures.npy"
    write_named(bundle.model_path, named)
    np.save(data, np.concatenate([sample.values for sample in feed(frames, bundle.facts, tell)()]))
    graph = open_float_model(named).graph
    pool = [node.name for node in graph.nodes if node.op == "MaxPool"]
    choices = {"its choice": [], "pooling": pool, "pooling, head": [*pool, *sorted(find_head(graph))]}
    for method in ("entropy", "max"):
        for left, exclude in choices.items():
            tell(f"modelopt, {method}, {left}")
            path, copy = work / f"modelopt-{method}-{len(exclude)}.onnx", work / "copy.onnx"
            shutil.copyfile(named, copy)
            order = {"model": str(copy), "data": str(data), "out": str(path), "method": method, "exclude": exclude}
            started = time.monotonic()
            subprocess.run([python, WORKER, json.dumps(order)], check=True, stdout=sys.stderr)
            tell(f"{time.monotonic() - started:.0f} s, {quantised_nodes(path)} pairs of Q/DQ")
            yield Variant(f"modelopt, {method}", left, as_bundle(bundle, path, work))


def write_named(source: Path, target: Path) -> None:
    """A copy whose nodes have names, so that both sides mean the same ones."""
    model = onnx.load(str(source))
    for number, node in enumerate(model.graph.node):
        node.name = f"node_{number}"
    onnx.save(model, str(target))


def quantised_nodes(path: Path) -> int:
    return sum(node.op_type == "DequantizeLinear" for node in onnx.load(str(path)).graph.node)


def as_bundle(bundle: Bundle, model: Path, work: Path) -> Bundle:
    """A bundle of another file for the same model."""
    new = NewBundle(
        replace(bundle.facts, name=model.stem), model, (), bundle.licence, bundle.source, bundle.notice_path.read_text()
    )
    with bundle_in_progress(new, work) as folder:
        put_in_place(folder, work / model.stem)
    return load_bundle(work / model.stem)


def built(bundle: Bundle, work: Path) -> str:
    """What TensorRT for RTX says to it."""
    plan = work / f"{bundle.facts.name}.plan"
    try:
        report = build_model(BuildRequest(str(bundle.folder), "tensorrt_rtx", targets=TARGETS, out=plan))
    except ZhcEdgeError as error:
        return f"not built, {error}"
    return f"built as {report.identity.precision} for {', '.join(TARGETS)}, {report.size_bytes / 1e6:.1f} MB"


if __name__ == "__main__":
    main()

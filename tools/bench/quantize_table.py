"""The bundled model in int8, by every method and with more or less left in floating point, as a Markdown table.

usage: tools/quantize-table [--frames N] [--write]

Rows: each method, with the head in floating point and with more; then each with its biases as they were.
Calibrates with 100 frames of the bundled clip, evenly spread, none of them in walkers.reference.json. Looks at N of the
others (default: all), those of the reference always among them. --write puts the table beside the bundle. Takes
minutes on a CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from zhcedge.app.channels import clip_path
from zhcedge.app.frame_set import FrameSet, frames_of_video
from zhcedge.app.model_eval import above, open_finder
from zhcedge.app.model_quantize import feed
from zhcedge.backends.registry import DEVICES
from zhcedge.core.requests import DeviceSettings
from zhcedge.core.types import DETECTION_DTYPE, DetectionArray
from zhcedge.models.accuracy import SAME_IOU, Tally, average_precision
from zhcedge.models.bundle import Bundle, load_bundle
from zhcedge.models.calibration import Method
from zhcedge.models.quantize import collect, open_float_model, quantise

ROOT = Path(__file__).resolve().parent.parent.parent
BUNDLE = "nanodet-g-416"
REFERENCE = ROOT / "tests" / "data" / "walkers.reference.json"
TARGET = ROOT / "zhcedge" / "models" / "bundles" / f"{BUNDLE}.quantisation.md"
CALIBRATION_FRAMES = 100
HEAD = (
    "| method | in floating point | agreement AP50 | found | extra | found of YOLOv5s's | extra to YOLOv5s's |",
    "|---|---|---|---|---|---|---|",
)
PARTS: tuple[tuple[str, ...], ...] = ((), ("first",), ("first", "before-head"))


@dataclass
class Variant:
    """One row of the table, and what its model found on every frame."""

    method: str
    left_float: str
    bundle: Bundle
    boxes: dict[int, DetectionArray] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=0)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    bundle = load_bundle(BUNDLE)
    reference = load_reference(bundle.facts.labels)
    calibration, evaluation = choose_frames(reference, arguments.frames)
    with tempfile.TemporaryDirectory(prefix="zhc-edge-") as work:
        variants = [Variant("float32", "everything", bundle), *quantised(bundle, calibration, Path(work))]
        look(variants, evaluation)
    text = document(variants, reference, len(calibration), len(evaluation), arguments.frames)
    print(text, end="")
    if arguments.write:
        TARGET.write_text(text, encoding="utf-8")


def choose_frames(reference: Mapping[int, DetectionArray], most: int) -> tuple[FrameSet, FrameSet]:
    """Frames of the bundled clip to calibrate with, and `most` others (0: all) to look at, the reference's too."""
    clip = frames_of_video(clip_path("walkers"))
    calibration = clip.only(lambda number: number not in reference).spread(CALIBRATION_FRAMES)
    used = {number for run in calibration.runs for number in run.numbers}
    kept = {number for run in clip.only(lambda n: n not in used).spread(most).runs for number in run.numbers}
    return calibration, clip.only(lambda number: number in kept or number in reference)


def load_reference(labels: tuple[str, ...]) -> dict[int, DetectionArray]:
    """What a larger detector finds, by frame; its labels are ours."""
    reference = {}
    for frame in json.loads(REFERENCE.read_text())["frames"]:
        boxes = np.zeros(len(frame["objects"]), DETECTION_DTYPE)
        for box, thing in zip(boxes, frame["objects"], strict=True):
            box["box"], box["score"], box["label"] = thing["box"], 1.0, labels.index(thing["label"])
        reference[frame["frame"]] = boxes
    return reference


def quantised(bundle: Bundle, frames: FrameSet, folder: Path) -> Iterable[Variant]:
    """Every method with every choice of what stays in floating point, and the best one with its biases kept."""
    samples = feed(frames, bundle.facts, tell)
    seen = collect(open_float_model(bundle.model_path), samples)
    choices = [(method, parts, True) for method, parts in itertools.product(Method, PARTS)]
    choices += [(method, (), False) for method in Method]
    for method, parts, corrects in choices:
        tell(f"{method.value}, float: {', '.join(parts) or 'head'}, biases {'corrected' if corrects else 'kept'}")
        path = folder / f"{method.value}-{'-'.join(parts)}-{corrects}.onnx"
        quantise(seen, seen.calibrate(method), samples if corrects else None, parts=parts).save(path)
        left = ", ".join(("head", *parts)) + ("" if corrects else "; biases kept")
        yield Variant(method.value, left, replace(bundle, model_path=path))


def look(variants: list[Variant], frames: FrameSet) -> None:
    """Run every variant on every frame."""
    with contextlib.ExitStack() as stack:
        device = DEVICES.get("cpu")(DeviceSettings())
        stack.callback(device.close)
        finders = [
            stack.enter_context(open_finder(variant.bundle, device, index)) for index, variant in enumerate(variants)
        ]
        for count, frame in enumerate(frames.frames(device), start=1):
            for variant, find in zip(variants, finders, strict=True):
                variant.boxes[frame.number] = find(frame)
            if count % 10 == 0:
                tell(f"{count} of {len(frames)} frames")


def document(
    variants: list[Variant], reference: dict[int, DetectionArray], calibrated: int, looked_at: int, asked: int
) -> str:
    """The Markdown text."""
    plain = variants[0]
    truth = {number: above(boxes, plain.bundle) for number, boxes in plain.boxes.items()}
    boxes = sum(len(found) for found in truth.values())
    lines = [
        f"# {BUNDLE} in int8",
        "",
        f"Made by `tools/quantize-table --frames {asked} --write`: calibrated with {calibrated} frames of the bundled",
        f"clip, run on {looked_at} others on a CPU, which computes in float32 what the Q/DQ pairs say. TensorRT's own",
        "kernels round a little differently. One clip and one camera: compare again on pictures of your own with",
        "`zhc-edge model eval`. Neighbouring frames are alike, so these figures are better than those of another day.",
        "The default method was chosen by this table, and counting by boxes was chosen after a label with a single box",
        "had decided the mean over labels: for both choices these frames are no independent test.",
        "",
        f"*Agreement* is AP50 with float32's {boxes} boxes as the truth, every box counting the same (in brackets:",
        "every label the same); it is no accuracy. *Found* and *extra* are shares of boxes above the score threshold:",
        f"first against float32's, then against what YOLOv5s finds on {len(reference)} of the frames (pseudo-truth).",
        "",
        *HEAD,
    ]
    lines += rows(variants, reference)
    return "\n".join(lines) + "\n"


def rows(variants: Sequence[Variant], reference: Mapping[int, DetectionArray]) -> list[str]:
    """A line of the table for each; the first variant is the one that the others are compared with."""
    plain, lines = variants[0], []
    truth = {number: above(boxes, plain.bundle) for number, boxes in plain.boxes.items()}
    for variant in variants:
        precision = average_precision(truth, variant.boxes, plain.bundle.facts.labels, (SAME_IOU,))
        ours, theirs = Tally(), Tally()
        for number, found in variant.boxes.items():
            shown = above(found, variant.bundle)
            ours.add(truth[number], shown)
            if number in reference:
                theirs.add(reference[number], shown)
        lines.append(
            f"| {variant.method} | {variant.left_float} | {precision.mean_of_boxes:.4f} ({precision.mean:.4f}) "
            f"| {ours.recall:.4f} | {ours.extra:.4f} | {theirs.recall:.4f} | {theirs.extra:.4f} |"
        )
    return lines


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

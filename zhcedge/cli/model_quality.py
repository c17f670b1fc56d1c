"""`zhc-edge model quantize|eval`: the two actions of `model` about precision."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from zhcedge.cli.arguments import whole_number
from zhcedge.core.printing import printable

if TYPE_CHECKING:
    from zhcedge.app.model_eval import EvalReport

_METHODS = """\
methods (--method), how the range of an activation is chosen:
  minmax      the largest value: cuts off nothing, one outlier makes every step coarse
  percentile  what 99.99 % stay below
  entropy     the least loss of information, as TensorRT's own calibrator did it
  mse         the least mean square error
  l4          the least mean fourth power of the error: as mse, but it spares the large values

The head (the last layers, which make boxes and scores) always stays in floating point. --float leaves out more.
Compare the result with `zhc-edge model eval NEW --against OLD` on pictures that it was not calibrated with.
"""


def add_quantize(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `model quantize`."""
    parser = actions.add_parser(
        "quantize",
        help="make a bundle of int8 precision, by pictures of what the camera sees",
        description="Finds the ranges of a model's activations on pictures and writes a bundle with explicit Q/DQ\n"
        "pairs, which TensorRT runs in int8. Works on a plain CPU. Needs zhcedge[quantize].",
        epilog=_METHODS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("name", metavar="BUNDLE", help="a bundle of single precision: its name, or the path of its folder")
    add("--images", type=Path, metavar="DIR", help="pictures to calibrate with")
    add("--video", type=Path, metavar="FILE", help="video to calibrate with")
    add("--method", default="", metavar="M", help="minmax, percentile, entropy, mse or l4, see below; default: l4")
    add("--frames", type=_count, default=200, metavar="N", help="most frames, evenly spread; 0 for all (%(default)s)")
    add(
        "--float",
        default="",
        metavar="PART,...",
        help="leave more in floating point: first (the first layer), before-head (those that the head reads)",
    )
    add("--keep-biases", action="store_true", help="do not make up for the mean error of each layer in its biases")
    add("--out", required=True, metavar="BUNDLE", help="the new bundle: a name, or the path of its folder")
    add("--replace", action="store_true", help="replace an older bundle there")
    add("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_quantize)


def add_eval(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `model eval`."""
    parser = actions.add_parser(
        "eval",
        help="measure a bundle against labels, or against another bundle",
        description="Prints up to two figures, which mean different things. With --labels: mAP, how good the boxes\n"
        "are by COCO's metric, and with --against its ratio to the other bundle's mAP. With --against: agreement,\n"
        "AP50 with the other bundle's boxes as the truth, how alike the two are. Frames that a bundle was calibrated\n"
        "with are left out of both; their neighbours in a video are not. Runs on the CPU. Needs zhcedge[eval].",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("name", metavar="BUNDLE", help="a bundle's name, or the path of its folder")
    add("--against", default="", metavar="BUNDLE", help="another bundle, such as the one that this one is made of")
    add("--labels", type=Path, metavar="FILE", help="labels of pictures, COCO JSON; categories are matched by name")
    add("--images", type=Path, metavar="DIR", help="pictures; with --labels default: the folder of that file")
    add("--video", type=Path, metavar="FILE", help="video")
    add("--frames", type=_count, default=0, metavar="N", help="most frames, evenly spread; default: all")
    add(
        "--min-ratio",
        type=_share,
        metavar="R",
        help="exit code 1 below this mAP ratio, or where there are no labels below this agreement",
    )
    add("--worst", type=Path, metavar="DIR", help="draw the frames that differ most: red is missed, blue is extra")
    add("--worst-count", type=_count, default=8, metavar="N", help="how many of them (%(default)s)")
    add("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_eval)


def _quantize(arguments: argparse.Namespace) -> int:
    from zhcedge.app.model_quantize import DEFAULT_METHOD, QuantizeRequest, quantize_model
    from zhcedge.app.progress import Progress

    progress = Progress(sys.stderr)
    request = QuantizeRequest(
        bundle=arguments.name,
        out=arguments.out,
        images=arguments.images,
        video=arguments.video,
        method=arguments.method or DEFAULT_METHOD,
        frames=arguments.frames,
        float_parts=tuple(part for part in arguments.float.split(",") if part),
        corrects_biases=not arguments.keep_biases,
        replaces=arguments.replace,
    )
    report = quantize_model(request, progress, _warner(progress.clear))
    if arguments.json:
        print(json.dumps(report.as_dict(), indent=2))
        return 0
    print(f"calibrated with {report.frames} frames by {report.method}; their hash is {report.data_sha256}")
    print(f"{report.pairs} layers and sums are quantised, {len(report.excluded)} layers stay in floating point")
    print(f"bundle: {printable(str(report.folder))}")
    return 0


def _eval(arguments: argparse.Namespace) -> int:
    """1 when the figure is below --min-ratio."""
    from zhcedge.app.model_eval import EvalRequest, eval_model
    from zhcedge.app.progress import Progress

    progress = Progress(sys.stderr)
    request = EvalRequest(
        bundle=arguments.name,
        against=arguments.against,
        labels=arguments.labels,
        images=arguments.images,
        video=arguments.video,
        frames=arguments.frames,
        min_ratio=arguments.min_ratio,
        worst=arguments.worst,
        worst_count=arguments.worst_count,
    )
    report = eval_model(request, progress, _warner(progress.clear))
    if arguments.json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        for line in _lines(report):
            print(printable(line))
    return 0 if report.is_good_enough else 1


def _lines(report: EvalReport) -> list[str]:
    lines = [f"{report.frames} frames; {report.excluded} were left out because a bundle was calibrated with them"]
    if report.map_on_labels is not None:
        lines.append(f"mAP on labels: {report.bundle} {report.map_on_labels.mean:.4f}")
        if report.against_map_on_labels is not None and report.map_ratio is not None:
            lines[-1] += f", {report.against} {report.against_map_on_labels.mean:.4f}, ratio {report.map_ratio:.4f}"
        lines += [
            f"  {name:<20} AP {one.precision:.4f}  {one.truth} labels"
            for name, one in report.map_on_labels.by_label.items()
        ]
    if report.agreement is not None:
        tally = report.agreement.tally
        precision = report.agreement.precision
        lines.append(
            f"agreement with {report.against} (not accuracy): AP50 {report.agreement.ap50:.4f}, every box counting the "
            f"same; {precision.mean:.4f} with every label counting the same"
        )
        lines += [
            f"  {name:<20} AP50 {one.precision:.4f}  {one.truth} boxes of {report.against}"
            for name, one in precision.by_label.items()
        ]
        lines.append(f"  above the thresholds: {tally.recall:.4f} of its boxes found, {tally.extra:.4f} extra")
    if report.min_ratio is not None and report.judged is not None:
        name, value = report.judged
        verdict = "is enough" if report.is_good_enough else "is too low"
        lines.append(f"{name} {value:.4f} {verdict}: {report.min_ratio:g} was asked for")
    return lines + [f"worst: {path}" for path in report.drawn]


def _warner(clear: Callable[[], None]) -> Callable[[str], None]:
    def warn(line: str) -> None:
        clear()
        print(f"WARNING: {printable(line)}", file=sys.stderr, flush=True)

    return warn


def _count(text: str) -> int:
    return whole_number(text, 0, 1_000_000)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 2:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 2")
    return value

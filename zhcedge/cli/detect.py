"""`zhc-edge detect`."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path

from zhcedge.core.printing import printable

STANDARD_OUTPUT = Path("-")
LINE_END = "\n"  # of a list of problems


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "detect",
        help="detect in images, folders, videos and streams, once, without a broker",
        description="Runs the detector over every input, one after the other, by the same pipeline as the daemon. "
        "Without --json, --video or --images it prints what it found in each. Exit code 0: every input was read; "
        "otherwise that of the first one that was not, after all others.",
        epilog="--json writes one object a line and frame: source, frame (from 0), time_s, width, height, "
        "detections: [{label, score, box: [x1, y1, x2, y2]}], boxes in the source's pixels. A picture is a source of "
        "its own. Configuration keys of the input are channels.input.*, e.g. --set channels.input.source.fps=5.",
    )
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="image, folder of images, video, rtsp:// or http:// address, clip:NAME",
    )
    parser.add_argument(
        "--json",
        nargs="?",
        type=Path,
        const=STANDARD_OUTPUT,
        metavar="FILE",
        help="write the detections as JSON Lines, to standard output without FILE",
    )
    parser.add_argument(
        "--video", type=Path, metavar="OUT", help="annotated video, .mp4, .m4v or .mov; or a folder for them"
    )
    parser.add_argument("--images", type=Path, metavar="DIR", help="annotated pictures, one a frame")
    parser.add_argument("--classes", metavar="A,B", help="labels to detect; default: all of the model's")
    parser.add_argument("--score", type=float, metavar="S", help="lowest score, 0 to 1; default: the model's")
    parser.add_argument("--model", metavar="BUNDLE", help="a model bundle's name or folder; default: the built-in one")
    parser.add_argument("--profile", help="set of backends; default: cpu")
    parser.add_argument("--batch", metavar="N", help="frames in one batch, or auto; for models with a free batch")
    parser.add_argument("--fp16", action="store_true", help="insist on half precision: refuse a model that has it not")
    parser.add_argument("--frames", type=int, default=0, metavar="N", help="frames of each input, 0: all; default 0")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set one configuration value, e.g. model.nms_iou=0.5; may be repeated",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 when every input was read, else the exit code of the first that was not."""
    from zhcedge.app.detect import DetectSettings, InputResult, detect
    from zhcedge.app.progress import Progress

    to_stdout = args.json == STANDARD_OUTPUT
    settings = DetectSettings(
        inputs=tuple(args.inputs),
        values=_values(args),
        json=None if to_stdout else args.json,
        json_to_stdout=to_stdout,
        video=args.video,
        pictures=args.images,
        is_half=args.fp16,
        frames=args.frames,
        overrides=args.overrides,
        environ=os.environ,
    )
    # Standard output is for the detections alone where they go there.
    summary = sys.stderr if to_stdout else sys.stdout

    def complain(line: str) -> None:
        with contextlib.suppress(OSError):  # the work goes on, also when nobody can be told
            print(f"zhc-edge: {printable(line, keep=LINE_END)}", file=sys.stderr, flush=True)

    def tell(result: InputResult) -> None:
        print(printable(str(result)), file=summary, flush=True)

    return detect(settings, sys.stdout, Progress(sys.stderr), complain, tell)


def _values(args: argparse.Namespace) -> dict[str, object]:
    """The configuration that the options stand for."""
    model: dict[str, object] = {}
    if args.model is not None:
        model["bundle"] = args.model
    if args.score is not None:
        model["score_threshold"] = args.score
    if args.classes is not None:
        model["labels"] = [label.strip() for label in args.classes.split(",") if label.strip()]
    values: dict[str, object] = {"model": model}
    if args.profile is not None:
        values["profile"] = args.profile
    if args.batch is not None:
        values["pipeline"] = {"batch": int(args.batch) if args.batch.isdecimal() else args.batch}
    return values

"""`zhc-edge parity`."""

from __future__ import annotations

import argparse
import json
import sys


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    from zhcedge.app.parity import MAX_SCORE_P95, MIN_IOU, MIN_MATCHED, MIN_MEDIAN_IOU

    parser = subparsers.add_parser(
        "parity",
        help="run a clip through two profiles and compare what they find",
        description="Runs a clip through two profiles and compares their boxes by frame. Boxes of one label with "
        f"an overlap (IoU) of at least {MIN_IOU} are the same object. The profiles agree when every frame came from "
        f"both, at least {MIN_MATCHED:.0%} of the boxes have a partner, the median overlap is at least "
        f"{MIN_MEDIAN_IOU}, and 95 percent of the scores differ by at most {MAX_SCORE_P95}. "
        "Exit code 0: they agree, 1: they don't.",
    )
    parser.add_argument("clip", help="clip:NAME for a bundled clip, else the path of a video file")
    parser.add_argument("--profiles", default="cpu,rtx", metavar="A,B", help="the two profiles; default: cpu,rtx")
    parser.add_argument("--frames", type=int, default=0, metavar="N", help="frames to compare; default: all")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 when the profiles agree, else 1."""
    from zhcedge.app.parity import parity

    report = parity(
        args.profiles.split(","),
        args.clip,
        lambda line: print(line, file=sys.stderr, flush=True),
        frames=args.frames,
    )
    values = report.as_dict()
    if args.json:
        print(json.dumps(values, indent=2))
    else:
        print(f"{report.frames} frames, {report.missing_frames} in one profile only")
        for name, boxes in zip(report.profiles, report.boxes, strict=True):
            print(f"{name}: {boxes} boxes, {report.matched / boxes if boxes else 1.0:.2%} with a partner")
        print(f"overlap of the pairs: median {report.median_iou:.4f}, least {values['iou_least']:.4f}")
        print(f"score differences: p95 {report.score_p95:.4f}, largest {values['score_difference_largest']:.4f}")
        print(f"verdict: {'agree' if report.agrees else 'disagree'}")
    return 0 if report.agrees else 1

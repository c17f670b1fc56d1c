"""`zhc-edge bench`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zhcedge.app.bench import BenchResult


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "bench",
        help="measure the pipeline against its engine alone",
        description="Measures the pipeline and its engine alone in interleaved blocks, post-processing, the time "
        "from a frame to its event at a subscriber, and memory over many frames. Takes about three minutes.",
    )
    parser.add_argument("--profile", default="cpu", help="set of backends; default: cpu")
    parser.add_argument("--clip", default="clip:walkers", metavar="URI", help="video; default: the bundled clip")
    parser.add_argument("--groups", type=int, default=3, metavar="N", help="A B B A groups; default 3")
    parser.add_argument("--frames", type=int, default=200, metavar="N", help="frames of a block; default 200")
    parser.add_argument(
        "--rss-frames", type=int, default=0, metavar="N", help="add a memory run; tools/soak memory is one"
    )
    parser.add_argument("--no-latency", action="store_true", help="leave out the run with a broker")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything, with raw samples, as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 when everything was measured; no figure makes it fail."""
    from zhcedge.app.bench import BenchSettings, bench

    settings = BenchSettings(
        clip=args.clip,
        profile=args.profile,
        groups=args.groups,
        block_frames=args.frames,
        rss_frames=args.rss_frames,
        has_latency=not args.no_latency,
    )
    result = bench(settings, lambda line: print(line, file=sys.stderr, flush=True), args.json)
    print(_table(result))
    return 0


def _table(result: BenchResult) -> str:
    rows = [
        ("machine", f"{result.machine}, {result.cores} cores"),
        ("engine", f"{result.engine}, {result.engine_lanes} lanes"),
        ("engine alone", f"{result.engine_fps} fps, one call p50 {result.engine_p50_ms:.1f} ms"),
        *((f"pipeline, sink {kind}", f"{fps} fps") for kind, fps in result.pipeline_fps.items()),
        *((f"pipeline / engine, sink {kind}", f"{ratio}") for kind, ratio in result.ratio.items()),
        ("decode + NMS, 84 x 8400", f"{result.detect_8400_ms:.2f} ms"),
        ("stages, p50 ms", ", ".join(f"{name} {value:.2f}" for name, value in result.stages_ms.items())),
        ("ledger", result.verdict),
    ]
    if result.publish_latency_ms is not None:
        latency = result.publish_latency_ms
        for name in ("published", "arrived"):
            p50, p99 = latency[f"{name}_p50"], latency[f"{name}_p99"]
            rows.append((f"frame read to event {name}", f"p50 {p50:.1f} ms, p99 {p99:.1f} ms"))
        rows.append(("one engine call, same pace", f"p50 {result.engine_paced_p50_ms:.1f} ms"))
        rows.append(("published / engine call", f"{result.publish_to_engine:.2f}"))
    if result.rss_mib_per_10k_frames is not None:
        rows.append(("memory per 10,000 frames", f"{result.rss_mib_per_10k_frames} MiB"))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)

"""`zhc-edge replay`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path

from zhcedge.cli.arguments import add_config_arguments, whole_number
from zhcedge.core.printing import printable

_MOST = 1_000_000_000


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "replay",
        help="run a channel's rules over a recording and draw what they say",
        description="Plays a recording through the detector, tracker, zones and lines of a channel, faster than real "
        "time and by the recording's clock, and shows the events that the daemon would have told. Nothing is "
        "published. Its clock begins at --start, else where the file's name (of a clip of ours) or header says, else "
        "now: schedules of zones look at it.",
    )
    parser.add_argument("clip", metavar="CLIP", help="a video file, or clip:NAME for a bundled one")
    add_config_arguments(parser)
    parser.add_argument("--channel", default="", metavar="NAME", help="whose rules; not needed where there is only one")
    parser.add_argument(
        "--start", default="", metavar="TIME", help="when the recording began, local, such as 2026-01-31T18:30"
    )
    parser.add_argument(
        "--out", type=Path, metavar="VIDEO", help="annotated video, .mp4: boxes, track ids, zones and lines"
    )
    parser.add_argument("--table", type=Path, metavar="FILE", help="the events, .csv or .jsonl")
    parser.add_argument(
        "--zones", type=Path, metavar="PNG", help="zones and lines by name, drawn on the picture in the middle"
    )
    parser.add_argument(
        "--frames",
        type=lambda text: whole_number(text, 0, _MOST),
        default=0,
        metavar="N",
        help="frames to play, 0: all; 1 is enough for --zones; default 0",
    )
    parser.add_argument("--json", action="store_true", help="print the events as JSON, one a line")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 when the recording was played to its end."""
    from zhcedge.app.history_view import summary, table
    from zhcedge.app.progress import Progress
    from zhcedge.app.replay import replay
    from zhcedge.app.replay_inputs import ReplaySettings
    from zhcedge.app.replay_tables import COLUMNS

    settings = ReplaySettings(
        clip=args.clip,
        config=args.config,
        channel=args.channel,
        start=args.start,
        out=args.out,
        table=args.table,
        zones=args.zones,
        frames=args.frames,
        overrides=args.overrides,
        environ=os.environ,
    )

    def complain(line: str) -> None:
        with contextlib.suppress(OSError):  # the work goes on, also when nobody can be told
            print(f"zhc-edge: {printable(line)}", file=sys.stderr, flush=True)

    report = replay(settings, Progress(sys.stderr), complain)
    if args.json:
        for replayed in report.events:
            print(json.dumps(replayed.facts(), ensure_ascii=False))
        return 0
    if report.events:
        print(table(COLUMNS, [replayed.row() for replayed in report.events]))
        print()
    for line in (*report.lines(), *summary(report.totals)):
        print(printable(line))
    return 0

"""`zhc-edge audit`."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from zhcedge.cli.arguments import add_config_arguments

_EXIT = {"pass": 0, "fail": 1, "unproved": 3}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "audit",
        help="plant every violation, then measure copies and allocations of a real run",
        description="Plants one of each violation, runs the configured channels, prints the ledger and its verdict. "
        "Exit code 0: pass, 1: fail, 3: unproved.",
    )
    add_config_arguments(parser)
    parser.add_argument("--frames", type=int, default=300, metavar="N", help="frames per channel, 0: all; default 300")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page that shows one frame's journey")
    parser.add_argument("--profile", help="set of backends, over the configuration's")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """The exit code of the verdict."""
    from zhcedge.app.audit import as_text, audit
    from zhcedge.app.check import load_configuration

    overrides = [*args.overrides, *([f"profile={args.profile}"] if args.profile else [])]
    config = load_configuration(args.config, overrides, os.environ).config
    report = audit(config, frames=args.frames, html=args.html)
    print(json.dumps(report.as_dict(), indent=2) if args.json else as_text(report))
    return _EXIT[report.run.ledger.verdict.value]

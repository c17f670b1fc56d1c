"""`zhc-edge run`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from zhcedge.cli.arguments import add_config_arguments


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "run",
        help="run the daemon in the foreground",
        description="Run the daemon in the foreground until its files have ended or SIGTERM or Ctrl-C drains it.",
    )
    add_config_arguments(parser)
    parser.add_argument("--summary", type=Path, metavar="FILE", help="write a summary as JSON at the end")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a Chrome trace (for ui.perfetto.dev)")
    parser.add_argument(
        "--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"), help="default: INFO"
    )
    parser.add_argument(
        "--fall-back",
        action="store_true",
        help="when the configuration has errors, run the last one that was good (kept in $STATE_DIRECTORY) and say so",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 at the regular end; raises what ended the run otherwise."""
    from zhcedge.app import run as daemon
    from zhcedge.app.reload import ConfigSource
    from zhcedge.app.start_config import find_configuration

    source = ConfigSource(args.config, args.overrides, os.environ)
    config, fault = find_configuration(source, may_fall_back=args.fall_back)
    daemon.run(
        config, source=source, summary=args.summary, trace=args.trace, log_level=args.log_level, config_fault=fault
    )
    return 0

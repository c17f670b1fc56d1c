"""`zhc-edge log-level`."""

from __future__ import annotations

import argparse
import os

from zhcedge.cli.arguments import add_daemon_arguments


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "log-level",
        help="set how much the running daemon logs",
        description="Sets how much the running daemon logs, in both of its processes, until it ends.",
    )
    parser.add_argument("level", type=str.upper, choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    add_daemon_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 when it is set; raises what the daemon answers, and DaemonAwayError when none does."""
    from zhcedge.app.channel_control import set_level
    from zhcedge.app.control_address import find_control_socket

    set_level(find_control_socket(args.socket, args.config, args.overrides, os.environ), args.level)
    return 0

"""`zhc-edge status`."""

from __future__ import annotations

import argparse
import os
import sys

from zhcedge.cli.arguments import add_daemon_arguments


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "status",
        help="show how the running daemon is doing",
        description="Shows how the running daemon is doing: its phase, the ledger, the broker and the outbox, every "
        "camera, the last alerts. Exit code 69 when no daemon answers.",
    )
    add_daemon_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object; with --watch one a line")
    parser.add_argument(
        "--watch",
        action="store_true",
        help="go on, every second, until Ctrl-C: redrawn on a terminal, a line each elsewhere",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0; raises what the daemon answers, and DaemonAwayError when none does."""
    from zhcedge.app.control_address import find_control_socket
    from zhcedge.app.status import show_status, watch_status

    socket = find_control_socket(args.socket, args.config, args.overrides, os.environ)
    show = watch_status if args.watch else show_status
    show(socket, sys.stdout, as_json=args.json)
    return 0

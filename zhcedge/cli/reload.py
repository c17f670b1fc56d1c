"""`zhc-edge reload`."""

from __future__ import annotations

import argparse
import os
import sys

from zhcedge.cli.arguments import add_daemon_arguments

_EPILOG = """\
The daemon checks the file as `zhc-edge check` does. When it has errors, they are listed and nothing changes. Otherwise
all of it comes into force: zones, lines and other rules at once, a camera by opening it anew while the others run on,
anything else by building everything anew in the same process. When not everything runs again within
control.reload_trial_s seconds, the former configuration comes back. Where a camera is opened anew, what commands have
set of it gives way to the file; when anything is changed, cameras that commands have added go, and removed ones come
back.

exit codes: 0 in force, 1 taken back, 69 no daemon answers, 78 errors in the configuration
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "reload",
        help="let the running daemon take its changed configuration",
        description="Lets the running daemon load its configuration file again.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_daemon_arguments(parser)
    parser.add_argument("--wait", action="store_true", help="wait until it has proved itself, or was taken back")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0, or 1 when it was taken back; raises ConfigError with every problem, and DaemonAwayError."""
    from zhcedge.app.control_address import find_control_socket
    from zhcedge.app.reload_request import reload

    socket = find_control_socket(args.socket, args.config, args.overrides, os.environ)
    return reload(socket, sys.stdout, is_waiting=args.wait, as_json=args.json)

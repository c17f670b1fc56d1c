"""`zhc-edge factory-reset`."""

from __future__ import annotations

import argparse
import os
import sys

from zhcedge.cli.backup import add_place_arguments
from zhcedge.core.errors import UsageError
from zhcedge.core.printing import printable

_EPILOG = """\
The box forgets what it was: identity, messages, events, clips, pictures, imported models and plans. Without
--keep-config also the configuration, its drop-ins and former versions, and credentials. The daemon must be stopped.
With --keep-config it prepares a disk that is to be copied: each copy becomes a device of its own at its first start.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "factory-reset",
        help="make the box forget what it was",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_place_arguments(parser)
    parser.add_argument("--keep-config", action="store_true", help="leave the configuration as it is")
    parser.add_argument("--yes", action="store_true", help="ask nothing")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0, also when it was not wanted after all; raises UsageError where nobody can be asked, and what the use case
    raises."""
    from zhcedge.app.appliance_files import ApplianceFiles
    from zhcedge.app.config_edit import Terminal
    from zhcedge.app.factory_reset import UNIT_CREDENTIALS, reset, what_goes

    files = ApplianceFiles.find(args.config, os.environ, args.state)
    files.needs_silence(os.environ)
    gone = what_goes(files, keeps_config=args.keep_config)
    print(printable("\n".join(map(str, gone)), keep="\n"))
    if not args.yes:
        if not sys.stdin.isatty():
            raise UsageError("there is nobody to ask", fix="add --yes")
        if Terminal().choose("remove all this? (n)o, (y)es", "ny") == "n":
            return 0
    reset(files, os.environ, keeps_config=args.keep_config)
    print("done; now: systemctl daemon-reload" if UNIT_CREDENTIALS in gone else "done")
    return 0

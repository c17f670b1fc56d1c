"""`zhc-edge backup`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from zhcedge.cli.config import SYSTEM_FILE
from zhcedge.core.printing import printable

_EPILOG = """\
Keeps the configuration with its drop-ins and former versions, the device's identity, the last good configuration,
and imported models; `restore` puts them on another box, or back. Messages, events, clips and pictures stay out.
Passwords lie in files of their own (/etc/zhc-edge/credentials): --with-secrets takes them along. The archive is for
its owner alone.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "backup",
        help="keep what makes this box different from another one",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="FILE.tar.gz")
    add_place_arguments(parser)
    parser.add_argument("--with-secrets", action="store_true", help="take the credentials along")
    parser.set_defaults(run=run)


def add_place_arguments(parser: argparse.ArgumentParser) -> None:
    """-c and --state."""
    parser.add_argument(
        "-c", "--config", type=Path, default=SYSTEM_FILE, metavar="FILE", help=f"default: {SYSTEM_FILE}"
    )
    parser.add_argument(
        "--state", type=Path, metavar="DIR", help="the daemon's state; default: $STATE_DIRECTORY, /var/lib/zhc-edge"
    )


def run(args: argparse.Namespace) -> int:
    """0; raises what the use case raises."""
    from zhcedge.app.appliance_files import ApplianceFiles
    from zhcedge.app.backup import back_up

    files = ApplianceFiles.find(args.config, os.environ, args.state)
    names = back_up(args.file, files, with_secrets=args.with_secrets)
    print(printable("\n".join(names), keep="\n"))
    if not args.with_secrets:
        print("without credentials: --with-secrets takes them along")
    return 0

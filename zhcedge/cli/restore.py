"""`zhc-edge restore`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from zhcedge.cli.backup import add_place_arguments
from zhcedge.core.printing import printable

_EPILOG = """\
Puts the files of `zhc-edge backup` in place, all of them or none. The daemon must be stopped:
systemctl stop zhc-edge. Drop-ins of this box that the archive does not have are put aside. This box stays who it is;
with --identity take it takes the place of the one that the backup is of, which must not run any more.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "restore",
        help="put a backup in place, of this box or of the one that it replaces",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="FILE.tar.gz")
    add_place_arguments(parser)
    parser.add_argument("--identity", choices=("keep", "take"), default="keep", help="default: %(default)s")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0; raises what the use case raises."""
    from zhcedge.app.appliance_files import ApplianceFiles
    from zhcedge.app.restore import restore

    files = ApplianceFiles.find(args.config, os.environ, args.state)
    names = restore(args.file, files, os.environ, takes_identity=args.identity == "take")
    print(printable("\n".join(names), keep="\n"))
    if any(name.startswith("config/credentials/") for name in names):
        print("credentials are handed over by the unit: run tools/install again")
    print("restored: see `zhc-edge doctor`, then systemctl start zhc-edge")
    return 0

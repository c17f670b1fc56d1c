"""`zhc-edge config`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from zhcedge.core.errors import UsageError

SYSTEM_FILE = Path("/etc/zhc-edge/config.yaml")

_EPILOG = """\
edit      opens a copy in $SUDO_EDITOR, $VISUAL or $EDITOR. Only what has no errors is installed, after showing what
          each change costs: live (nothing is interrupted), camera (that camera is opened anew), restart (everything is
          built anew). Then the running daemon takes it; when it does not, or takes it back, the former file is back.
diff      shows the same for two files; exit code 1 when they differ.
revert    brings the version back that was replaced last; once more, and it is undone.
history   lists the kept versions (.history beside the file).
schema    prints the JSON Schema, for editors: # yaml-language-server: $schema=FILE
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "config",
        help="edit the configuration safely, compare, go back",
        description="Changes the configuration of this computer safely.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=("edit", "diff", "revert", "history", "schema"))
    parser.add_argument("other", nargs="?", type=Path, metavar="OTHER", help="diff: the file to compare with")
    parser.add_argument(
        "-c", "--config", type=Path, default=SYSTEM_FILE, metavar="FILE", help=f"default: {SYSTEM_FILE}"
    )
    parser.add_argument("--yes", action="store_true", help="ask nothing: install what has no errors")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """See the epilog; raises what the use cases raise."""
    if args.action == "schema":
        from zhcedge.app.config_edit import schema

        print(schema())
        return 0
    if args.action == "history":
        from zhcedge.app.config_versions import ConfigVersions

        for version in ConfigVersions(args.config).versions():
            print(version)
        return 0

    from zhcedge.app.config_edit import Terminal, Yes, edit, revert, show_diff

    if args.action == "diff":
        if args.other is None:
            raise UsageError("diff needs a file to compare with", fix="zhc-edge config diff -c FILE OTHER")
        return show_diff(args.config, args.other, os.environ, sys.stdout)
    if not (args.yes or sys.stdin.isatty()):
        raise UsageError("there is nobody to ask", fix="add --yes")
    use_case = edit if args.action == "edit" else revert
    return use_case(args.config, os.environ, Yes() if args.yes else Terminal(), sys.stdout)

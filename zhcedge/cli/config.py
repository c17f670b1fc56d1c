"""`zhc-edge config`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from zhcedge.core.errors import UsageError

_ARGUMENTS = {
    "diff": ("a file to compare with", "-c FILE OTHER"),
    "set": ("a key and its value", "mqtt.port=1884"),
    "unset": ("a key", "mqtt.port"),
}
"""What an action needs, and an example."""

SYSTEM_FILE = Path("/etc/zhc-edge/config.yaml")

_EPILOG = """\
edit      opens a copy in $SUDO_EDITOR, $VISUAL or $EDITOR. Only what has no errors is installed, after showing what
          each change costs: live (nothing is interrupted), camera (that camera is opened anew), restart (everything is
          built anew). Then the running daemon takes it; when it does not, or takes it back, the former file is back.
set       changes or adds one value, KEY=VALUE as for --set of `run`, and leaves the rest of the file as it is, comments
          too: zhc-edge config set mqtt.port=1884. unset takes a key out: zhc-edge config unset mqtt.port
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
    parser.add_argument("action", choices=("edit", "set", "unset", "diff", "revert", "history", "schema"))
    parser.add_argument(
        "argument", nargs="?", metavar="ARGUMENT", help="set: KEY=VALUE; unset: KEY; diff: the file to compare with"
    )
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

    from zhcedge.app.config_edit import Terminal, Yes, edit, revert, set_value, show_diff, unset_value

    if args.action in _ARGUMENTS and args.argument is None:
        what, example = _ARGUMENTS[args.action]
        raise UsageError(f"{args.action} needs {what}", fix=f"zhc-edge config {args.action} {example}")
    if args.action == "diff":
        return show_diff(args.config, Path(args.argument), os.environ, sys.stdout)
    if not (args.yes or sys.stdin.isatty()):
        raise UsageError("there is nobody to ask", fix="add --yes")
    person = Yes() if args.yes else Terminal()
    if args.action in ("set", "unset"):
        change = set_value if args.action == "set" else unset_value
        return change(args.config, args.argument, os.environ, person, sys.stdout)
    use_case = edit if args.action == "edit" else revert
    return use_case(args.config, os.environ, person, sys.stdout)

"""`zhc-edge purge`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING

from zhcedge.cli.arguments import add_config_arguments
from zhcedge.core.errors import UsageError

if TYPE_CHECKING:
    from zhcedge.app.purge import Purged


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "purge",
        help="delete clips and snapshots, for privacy",
        description="Delete clips and snapshots and what is noted about them, also while the daemon runs. --camera and "
        "--before together delete what fits both. What was sent to the broker is out of reach.",
    )
    add_config_arguments(parser)
    parser.add_argument(
        "--before", metavar="TIME", help="what began before: 2025-01-31, 2025-01-31T18:00, or an age like 7d or 12h"
    )
    parser.add_argument("--camera", metavar="NAME", help="of this camera, which may be gone from the configuration")
    parser.add_argument("--all", action="store_true", help="everything")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 when it was deleted, 1 when it was not confirmed."""
    from zhcedge.app.check import load_configuration
    from zhcedge.app.moments import moment_ns
    from zhcedge.app.purge import purge, selection_of

    before_ns = None if args.before is None else moment_ns(args.before, time.time_ns(), "--before")
    selection = selection_of(args.camera, before_ns, args.all)
    config = load_configuration(args.config, args.overrides, os.environ).config
    done = purge(config, selection, lambda found: args.yes or _confirm(found))
    if done is None:
        print("nothing was deleted")
        return 1
    for purged in done:
        print(f"deleted: {_words(purged)}")
    return 0


def _confirm(found: list[Purged]) -> bool:
    for purged in found:
        print(f"to be deleted: {_words(purged)}")
    if not sys.stdin.isatty():
        raise UsageError("nobody is there to be asked", fix="add --yes")
    try:
        return input("Delete this for good? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # Ctrl-D, or a terminal that was closed
        print()
        return False


def _words(purged: Purged) -> str:
    return f"{purged.amount.count} {purged.things}, {purged.amount.size_bytes / 1e6:.1f} MB"

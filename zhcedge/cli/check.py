"""`zhc-edge check`: print the resolved configuration, or every problem in it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from zhcedge.cli.arguments import add_config_arguments
from zhcedge.core.errors import ConfigError

if TYPE_CHECKING:
    from zhcedge.app.check import CheckReport


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "check",
        help="check a configuration and show where each value comes from",
        description="Lists every problem of a configuration, or its values with the place that each comes from. Looks "
        "whether what it names is there: model and labels, headers of videos and pictures, cameras, password files, "
        "folders of sinks, packages of the profile. Opens no stream and runs nothing.",
    )
    add_config_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 when the configuration is good. Otherwise 78: raises ConfigError, or returns it with --json."""
    # Imported here so that --help and the other subcommands don't wait for pydantic.
    from zhcedge.app.check import check

    report = check(args.config, args.overrides, os.environ)
    if args.json:
        print(_as_json(report))
        return ConfigError.exit_code if report.problems else 0
    if report.problems:
        raise report.error()
    # A terminal that is not UTF-8 shows a path's letters as escapes.
    encoding = sys.stdout.encoding or "utf-8"
    print(_as_table(report).encode(encoding, "backslashreplace").decode(encoding))
    return 0


def _as_json(report: CheckReport) -> str:
    problems = [
        {
            "place": asdict(problem.place),
            "key": problem.key,
            "what": problem.what,
            "allowed": problem.allowed,
            "fix": problem.fix,
        }
        for problem in report.problems
    ]
    document: dict[str, object] = {"ok": not problems, "problems": problems}
    if not problems:
        document["values"] = {leaf.key: {"value": leaf.value, "origin": leaf.origin} for leaf in report.leaves}
    return json.dumps(document, indent=2)


def _as_table(report: CheckReport) -> str:
    rows = [(leaf.key, leaf.text, leaf.origin) for leaf in report.leaves]
    key_width = max(len(key) for key, _, _ in rows)
    # One long path must not push every origin off the screen.
    value_width = min(max(len(value) for _, value, _ in rows), 56)
    return "\n".join(f"{key:<{key_width}}  {value:<{value_width}}  {origin}" for key, value, origin in rows)

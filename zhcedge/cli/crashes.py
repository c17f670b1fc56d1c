"""`zhc-edge crashes`."""

from __future__ import annotations

import argparse
import json
import os
from datetime import datetime
from pathlib import Path


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "crashes",
        help="show what is known of processes that died",
        description="Lists the reports of processes of the daemon that died or stood still, or shows one of them.",
    )
    parser.add_argument("name", nargs="?", help="show this report as JSON")
    parser.add_argument("--json", action="store_true", help="print the list as one JSON array")
    parser.add_argument(
        "--state", type=Path, metavar="DIR", help="the daemon's state; default: $STATE_DIRECTORY, /var/lib/zhc-edge"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0; raises ConfigError without a folder, SourceMissingError for an unknown name."""
    from zhcedge.app.crash_reports import find_report, list_reports
    from zhcedge.core.printing import printable

    if args.name is not None:
        print(json.dumps(find_report(args.name, os.environ, args.state), indent=2))
        return 0
    reports = list_reports(os.environ, args.state)
    if args.json:
        print(json.dumps(reports))
        return 0
    for report in reports:
        error = report.get("error")
        what = error.get("what") if isinstance(error, dict) else report.get("what")
        print(printable(f"{report['name']}  {_moment(report.get('time'))}  {what}"))
    if not reports:
        print("no process of the daemon has died")
    return 0


def _moment(time_s: object) -> str:
    """For people; dashes for a report that does not say when."""
    try:
        return f"{datetime.fromtimestamp(float(str(time_s))).astimezone():%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return "---------- --------"

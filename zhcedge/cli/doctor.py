"""`zhc-edge doctor`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from zhcedge.cli.arguments import whole_number
from zhcedge.cli.config import SYSTEM_FILE
from zhcedge.core.printing import printable

if TYPE_CHECKING:
    from zhcedge.app.findings import Finding

_CREDENTIALS = Path("/etc/zhc-edge/credentials")
_REPORT = Path("zhc-edge-report.tar.gz")

_EPILOG = """\
Looks at board, driver, packages, device files and who may use them, the service, the configuration, the model, folders,
every camera (its first picture is waited for; a running daemon is asked instead), every broker, and the clock. Run it
as root, so that it sees what the service sees.

--report writes an archive for whoever is asked for help: the screen, the resolved configuration, the daemon's status,
crash reports, the last lines of the journal, and a short benchmark and audit where no daemon runs. Passwords and keys
are taken out, and names of hosts too unless --with-addresses is given; look into it before you send it: tar xzf FILE

Exit code 0: nothing is bad; 1: something is.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "doctor",
        help="look at everything that the daemon needs, with a fix for what is wrong",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-c", "--config", type=Path, metavar="FILE", help=f"default: {SYSTEM_FILE}")
    parser.add_argument("--quick", action="store_true", help="leave cameras and brokers out")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--report", nargs="?", type=Path, const=_REPORT, metavar="FILE", help=f"write an archive; default: {_REPORT}"
    )
    parser.add_argument(
        "--seconds", type=lambda text: whole_number(text, 0, 3600), default=60, help="of load for it (%(default)s)"
    )
    parser.add_argument("--with-load", action="store_true", help="measure although a daemon runs, which slows it down")
    parser.add_argument("--with-addresses", action="store_true", help="leave names of hosts in it")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """See the epilog. Raises OutputError when the archive can't be written."""
    from zhcedge.app.doctor import examine
    from zhcedge.app.doctor_report import check_place, write_report

    if args.report is not None:
        check_place(args.report)
    if os.access(_CREDENTIALS, os.R_OK):  # where the unit takes them from
        os.environ.setdefault("CREDENTIALS_DIRECTORY", str(_CREDENTIALS))
    path, findings, lines = args.config or SYSTEM_FILE, [], []
    for finding in examine(path, os.environ, is_quick=args.quick):
        findings.append(finding)
        lines += _lines(finding)
        if not args.json:
            print("\n".join(_lines(finding)), flush=True)
    is_bad = any(finding.state == "bad" for finding in findings)
    if args.json:
        print(json.dumps({"ok": not is_bad, "findings": [asdict(finding) for finding in findings]}, indent=2))
    if args.report is not None:
        write_report(
            args.report,
            findings,
            "\n".join(lines),
            path,
            os.environ,
            seconds=args.seconds,
            is_loaded_anyway=args.with_load,
            shows_hosts=args.with_addresses,
            say=lambda text: print(text, file=sys.stderr, flush=True),
        )
        print(f"wrote {args.report}", file=sys.stderr)
    return 1 if is_bad else 0


def _lines(finding: Finding) -> list[str]:
    lines = [f"{finding.state:<8} {printable(finding.part):<16} {printable(finding.text)}".rstrip()]
    if finding.fix:
        lines.append(f"{'':<8} {'':<16} -> {printable(finding.fix)}")
    return lines

"""`zhc-edge mqtt test`."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from zhcedge.cli.arguments import add_config_arguments
from zhcedge.core.errors import BrokerError
from zhcedge.core.printing import printable

if TYPE_CHECKING:
    from zhcedge.app.mqtt_test import BrokerReport, Step

_TEST = """\
Goes the daemon's way to the MQTT broker, and to those in mqtt.fallbacks, step by step: resolve the name, connect, TLS
(who signed the broker's certificate and until when it is valid), log in (MQTT version and the broker's limits),
subscribe, publish, and whether what is published comes back.

A running daemon keeps its connection: the test has a client id of its own, the daemon's with "-test" behind it. It
publishes one message, on <prefix>/<device>/test, which no broker keeps.

Exit code 69 when a step fails.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `mqtt` and its action."""
    parser = subparsers.add_parser("mqtt", help="try the connection to the MQTT broker, step by step")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    test = actions.add_parser(
        "test",
        help="say which step towards the broker breaks, and why",
        description=_TEST,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_config_arguments(test)
    test.add_argument("--json", action="store_true", help="print one JSON object")
    test.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks of errors")
    test.set_defaults(run=_test)


def _test(args: argparse.Namespace) -> int:
    from zhcedge.app.check import load_configuration
    from zhcedge.app.mqtt_test import check_brokers

    config = load_configuration(args.config, args.overrides, os.environ).config
    reports = []
    for report in check_brokers(config):
        reports.append(report)
        if not args.json:
            print("\n".join(_lines(report)), flush=True)
    is_ok = all(report.is_ok for report in reports)
    if args.json:
        brokers = [{"ok": report.is_ok, **asdict(report)} for report in reports]
        print(json.dumps({"ok": is_ok, "brokers": brokers}, indent=2))
    return 0 if is_ok else BrokerError.exit_code


def _lines(report: BrokerReport) -> list[str]:
    return [report.address, *(line for step in report.steps for line in _step_lines(step))]


def _step_lines(step: Step) -> list[str]:
    lines = [f"  {step.name:<12} {step.result:<8} {printable(step.text)}".rstrip()]
    if step.fix:
        lines.append(f"  {'':<12} {'':<8} {printable(step.fix)}")
    return lines

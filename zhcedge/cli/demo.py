"""`zhc-edge demo`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `demo`."""
    parser = subparsers.add_parser(
        "demo",
        help="run the whole thing on the bundled clip, with a broker of its own",
        description="Starts a broker on loopback and the daemon on a bundled clip, prints every event as an MQTT "
        "client sees it, writes the annotated video, and ends with what was measured.",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("zhc-edge-demo"), metavar="DIR", help="folder for the video (%(default)s)"
    )
    parser.add_argument("--profile", default="cpu", help="set of backends (%(default)s)")
    parser.add_argument(
        "--broker",
        choices=("auto", "mosquitto", "amqtt"),
        default="auto",
        help="auto takes mosquitto where it is installed, else amqtt",
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="also write a frame of the video, as JPEG")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from zhcedge.app.demo import DemoSettings, run

    # Also where it was started with Ctrl-C ignored, as a shell does for a job in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    is_coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    settings = DemoSettings(arguments.out, arguments.profile, arguments.broker, arguments.picture, is_coloured)
    return run(settings, lambda line: print(line, flush=True))


def _leave(number: int, frame: FrameType | None) -> None:
    """End as Ctrl-C does, children first, with the exit code that a shell gives to this signal."""
    sys.exit(128 + number)

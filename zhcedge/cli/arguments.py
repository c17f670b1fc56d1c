"""Arguments that several subcommands share."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add -c/--config (args.config: Path, required) and --set (args.overrides: list of "key=value" texts)."""
    parser.add_argument(
        "-c", "--config", type=Path, required=True, metavar="FILE", help="the configuration, a YAML file"
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set one value over the file and the environment, e.g. mqtt.port=1884; may be repeated",
    )


def add_daemon_arguments(parser: argparse.ArgumentParser) -> None:
    """For commands to a running daemon: args.socket and args.config (paths or None), args.overrides as above."""
    parser.add_argument(
        "-c", "--config", type=Path, metavar="FILE", help="the daemon's configuration: says where it listens"
    )
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="set one value of it"
    )
    parser.add_argument(
        "--socket",
        type=Path,
        metavar="PATH",
        help="the daemon's socket; default: $RUNTIME_DIRECTORY, $XDG_RUNTIME_DIR/zhc-edge, /run/zhc-edge",
    )


def whole_number(text: str, least: int, most: int) -> int:
    """For `type=`: a number from `least` to `most`. argparse says what is wrong with any other text."""
    value = int(text) if text.strip().isdecimal() else -1
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")
    return value

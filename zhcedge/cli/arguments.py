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

"""`zhc-edge version`."""

from __future__ import annotations

import argparse
import platform
from importlib import metadata

from zhcedge import __version__

_PACKAGES = ("numpy", "pydantic", "paho-mqtt", "onnxruntime", "onnxruntime-gpu", "av", "tensorrt", "cuda-bindings")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `version`."""
    parser = subparsers.add_parser("version", help="print the versions of this program and of what it finds")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    print(f"zhc-edge {__version__}")
    print(f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.machine()}")
    for name in _PACKAGES:
        try:
            print(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return 0

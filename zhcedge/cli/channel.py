"""`zhc-edge channel add|remove|pause|resume`."""

from __future__ import annotations

import argparse
import os

from zhcedge.cli.arguments import add_daemon_arguments

_CHANNEL = """\
Changes the cameras of the running daemon, and waits until it is done. It lasts until the daemon ends; what shall stay
belongs into the configuration.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `channel` and its actions."""
    parser = subparsers.add_parser("channel", help="add, remove, pause or resume a camera", description=_CHANNEL)
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    add = actions.add_parser(
        "add", help="begin a camera", description="Begin a camera, with defaults for all but its address. " + _CHANNEL
    )
    _add_arguments(add, "add")
    add.add_argument(
        "--uri",
        required=True,
        help="its address: rtsp://, rtsps://, http://, https:// or v4l2:/dev/video0; no file of this computer",
    )
    texts = {
        "remove": "end a camera",
        "pause": "throw a camera's frames away until it is resumed; the connection stays",
        "resume": "go on with a camera that is paused",
    }
    for action, text in texts.items():
        _add_arguments(actions.add_parser(action, help=text, description=f"To {text}. {_CHANNEL}"), action)


def _add_arguments(parser: argparse.ArgumentParser, action: str) -> None:
    parser.add_argument("name", metavar="NAME", help="of the camera")
    add_daemon_arguments(parser)
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks of errors")
    parser.set_defaults(run=_run, action=action)


def _run(args: argparse.Namespace) -> int:
    from zhcedge.app.channel_control import add_channel, change_channel
    from zhcedge.app.control_address import find_control_socket

    socket = find_control_socket(args.socket, args.config, args.overrides, os.environ)
    if args.action == "add":
        add_channel(socket, args.name, args.uri)
    else:
        change_channel(socket, args.action, args.name)
    return 0

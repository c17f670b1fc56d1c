"""Use cases `channel` and `log-level`: change a running daemon, and wait until it is done."""

from __future__ import annotations

from pathlib import Path

from zhcedge.app.remote_errors import remote_error
from zhcedge.service.control_client import ControlClient

_PATIENCE_S = 40.0  # the daemon itself says when the frame process takes longer than 30 s (mqtt_commands.ANSWER_S)


def add_channel(socket: Path, name: str, uri: str) -> None:
    """Begin a camera; it lasts until it is removed or the daemon ends. Raises as `change_channel`."""
    _ask(socket, {"do": "channel", "action": "add", "name": name, "channel": {"source": {"uri": uri}}})


def change_channel(socket: Path, action: str, name: str) -> None:
    """`action` is remove, pause or resume. Raises DaemonAwayError, and what the daemon answers."""
    _ask(socket, {"do": "channel", "action": action, "name": name})


def set_level(socket: Path, level: str) -> None:
    """Of both processes of the daemon, until it ends. Raises DaemonAwayError, and what the daemon answers."""
    _ask(socket, {"do": "log-level", "level": level})


def _ask(socket: Path, request: dict[str, object]) -> None:
    with ControlClient(socket, _PATIENCE_S) as client:
        answer = client.ask(request)
    if "error" in answer:
        raise remote_error(answer["error"])

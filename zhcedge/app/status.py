"""Use case `status`: what a running daemon says of itself, once or every second."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

from zhcedge.app.control_address import find_control_socket
from zhcedge.app.remote_errors import remote_error
from zhcedge.app.status_view import status_line, status_lines
from zhcedge.core.errors import ConfigError, DaemonAwayError
from zhcedge.service.control_client import ControlClient

_ANSWER_S = 10.0

_HOME, _TO_LINE_END, _TO_SCREEN_END = "\x1b[H", "\x1b[K", "\x1b[J"  # ECMA-48: CUP, EL, ED
_CLEAR = "\x1b[2J"


def show_status(socket: Path, out: TextIO, *, as_json: bool) -> None:
    """Write one screen for people, or one JSON object. Raises DaemonAwayError, and what the daemon answers."""
    with ControlClient(socket, _ANSWER_S) as client:
        facts = _checked(client.ask({"do": "status"}))
    if as_json:
        out.write(json.dumps(facts, indent=2) + "\n")
    else:
        out.write("\n".join(status_lines(facts)) + "\n")


def watch_status(socket: Path, out: TextIO, *, as_json: bool) -> None:
    """Write the status every second: redrawn on a terminal, else a line each, with `as_json` an object a line.

    Ends by the KeyboardInterrupt of Ctrl-C, or by the DaemonAwayError of a daemon that has ended.
    """
    is_drawn = out.isatty() and not as_json
    if is_drawn:
        out.write(_CLEAR)
    for facts in _watched(socket):
        if is_drawn:
            out.write(_screen(facts))
        else:
            out.write((json.dumps(facts) if as_json else status_line(facts)) + "\n")
        out.flush()


def daemon_status(path: Path, environ: Mapping[str, str]) -> dict[str, object] | None:
    """What a running daemon says of itself; None without one.

    Raises DaemonAwayError where one may be running that can't be asked: its socket is closed to us, it hangs, or it is
    too busy to say.
    """
    try:
        with ControlClient(_socket(path, environ), _ANSWER_S) as client:
            answer = client.ask({"do": "status"})
    except DaemonAwayError as error:
        if isinstance(error.__cause__, (PermissionError, TimeoutError, BlockingIOError)):
            raise
        return None
    if "error" in answer:
        raise DaemonAwayError("the daemon does not say how it is", fix="try again") from remote_error(answer["error"])
    return answer


def _socket(path: Path, environ: Mapping[str, str]) -> Path:
    """The daemon's, also where the file has errors by now: it may run with the former one."""
    try:
        return find_control_socket(None, path, (), environ)
    except ConfigError:
        return find_control_socket(None, None, (), environ)


def _watched(socket: Path) -> Iterator[dict[str, object]]:
    with ControlClient(socket, _ANSWER_S) as client:
        for answer in client.watch():
            yield _checked(answer)


def _checked(answer: dict[str, object]) -> dict[str, object]:
    """Raises the error that it tells of."""
    if "error" in answer:
        raise remote_error(answer["error"])
    return {key: value for key, value in answer.items() if key != "ok"}


def _screen(facts: Mapping[str, object]) -> str:
    """The lines over those of before, cut to the terminal: a line that wraps would move all others."""
    columns, rows = shutil.get_terminal_size()
    lines = status_lines(facts)
    if len(lines) >= rows:
        lines = [*lines[: max(rows - 2, 0)], "..."]
    return _HOME + "".join(f"{line[:columns]}{_TO_LINE_END}\n" for line in lines) + _TO_SCREEN_END

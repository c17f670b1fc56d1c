"""Use case `reload`: ask the running daemon to take its changed configuration, and tell what became of it."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from zhcedge.app.remote_errors import remote_error
from zhcedge.core.errors import DaemonAwayError
from zhcedge.core.printing import printable
from zhcedge.service.control_client import ControlClient

_PATIENCE_S = 40.0
_PAUSE_S = 0.2
_AWAY_S = 30.0  # how long the daemon may be busy with building everything anew
_FINAL = ("applied", "unchanged", "refused", "reverted")


def reload(
    socket: Path, out: TextIO, *, is_waiting: bool, as_json: bool, new_socket: Callable[[], Path] | None = None
) -> int:
    """0 when the configuration is in force, 1 when it was taken back.

    Args:
        new_socket: finds where the daemon listens once the configuration is in force; None: in the same place.
        is_waiting: wait until it has proved itself; otherwise only until it has been checked.

    Raises the daemon's ConfigError with every problem, and DaemonAwayError.
    """
    answer = _ask(socket, "reload")
    number = int(str(answer["number"]))
    places = (socket, new_socket() if new_socket is not None else socket)
    facts = _facts(places)
    while int(str(facts["number"])) < number or facts["state"] == "checking" or (is_waiting and not _is_final(facts)):
        time.sleep(_PAUSE_S)
        facts = _facts(places)
    if as_json:
        out.write(json.dumps(facts) + "\n")
    elif facts["error"] is None:
        changes = facts["changes"] if isinstance(facts["changes"], list) else []
        lines = [f"  {change}" for change in changes] + [str(facts["text"]) or "it is being tried"]
        out.write(printable("\n".join(lines), keep="\n") + "\n")
    if facts["error"] is not None:
        raise remote_error(facts["error"])
    return 1 if facts["state"] == "reverted" else 0


def _is_final(facts: dict[str, object]) -> bool:
    return facts["state"] in _FINAL


def _facts(places: Sequence[Path]) -> dict[str, object]:
    """How the reload goes, from where somebody answers; while everything is built anew nobody does for a while."""
    deadline_s, turns = time.monotonic() + _AWAY_S, itertools.cycle(places)
    while True:
        try:
            return _ask(next(turns), "reload-status")
        except DaemonAwayError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_PAUSE_S)


def _ask(socket: Path, word: str) -> dict[str, object]:
    with ControlClient(socket, _PATIENCE_S) as client:
        answer = client.ask({"do": word})
    if "error" in answer and "state" not in answer:
        raise remote_error(answer["error"])
    return answer

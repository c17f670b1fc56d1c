"""Programs that the doctor asks: each with a limit of its own, and killed with everything that it has started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_KILLED_S = 2.0
"""How long a killed program may take to be gone; one that hangs inside the kernel is left there."""


@dataclass(frozen=True)
class Outcome:
    """What a program has said.

    Attributes:
        code: exit code; negative for a signal, 127 where it could not be started.
        is_late: it was killed because it took too long.
    """

    code: int
    out: str = ""
    err: str = ""
    is_late: bool = False

    @property
    def why(self) -> str:
        """What went wrong, on one line."""
        if self.is_late:
            return "no answer in time"
        if self.code < 0:
            with contextlib.suppress(ValueError):
                return f"it was killed by {signal.Signals(-self.code).name}"
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {self.code}"


def ask(
    command: Sequence[str], timeout_s: float, *, given: str = "", environ: Mapping[str, str] | None = None
) -> Outcome:
    """Run a program to its end. Blocks, `timeout_s` and two seconds at most; any thread. Never raises OSError.

    Args:
        given: its standard input.
        environ: None for our own.
    """
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=None if environ is None else dict(environ),
            start_new_session=True,
        )
    except OSError as error:
        return Outcome(127, err=f"{command[0]}: {error.strerror or error}")
    try:
        out, err = child.communicate(given, timeout_s)
        return Outcome(child.returncode, out, err)
    except subprocess.TimeoutExpired:
        _kill(child)
        with contextlib.suppress(subprocess.TimeoutExpired):
            out, err = child.communicate(timeout=_KILLED_S)
            return Outcome(child.returncode, out, err, is_late=True)
        return Outcome(-signal.SIGKILL, is_late=True)
    finally:
        _kill(child)  # also when Ctrl-C cut the wait short, and what it has left behind


def _kill(child: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)

"""Child processes that never outlive us: each in a session of its own, ended when we end, however we end.

Linux delivers PR_SET_PDEATHSIG (prctl(2)) when the thread that forked the child dies, SIGKILL of ours included.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def running(
    command: Sequence[str], log: Path, *, orphan_signal: signal.Signals, grace_s: float
) -> Iterator[subprocess.Popen[bytes]]:
    """Start `command` and end it on leaving: SIGTERM, `grace_s` seconds, then SIGKILL to its whole group.

    Call it from the main thread, and before any other thread is started: code of ours runs in the child between fork
    and exec. Standard output and error go to `log`; standard input is empty. A Ctrl-C at our terminal does not reach
    the child, so that the order of the ending is ours.

    Args:
        orphan_signal: what the child gets when this process dies without leaving the context.

    Raises:
        OSError: the program does not exist or can't be started.
    """
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent(orphan_signal),
        )
    try:
        yield child
    finally:
        _end(child, grace_s)


def last_lines(log: Path, count: int) -> list[str]:
    """Up to `count` lines at the end of a child's log, without blank ones."""
    lines = (line.rstrip() for line in log.read_text(errors="replace").splitlines())
    return [line for line in lines if line][-count:]


def last_line(log: Path) -> str:
    """The last line of a child's log that says something, or an empty string."""
    return "".join(last_lines(log, 1))


def _end(child: subprocess.Popen[bytes], grace_s: float) -> None:
    try:
        if child.poll() is None:
            child.terminate()
            child.wait(grace_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        # Also when a second Ctrl-C cut the wait short, and for grandchildren of a child that is gone already.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _die_with_parent(orphan_signal: signal.Signals) -> Callable[[], None] | None:
    """What to run in the child before exec; None where the system has no such call."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None:
        return None
    parent = os.getpid()

    def arrange() -> None:
        prctl(_PR_SET_PDEATHSIG, int(orphan_signal), 0, 0, 0)
        if os.getppid() != parent:  # we died before the call above took effect
            os.kill(os.getpid(), orphan_signal)

    return arrange

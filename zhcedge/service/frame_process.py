"""The control process's handle on a frame process: start, messages, stop. Used by one thread, the control loop's."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Sequence

from zhcedge.core.errors import PipelineError, ZhcEdgeError

log = logging.getLogger(__name__)

_DEATH_S = 5.0  # how long a killed process may take to be gone

_TRACE_S, _TRACE_BYTES = 0.3, 64 * 1024

TRACE_SIGNAL = signal.SIGUSR2
"""Makes a frame process write its threads' stacks."""

CONTROL_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What asks the daemon to drain. The control process acts on them, the frame process ignores them."""


class FrameProcess:
    """One run of the frame process.

    Args:
        command: the program and its arguments; four file descriptor numbers are appended: control pipe, shared
            memory, wake-up, and where its threads' stacks go when it crashes or is asked for them.
        memory_fd, wake_fd: inherited by the child; they stay the caller's to close.
        first: the first message, with the configuration.

    Raises PipelineError when the process can't be started, and then leaves nothing behind.
    """

    def __init__(self, command: Sequence[str], memory_fd: int, wake_fd: int, first: dict[str, object]) -> None:
        ours, theirs = socket.socketpair()
        self._trace_fd = os.memfd_create("frame-process-trace", os.MFD_CLOEXEC)
        fds = (theirs.fileno(), memory_fd, wake_fd, self._trace_fd)
        # A terminal's Ctrl-C and a service manager's SIGTERM go to the whole group. The child inherits them blocked, so
        # that they can't end it before it has said that this process decides.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, CONTROL_SIGNALS)
        try:
            self._process = subprocess.Popen(
                [*command, *(str(fd) for fd in fds)], pass_fds=fds, stdin=subprocess.DEVNULL
            )
        except OSError as error:
            ours.close()
            os.close(self._trace_fd)
            raise PipelineError(f"the frame process can't be started: {error.strerror}", where=command[0]) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
        self._socket = ours
        self._socket.setblocking(False)
        self._buffer = b""
        self._send(first)

    def fileno(self) -> int:
        """For a selector: readable when `messages` has something or the process has ended."""
        return self._socket.fileno()

    @property
    def pid(self) -> int:
        return self._process.pid

    def messages(self) -> tuple[list[dict[str, object]], bool]:
        """What has arrived, and whether the process has closed its end (it has ended or is about to)."""
        is_closed = False
        chunks = [self._buffer]
        try:
            while chunk := self._socket.recv(65536):
                chunks.append(chunk)
            is_closed = True
        except BlockingIOError:
            pass
        except OSError:  # connection reset: the process was killed
            is_closed = True
        *lines, self._buffer = b"".join(chunks).split(b"\n")
        return [json.loads(line) for line in lines], is_closed

    def request_stop(self) -> None:
        """Ask for a drain; the process then reports and ends."""
        self._send({"stop": True})

    def command(self, number: int, word: str, name: str, value: object = None) -> None:
        """Ask something of a channel (app/frame_commands lists the words and their values, which JSON can say).

        The answer with this number comes with `messages`: {"done": number, "value": ...} or {"refused": number,
        "error": facts}.
        """
        self._send({"command": number, "do": word, "name": name, "value": value})

    def _send(self, message: dict[str, object]) -> None:
        try:
            self._socket.setblocking(True)
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            pass  # it is gone; `messages` reports that
        finally:
            self._socket.setblocking(False)

    def wait(self, timeout_s: float) -> int:
        """The exit status once the pipe is closed; a process that does not end in time is killed.

        One that is stuck in the kernel, in the driver of a lost GPU, does not die either: it is left behind.
        """
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return self._kill()

    def trace(self) -> str:
        """Stacks of its threads, written when it crashed or was killed; empty where it ended in order. After `wait`."""
        return os.pread(self._trace_fd, _TRACE_BYTES, 0).decode("utf-8", "replace")

    def _kill(self) -> int:
        """Where it stands is written down first, by a handler that needs no interpreter: it may be inside a driver."""
        with contextlib.suppress(subprocess.TimeoutExpired, ProcessLookupError):
            self._process.send_signal(TRACE_SIGNAL)
            self._process.wait(_TRACE_S)
        self._process.kill()
        try:
            return self._process.wait(_DEATH_S)
        except subprocess.TimeoutExpired:
            log.error("frame process %d does not die: it is stuck in the kernel", self.pid)
            return -signal.SIGKILL

    def close(self) -> None:
        """Kill what still runs and close the pipe."""
        if self._process.poll() is None:
            self._kill()
        self._socket.close()
        os.close(self._trace_fd)


def exit_error(status: int) -> ZhcEdgeError:
    """What to say about a frame process that ended without a word."""
    how = f"was ended by {_signal_name(-status)}" if status < 0 else f"ended with exit code {status}"
    return PipelineError(f"the frame process {how}", fix="see the log above; it is started again")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


def restart_delay_s(attempt: int) -> float:
    """Growing pause before start number `attempt` (0 is the first restart): 1, 2, 4, ... at most 60 seconds."""
    return min(2.0**attempt, 60.0)


def eventfd() -> int:
    """A non-blocking eventfd, to wake a selector from another thread or process."""
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

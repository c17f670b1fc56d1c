"""The other end of the control socket: a command asks the daemon. Blocks."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from zhcedge.core.errors import DaemonAwayError
from zhcedge.service.socket_file import LONGEST_PATH_BYTES

_LONGEST_LINE = 16 << 20
_BUSY_PAUSE_S = 0.02
_START = "start it, or name its socket with --socket"


class ControlClient:
    """One connection. Use as a context manager.

    Args:
        timeout_s: longest wait for a line.

    Raises DaemonAwayError when nobody listens at `path`, or it may not be used.
    """

    def __init__(self, path: Path, timeout_s: float) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        try:
            self._connect(time.monotonic() + timeout_s)
        except OSError as error:
            self._socket.close()
            raise self._away(error) from error
        self._lines = self._socket.makefile("rb")

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._socket.close()

    def ask(self, request: Mapping[str, object]) -> dict[str, object]:
        """The answer, {"ok": true, ...} or {"error": facts}. Raises DaemonAwayError when none comes."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may have said why before it hung up
            self._send(request)
        return self.next()

    def next(self) -> dict[str, object]:
        """The next line. Raises DaemonAwayError when none comes."""
        try:
            line = self._lines.readline(_LONGEST_LINE)
        except TimeoutError as error:
            raise self._error("the daemon does not answer", "see its log") from error
        except OSError as error:
            raise self._away(error) from error
        if not line.endswith(b"\n"):
            raise self._error("the daemon has hung up; it has ended, or is about to", "see its log")
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise self._error("what answers is no zhc-edge daemon", _START) from error
        if not isinstance(answer, dict):
            raise self._error("what answers is no zhc-edge daemon", _START)
        return answer

    def watch(self) -> Iterator[dict[str, object]]:
        """The answers to {"do": "watch"}, for ever. Raises DaemonAwayError when the daemon has gone."""
        yield self.ask({"do": "watch"})
        while True:
            yield self.next()

    def _connect(self, deadline_s: float) -> None:
        while True:
            try:
                self._socket.connect(str(self._path))
                return
            except BlockingIOError:  # too many wait to be taken: a Unix socket with a time limit says so at once
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(_BUSY_PAUSE_S)

    def _send(self, request: Mapping[str, object]) -> None:
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
        except TimeoutError as error:
            raise self._error("the daemon does not answer", "see its log") from error

    def _away(self, error: OSError) -> DaemonAwayError:
        if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
            return self._error("no daemon answers", _START)
        if isinstance(error, PermissionError):
            return self._error("the daemon's socket may not be used", "run this as its user or a member of its group")
        if len(str(self._path).encode(errors="surrogateescape")) > LONGEST_PATH_BYTES:
            return self._error(f"a socket's path has {LONGEST_PATH_BYTES} bytes at most", "name another one")
        return self._error(f"no daemon answers: {error.strerror or error}", _START)

    def _error(self, what: str, fix: str) -> DaemonAwayError:
        return DaemonAwayError(what, where=str(self._path), fix=fix)

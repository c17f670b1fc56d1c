"""The parent's side of a plan's build: starts the child, watches its memory, says why it ended.

The limit is watched and not set: CUDA reserves address space in terabytes, so RLIMIT_AS would stop it at once, and a
cgroup needs a privilege. Ten times a second is often enough, because the builder allocates in steps and the system's
out-of-memory killer was told to take it before anybody else.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from zhcedge.app.interpreter import command_for
from zhcedge.app.remote_errors import remote_error
from zhcedge.core.errors import PipelineError

Report = Callable[[float, str], None]

RESERVE_MIB = 384
"""What must stay free on the whole machine while a plan is built: the daemon and the system live there."""

_LOOK_S = 0.1
_LAST_LINES = 3


@dataclass(frozen=True)
class LibraryFacts:
    """What the child found: the library's version, and the compute capability of GPU 0, "" without one."""

    version: str
    own: str


class BuildProcess:
    """One build. A context manager: leaving it ends the child. One thread.

    Args:
        kind: "tensorrt" or "tensorrt_rtx".
        memory_mib: most resident memory of the child; 0 for no other limit than RESERVE_MIB.

    The child dies with the thread that made it, so that thread must live as long as the build.
    """

    def __init__(self, kind: str, memory_mib: int = 0) -> None:
        self._kind, self._limit_mib = kind, memory_mib
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        try:
            self._child = subprocess.Popen(
                [*command_for("zhcedge.app.build_child"), kind, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                start_new_session=True,
            )
        except OSError as error:
            self._log.close()
            raise PipelineError(f"the build can't be started: {error.strerror}", where=kind) from error
        self._why_killed = ""

    def __enter__(self) -> BuildProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._child.pid

    def facts(self) -> LibraryFacts:
        """Wait for the library to be loaded. Raises what the child raised, e.g. BackendUnavailableError."""
        facts = self._wait("facts", lambda share, what: None)
        return LibraryFacts(str(facts["version"]), str(facts["own"]))

    def build(self, order: str, report: Report) -> dict[str, object]:
        """Give the order and wait. Returns "path", "bytes" and "warnings".

        Raises what the child raised, and PipelineError when it was killed for its memory or died.
        """
        stdin = self._child.stdin
        if stdin is None:
            raise PipelineError("the build has no input", where=self._kind)
        with contextlib.suppress(BrokenPipeError):  # it has ended; `_wait` says why
            stdin.write(order.encode() + b"\n")
            stdin.flush()
        return self._wait("done", report)

    def cancel(self) -> None:
        """End the child now. Any thread."""
        self._child.kill()

    def close(self) -> None:
        """End the child; twice is fine."""
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._child.kill()
        self._child.wait()
        self._log.close()

    def _wait(self, key: str, report: Report) -> dict[str, object]:
        for message in self._messages():
            if "progress" in message:
                progress = message["progress"]
                if isinstance(progress, list):
                    report(float(progress[0]), str(progress[1]))
            elif "error" in message:
                raise remote_error(message["error"])
            elif isinstance(found := message.get(key), dict):
                return found
        raise self._ended()

    def _messages(self) -> Iterator[dict[str, object]]:
        """What the child says, until it ends; its memory is looked at between two messages."""
        stdout = self._child.stdout
        if stdout is None:
            return
        buffer, next_look_s = b"", 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while True:
                is_ready = bool(selector.select(_LOOK_S))
                if (now_s := time.monotonic()) >= next_look_s:
                    next_look_s = now_s + _LOOK_S
                    self._look_at_memory()
                if not is_ready:
                    continue
                chunk = os.read(stdout.fileno(), 65536)
                if not chunk:
                    return
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)

    def _look_at_memory(self) -> None:
        used_mib, free_mib = memory_mib(self._child.pid), available_mib()
        if self._limit_mib and used_mib > self._limit_mib:
            self._why_killed = f"building the plan took {used_mib} MiB of memory, {self._limit_mib} are allowed"
        elif 0 <= free_mib < RESERVE_MIB:
            self._why_killed = f"building the plan took {used_mib} MiB of memory and left {free_mib} on the machine"
        else:
            return
        self._child.kill()

    def _ended(self) -> PipelineError:
        """Why the child ended without a result."""
        status = self._child.wait()
        fix = "give it more with --memory, lower --workspace, or build the plan on a machine with more"
        if self._why_killed:
            return PipelineError(f"{self._why_killed}: it was stopped", where=self._kind, fix=fix)
        if status == -signal.SIGKILL:
            return PipelineError(
                "building the plan was killed, probably by the system for want of memory", where=self._kind, fix=fix
            )
        how = f"signal {-status}" if status < 0 else f"exit code {status}"
        said = self._last_words()
        return PipelineError(f"the builder ended with {how}{f' ({said})' if said else ''}", where=self._kind)

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines()]
        return " / ".join([line for line in lines if line][-_LAST_LINES:])


def memory_mib(pid: int) -> int:
    """Resident and swapped memory of a process; 0 when it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return sum(int(kib) for kib in re.findall(r"^Vm(?:RSS|Swap):\s+(\d+) kB", text, re.MULTILINE)) // 1024


def available_mib() -> int:
    """What the machine could give without swapping; -1 where that is unknown."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return -1
    return int(found[1]) // 1024 if found else -1

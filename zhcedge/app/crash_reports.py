"""What is kept of a process that died or stood still: a report on this device, and an alert at the next chance.

Reports are JSON files in $STATE_DIRECTORY/crashes, named by their time, KEPT of them at most. A control process that
dies can't write one: the next run finds the mark that it has left, and what the service manager noted
(ExecStopPost= of systemd/zhc-edge.service).
"""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from zhcedge import __version__
from zhcedge.app.device import Device
from zhcedge.app.frame_commands import error_facts
from zhcedge.app.given_folders import given_folder, state_folder
from zhcedge.app.kernel_log import kernel_lines
from zhcedge.app.loop_watcher import LoopWatcher
from zhcedge.app.status_facts import ledger_facts
from zhcedge.core.addresses import without_password, without_passwords
from zhcedge.core.delivery import Alert
from zhcedge.core.errors import ConfigError, OutputError, SourceMissingError, ZhcEdgeError
from zhcedge.core.files import read_regular, write_whole
from zhcedge.core.lifecycle import Phase
from zhcedge.core.message_ids import MessageId, tagged
from zhcedge.core.ports import Clock
from zhcedge.pipeline.segment import COUNTERS, Segment

log = logging.getLogger(__name__)

KEPT = 20
FRAME_DIED, DAEMON_DIED = "frame-process-died", "daemon-died"
_LIMIT_BYTES = 1 << 20
_MARK, _NOTE = "running", "failed-run"


class CrashReports(LoopWatcher):
    """Implements LoopWatcher.

    Args:
        folder: of the daemon's state; None keeps no report, and alerts all the same.
    """

    def __init__(self, folder: Path | None, clock: Clock) -> None:
        self._folder, self._clock = folder, clock
        self._is_marked = self._is_down = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], clock: Clock) -> CrashReports:
        """In $STATE_DIRECTORY, which the service manager gives."""
        return cls(given_folder(environ, "STATE_DIRECTORY"), clock)

    def begin(self, device: Device, segment: Segment) -> None:
        """See LoopWatcher."""
        self._device, self._segment = device, segment
        if self._folder is None:
            return
        mark = self._folder / _MARK
        left = "" if self._is_marked else _text(mark)
        if left:
            self._tell_of_the_last_run(left)
        self._is_marked = True
        self._write(mark, f"{device.facts.boot_id} {__version__}\n".encode())

    def _tell_of_the_last_run(self, left: str) -> None:
        boot_id, _, version = left.partition(" ")
        note = (self._folder or Path()) / _NOTE
        facts = {
            "what": DAEMON_DIED,
            "boot_id": boot_id,
            "version": version.strip(),
            "service": dict(line.split("=", 1) for line in _text(note).splitlines() if "=" in line),
        }
        note.unlink(missing_ok=True)
        name = self._keep(facts)
        self._device.alert(Alert(DAEMON_DIED, f"the last run did not end in order{_report_words(name)}", "error"))

    def phase_changed(self, phase: Phase, degraded: Sequence[str]) -> None:
        """See LoopWatcher."""
        if phase is Phase.ACTIVE and self._is_down:
            self._is_down = False
            self._device.alert(Alert(FRAME_DIED, "the frame path is active again", "info", is_over=True))

    def frame_process_failed(
        self, error: ZhcEdgeError, status: int, restart_in_s: float | None, trace: str = ""
    ) -> None:
        """See LoopWatcher."""
        state, counters = self._device.facts, self._segment.counters
        name = self._keep(
            {
                "what": FRAME_DIED,
                "boot_id": state.boot_id,
                "version": __version__,
                "profile": state.profile,
                "model": state.model,
                "uptime_s": round(state.uptime_s, 1),
                "error": error_facts(error),
                "status": status,
                "signal": _signal_name(status),
                "restart_in_s": restart_in_s,
                "trace": trace.splitlines(),
                "degraded": list(state.degraded),
                "ledger": ledger_facts(counters),
                "counters": {counter: counters[counter] for counter in COUNTERS},
            }
        )
        self._is_down = True
        self._device.alert(Alert(FRAME_DIED, without_password(f"{error}{_report_words(name)}"), "error"))

    def stopping(self) -> None:
        """See LoopWatcher."""
        if self._folder is not None:
            (self._folder / _MARK).unlink(missing_ok=True)

    # -- files -------------------------------------------------------------------------------------------------
    def _keep(self, facts: Mapping[str, object]) -> str:
        """Write a report and make room for it; its name, empty when there is none."""
        if self._folder is None:
            return ""
        wall_ns = self._clock.wall_ns()
        moment = datetime.fromtimestamp(wall_ns / 1e9, timezone.utc)
        name = f"{moment:%Y%m%d-%H%M%S}-{wall_ns % 10**9:09d}-{facts['what']}"
        folder = self._folder / "crashes"
        try:
            folder.mkdir(mode=0o750, exist_ok=True)
            for old in sorted(folder.glob("*.json"))[: 1 - KEPT]:
                old.unlink(missing_ok=True)
        except OSError as error:
            log.warning("no crash report: %s", error)
            return ""
        report = {"time": wall_ns / 1e9, "clock_synced": self._clock.is_synced(), **facts}
        text = json.dumps(without_passwords(report), indent=2)
        if not self._write(folder / f"{name}.json", text.encode() + b"\n"):
            return ""
        log.error("crash report %s was written: see `zhc-edge crashes`", name, extra=tagged(MessageId.CRASH_REPORT))
        return name

    def _write(self, path: Path, data: bytes) -> bool:
        try:
            write_whole(path, data, "the crash report", mode=0o640, is_synced=True)
        except OutputError as error:
            log.warning("%s", error)
            return False
        return True


def list_reports(environ: Mapping[str, str], state: Path | None = None) -> list[dict[str, object]]:
    """Every report that can be read, the oldest first, each with its name. Raises ConfigError without a folder."""
    found = []
    for path in sorted(_folder(environ, state).glob("*.json")):
        try:
            facts = json.loads(read_regular(path, _LIMIT_BYTES))
        except (OSError, ValueError) as error:
            log.warning("%s can't be read: %s", path, error)
            continue
        if isinstance(facts, dict):
            found.append({"name": path.stem, **facts})
    return found


def find_report(name: str, environ: Mapping[str, str], state: Path | None = None) -> dict[str, object]:
    """One of them, with what the kernel said then. Raises SourceMissingError for a name that none has."""
    for report in list_reports(environ, state):
        if report["name"] == name:
            time_s = report.get("time")
            return {**report, "kernel": kernel_lines(time_s) if isinstance(time_s, float) else []}
    raise SourceMissingError("there is no such report", where=name, fix="see `zhc-edge crashes`")


def _folder(environ: Mapping[str, str], state: Path | None) -> Path:
    home = state or state_folder(environ)
    if home is None:
        raise ConfigError("nothing says where the daemon keeps its state", fix="name the folder with --state")
    return home / "crashes"


def _text(path: Path) -> str:
    try:
        return read_regular(path, 4096).decode("utf-8", "replace")
    except OSError:
        return ""


def _report_words(name: str) -> str:
    return f"; see `zhc-edge crashes {name}`" if name else ""


def _signal_name(status: int) -> str | None:
    try:
        return signal.Signals(-status).name if status < 0 else None
    except ValueError:
        return str(-status)

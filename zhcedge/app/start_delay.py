"""Growing pauses between starts of a daemon that fails again and again under a service manager.

systemd's own growing pauses need version 254 (RestartSteps=); JetPack's have 249 and 255. The count of failed runs is a
file in $RUNTIME_DIRECTORY, which RuntimeDirectoryPreserve=restart keeps from one start to the next, and a boot clears.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from zhcedge.app.given_folders import given_folder
from zhcedge.app.loop_watcher import LoopWatcher
from zhcedge.core.errors import OutputError, ZhcEdgeError
from zhcedge.core.files import read_regular, write_whole
from zhcedge.core.lifecycle import Phase
from zhcedge.service.notify import Notifier

log = logging.getLogger(__name__)

_HEALTHY_S = 600.0  # an active phase of this length makes the next start a quick one
_LONGEST_S = 300.0
_SLICE_S = 10.0  # between two words to the service manager, whose patience with a start is shorter than the pause


def start_delay_s(failures: int) -> float:
    """Pause before a start after so many failed runs in a row: none, 1, 2, 4, ... at most 300 seconds."""
    return min(2.0 ** (failures - 1), _LONGEST_S) if failures else 0.0


class StartCount(LoopWatcher):
    """Counts runs that did not end in order. Implements LoopWatcher.

    Args:
        file: where the count is kept; None counts nothing.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._active_since_s: float | None = None
        self._now_s = 0.0
        self._has_failed = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> StartCount:
        """Only for what a service manager starts: a person at a terminal wants no pauses."""
        folder = given_folder(environ, "RUNTIME_DIRECTORY") if "NOTIFY_SOCKET" in environ else None
        return cls(folder / "failed-runs" if folder is not None else None)

    @property
    def failures(self) -> int:
        """Failed runs in a row before this one. A file that can't be read counts none."""
        if self._file is None:
            return 0
        try:
            return min(int(read_regular(self._file, 32)), 1000)
        except (OSError, ValueError):
            return 0

    def wait(self, notifier: Notifier, sleep: Callable[[float], None] = time.sleep) -> None:
        """Make the pause, and count this run as a failed one until it proves to be none. SIGTERM ends the process."""
        failures = self.failures
        left_s = start_delay_s(failures)
        if left_s:
            log.warning("the last %d runs failed: this one begins in %.0f s", failures, left_s)
        while left_s > 0:
            status = f"waiting {left_s:.0f} s after {failures} failed runs"
            notifier.tell(EXTEND_TIMEOUT_USEC=int(4 * _SLICE_S * 1e6), WATCHDOG=1, STATUS=status)
            sleep(min(left_s, _SLICE_S))
            left_s -= _SLICE_S
        self._write(failures + 1)

    def _write(self, count: int) -> None:
        if self._file is None:
            return
        try:
            write_whole(self._file, b"%d\n" % count, "the count of failed runs")
        except OutputError as error:
            log.warning("%s", error)

    def turn(self, now_s: float) -> None:
        """See LoopWatcher."""
        self._now_s = now_s
        if self._active_since_s is not None and now_s - self._active_since_s >= _HEALTHY_S:
            self._active_since_s = None
            self._write(0)

    def phase_changed(self, phase: Phase, degraded: Sequence[str]) -> None:
        """See LoopWatcher."""
        self._active_since_s = self._now_s if phase is Phase.ACTIVE else None

    def frame_process_failed(
        self, error: ZhcEdgeError, status: int, restart_in_s: float | None, trace: str = ""
    ) -> None:
        """See LoopWatcher."""
        self._has_failed = restart_in_s is None

    def stopping(self) -> None:
        """See LoopWatcher. What is asked to stop has not failed; what failed is told before."""
        if not self._has_failed:
            self._write(0)

"""A GPU that hangs comes back by a reboot only: asked for where that is wanted, and by somebody who may.

The daemon has no right to reboot anything. It leaves a file in $RUNTIME_DIRECTORY, and zhc-edge-reboot.path, which is
installed and not enabled, reboots the computer when it sees it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from zhcedge.app.given_folders import given_folder
from zhcedge.app.loop_watcher import LoopWatcher
from zhcedge.core.errors import BackendUnavailableError, HangError, OutputError, ZhcEdgeError
from zhcedge.core.files import write_whole
from zhcedge.core.lifecycle import Phase

log = logging.getLogger(__name__)

FILE_NAME = "reboot-requested"
FAILURES = 5
"""Starts of the frame process in a row that a lost or hanging GPU has ended."""


class RebootRequest(LoopWatcher):
    """Counts what a broken GPU ends. Only one that has worked in this run is waited for by a reboot: one that is not
    there from the start would have the computer reboot for ever.

    Args:
        file: that is made; None asks for nothing.
        is_wanted: `control.reboot_on_gpu_loss`.
    """

    def __init__(self, file: Path | None, *, is_wanted: bool) -> None:
        self._file = file if is_wanted else None
        self._failures = 0
        self._has_worked = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], *, is_wanted: bool) -> RebootRequest:
        """In $RUNTIME_DIRECTORY, which the service manager gives and a boot clears."""
        folder = given_folder(environ, "RUNTIME_DIRECTORY")
        return cls(folder / FILE_NAME if folder is not None else None, is_wanted=is_wanted)

    def phase_changed(self, phase: Phase, degraded: Sequence[str]) -> None:
        """See LoopWatcher."""
        if phase is Phase.ACTIVE:
            self._has_worked, self._failures = True, 0
            self._take_back()

    def frame_process_failed(
        self, error: ZhcEdgeError, status: int, restart_in_s: float | None, trace: str = ""
    ) -> None:
        """See LoopWatcher."""
        is_gpu = isinstance(error, (BackendUnavailableError, HangError))
        self._failures = self._failures + 1 if is_gpu else 0
        if self._file is None or not self._has_worked or self._failures != FAILURES:
            return
        log.error("the GPU does not come back: a reboot is asked for (%s)", self._file)
        try:
            write_whole(self._file, f"{error}\n".encode(), "the request for a reboot")
        except OutputError as refused:
            log.error("%s", refused)

    def _take_back(self) -> None:
        """The GPU is there again: whoever enables zhc-edge-reboot.path tomorrow must not have the computer reboot."""
        if self._file is not None:
            try:
                self._file.unlink(missing_ok=True)
            except OSError as error:
                log.warning("%s can't be removed: %s", self._file, error.strerror)

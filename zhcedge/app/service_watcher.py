"""The service manager as a watcher of the control loop: ready, how it goes, alive, about to stop."""

from __future__ import annotations

import os
from collections.abc import Sequence

from zhcedge.app.device import Device
from zhcedge.app.loop_watcher import LoopWatcher
from zhcedge.core.lifecycle import Phase
from zhcedge.pipeline.channel import ChannelState
from zhcedge.pipeline.segment import Segment
from zhcedge.service.notify import Notifier

_STATUS_S = 5.0
_EXTENSION_S = 60.0  # how long a start may go on without a word of ours; a plan may take many minutes to build


class ServiceWatcher(LoopWatcher):
    """Implements LoopWatcher.

    READY=1 is said once, when the pipeline is warm: a camera that does not answer is a degraded channel and no reason
    to wait. Until then the start is extended for as long as the loop turns. The watchdog is fed by the loop's own
    turns, so it starves when the control process stands still. A frame process that stands still, or that holds frames
    and finishes none, is the supervisor's to end (service/liveness.py); silent cameras starve nobody.
    """

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._is_ready = False
        self._phase = Phase.INITIALISING
        self._degraded: tuple[str, ...] = ()
        self._fed_s = self._told_s = self._extended_s = -1e9
        self._status = ""

    def begin(self, device: Device, segment: Segment) -> None:
        """See LoopWatcher."""
        self._device = device

    def turn(self, now_s: float) -> None:
        """See LoopWatcher."""
        if self._notifier.watchdog_s and now_s - self._fed_s >= self._notifier.watchdog_s / 3:
            self._fed_s = now_s
            self._notifier.tell(WATCHDOG=1)
        if not self._is_ready and now_s - self._extended_s >= _EXTENSION_S / 4:
            self._extended_s = now_s
            self._notifier.tell(EXTEND_TIMEOUT_USEC=int(_EXTENSION_S * 1e6))
        if now_s - self._told_s >= _STATUS_S:
            self._told_s = now_s
            self._tell_status()

    def phase_changed(self, phase: Phase, degraded: Sequence[str]) -> None:
        """See LoopWatcher."""
        self._phase, self._degraded = phase, tuple(degraded)
        if phase is Phase.ACTIVE and not self._is_ready:
            self._is_ready = True
            self._notifier.tell(READY=1, MAINPID=os.getpid())
        self._tell_status()

    def stopping(self) -> None:
        """See LoopWatcher."""
        self._notifier.tell(STOPPING=1, STATUS="stopping: what is left is delivered")

    def _tell_status(self) -> None:
        status = self._status_line()
        if status != self._status:
            self._status = status
            self._notifier.tell(STATUS=status)

    def _status_line(self) -> str:
        if self._phase is not Phase.ACTIVE:
            return "; ".join((str(self._phase), *self._degraded))
        cameras = self._device.facts.cameras
        away = [name for name in cameras if self._device.channel_state(name)[0] in (ChannelState.DOWN,)]
        fps = sum(flow.fps_out for flow in self._device.flow.values())
        parts = [f"active: {fps:.0f} frames a second from {len(cameras) - len(away)} of {len(cameras)} cameras"]
        if away:
            parts.append(f"away: {', '.join(away)}")
        return "; ".join((*parts, *self._degraded))

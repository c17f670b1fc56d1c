"""What the control loop tells whoever looks after the daemon: the service manager, crash reports, the reload."""

from __future__ import annotations

from collections.abc import Sequence

from zhcedge.app.device import Device
from zhcedge.core.errors import ZhcEdgeError
from zhcedge.core.lifecycle import Phase
from zhcedge.pipeline.segment import Segment


class LoopWatcher:
    """Called in the control loop's thread. Nothing in it waits, and nothing in it raises.

    Hears nothing by itself: whoever derives from it writes what it wants to hear.
    """

    def begin(self, device: Device, segment: Segment) -> None:
        """Once, before everything else. Both live as long as the loop."""

    def turn(self, now_s: float) -> None:
        """Every turn of the loop, at least every half second; `now_s` is of the monotonic clock."""

    def phase_changed(self, phase: Phase, degraded: Sequence[str]) -> None:
        """The frame path's phase, or why it works worse than configured, has changed."""

    def frame_process_started(self, pid: int) -> None:
        """A frame process begins."""

    def frame_process_failed(
        self, error: ZhcEdgeError, status: int, restart_in_s: float | None, trace: str = ""
    ) -> None:
        """It has ended with a fault, or was killed for one.

        Args:
            status: its exit code; -N when signal N ended it.
            restart_in_s: until the next one starts; None when the daemon ends with `error`.
            trace: stacks of its threads when it crashed or was killed.
        """

    def stopping(self) -> None:
        """The daemon has been asked to stop, or ends by itself: what is left is drained and delivered from here on."""

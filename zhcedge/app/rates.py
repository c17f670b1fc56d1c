"""Frame rates from counters that only grow."""

from __future__ import annotations

from collections.abc import Mapping

from zhcedge.publish.device_messages import CameraFlow

_Flow = Mapping[str, tuple[int, int]]


class FlowMeter:
    """Rates between the last two times that `rates` was asked. One thread."""

    def __init__(self) -> None:
        self._told: tuple[int, _Flow] = (0, {})
        self._now: tuple[int, _Flow] = (0, {})

    def note(self, flow: _Flow, at_ns: int) -> None:
        """Frames that came and frames that were dropped so far, by camera; `at_ns` is monotonic."""
        self._now = (at_ns, dict(flow))
        if not self._told[0]:
            self._told = self._now

    def rates(self) -> dict[str, CameraFlow]:
        """By camera; empty before the first counters. Counters that began again count from 0."""
        (then_ns, then), (now_ns, now) = self._told, self._now
        self._told = self._now
        seconds = (now_ns - then_ns) / 1e9
        found = {}
        for camera, (came, dropped) in now.items():
            before = then.get(camera, (0, 0))
            if before[0] > came:
                before = (0, 0)
            came_since, dropped_since = came - before[0], dropped - before[1]
            fps_in, lost = (came_since / seconds, dropped_since / seconds) if seconds > 0 else (0.0, 0.0)
            found[camera] = CameraFlow(fps_in, max(fps_in - lost, 0.0), dropped)
        return found

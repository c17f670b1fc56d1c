"""Alerts that stand until they are over, each told once."""

from __future__ import annotations

import threading
from typing import Literal

from zhcedge.core.delivery import Alert, OnAlert

_MOST = 200
"""Alerts that are remembered; beyond it new ones are told each time."""


class StandingAlerts:
    """Tells an alert when it begins and when it is over, and not again in between. Any thread."""

    def __init__(self, on_alert: OnAlert) -> None:
        self._on_alert = on_alert
        self._lock = threading.Lock()
        self._standing: set[tuple[str, str]] = set()

    def begin(
        self, code: str, about: str, text: str, severity: Literal["info", "warning", "error"] = "warning"
    ) -> None:
        """Tell it unless the same `code` stands for the same thing (`about`: a topic, a certificate) already."""
        with self._lock:
            if (code, about) in self._standing:
                return
            if len(self._standing) < _MOST:
                self._standing.add((code, about))
        self._on_alert(Alert(code, text, severity))

    def over(self, code: str, about: str, text: str) -> None:
        """Tell that it is over, if it stood."""
        if not self._standing:  # the usual case, for every acknowledgement: without the lock
            return
        with self._lock:
            if (code, about) not in self._standing:
                return
            self._standing.remove((code, about))
        self._on_alert(Alert(code, text, "info", is_over=True))

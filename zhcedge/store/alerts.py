"""What an outbox tells an operator: rows given up, disks that are full or broken, files that were damaged."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from zhcedge.core.delivery import Alert, OnAlert
from zhcedge.store.database import Fault, fault_of

_REPORT_EVERY_NS = 60 * 1_000_000_000


class Alerts:
    """Alerts on their way to `on_alert`, which must not be called while a row is appended: it may append one."""

    def __init__(self, on_alert: OnAlert) -> None:
        self._on_alert = on_alert
        self._alerts: list[Alert] = []

    def put(self, alert: Alert) -> None:
        self._alerts.append(alert)

    def deliver(self) -> None:
        alerts, self._alerts = self._alerts, []
        for alert in alerts:
            self._on_alert(alert)


class Drops:
    """Counts rows that were given up, and tells of them at most once a minute."""

    def __init__(self, alerts: Alerts) -> None:
        self._alerts = alerts
        self.dropped = self.lost = 0
        self._told_dropped = self._told_lost = 0
        self._told_ns: int | None = None

    def note(self, is_expendable: bool, count: int = 1) -> None:
        self.dropped += count
        if not is_expendable:
            self.lost += count

    def tick(self, now_ns: int) -> None:
        """Put an alert when there is news and the last one is a minute old."""
        dropped, lost = self.dropped - self._told_dropped, self.lost - self._told_lost
        if not dropped or (self._told_ns is not None and now_ns - self._told_ns < _REPORT_EVERY_NS):
            return
        self._told_ns, self._told_dropped, self._told_lost = now_ns, self.dropped, self.lost
        text = (
            f"{dropped} messages were given up, {lost} of them more than updates: the outbox is full, they were too "
            "old, or their file was damaged; see whether the broker can be reached, and the limits under outbox"
        )
        self._alerts.put(Alert("messages-dropped", text, "error" if lost else "warning"))


class DiskWatch:
    """Turns the faults of one file into alerts: one when they begin, one when they are over."""

    def __init__(self, path: Path, alerts: Alerts) -> None:
        self._path, self._alerts = path, alerts
        self._failing: Alert | None = None

    @property
    def is_failing(self) -> bool:
        return self._failing is not None

    def failed(self, error: sqlite3.Error) -> None:
        if fault_of(error) is Fault.FULL:
            self._begin("outbox-disk-full", "the disk is full: messages wait in memory; make room")
        else:
            self._begin("outbox-disk-error", f"{error}: messages wait in memory; see whether the disk is broken")

    def is_silent(self) -> None:
        """The disk has not answered for long."""
        self._begin("outbox-disk-error", "the disk does not answer: messages wait in memory; see whether it is broken")

    def works(self) -> None:
        if self._failing is not None:
            text = f"{self._path}: messages are written again"
            self._alerts.put(Alert(self._failing.code, text, "info", is_over=True))
            self._failing = None

    def was_damaged(self, aside: Path | None) -> None:
        """The file was damaged and has been renamed; None when only some of its rows were damaged."""
        what = f"the outbox was damaged and is now {aside.name}; a new one was begun" if aside else "damaged rows"
        self._alerts.put(Alert("outbox-corrupt", f"{self._path}: {what}; see whether the disk is broken", "error"))

    def _begin(self, code: str, text: str) -> None:
        if self._failing is None or self._failing.code != code:
            self.works()
            self._failing = Alert(code, f"{self._path}: {text}", "error")
            self._alerts.put(self._failing)

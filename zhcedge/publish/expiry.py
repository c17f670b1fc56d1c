"""Tells in time that a certificate is about to expire: at each connection, and daily while it lasts."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

from zhcedge.core.errors import ConfigError
from zhcedge.publish.agenda import Agenda
from zhcedge.publish.alerts import StandingAlerts
from zhcedge.publish.certificates import Validity, file_validity, validity

WARN_DAYS = 30
URGENT_DAYS = 3
EXPIRES = "certificate-expires"

_DAY_S = 24 * 3600.0


class ExpiryWatch:
    """Of one connection.

    Args:
        address: of the broker, for messages.
        shown: the broker's certificate, in DER.
        own: file of ours; None for none. It is read anew each time.
    """

    def __init__(self, address: str, shown: bytes, own: Path | None, alerts: StandingAlerts, agenda: Agenda) -> None:
        self._address, self._shown, self._own = address, shown, own
        self._alerts, self._agenda = alerts, agenda

    def check(self) -> None:
        """Look at both, now and a day later again."""
        try:
            self._judge(f"the certificate of the MQTT broker {self._address}", validity(self._shown))
            if self._own is not None:
                self._judge(f"this device's certificate {self._own}", file_validity(self._own))
        except (ValueError, ConfigError):
            pass  # the connection stands, so it was good; a file that is being replaced is read tomorrow
        self._agenda.after(_DAY_S, self.check)

    def _judge(self, whose: str, when: Validity) -> None:
        left = when.ends - datetime.now(timezone.utc)
        if left > timedelta(days=WARN_DAYS):
            self._alerts.over(EXPIRES, whose, f"{whose} is valid until {when.ends:%Y-%m-%d}")
            return
        severity = "error" if left < timedelta(days=URGENT_DAYS) else "warning"
        days = f"in {left.days} days" if left.days > 0 else "today" if left > timedelta(0) else "it is over"
        text = f"{whose} expires on {when.ends:%Y-%m-%d}, {days}: renew it, the connection will fail without it"
        self._alerts.begin(EXPIRES, whose, text, "error" if severity == "error" else "warning")

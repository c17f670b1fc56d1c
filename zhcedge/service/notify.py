"""What a service manager is told: the datagrams of sd_notify(3).

The protocol is stable and a few lines long, so nothing has to be installed for it; a socket whose name begins with @ is
in the abstract namespace.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping


class Notifier:
    """Tells the service manager. One thread; nothing waits, and a message that can't be sent is dropped.

    Args:
        address: $NOTIFY_SOCKET; empty tells nobody.
        watchdog_s: how often the service manager wants a sign of life, at least; 0 for never.
    """

    def __init__(self, address: str = "", watchdog_s: float = 0.0) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) if address else None
        self.watchdog_s = watchdog_s
        if self._socket is not None:
            self._socket.setblocking(False)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], pid: int) -> Notifier:
        """Who is to be told, as systemd.exec(5) and sd_watchdog_enabled(3) say it. Anything else there tells nobody.

        Args:
            pid: of this process; a watchdog that is meant for another one is not fed.
        """
        address = environ.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return cls()
        period, owner = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", str(pid))
        is_ours = period.isdecimal() and owner == str(pid)
        return cls(address, int(period) / 1e6 if is_ours else 0.0)

    def tell(self, **fields: str | int) -> None:
        """Send fields such as READY=1; line breaks in a value become spaces."""
        if self._socket is None:
            return
        text = "\n".join(f"{name}={' '.join(str(value).splitlines())}" for name, value in fields.items())
        with contextlib.suppress(OSError):  # full, or gone: the next message may get through
            self._socket.sendto(text.encode("utf-8", "replace"), self._address)

    def close(self) -> None:
        """A second call does nothing."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

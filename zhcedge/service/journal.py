"""Log records for systemd's journal, with fields, by its native protocol.

https://systemd.io/JOURNAL_NATIVE_PROTOCOL: one datagram an entry, `FIELD=value` a line; a value of several lines comes
after its name as a length of eight bytes, little endian, and itself. What is too large for a datagram goes as a sealed
memfd. Written here because systemd-python has no wheel: it would need a compiler on every device.
"""

from __future__ import annotations

import array
import errno
import fcntl
import logging
import os
import socket
import struct
from collections.abc import Mapping

ADDRESS = "/run/systemd/journal/socket"

_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG = 7
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


def is_our_stderr(environ: Mapping[str, str]) -> bool:
    """Whether stderr is the journal's stream: $JOURNAL_STREAM names its device and inode (systemd.exec(5))."""
    try:
        found = os.fstat(2)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


class JournalHandler(logging.Handler):
    """Sends each record as one entry. What the journal does not take goes to `other`.

    Args:
        process: for the field ZHC_PROCESS: "control" or "frame".
        other: a handler that always works.

    Any thread. Raises OSError where there is no journal.
    """

    def __init__(self, process: str, other: logging.Handler, address: str = ADDRESS) -> None:
        super().__init__()
        self._process, self._other, self._address = process, other, address
        # Not connected: that would be to this very socket, and for good, and a journal may get another one.
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as trial:
            trial.connect(address)

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        try:
            self._send(entry(self._fields(record)))
        except OSError:
            self._other.handle(record)
        except Exception:  # noqa: BLE001  logging's own rule: a bad record must not end its thread
            self.handleError(record)

    def _fields(self, record: logging.LogRecord) -> dict[str, str]:
        priority = next((number for level, number in _PRIORITIES if record.levelno >= level), _DEBUG)
        return {
            "MESSAGE": self.format(record),
            "PRIORITY": str(priority),
            "SYSLOG_IDENTIFIER": "zhc-edge",
            "LOGGER": record.name,
            "CODE_FILE": record.pathname,
            "CODE_LINE": str(record.lineno),
            "CODE_FUNC": record.funcName or "",
            "THREAD_NAME": record.threadName or "",
            "ZHC_PROCESS": self._process,
            **getattr(record, "journal", {}),
        }

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendto(data, self._address)
        except OSError as error:
            if error.errno not in (errno.EMSGSIZE, errno.ENOBUFS):
                raise
            _send_file(self._socket, self._address, data)

    def close(self) -> None:
        """See logging.Handler."""
        self._socket.close()
        super().close()


def entry(fields: Mapping[str, str]) -> bytes:
    """One entry of the protocol."""
    parts = []
    for name, text in fields.items():
        value = text.encode("utf-8", "backslashreplace")
        if b"\n" in value:
            parts.append(b"%s\n%s%s\n" % (name.encode(), struct.pack("<Q", len(value)), value))
        else:
            parts.append(b"%s=%s\n" % (name.encode(), value))
    return b"".join(parts)


def _send_file(source: socket.socket, address: str, data: bytes) -> None:
    file = os.memfd_create("journal-entry", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(file, data)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
        source.sendmsg([], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))], 0, address)
    finally:
        os.close(file)

"""Times as people write them on a command line."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

from zhcedge.core.errors import UsageError
from zhcedge.core.file_times import usable_ns

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_AGO = re.compile(r"(\d{1,9})([smhdw])")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FORMS = "write 90m, 2h or 3d for so long ago, or a time such as 2026-01-31 or 2026-01-31T18:30"


def moment_ns(text: str, now_ns: int, where: str) -> int:
    """Nanoseconds since the epoch of "2h", which is so long ago, or of an ISO date or time.

    A time without an offset is local; a date alone is its midnight.

    Args:
        where: the option, for the message.

    Raises UsageError.
    """
    ago = _AGO.fullmatch(text.strip())
    if ago is not None:
        return _usable(now_ns - int(ago[1]) * _UNITS_S[ago[2]] * 1_000_000_000, text, where)
    try:
        # Before Python 3.11 it does not know that Z is UTC.
        when = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text.strip())).astimezone()
    except (ValueError, OverflowError, OSError) as error:  # the latter two: a year that has no local time
        raise UsageError(f"{text!r} is no time", where=where, fix=_FORMS) from error
    return _usable((when - _EPOCH) // timedelta(microseconds=1) * 1000, text, where)


def _usable(wall_ns: int, text: str, where: str) -> int:
    if usable_ns(wall_ns) is None:
        raise UsageError(f"{text!r} is too far away", where=where, fix="write a time between 1700 and 2200")
    return wall_ns


def local_text(wall_ns: int) -> str:
    """A time to the second, local, as `moment_ns` takes it back."""
    return local_time(wall_ns).strftime("%Y-%m-%dT%H:%M:%S")


def iso_text(wall_ns: int) -> str:
    """A time to the millisecond, UTC, for programs."""
    when = _EPOCH + timedelta(microseconds=wall_ns // 1000)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def local_time(wall_ns: int) -> datetime:
    """A time with the offset that holds here then. Exact to the microsecond."""
    when = _EPOCH + timedelta(microseconds=wall_ns // 1000)
    try:
        return when.astimezone()
    except (ValueError, OverflowError, OSError):  # a clock that was never set, somewhere before the year 1
        return when

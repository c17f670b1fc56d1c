"""Wall-clock times in the names of files: they sort as they follow each other, and any file system takes them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

STAMP = re.compile(r"(\d{8}T\d{6})\.(\d{6})Z")
"""20250131T101112.123456Z: UTC, to the microsecond."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

FIRST_NS = (datetime(1700, 1, 1, tzinfo=timezone.utc) - _EPOCH) // timedelta(microseconds=1) * 1000
LAST_NS = (datetime(2200, 1, 1, tzinfo=timezone.utc) - _EPOCH) // timedelta(microseconds=1) * 1000
"""Times that everything takes, with room on both sides: nanoseconds in 64 bits reach from 1677 to 2262."""


def file_stamp(wall_ns: int) -> str:
    """A time since the epoch as it stands in a file's name."""
    when = _EPOCH + timedelta(microseconds=wall_ns // 1000)
    return when.strftime("%Y%m%dT%H%M%S.%fZ")


def stamp_ns(name: str) -> int | None:
    """The time at the beginning of a file's name, in nanoseconds since the epoch; None where there is none,
    or none between FIRST_NS and LAST_NS."""
    match = STAMP.match(name)
    if match is None:
        return None
    try:
        when = datetime.strptime(f"{match[1]}.{match[2]}", "%Y%m%dT%H%M%S.%f").replace(tzinfo=timezone.utc)
    except ValueError:  # month 13
        return None
    return usable_ns((when - _EPOCH) // timedelta(microseconds=1) * 1000)


def usable_ns(wall_ns: int) -> int | None:
    """The time itself, None where it is not between FIRST_NS and LAST_NS."""
    return wall_ns if FIRST_NS <= wall_ns <= LAST_NS else None

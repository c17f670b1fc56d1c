"""Weekly time windows in a time zone: when a rule holds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, tzinfo
from zoneinfo import ZoneInfo

from zhcedge.core.errors import ConfigError

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
WINDOW_WORDS = 'text such as "mon-fri 08:00-18:00", "sat,sun 22:00-06:00" or "daily 00:00-24:00"'

_WINDOW_PATTERN = re.compile(r"([a-z,-]+) +(\d\d):(\d\d) *- *(\d\d):(\d\d)", re.ASCII)
_DAY_MINUTES = 24 * 60
_MINUTE_NS = 60_000_000_000


@dataclass(frozen=True)
class Window:
    """From a minute of some days on, up to a minute of the same or of the following day.

    Attributes:
        days: 0 is Monday; the days on which the window begins.
        start_min, end_min: minutes of the local day; it ends on the following day where the end is not after the start.
    """

    days: frozenset[int]
    start_min: int
    end_min: int

    def holds(self, weekday: int, minute: int) -> bool:
        """Whether it is open at this minute of this day (0..6, 0 is Monday)."""
        if self.start_min < self.end_min:
            return weekday in self.days and self.start_min <= minute < self.end_min
        is_evening = weekday in self.days and minute >= self.start_min
        is_morning = (weekday - 1) % 7 in self.days and minute < self.end_min
        return is_evening or is_morning


def parse_window(text: str) -> Window:
    """Read a window; WINDOW_WORDS says what it looks like. Raises ValueError for anything else."""
    match = _WINDOW_PATTERN.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"not a time window: {text[:60]!r}")
    start_min, end_min = (60 * int(match[i]) + int(match[i + 1]) for i in (2, 4))
    has_odd_minutes = max(int(match[3]), int(match[5])) > 59
    if has_odd_minutes or start_min >= _DAY_MINUTES or end_min > _DAY_MINUTES or start_min == end_min:
        raise ValueError(f"not a time window: {text[:60]!r}")
    return Window(_days(match[1]), start_min, end_min)


def _days(text: str) -> frozenset[int]:
    """Days of "daily", "mon", "mon,wed" and "fri-mon"."""
    if text == "daily":
        return frozenset(range(7))
    days: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if first not in DAYS or last not in DAYS:
            raise ValueError(f"not a day: {part[:20]!r}")
        begin, count = DAYS.index(first), (DAYS.index(last) - DAYS.index(first)) % 7
        days.update((begin + offset) % 7 for offset in range(count + 1))
    return frozenset(days)


def zone_of(name: str) -> ZoneInfo:
    """The time zone of this IANA name. Raises ConfigError for one that this computer doesn't know."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:  # ZoneInfoNotFoundError is a KeyError; a folder's name an OSError
        raise ConfigError(
            f"the time zone {name[:60]!r} is not known here",
            fix="write a name such as Europe/Berlin or UTC; where none is known, install the package tzdata",
        ) from error


class Schedule:
    """Open or closed, by the wall clock. Immutable; two with the same values are equal. Belongs to one thread.

    A window is a stretch of the local day: on the night in which clocks go forward a window may be an hour shorter or
    not there at all, on the one in which they go back an hour longer.

    Args:
        windows: it is open in any of these.
        timezone: IANA name; None is this computer's own.

    Raises ConfigError for an unknown time zone.
    """

    def __init__(self, windows: tuple[Window, ...], timezone: str | None = None) -> None:
        self._facts = windows, timezone
        self._zone: tzinfo | None = None if timezone is None else zone_of(timezone)
        self._asked_minute = -1
        self._answer = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self._facts == other._facts

    def __hash__(self) -> int:
        return hash(self._facts)

    def is_open(self, wall_ns: int) -> bool:
        """Whether it is open at this moment, nanoseconds since the epoch."""
        minute = wall_ns // _MINUTE_NS
        # Asked for every frame and every zone; time zones differ by whole minutes.
        if minute != self._asked_minute:
            local = datetime.fromtimestamp(minute * 60, self._zone)
            windows = self._facts[0]
            self._answer = any(window.holds(local.weekday(), 60 * local.hour + local.minute) for window in windows)
            self._asked_minute = minute
        return self._answer

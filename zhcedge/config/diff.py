"""What differs between two configurations, and what it costs a running daemon to take it."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from dataclasses import dataclass

from zhcedge.config.problems import KeyPath, dotted
from zhcedge.config.schema import Config
from zhcedge.core.addresses import without_passwords


class Cost(enum.Enum):
    """What taking a change costs, from the least on."""

    LIVE = "live"  # exchanged in place: frames, events and counts go on
    CAMERA = "camera"  # the camera is opened anew; the others go on
    RESTART = "restart"  # everything is built anew, in the same process

    def __str__(self) -> str:
        return self.value


_COSTS: tuple[tuple[str, Cost], ...] = (
    ("channels.*.zones", Cost.LIVE),
    ("channels.*.lines", Cost.LIVE),
    ("channels.*.picture_health.enabled", Cost.CAMERA),
    ("channels.*.picture_health", Cost.LIVE),
    ("channels", Cost.CAMERA),
    ("tracker", Cost.LIVE),
    ("events", Cost.LIVE),
    ("control.reload_trial_s", Cost.LIVE),
    ("", Cost.RESTART),
)
"""By the beginning of a key, the first that fits; * is any one word."""

_NOTHING = object()


@dataclass(frozen=True)
class Change:
    """One value that differs.

    Attributes:
        key: of the value; of a camera as a whole where it comes or goes.
        text: both values on one line, without passwords.
        channel: the camera it belongs to; empty for none.
    """

    key: KeyPath
    text: str
    cost: Cost
    channel: str = ""

    def __str__(self) -> str:
        return f"{dotted(self.key)}: {self.text} ({self.cost})"


def cost_of(key: KeyPath) -> Cost:
    """What a change of the value at `key` costs."""
    return next(cost for pattern, cost in _COSTS if _fits(pattern, key))


def changes(old: Config, new: Config) -> tuple[Change, ...]:
    """Every value that differs, in the order of the schema; none for equal configurations."""
    before, after = old.model_dump(mode="json"), new.model_dump(mode="json")
    return tuple(_differences(before, after, ()))


def dearest(found: tuple[Change, ...]) -> Cost:
    """The cost of taking all of them. LIVE for none."""
    order = list(Cost)
    return max((change.cost for change in found), key=order.index, default=Cost.LIVE)


def _fits(pattern: str, key: KeyPath) -> bool:
    words = pattern.split(".") if pattern else []
    return len(words) <= len(key) and all(word in ("*", own) for word, own in zip(words, key, strict=False))


def _differences(old: object, new: object, key: KeyPath) -> Iterator[Change]:
    # Cameras come and go as a whole.
    is_whole = key[:1] == ("channels",) and len(key) == 2 and (old is _NOTHING or new is _NOTHING)
    if isinstance(old, dict) and isinstance(new, dict):
        for name in {**old, **new}:
            yield from _differences(old.get(name, _NOTHING), new.get(name, _NOTHING), (*key, name))
    elif old != new:
        text = ("added" if old is _NOTHING else "removed") if is_whole else f"{_shown(old)} -> {_shown(new)}"
        channel = str(key[1]) if key[0] == "channels" and len(key) > 1 else ""
        yield Change(key, text, cost_of(key), channel)


def _shown(value: object) -> str:
    return "nothing" if value is _NOTHING else json.dumps(without_passwords(value), ensure_ascii=False)

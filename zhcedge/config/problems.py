"""What is wrong with a configuration, where, and in which words."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from zhcedge.core.addresses import without_password
from zhcedge.core.errors import ConfigError
from zhcedge.core.printing import printable

KeyPath = tuple[str | int, ...]
"""Keys and list positions from the top of the configuration, e.g. ("channels", "walkers", "sinks", 0)."""

MAX_PROBLEMS = 50
"""Problems that one message lists; the rest are counted."""

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


@dataclass(frozen=True)
class Place:
    """Where a value was written: a file with line and column (from 1), or "--set a.b" or "ZHC_A__B" (line 0)."""

    source: str
    line: int = 0
    column: int = 0

    @property
    def is_in_file(self) -> bool:
        return self.line > 0

    def short(self) -> str:
        """As a value's origin: the file's name without its folder."""
        return str(Place(PurePath(self.source).name, self.line, self.column)) if self.is_in_file else str(self)

    def __str__(self) -> str:
        source = printable(self.source)
        return f"{source}:{self.line}:{self.column}" if self.is_in_file else source


@dataclass(frozen=True)
class Problem:
    """One thing to correct.

    Attributes:
        place: where it was written.
        key: dotted key path; empty where the fault is the file itself.
        what: what was found.
        allowed: what may stand there; empty where that is no help.
        fix: a suggestion; may be empty.
    """

    place: Place
    key: str
    what: str
    allowed: str = ""
    fix: str = ""

    def __str__(self) -> str:
        is_key_said = not self.key or self.place.source == f"--set {self.key}"
        text = self.what if is_key_said else f"{self.key}: {self.what}"
        text += f", allowed: {self.allowed}" if self.allowed else ""
        return f"{self.place}: {text}" + (f"; {self.fix}" if self.fix else "")


def dotted(path: KeyPath) -> str:
    """A key path as a user writes it after --set; strange keys are quoted."""
    return ".".join(
        segment if isinstance(segment, str) and _PLAIN_KEY.match(segment) else shortened(segment) for segment in path
    )


def shortened(value: str | int | float) -> str:
    """A value quoted for a message: one line, at most some 60 characters, and without a URL's password."""
    if not isinstance(value, str):
        return str(value)
    text = repr(without_password(value))
    return text if len(text) <= 60 else f"{text[:50]}...{text[0]}"


def found(value: object) -> str:
    """A value with its type, as in "found 'abc' (text)"."""
    if value is None:
        return "found nothing (null)"
    if isinstance(value, bool):
        return f"found {str(value).lower()} (yes or no)"
    if isinstance(value, str):
        return f"found {shortened(value)} (text)"
    if isinstance(value, int):
        return f"found {value} (a whole number)"
    if isinstance(value, float):
        return f"found {value} (a number)"
    if value in ([], {}, ()):
        return "found an empty list" if isinstance(value, (list, tuple)) else "found an empty mapping of keys"
    text = printable(_compact(value))
    text = text if len(text) <= 60 else f"{text[:55]}...{text[-1]}"
    return f"found {text} (a list of {len(value)})" if isinstance(value, (list, tuple)) else f"found {text} (keys)"


def _compact(value: object) -> str:
    """A value on one line, as YAML would take it; of mappings the keys only, because one may be a password's."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: ..." for key in itertools.islice(value, 8)) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_compact, value[:16])) + "]"
    if isinstance(value, str):
        return shortened(value)
    return "null" if value is None else str(value).lower()


def in_order(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Problems file by file in the order in which they stand there, those of --set and the environment last."""
    return tuple(
        sorted(problems, key=lambda p: (not p.place.is_in_file, p.place.source, p.place.line, p.place.column, p.key))
    )


def as_error(problems: Sequence[Problem], file: str) -> ConfigError:
    """One ConfigError that lists all `problems` (at least one)."""
    if len(problems) == 1:
        return ConfigError(str(problems[0]))
    lines = [f"\n  {problem}" for problem in problems[:MAX_PROBLEMS]]
    if len(problems) > MAX_PROBLEMS:
        lines.append(f"\n  and {len(problems) - MAX_PROBLEMS} more")
    return ConfigError(f"{len(problems)} problems" + "".join(lines), where=printable(file))

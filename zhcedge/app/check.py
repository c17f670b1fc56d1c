"""Use case `check`: the resolved configuration with each value's origin, or what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zhcedge.config.load import LoadedConfig, Value, examine, leaves, load
from zhcedge.config.problems import Problem, as_error, dotted
from zhcedge.config.tree import parse_value
from zhcedge.core.errors import ConfigError
from zhcedge.profiles import PROFILES


@dataclass(frozen=True)
class Leaf:
    """One value of the resolved configuration."""

    key: str
    value: Value
    origin: str

    @property
    def text(self) -> str:
        """The value on one line, as --set would take it back: text without quotes where it needs none."""
        if isinstance(self.value, str) and self.value.isprintable() and parse_value(self.value, "").data == self.value:
            return self.value
        return json.dumps(self.value, ensure_ascii=False)


@dataclass(frozen=True)
class CheckReport:
    """Outcome of checking `path`: `leaves` when the configuration is good, else `problems`; never both."""

    path: Path
    leaves: tuple[Leaf, ...] = ()
    problems: tuple[Problem, ...] = ()

    def error(self) -> ConfigError:
        """The problems (at least one) as the error that lists them."""
        return as_error(self.problems, str(self.path))


def load_configuration(path: Path, overrides: Sequence[str], environ: Mapping[str, str]) -> LoadedConfig:
    """The configuration for any use case that runs it. Raises ConfigError with every problem found."""
    return load(path, overrides, environ, profiles=PROFILES)


def check(path: Path, overrides: Sequence[str], environ: Mapping[str, str]) -> CheckReport:
    """Examine the configuration in `path` without running it. Opens no video, model or connection."""
    outcome = examine(path, overrides, environ, profiles=PROFILES)
    if not isinstance(outcome, LoadedConfig):
        return CheckReport(path, problems=outcome)
    values = ((dotted(path), value) for path, value in leaves(outcome.config))
    return CheckReport(path, leaves=tuple(Leaf(key, value, outcome.origins[key]) for key, value in values))

"""Use case `check`: the resolved configuration with each value's origin, or what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zhcedge.app.preflight import faults
from zhcedge.config.load import LoadedConfig, Value, examine_parts, leaves, load
from zhcedge.config.problems import Place, Problem, as_error, dotted, in_order
from zhcedge.config.tree import parse_value
from zhcedge.core.errors import ConfigError, ZhcEdgeError
from zhcedge.core.printing import printable
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


def _problem(place: Place, key: str, error: ZhcEdgeError) -> Problem:
    what = error.what if error.where in ("", key) else f"{error.where}: {error.what}"
    return Problem(place, key, printable(what), fix=printable(error.fix))


def check(path: Path, overrides: Sequence[str], environ: Mapping[str, str]) -> CheckReport:
    """Examine the configuration in `path` without running it, and whether what it names is there.

    Reads the model bundle and the headers of files; opens no stream, no camera and no connection. What is wrong with
    one value does not keep the others from being looked at.
    """
    found = examine_parts(path, overrides, environ, profiles=PROFILES)
    problems = list(found.problems)
    if found.config is not None:
        problems += [
            _problem(found.place_of(key), dotted(key), error) for key, error in faults(found.config, found.has)
        ]
    outcome = found.loaded
    if problems or outcome is None:
        return CheckReport(path, problems=in_order(problems))
    values = ((dotted(path), value) for path, value in leaves(outcome.config))
    return CheckReport(path, leaves=tuple(Leaf(key, value, outcome.origins[key]) for key, value in values))

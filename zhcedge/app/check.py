"""Use case `check`: the resolved configuration with each value's origin, or what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zhcedge.app.wiring import label_indices, source_path
from zhcedge.config.load import LoadedConfig, Value, examine, leaves, load
from zhcedge.config.problems import Place, Problem, as_error, dotted
from zhcedge.config.tree import parse_value
from zhcedge.core.errors import ConfigError, ModelError, SourceMissingError, ZhcEdgeError
from zhcedge.models.bundle import load_bundle
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


def _what_is_not_there(loaded: LoadedConfig) -> Iterator[Problem]:
    config = loaded.config

    def problem(key: str, error: ZhcEdgeError) -> Problem:
        what = error.what if error.where == key else f"{error.where}: {error.what}"
        return Problem(Place(loaded.origins[key]), key, what, fix=error.fix)

    try:
        labels = load_bundle(config.model.bundle).facts.labels
    except ModelError as error:
        yield problem("model.bundle", error)
    else:
        for key, wanted in (("model.labels", config.model.labels), ("events.labels", config.events.labels)):
            try:
                label_indices(wanted or (), labels, key)
            except ConfigError as error:
                yield problem(key, error)
    for name, channel in config.channels.items():
        try:
            source_path(channel.source)
        except SourceMissingError as error:
            yield problem(dotted(("channels", name, "source", "uri")), error)


def check(path: Path, overrides: Sequence[str], environ: Mapping[str, str]) -> CheckReport:
    """Examine the configuration in `path` without running it, and whether what it names is there.

    Reads the model bundle; opens no video and no connection.
    """
    outcome = examine(path, overrides, environ, profiles=PROFILES)
    if not isinstance(outcome, LoadedConfig):
        return CheckReport(path, problems=outcome)
    if problems := tuple(_what_is_not_there(outcome)):
        return CheckReport(path, problems=problems)
    values = ((dotted(path), value) for path, value in leaves(outcome.config))
    return CheckReport(path, leaves=tuple(Leaf(key, value, outcome.origins[key]) for key, value in values))

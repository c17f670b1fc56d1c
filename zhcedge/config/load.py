"""Read a configuration file, lay the environment and --set over it, check it, and remember where values come from.

Priority: --set, then the environment (ZHC_A__B), then conf.d, then the file, then the schema's defaults. Pure apart
from reading these files, the working directory and the host name; any thread, any phase.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from pydantic import JsonValue, TypeAdapter, ValidationError

from zhcedge.config import overrides as layers
from zhcedge.config.channel import ChannelConfig
from zhcedge.config.explain import allowed_words, explain
from zhcedge.config.files import read_tree
from zhcedge.config.partial import salvage
from zhcedge.config.paths import PathResolver, clashes
from zhcedge.config.problems import KeyPath, Place, Problem, as_error, dotted, found, in_order, shortened
from zhcedge.config.schema import Config
from zhcedge.config.tree import Tree, parse
from zhcedge.config.values import SLUG_WORDS, Slug
from zhcedge.core.addresses import without_password
from zhcedge.core.errors import ConfigError

Value: TypeAlias = JsonValue
"""A value of the configuration as JSON has it."""

_CHANNEL_NAME: TypeAdapter[str] = TypeAdapter(Slug)


@dataclass(frozen=True)
class LoadedConfig:
    """A checked configuration.

    Attributes:
        config: the values, with every path absolute.
        origins: by dotted key path of each leaf: "default", "demo.yaml:12:3", "ZHC_MQTT__PORT" or
            "--set mqtt.port". A list of plain values is one leaf.
    """

    config: Config
    origins: Mapping[str, str]


def load(
    path: Path,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    *,
    profiles: Collection[str] = (),
) -> LoadedConfig:
    """The configuration in `path` and its drop-ins. Raises ConfigError with every problem found, and nothing else.

    Args:
        path: YAML, UTF-8, at most MAX_BYTES.
        overrides: "a.b=value" texts, as given to --set.
        environ: variables to look for ZHC_ names in; none by default.
        profiles: names that `profile` may have; any when empty.
    """
    outcome = examine(path, overrides, environ, profiles=profiles)
    if isinstance(outcome, LoadedConfig):
        return outcome
    raise as_error(outcome, str(path))


def examine(
    path: Path,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    *,
    profiles: Collection[str] = (),
) -> LoadedConfig | tuple[Problem, ...]:
    """As `load`, with the problems as values, in the order in which they stand in the file. Never raises."""
    return _examined(read_tree(path), path, overrides, environ, profiles)


@dataclass(frozen=True)
class Examination:
    """What `examine_parts` found.

    Attributes:
        problems: in no order.
        config: what is right, with every path absolute; values that are not are replaced by ones that name nothing.
            None where nothing can be read.
        dropped: key paths of what was replaced.
        loaded: the whole configuration, where there is no problem.
    """

    problems: tuple[Problem, ...]
    config: Config | None
    dropped: frozenset[KeyPath]
    loaded: LoadedConfig | None
    _tree: Tree

    def place_of(self, key: KeyPath) -> Place:
        """Where a value was written; for a default where it would stand."""
        return self._tree.place_of(key)

    def has(self, key: KeyPath) -> bool:
        """Whether the value at `key` is one that can be looked at: nothing of it, or around it, was replaced."""
        return not any(key[: len(gone)] == gone for gone in self.dropped)


def examine_parts(
    path: Path,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    *,
    profiles: Collection[str] = (),
) -> Examination:
    """As `examine`, and what is right of a configuration with problems, for looking further. Never raises."""
    return _examined_parts(read_tree(path), path, overrides, environ, profiles)


def load_text(
    text: str,
    name: str,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    *,
    profiles: Collection[str] = (),
    origins: Mapping[KeyPath, str] | None = None,
) -> LoadedConfig:
    """As `load`, of YAML that a command made up; `name` stands for it in messages, relative paths start here.

    Args:
        origins: where the user wrote the values below a key, "--score", instead of a place in a text he never saw.
    """
    tree = parse(text, name)
    for places in (tree.values, tree.keys):
        for path in places:
            for key, origin in (origins or {}).items():
                if path[: len(key)] == key:
                    places[path] = Place(origin)
    outcome = _examined(tree, Path(name), overrides, environ, profiles)
    if isinstance(outcome, LoadedConfig):
        return outcome
    raise as_error(outcome, name)


def _examined(
    tree: Tree,
    path: Path,
    overrides: Sequence[str],
    environ: Mapping[str, str] | None,
    profiles: Collection[str],
) -> LoadedConfig | tuple[Problem, ...]:
    found_out = _examined_parts(tree, path, overrides, environ, profiles)
    return found_out.loaded or in_order(found_out.problems)


def _examined_parts(
    tree: Tree,
    path: Path,
    overrides: Sequence[str],
    environ: Mapping[str, str] | None,
    profiles: Collection[str],
) -> Examination:
    if tree.is_readable and not isinstance(tree.data, dict):
        what = "the file is empty" if tree.data is None else found(tree.data)
        tree.problems.append(Problem(tree.place_of(()), "", what, allowed_words(Config.model_json_schema())))
        tree.is_readable = False
    for layer in (*layers.from_environment(environ or {}), *layers.from_arguments(overrides)):
        if isinstance(layer, Problem):
            tree.problems.append(layer)
        elif tree.is_readable:
            layers.apply(tree, layer)
    problems, dropped = list(tree.problems), frozenset(tree.broken)

    def hopeless(*more: Problem) -> Examination:
        return Examination((*problems, *more), None, frozenset(), None, tree)

    if not tree.is_readable:
        return hopeless()
    try:
        config = Config.model_validate(tree.data, context={"profiles": tuple(profiles)})
    except ValidationError as error:
        problems += explain(error, tree)
        salvaged = salvage(tree.data, error, profiles)
        if salvaged is None:
            return hopeless()
        config, dropped = salvaged[0], dropped | salvaged[1]
    try:
        resolver = PathResolver(tree, Path.cwd() / path.parent, Path.cwd())
        config = Config.model_validate(resolver.resolve(config), context={"profiles": tuple(profiles)})
    except ValidationError as error:  # a folder above has a name that is no text, or makes a path too long
        return hopeless(*explain(error, tree))
    except OSError:
        return hopeless(Problem(Place(str(path)), "", "the working directory does not exist any more"))
    problems += [*resolver.problems, *clashes(config, tree)]
    if problems:
        return Examination(tuple(problems), config, dropped, None, tree)
    origins = {dotted(key): tree.place_of(key).short() if tree.holds(key) else "default" for key, _ in leaves(config)}
    return Examination((), config, dropped, LoadedConfig(config, origins), tree)


def leaves(config: Config) -> Iterator[tuple[KeyPath, Value]]:
    """Each value of `config` with its key path, in the schema's order; lists of plain values stay whole.

    For showing: an address comes without its password. `dump` is for whoever connects.
    """
    yield from _leaves(config.model_dump(mode="json"), ())


def dump(config: Config) -> str:
    """`config` as JSON, for handing it to another process; `parse_dump` reads it back equal."""
    return config.model_dump_json()


def parse_dump(text: str) -> Config:
    """The configuration in the text of `dump`. Raises ConfigError for any other text."""
    try:
        return Config.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        what = f"the handed-over configuration is not valid: {first['msg']}"
        raise ConfigError(what, where=dotted(first["loc"])) from error


def parse_channel(name: str, data: object) -> ChannelConfig:
    """One channel's section, handed over by the control process. Raises ConfigError naming the first wrong key."""
    try:
        return ChannelConfig.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(first["msg"], where=dotted(("channels", name, *first["loc"]))) from error


def check_channel_name(name: str) -> None:
    """Raises ConfigError for a name that no channel may have."""
    try:
        _CHANNEL_NAME.validate_python(name)
    except ValidationError as error:
        raise ConfigError(f"a channel's name is {SLUG_WORDS}", where=shortened(name)) from error


def _leaves(value: Value, path: KeyPath) -> Iterator[tuple[KeyPath, Value]]:
    if isinstance(value, dict) and value:
        for key, child in value.items():
            yield from _leaves(child, (*path, key))
    elif isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        for index, child in enumerate(value):
            yield from _leaves(child, (*path, index))
    else:
        yield path, without_password(value) if isinstance(value, str) else value

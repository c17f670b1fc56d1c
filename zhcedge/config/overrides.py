"""Values from the command line and the environment, laid over those of the file.

`--set a.b.c=value` and `ZHC_A__B__C=value` name one key each. A value that is itself a mapping or a list
replaces what is there as a whole. A number picks an item of a list; the number after the last item adds one.
Environment names are case-blind, and an underscore stands for the hyphen of a channel's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from zhcedge.config.problems import KeyPath, Place, Problem, dotted, found, shortened
from zhcedge.config.tree import MAX_DEPTH, Tree, parse_value

PREFIX = "ZHC_"


@dataclass(frozen=True)
class Override:
    """One value and where it goes; `segments` are keys, or digits where they meet a list."""

    segments: tuple[str, ...]
    text: str
    place: Place


def from_environment(environ: Mapping[str, str]) -> Iterator[Override | Problem]:
    """The overrides among the variables, in the order of their names. Unknown keys are found by the schema."""
    seen: dict[tuple[str, ...], str] = {}
    for name in sorted(name for name in environ if name.startswith(PREFIX)):
        segments = tuple(name.removeprefix(PREFIX).lower().split("__"))
        if segments[0] == "channels" and len(segments) > 1:
            segments = (segments[0], segments[1].replace("_", "-"), *segments[2:])
        if not all(segments):
            yield Problem(Place(name), "", "the name has an empty key", fix="put two underscores between two keys")
        elif segments in seen:
            yield Problem(Place(name), ".".join(segments), f"{seen[segments]} sets this too", fix="unset one of them")
        else:
            seen[segments] = name
            yield Override(segments, environ[name], Place(name))


def from_arguments(arguments: Sequence[str]) -> Iterator[Override | Problem]:
    """The overrides given as "a.b=value", in their order; a later one wins."""
    for argument in arguments:
        key, equals, text = argument.partition("=")
        segments = tuple(segment.strip() for segment in key.split("."))
        if not equals or not all(segments):
            place = Place(f"--set {shortened(key)}")
            yield Problem(place, "", "this is not KEY=VALUE", fix="write it like --set mqtt.port=1884")
        else:
            yield Override(segments, text, Place(f"--set {dotted(segments)}"))


def apply(tree: Tree, override: Override) -> None:
    """Lay one value over `tree`, whose data becomes a mapping if it is none yet. Faults go into its problems."""
    if len(override.segments) > MAX_DEPTH:
        place = Place(shortened(str(override.place)))
        tree.problems.append(Problem(place, "", f"the key has more than {MAX_DEPTH} levels"))
        return
    given = parse_value(override.text, str(override.place))
    if given.problems:
        name = dotted(override.segments)
        tree.problems += [Problem(override.place, name, p.what, p.allowed, p.fix) for p in given.problems]
        return
    if tree.data is None:
        tree.data = {}
    place, path, node = override.place, cast(KeyPath, ()), tree.data
    for index, segment in enumerate(override.segments):
        if (key := _key_in(node, segment)) is None:
            _refuse(tree, override, path, node)
            return
        path = (*path, key)
        if index == len(override.segments) - 1:
            tree.values = {p: where for p, where in tree.values.items() if p[: len(path)] != path}
            tree.keys = {p: where for p, where in tree.keys.items() if p[: len(path)] != path}
            tree.broken = [p for p in tree.broken if p[: len(path)] != path]
            _put(node, key, given.data)
        else:
            node = _child(node, key, makes_list=override.segments[index + 1] == "0" and path != ("channels",))
        if path not in tree.values:
            tree.values[path] = tree.keys[path] = place


def _key_in(node: object, segment: str) -> str | int | None:
    """The key or position that `segment` means in `node`; None when `node` can't have it."""
    if isinstance(node, dict):
        return segment
    if isinstance(node, list) and segment.isascii() and segment.isdigit() and len(segment) < 6:
        return int(segment) if int(segment) <= len(node) else None
    return None


def _child(node: object, key: str | int, makes_list: bool) -> object:
    """What stands at `key`, made first where there is nothing yet."""
    if isinstance(node, dict):
        child = node.get(key)
    else:
        items = cast("list[object]", node)
        child = items[cast(int, key)] if cast(int, key) < len(items) else None
    if child is None:
        child = [] if makes_list else {}
        _put(node, key, child)
    return child


def _put(node: object, key: str | int, value: object) -> None:
    if isinstance(node, dict):
        node[key] = value
    elif isinstance(node, list) and key == len(node):
        node.append(value)
    elif isinstance(node, list):
        node[cast(int, key)] = value


def _refuse(tree: Tree, override: Override, path: KeyPath, node: object) -> None:
    what = f"{dotted(path) or 'the file'} holds a value that has no keys ({found(node)})"
    allowed = ""
    if isinstance(node, list):
        what, allowed = f"{dotted(path)} is a list of {len(node)}", f"a position from 0 to {len(node)}"
    tree.problems.append(Problem(override.place, dotted(override.segments), what, allowed))

"""YAML text to plain values that remember where they were written.

Nodes come from PyYAML's composer and are turned into values here, not by its constructor, because that one loses
line and column, lets a key appear twice, and knows more types than a configuration needs. Text stays text where
YAML 1.1 would surprise: 18:30 (base 60), 010 (octal) and dates are not numbers or dates here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import yaml

from zhcedge.config.problems import KeyPath, Place, Problem, dotted, shortened

MAX_BYTES = 256 * 1024
"""Largest configuration file; PyYAML needs some seconds for that much."""

MAX_NODES = 20_000
"""Values in one file, each use of an alias counted again: an alias bomb ends here."""

MAX_DEPTH = 24
MAX_NUMBER_LENGTH = 64

_TAG = "tag:yaml.org,2002:"
_BOOLEANS = yaml.SafeLoader.bool_values
_SURPRISING_NUMBER = re.compile(r"[-+]?0[0-7_]|.*:")
_HINTS = {
    "mapping values are not allowed here": "indent the keys of one section equally and quote text that holds ': '",
    "found character '\\t' that cannot start any token": "indent with spaces, not tabs",
    "found character '%' that cannot start any token": "put the text in quotes",
    "found character '@' that cannot start any token": "put the text in quotes",
    "could not find expected ':'": "write a colon and a space after the key",
    "expected <block end>, but found '<block mapping start>'": "indent the keys of one section equally",
    "but found another document": "remove the --- line in the middle",
}


@dataclass
class Tree:
    """Plain values (dict, list, str, int, float, bool, None) and their places.

    Attributes:
        data: the value itself; None when the text can't be read at all.
        values: place of each value by key path.
        keys: place of each key of a mapping by the key path of its value.
        problems: faults of the text itself.
        broken: key paths whose values these faults make meaningless.
        is_readable: False when `data` means nothing.
    """

    source: str
    data: object = None
    values: dict[KeyPath, Place] = field(default_factory=dict)
    keys: dict[KeyPath, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    broken: list[KeyPath] = field(default_factory=list)
    is_readable: bool = True

    def place_of(self, path: KeyPath) -> Place:
        """Place of the value at `path`, or of the nearest one around it."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.values:
                return self.values[path[:length]]
        return Place(self.source)

    def place_of_key(self, path: KeyPath) -> Place:
        """Place of the key at `path`, or of the nearest value around it."""
        return self.keys[path] if path in self.keys else self.place_of(path)

    def holds(self, path: KeyPath) -> bool:
        """Whether `data` has a value at `path`, i.e. it does not come from a default."""
        value = self.data
        for segment in path:
            try:
                value = value[segment]  # type: ignore[index]  # a dict or a list, or else TypeError
            except (KeyError, IndexError, TypeError):
                return False
        return True


class _BoundedLoader(yaml.SafeLoader):
    """Refuses deep nesting while composing: the composer recurses, and the interpreter's stack is finite."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"more than {MAX_DEPTH} levels deep", problem_mark=self.get_mark())
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def parse(text: str, source: str) -> Tree:
    """Read one YAML document. Never raises: faults are in `problems`."""
    tree = Tree(source)
    try:
        loader = _BoundedLoader(text)
    except yaml.reader.ReaderError as error:
        return _refused(tree, _place_at(text, source, error.position), f"found the character U+{error.character:04X}")
    try:
        node = loader.get_single_node()
        if node is not None:
            tree.data = _Converter(tree, loader).convert(node, (), 0)
        else:
            tree.values[()] = Place(source, 1, 1)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = _place(source, mark) if mark else Place(source, 1, 1)
        problem = error.problem or error.context or "not valid YAML"
        what = f"{error.context}, {problem}" if problem.startswith("but ") else problem
        return _refused(tree, place, what, _HINTS.get(problem, ""))
    except (ValueError, OverflowError):
        # PyYAML's scanner hands an escape such as "\UFFFFFFFF" to chr() unchecked.
        return _refused(tree, _place(source, loader.get_mark()), "an escape names no character")
    finally:
        loader.dispose()
    return tree


def parse_value(text: str, source: str) -> Tree:
    """Read the value of --set or of an environment variable. Never raises.

    Text that starts with a quote, [ or { is YAML; anything else is one plain scalar as a whole, so that paths and
    names need no quoting.
    """
    text = text.strip()
    if text[:1] in ("'", '"', "[", "{"):
        tree = parse(text, source)
    else:
        tree = Tree(source)
        loader = yaml.SafeLoader("")
        tag: str = loader.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]  # stub's gap
        node = yaml.ScalarNode(tag, text)
        tree.data = _Converter(tree, loader).convert(node, (), 0)
    # Lines and columns within an argument help nobody.
    here = Place(source)
    tree.values, tree.keys = {(): here}, {}
    tree.problems = [Problem(here, p.key, p.what, p.allowed, p.fix) for p in tree.problems]
    return tree


class _Converter:
    """Nodes to values. `convert` raises MarkedYAMLError for what makes the whole text unusable."""

    def __init__(self, tree: Tree, loader: yaml.SafeLoader) -> None:
        self._tree = tree
        self._loader = loader
        self._count = 0

    def convert(self, node: yaml.Node, path: KeyPath, depth: int) -> object:
        self._count += 1
        if self._count > MAX_NODES:
            raise yaml.MarkedYAMLError(problem=f"more than {MAX_NODES} values", problem_mark=node.start_mark)
        if depth > MAX_DEPTH:  # the composer lets an alias point at what it stands in
            raise yaml.MarkedYAMLError(problem="an alias contains itself", problem_mark=node.start_mark)
        self._tree.values[path] = self._place_of(node)
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            return [self.convert(item, (*path, index), depth + 1) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        return self._fault(node, path, f"the tag {_tag_as_written(node)} is not allowed")

    def _mapping(self, node: yaml.MappingNode, path: KeyPath, depth: int) -> dict[str, object]:
        own: dict[str, object] = {}
        merged: dict[str, object] = {}
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                merged = {**self._merge(value_node, path, depth), **merged}
            elif not isinstance(key_node, yaml.ScalarNode) or not key_node.tag.startswith(_TAG):
                self._note(key_node, path, "a key must be plain text")
            elif key_node.value in own:
                child = (*path, key_node.value)
                fix = f"remove it, or the one at line {self._tree.keys[child].line}"
                self._note(key_node, child, "this key appears twice", fix)
            else:
                child = (*path, key_node.value)
                self._tree.keys[child] = self._place_of(key_node)
                own[key_node.value] = self.convert(value_node, child, depth + 1)
        return {**merged, **own}

    def _merge(self, node: yaml.Node, path: KeyPath, depth: int) -> dict[str, object]:
        """The keys that `<<` brings in; of several mappings an earlier one wins (YAML 1.1 merge type)."""
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, object] = {}
        for source in sources:
            if not isinstance(source, yaml.MappingNode):
                self._note(source, path, "<< takes an alias of a mapping")
                continue
            # Converted into a tree of its own, so that its places don't overwrite those of the own keys.
            part = Tree(self._tree.source)
            converter = _Converter(part, self._loader)
            converter._count = self._count
            values = converter._mapping(source, path, depth + 1) if depth < MAX_DEPTH else None
            self._count = converter._count + 1
            if values is None or self._count > MAX_NODES:
                raise yaml.MarkedYAMLError(problem="an alias contains itself", problem_mark=source.start_mark)
            merged = {**values, **merged}
            for places, brought in ((self._tree.values, part.values), (self._tree.keys, part.keys)):
                for child, place in brought.items():
                    places.setdefault(child, place)
            self._tree.problems += part.problems
            self._tree.broken += part.broken
        return merged

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> object:
        kind, text = node.tag.removeprefix(_TAG), node.value
        if kind == "null":
            return None
        if kind == "bool" and text.lower() in _BOOLEANS:
            return _BOOLEANS[text.lower()]
        if kind in ("str", "timestamp", "value", "merge"):
            return text
        if kind in ("int", "float"):
            if _SURPRISING_NUMBER.match(text):
                return text
            if len(text) > MAX_NUMBER_LENGTH:
                return self._fault(node, path, f"found a number of {len(text)} characters")
            try:
                number: object = (
                    self._loader.construct_yaml_int(node) if kind == "int" else self._loader.construct_yaml_float(node)
                )
                return number
            except ValueError:  # an explicit tag, as in !!int abc
                pass
        return self._fault(node, path, f"{shortened(text)} with the tag {_tag_as_written(node)} is not allowed")

    def _note(self, node: yaml.Node, path: KeyPath, what: str, fix: str = "") -> None:
        self._tree.problems.append(Problem(self._place_of(node), dotted(path), what, fix=fix))

    def _fault(self, node: yaml.Node, path: KeyPath, what: str) -> object:
        """Note that a value is unusable; null stands in for it."""
        self._note(node, path, what)
        self._tree.broken.append(path)
        return None

    def _place_of(self, node: yaml.Node) -> Place:
        return _place(self._tree.source, node.start_mark) if node.start_mark else Place(self._tree.source)


def _refused(tree: Tree, place: Place, what: str, fix: str = "") -> Tree:
    return Tree(tree.source, problems=[Problem(place, "", what, fix=fix)], is_readable=False)


def _tag_as_written(node: yaml.Node) -> str:
    return shortened(node.tag.replace(_TAG, "!!", 1))


def _place(source: str, mark: yaml.Mark) -> Place:
    return Place(source, mark.line + 1, mark.column + 1)


def _place_at(text: str, source: str, offset: int) -> Place:
    before = text[:offset]
    return Place(source, before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1)

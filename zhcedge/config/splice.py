"""One value of a YAML text changed in place: everything else, comments too, stays as it is, byte for byte.

PyYAML's composer says where each node begins and ends. A value is written on one line, in flow style. What can't be
done so, an alias for one, is refused: the outcome is read again, and has to be the old values with that one changed.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from zhcedge.config.problems import dotted, shortened
from zhcedge.config.tree import MAX_DEPTH, parse
from zhcedge.core.errors import UsageError

_FIX = "change it with `zhc-edge config edit`"
_STEP = 2  # columns of indentation for what is new


@dataclass(frozen=True)
class _Found:
    """How far a key path reaches in a document.

    Attributes:
        node: the last one on the path.
        key: its key where it stands in a mapping.
        parent: what it stands in.
        rest: keys that are not there.
    """

    node: yaml.Node
    key: yaml.Node | None
    parent: yaml.Node | None
    rest: tuple[str, ...]


def with_value(text: str, segments: Sequence[str], value: object) -> str:
    """`text` with the value at a key path replaced, or added with what is missing around it.

    Args:
        text: YAML that can be read; empty for none.
        segments: keys, or positions where they meet a list; the position after the last item adds one.
        value: of plain types.

    Raises UsageError where that can't be done in place.
    """
    if len(segments) > MAX_DEPTH:
        raise UsageError(f"more than {MAX_DEPTH} levels deep", where=shortened(dotted(tuple(segments))), fix=_FIX)
    wanted = _changed(_plain(text), segments, value)
    root = yaml.compose(text, yaml.SafeLoader)
    end = "\r\n" if "\r\n" in text else "\n"
    if root is None:
        base = text if not text or text.endswith("\n") else text + end
        return _checked(base + _block(segments, value, 0, end), wanted, segments)
    found = _find(root, segments)
    if found.rest:
        return _checked(_added(text, found, value, end), wanted, segments)
    return _checked(_replaced(text, found, value), wanted, segments)


def without_value(text: str, segments: Sequence[str]) -> str:
    """`text` without the key or item at a key path. Raises UsageError when it is not there, or can't be taken out."""
    wanted = _removed(_plain(text), segments)
    root = yaml.compose(text, yaml.SafeLoader)
    found = _find(root, segments) if root is not None else None
    if root is None or found is None or found.rest or not isinstance(found.parent, yaml.CollectionNode):
        raise _absent(segments)  # an alias of a mapping brings it in
    if len(found.parent.value) == 1:  # a block without entries is no mapping any more
        empty: object = {} if isinstance(found.parent, yaml.MappingNode) else []
        return _checked(_replaced(text, _find(root, segments[:-1]), empty), wanted, segments)
    return _checked(_cut(text, found.parent, found), wanted, segments)


# -- values --------------------------------------------------------------------------------------------------------
def _plain(text: str) -> object:
    tree = parse(text, "")
    if tree.problems or not tree.is_readable:
        raise UsageError("the file has errors", fix="see `zhc-edge check`, and mend it with `zhc-edge config edit`")
    return tree.data


def _absent(segments: Sequence[str]) -> UsageError:
    return UsageError("this is not in the file", where=dotted(tuple(segments[:MAX_DEPTH])), fix="see `zhc-edge check`")


def _changed(data: object, segments: Sequence[str], value: object) -> object:
    """A copy of plain values with one of them changed."""
    if not segments:
        return value
    first, rest = segments[0], segments[1:]
    if data is None:
        data = {}
    if isinstance(data, dict):
        return {**data, first: _changed(data.get(first), rest, value)}
    if isinstance(data, list) and _is_position(first, len(data)):
        items = copy.copy(data) if int(first) < len(data) else [*data, None]
        items[int(first)] = _changed(items[int(first)], rest, value)
        return items
    raise UsageError(f"there is no place for {first!r}", where=dotted(tuple(segments)), fix="see `zhc-edge check`")


def _removed(data: object, segments: Sequence[str]) -> object:
    first, rest = segments[0], segments[1:]
    if isinstance(data, dict) and first in data:
        kept = {key: child for key, child in data.items() if key != first}
        return {**data, first: _removed(data[first], rest)} if rest else kept
    if isinstance(data, list) and _is_position(first, len(data) - 1):
        items = list(data)
        items[int(first) : int(first) + 1] = [_removed(items[int(first)], rest)] if rest else []
        return items
    raise _absent(segments)


def _is_position(text: str, last: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 6 and int(text) <= last


def _checked(text: str, wanted: object, segments: Sequence[str]) -> str:
    tree = parse(text, "")
    if tree.problems or not tree.is_readable or tree.data != wanted:
        raise UsageError("this can't be changed in place", where=dotted(tuple(segments)), fix=_FIX)
    return text


# -- nodes ---------------------------------------------------------------------------------------------------------
def _find(root: yaml.Node, segments: Sequence[str]) -> _Found:
    """Raises UsageError where the path goes through an alias, or an anchor that an alias names."""
    node, key, parent = root, None, None
    shared = _shared(root)
    for index, segment in enumerate(segments):
        child_key, child = _child(node, segment)
        if child is None:
            return _Found(node, key, parent, tuple(segments[index:]))
        if id(child) in shared:
            where = dotted(tuple(segments[: index + 1]))
            raise UsageError("the value here is an alias's, and others would change with it", where=where, fix=_FIX)
        node, key, parent = child, child_key, node
    return _Found(node, key, parent, ())


def _child(node: yaml.Node, segment: str) -> tuple[yaml.Node | None, yaml.Node | None]:
    """(key, value); (None, None) where there is none."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value == segment:
                return key, value
    elif isinstance(node, yaml.SequenceNode) and _is_position(segment, len(node.value) - 1):
        return None, node.value[int(segment)]
    return None, None


def _shared(root: yaml.Node) -> set[int]:
    """Nodes that stand in several places."""
    seen: set[int] = set()
    shared: set[int] = set()
    left = [root]
    while left:
        node = left.pop()
        if id(node) in seen:
            shared.add(id(node))
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            left += [part for entry in node.value for part in entry]
        elif isinstance(node, yaml.SequenceNode):
            left += node.value
    return shared


def _end(text: str, node: yaml.Node) -> int:
    """Where its own text ends: PyYAML lets a block end where the next thing begins."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        key, value = last if isinstance(node, yaml.MappingNode) else (None, last)
        end = _end(text, value)
        return end if key is None or end > key.end_mark.index else _colon(text, key)
    end = int(node.end_mark.index)
    if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
        return len(text[:end].rstrip())
    return end


def _colon(text: str, key: yaml.Node) -> int:
    """After the colon of a key."""
    found = text.find(":", key.end_mark.index)
    return found + 1 if found >= 0 else int(key.end_mark.index)  # none: `? key`, which `_checked` refuses


def _line_end(text: str, index: int) -> int:
    """After the line that `index` is in, its comment and its end included."""
    end = text.find("\n", index)
    return len(text) if end < 0 else end + 1


# -- text ----------------------------------------------------------------------------------------------------------
def _represent_text(dumper: yaml.representer.BaseRepresenter, text: str) -> yaml.Node:
    """Text of several lines is quoted so that it stays on one."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


class _Dumper(yaml.SafeDumper):
    yaml_representers = {**yaml.SafeDumper.yaml_representers, str: _represent_text}  # noqa: RUF012  PyYAML's own way


def _flow(value: object) -> str:
    """On one line, also inside braces."""
    whole = yaml.dump(
        [value], Dumper=_Dumper, default_flow_style=True, width=10**9, allow_unicode=True, sort_keys=False
    )
    return whole.strip()[1:-1]


def _block(segments: Sequence[str], value: object, indent: int, end: str) -> str:
    """Lines for a value below keys, each on a line of its own."""
    lines = [" " * (indent + _STEP * depth) + _flow(key) + ":" for depth, key in enumerate(segments)]
    return end.join(lines) + f" {_flow(value)}{end}"


def _indent(node: yaml.CollectionNode) -> int:
    """Columns before a block's entries; a block with an anchor or a tag begins with that, on the line before."""
    key = node.value[0][0] if isinstance(node, yaml.MappingNode) else None
    return int(min(node.start_mark.column, key.start_mark.column if key else node.start_mark.column))


def _nested(segments: Sequence[str], value: object) -> object:
    for segment in reversed(segments):
        value = {segment: value}
    return value


def _replaced(text: str, found: _Found, value: object) -> str:
    start, end = int(found.node.start_mark.index), _end(text, found.node)
    is_block = isinstance(found.node, yaml.CollectionNode) and not found.node.flow_style
    if found.key is not None and (is_block or start == end):
        start = _colon(text, found.key)
        return f"{text[:start]} {_flow(value)}{text[max(end, start) :]}"
    return text[:start] + _flow(value) + text[end:]


def _added(text: str, found: _Found, value: object, line_end: str) -> str:
    node, rest = found.node, found.rest
    if not isinstance(node, yaml.CollectionNode):  # null, or a value without keys, which `_checked` refuses
        return _replaced(text, found, _nested(rest, value))
    is_mapping = isinstance(node, yaml.MappingNode)
    if node.flow_style:
        new = f"{_flow(rest[0])}: {_flow(_nested(rest[1:], value))}" if is_mapping else _flow(_nested(rest[1:], value))
        close = int(node.end_mark.index) - 1
        before = text[:close].rstrip(" ")
        comma = ", " if node.value and not before.endswith(",") else " " * before.endswith(",")
        return before + comma + new + text[close:]
    at = _line_end(text, _end(text, node))
    before = text[:at] if text[:at].endswith("\n") else text[:at] + line_end
    indent = _indent(node)
    if is_mapping:
        return before + _block(rest, value, indent, line_end) + text[at:]
    return f"{before}{' ' * indent}- {_flow(_nested(rest[1:], value))}{line_end}{text[at:]}"


def _cut(text: str, parent: yaml.CollectionNode, found: _Found) -> str:
    start = int((found.key or found.node).start_mark.index)
    if parent.flow_style:
        end = _end(text, found.node)
        after = text[end:]
        skipped = len(after) - len(after.lstrip())
        if after[skipped : skipped + 1] == ",":
            rest = after[skipped + 1 :]
            return text[:start] + rest.lstrip(" ")
        return text[: text.rindex(",", 0, start)] + after
    line = text.rfind("\n", 0, start) + 1
    if isinstance(parent, yaml.MappingNode) and text[line:start].strip():
        following, _ = parent.value[1]  # moves up to the dash of a list, on whose line the first entry stands
        return text[:start] + text[int(following.start_mark.index) :]
    return text[:line] + text[_line_end(text, max(_end(text, found.node), start)) :]

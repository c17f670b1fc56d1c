"""One value of a YAML text changed in place: the values are right, and all else stays byte for byte."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from zhcedge.config.splice import with_value, without_value
from zhcedge.config.tree import parse
from zhcedge.core.errors import UsageError

TEXT = """\
# The gate's box.
mqtt:   # the broker
  host: "192.0.2.7"  # of the office
  port: 1884

channels:
  gate:
    source: {uri: "rtsp://192.0.2.9/a", fps: 5}  # the old one
    # its rules
    zones:
    - name: door
      points: [[0, 0], [1, 0], [1, 1]]
    - name: street

# last words
"""


@pytest.mark.parametrize(
    ("key", "value", "old", "new"),
    [
        ("mqtt.port", 1885, "port: 1884", "port: 1885"),
        ("mqtt.host", "a, b", '"192.0.2.7"', "'a, b'"),
        ("channels.gate.source.fps", None, "fps: 5", "fps: null"),
        ("channels.gate.source.uri", "x: {y}", '"rtsp://192.0.2.9/a"', "'x: {y}'"),
        ("channels.gate.zones.1.name", "yes", "street", "'yes'"),
        ("channels.gate.zones.0.points.1", [2, 3], "[1, 0]", "[2, 3]"),
        ("channels.gate.source.loop", True, "fps: 5", "fps: 5, loop: true"),
        ("mqtt.tls.enabled", True, "port: 1884\n", "port: 1884\n  tls:\n    enabled: true\n"),
        ("channels.gate.zones.2.name", "new", "name: street\n", "name: street\n    - {name: new}\n"),
        ("device", "box", "name: street\n", "name: street\ndevice: box\n"),
        ("mqtt", {"host": "x"}, '   # the broker\n  host: "192.0.2.7"  # of the office\n  port: 1884', " {host: x}"),
    ],
)
def test_only_the_value_differs(key: str, value: object, old: str, new: str) -> None:
    assert TEXT.count(old) == 1
    assert with_value(TEXT, key.split("."), value) == TEXT.replace(old, new)


@pytest.mark.parametrize(
    ("key", "old", "new"),
    [
        ("mqtt.port", "  port: 1884\n", ""),
        ("channels.gate.source.fps", ", fps: 5", ""),
        ("channels.gate.source.uri", 'uri: "rtsp://192.0.2.9/a", ', ""),
        ("channels.gate.zones.1", "    - name: street\n", ""),
        ("channels.gate.zones.0.name", "name: door\n      points", "points"),
        ("channels.gate.zones.1.name", "- name: street", "- {}"),
        ("channels", TEXT[TEXT.index("channels:") : TEXT.index("\n# last")], ""),
    ],
)
def test_taken_out_with_its_line(key: str, old: str, new: str) -> None:
    assert without_value(TEXT, key.split(".")) == TEXT.replace(old, new)


@pytest.mark.parametrize(
    ("text", "key", "value", "new"),
    [
        ("", "a.b", 1, "a:\n  b: 1\n"),
        ("# only a comment", "a", 1, "# only a comment\na: 1\n"),
        ("a:\n", "a.b", 1, "a: {b: 1}\n"),
        ("a: # why\nb: 2\n", "a", 1, "a: 1 # why\nb: 2\n"),
        ("a: {}\n", "a.b.c", 1, "a: {b: {c: 1}}\n"),
        ("a: 1", "b", 2, "a: 1\nb: 2\n"),
        ("a: 1\r\nb:\r\n  c: 2\r\n", "b.d", 3, "a: 1\r\nb:\r\n  c: 2\r\n  d: 3\r\n"),
        ("a: |\n  long\n  text\n\nb: 1\n", "a", "x", "a: x\n\nb: 1\n"),
        ("a: &x {k: 1}\nb: {<<: *x}\n", "b.k", 2, "a: &x {k: 1}\nb: {<<: *x, k: 2}\n"),
        ("'a b': 1\n", "a b", 2, "'a b': 2\n"),
        ("a: &x\n  b: 1\n", "a.c", 2, "a: &x\n  b: 1\n  c: 2\n"),
        ("a: !!map\n  b: 1\n", "a.c", 2, "a: !!map\n  b: 1\n  c: 2\n"),
        ("a: 1  # one\n", "a", "line\nbreak", 'a: "line\\nbreak"  # one\n'),
    ],
)
def test_odd_texts(text: str, key: str, value: object, new: str) -> None:
    assert with_value(text, key.split("."), value) == new


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("a: &x {k: 1}\nb: *x\n", "b.k", "alias"),
        ("a: &x {k: 1}\nb: *x\n", "a.k", "alias"),
        ("a: 1\n", "a.b", "no place"),
        ("a: [1]\n", "a.3", "no place"),
        ("a: [1]\n", "a.x", "no place"),
        ("a: 1\na: 2\n", "a", "has errors"),
        ("a: {b: 1\n", "a", "has errors"),
        ("? a\n", "a", "can't be changed in place"),
        ("? a\n", "a.b", "can't be changed in place"),
        ("a: 1\n", 20_000 * "a." + "b", "levels deep"),
        ("a: &x {k: {z: 1}}\nb: {<<: *x}\n", "b.k.y", "can't be changed in place"),
    ],
)
def test_what_can_not_be_done_in_place_is_refused(text: str, key: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        with_value(text, key.split("."), 5)
    assert caught.value.fix


@pytest.mark.parametrize("key", ["b", "a.x", "a.b.c", "a.1"])
def test_what_is_not_there_can_not_be_taken_out(key: str) -> None:
    with pytest.raises(UsageError, match="not in the file"):
        without_value("a: {b: 1}\n", key.split("."))


KEYS = st.sampled_from(["a", "b", "c d", "yes", "1"])
SCALARS = st.one_of(
    st.integers(),
    st.booleans(),
    st.none(),
    st.text(max_size=8),
    st.sampled_from(["# no", "- a", "x: y", "{", "'", "~"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda child: st.one_of(st.lists(child, max_size=3), st.dictionaries(KEYS, child, max_size=3)),
    max_leaves=8,
)
TOPS = st.dictionaries(KEYS, VALUES, min_size=1, max_size=4)


def written(data: object, is_flow: bool | None, has_comments: bool) -> str:
    text = yaml.safe_dump(data, default_flow_style=is_flow, sort_keys=False, allow_unicode=True)
    if has_comments and not is_flow:
        text = "# first\n" + text + "# last\n"
    assume(parse(text, "").data == data)  # no dates, no base 60
    return text


def paths(value: object, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, child in items for found in paths(child, (*path, str(key))))]


@given(
    data=TOPS, is_flow=st.sampled_from([True, False, None]), has_comments=st.booleans(), value=VALUES, chance=st.data()
)
def test_any_value_of_any_text(
    data: dict[str, object], is_flow: bool | None, has_comments: bool, value: object, chance: st.DataObject
) -> None:
    text = written(data, is_flow, has_comments)
    path = chance.draw(st.sampled_from(paths(data)[1:]))
    new = with_value(text, path, value)
    tree = parse(new, "")
    assert not tree.problems
    where: object = tree.data
    for segment in path:
        where = where[segment] if isinstance(where, dict) else where[int(segment)]  # type: ignore[index]
    assert where == value
    assert new.count("# first") >= text.count("# first")


@given(
    data=TOPS, is_flow=st.sampled_from([True, False, None]), has_comments=st.booleans(), value=VALUES, chance=st.data()
)
def test_what_is_added_can_be_seen_as_one_piece_and_taken_out_again(
    data: dict[str, object], is_flow: bool | None, has_comments: bool, value: object, chance: st.DataObject
) -> None:
    text = written(data, is_flow, has_comments)
    mappings = [path for path in paths(data) if isinstance(_at(data, path), dict) and _at(data, path)]
    path = (*chance.draw(st.sampled_from(mappings)), "new")
    new = with_value(text, path, value)
    prefix = next((at for at, (a, b) in enumerate(zip(text, new, strict=False)) if a != b), len(text))
    assert new.endswith(text[prefix:])
    assert parse(without_value(new, path), "").data == data


def _at(value: object, path: tuple[str, ...]) -> object:
    for segment in path:
        value = value[segment] if isinstance(value, dict) else value[int(segment)]  # type: ignore[index]
    return value

"""Faulty configurations: every problem at once, in plain words, at its place, and never a traceback."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from zhcedge.config.load import LoadedConfig, dump, examine, leaves, load, parse_dump
from zhcedge.config.problems import MAX_PROBLEMS, KeyPath, Problem, as_error, dotted
from zhcedge.config.tree import MAX_BYTES, Tree, parse, parse_value
from zhcedge.core.errors import ConfigError

ROOT = Path(__file__).parents[2]
DEMO = (ROOT / "config/demo.yaml").read_text()
FULL = (ROOT / "config/zhc-edge.yaml").read_text()
CHANNEL = "channels: {a: {source: {uri: a.mp4}}}\n"


def examined(
    text: str | bytes, overrides: Sequence[str] = (), environ: dict[str, str] | None = None
) -> LoadedConfig | tuple[Problem, ...]:
    """Outcome of a file with this text, checked to be sayable in one ConfigError."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
        outcome = examine(path, overrides, environ, profiles=["cpu"])
    if not isinstance(outcome, LoadedConfig):
        assert outcome
        message = str(as_error(outcome, str(path)))
        message.encode()
        assert all(line.isprintable() for line in message.splitlines())
    return outcome


def problems_of(text: str | bytes, overrides: Sequence[str] = (), environ: dict[str, str] | None = None) -> list[str]:
    """The lines of the message, with the file's folder cut off."""
    outcome = examined(text, overrides, environ)
    assert not isinstance(outcome, LoadedConfig)
    return [re.sub(r"^\S*/c\.yaml", "c.yaml", str(problem)) for problem in outcome]


# -- words -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("mqtt: {port: abc}", "c.yaml:2:14: mqtt.port: found 'abc' (text), allowed: a whole number from 1 to 65535"),
        ("mqtt: {port: 70000}", "mqtt.port: found 70000 (a whole number), allowed: a whole number from 1 to 65535"),
        ("mqtt: {port: '1883'}", "found '1883' (text), allowed: a whole number from 1 to 65535; remove the quotes"),
        ("mqtt: {port: 01883}", "found '01883' (text), allowed"),
        ("mqtt: {port: 18:83}", "found '18:83' (text), allowed"),
        ("mqtt: {port: 1883.0}", "found 1883.0 (a number), allowed: a whole number"),
        ("outbox: {max_messages: 0}", "allowed: a whole number from 1 to 10000000"),
        ("mqtt: {port: yes}", "found true (yes or no), allowed: a whole number from 1 to 65535"),
        ("mqtt: {port: 1%s}" % ("0" * 6000), "mqtt.port: found a number of 6001 characters"),
        ("mqtt: {port: [1]}", "found [1] (a list of 1), allowed: a whole number"),
        ("mqtt: {prot: 1}", "c.yaml:2:8: mqtt.prot: unknown key, allowed: enabled, host, port,"),
        ("mqtt: {enabled: 1}", "found 1 (a whole number), allowed: true or false"),
        ("mqtt: {topic_prefix: 'a/#'}", "found 'a/#' (text), allowed: topic levels"),
        ("mqtt: {password_file: p}", "mqtt: password_file needs a username beside it"),
        ("mqtt: 5", "mqtt: found 5 (a whole number), allowed: a section with keys such as enabled"),
        ("port: 1", "port: unknown key"),
        ("port: 1", "did you mean 'mqtt.port'?"),
        ("device: 12", "found 12 (a whole number), allowed: 1 to 63 lower-case letters, digits and hyphens; put it in"),
        ("device: Box 1", "found 'Box 1' (text), allowed: 1 to 63 lower-case"),
        ("profile: cpi", "profile: found 'cpi' (text), allowed: cpu; did you mean 'cpu'?"),
        ("mqtt: {port: {password: x, b: [1]}}", "found {password: ..., b: ...} (keys), allowed: a whole number"),
        ("mqtt: {port: [a, {b: 1}, null, yes, 0.5]}", "found ['a', {b: ...}, null, true, 0.5] (a list of 5), allowed"),
        ("mqtt: {port: [%s]}" % ("123456789, " * 20), "found [123456789, 123456789, "),
        ("pipeline: {guard: cuont}", "allowed: count or fail or abort; did you mean 'count'?"),
        ("model: {score_threshold: .nan}", "found nan (a number), allowed: a number from 0 to 1 or null"),
        ("model: {labels: []}", "found an empty list, allowed: a list of 1 to 1000 labels or null"),
        ("model: {labels: [no]}", "model.labels.0: found false (yes or no), allowed: one line of text, not empty; put"),
        ("output_dir: ''", "found '' (text), allowed: the path of a file or folder"),
        ('output_dir: "a\\0b"', "found 'a\\x00b' (text), allowed: the path of a file or folder"),
        ('output_dir: "\\uD800"', "output_dir: found '\\ud800' (text), allowed: the path of a file or folder"),
        ("mqtt: {enabled: !!python/name:os.system x}", "with the tag '!!python/name:os.system' is not allowed"),
        ("mqtt: !local {}", "the tag '!local' is not allowed"),
        ("mqtt: {port: !!int x}", "'x' with the tag '!!int' is not allowed"),
        ("? [a, b]\n: 1", "a key must be plain text"),
        ("mqtt: {<<: 5}", "<< takes an alias of a mapping"),
    ],
)
def test_one_faulty_value_is_explained(line: str, expected: str) -> None:
    assert len(found := problems_of(CHANNEL + line)) == 1
    assert expected in found[0]


@pytest.mark.parametrize("line", ["pipeline: {guard: yes}", "pipeline: {guard: 1}", "device: 1.5"])
def test_quotes_are_not_advised_where_they_would_not_help(line: str) -> None:
    (found,) = problems_of(CHANNEL + line)
    assert "quotes" not in found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "c.yaml:1:1: the file is empty, allowed: a section with keys such as device, profile"),
        ("# only a comment\n", "c.yaml:1:1: the file is empty"),
        ("- a\n", "c.yaml:1:1: found ['a'] (a list of 1), allowed: a section with keys"),
        ("just text", "c.yaml:1:1: found 'just text' (text)"),
        ("device: x", "c.yaml:1:1: channels: this key is missing, allowed: at least one channel"),
        ("channels: {}", "channels: found an empty mapping of keys, allowed: at least one channel"),
        ("channels: {a: }", "c.yaml:1:12: channels.a.source: this key is missing"),
        ("channels: {A b: {source: {uri: x}}}", "c.yaml:1:12: channels.'A b': this name can't be used, allowed: 1 to"),
        ("channels: {a: {source: {uri: 'clip:No Clip'}}}", "write ./ in front if a file is really called that"),
        ("channels: [a]", "channels: found ['a'] (a list of 1), allowed: at least one channel"),
        ("a: 1\nb:\n\tc: 3", "c.yaml:3:1: found character '\\t' that cannot start any token; indent with spaces"),
        ("a: b: c", "c.yaml:1:5: mapping values are not allowed here; indent"),
        ("a: [1\nb: 2", "c.yaml:2:2: expected ',' or ']', but got ':'"),
        ("a: *b", "c.yaml:1:4: found undefined alias 'b'"),
        ("a: 1\n---\nb: 2", "expected a single document in the stream, but found another document; remove the"),
        ("a: \x07", "c.yaml:1:4: found the character U+0007"),
        ('a: "\\UFFFFFFFF"', "an escape names no character"),
        ('a: "\\U00110000"', "an escape names no character"),
        ("&a [*a]", "an alias contains itself"),
        ("&a {<<: *a}", "an alias contains itself"),
        ("[" * 5000, "more than 24 levels deep"),
        ("a: " + "{b: " * 5000, "more than 24 levels deep"),
        ("x" * (MAX_BYTES + 1), "c.yaml: the file is larger than 256 KiB"),
        (b"a: 1\nb: \xff\xfe", "c.yaml:2:4: the byte 0xFF is not UTF-8; save the file as UTF-8"),
        ("device: x\n".encode("utf-16"), "c.yaml:1:1: the byte 0xFF is not UTF-8"),
    ],
    ids=range(25),
)
def test_a_text_that_is_no_configuration_is_explained(text: str | bytes, expected: str) -> None:
    assert len(found := problems_of(text)) == 1
    assert expected in found[0]


def test_an_alias_bomb_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert "more than 20000 values" in problems_of("\n".join(lines))[0]


def test_a_merge_bomb_is_refused() -> None:
    lines = ["a0: &a0 {k: 1, l: 2}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 12)]
    assert re.search("more than 20000 values|contains itself", problems_of("\n".join(lines))[0])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fps: 0", "channels.a.source.fps: found 0 (a whole number), allowed: a number above 0, up to 1000 or null"),
        ("read_timeout_s: -1", "allowed: a number above 0, up to 300"),
        ("transport: upd", "found 'upd' (text), allowed: tcp or udp; did you mean 'udp'?"),
        ("password_file: x", "channels.a.source: password_file needs a username beside it"),
        ("start_s: null", "found nothing (null), allowed: a number from 0"),
    ],
)
def test_a_faulty_source_option_is_explained(line: str, expected: str) -> None:
    (found,) = problems_of(f"channels: {{a: {{source: {{uri: a.mp4, {line}}}}}}}")
    assert expected in found


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sinks: [{kind: rtsp, path: a}]", "channels.a.sinks.0: a sink of kind rtsp takes a url and no path"),
        ("sinks: [{kind: jsonl}]", "channels.a.sinks.0: a sink of kind jsonl takes a path and no url"),
        (
            "sinks: [{kind: rtsp, url: 'http://u:pw@x'}]",
            "'http://u:***@x' (text), allowed: an rtsp:// or rtsps:// addr",
        ),
        ("crop: [0, 0, 1]", "channels.a.crop: found [0, 0, 1] (a list of 3), allowed: four numbers from 0 to 1: left"),
        ("crop: [0.5, 0, 0.5, 1]", "channels.a.crop: found [0.5, 0, 0.5, 1] (a list of 4), allowed: four numbers"),
        ("crop: [0, 0, 1, 2]", "channels.a.crop.3: found 2 (a whole number), allowed: a number from 0 to 1"),
        ("masks: [[[0, 0], [1, 1]]]", "masks.0: found [[0, 0], [1, 1]] (a list of 2), allowed: a list of 3 to 32"),
        (
            "masks: [[[0, 0], [1], [1, 1]]]",
            "channels.a.masks.0.1: found [1] (a list of 1), allowed: a list of 2 values, each",
        ),
        (
            "masks: [[[0, 0], [1, x], [1, 1]]]",
            "channels.a.masks.0.1.1: found 'x' (text), allowed: a number from 0 to 1",
        ),
        ("tiles: {overlap: 0.9}", "channels.a.tiles.overlap: found 0.9 (a number), allowed: a number from 0 to 0.5"),
        ("motion: {threshold: 0}", "channels.a.motion.threshold: found 0 (a whole number), allowed: a number above 0"),
    ],
)
def test_a_faulty_channel_option_is_explained(line: str, expected: str) -> None:
    found = problems_of(f"channels: {{a: {{source: {{uri: a.mp4}}, {line}}}}}")
    assert any(expected in problem for problem in found), found


@pytest.mark.parametrize("value", ["65", "-1", "atuo", "1.5", "[]", "null"])
def test_a_value_of_several_types_has_one_problem_at_its_own_key(value: str) -> None:
    (found,) = problems_of(CHANNEL + f"pipeline: {{batch: {value}}}")
    assert "c.yaml:2:19: pipeline.batch: found" in found
    assert "allowed: a whole number from 0 to 64, or auto" in found


@pytest.mark.parametrize("uri", ["rtsp://admin:secret@cam/1", "rtsp://admin:se/c@ret:secret@cam/1?pwd=secret&x=1"])
def test_an_address_with_a_password_is_taken_and_the_password_never_shown(uri: str) -> None:
    loaded = examined(f"channels: {{a: {{source: {{uri: '{uri}'}}, sinks: [{{kind: rtsp, url: '{uri}'}}]}}}}")
    assert isinstance(loaded, LoadedConfig)
    assert loaded.config.channels["a"].source.uri == uri
    shown = str(dict(leaves(loaded.config))) + repr(loaded) + str(loaded)
    assert "rtsp://admin:***@cam/1" in shown
    assert "secret" not in shown
    assert parse_dump(dump(loaded.config)).channels["a"].source.uri == uri  # the frame process connects with it


@pytest.mark.parametrize("uri", ["ftp://admin:secret@cam/1", "rtsp://admin:secret@cam/\u0007", "a: secret@x"])
def test_a_refused_address_does_not_show_its_password(uri: str) -> None:
    for problem in problems_of(f'channels: {{a: {{source: {{uri: "{uri}", fsp: "{uri}"}}}}}}'):
        assert "secret@cam" not in problem


def test_a_duplicate_key_names_the_line_of_the_first() -> None:
    assert problems_of(CHANNEL + "mqtt: {}\nmqtt: {}") == [
        "c.yaml:3:1: mqtt: this key appears twice; remove it, or the one at line 2"
    ]


def test_every_problem_is_reported_in_the_order_of_the_file() -> None:
    text = "mqtt: {port: x, prot: 1}\nchannels:\n  a: {source: {uri: ''}}\n  a: 1\nmodle: {}\n"
    overrides = ["mqtt.keepalive_s=1", "nonsense"]
    found = problems_of(text, overrides, {"ZHC_MQTT__PRT": "1", "ZHC_MQTT____X": "2"})
    assert [line.split(": ")[0] for line in found] == [
        "c.yaml:1:14",
        "c.yaml:1:17",
        "c.yaml:3:21",
        "c.yaml:4:3",
        "c.yaml:5:1",
        "--set 'nonsense'",
        "--set mqtt.keepalive_s",
        "ZHC_MQTT__PRT",
        "ZHC_MQTT____X",
    ]


def test_a_long_list_of_problems_is_cut_and_counted() -> None:
    outcome = examined(CHANNEL + "\n".join(f"key{n}: 1" for n in range(80)))
    assert not isinstance(outcome, LoadedConfig)
    assert str(as_error(outcome, "c.yaml")).endswith(f"and {80 - MAX_PROBLEMS} more")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("mqtt.port=abc", "--set mqtt.port: found 'abc' (text), allowed: a whole number from 1 to 65535"),
        ("mqtt.prt=1", "--set mqtt.prt: unknown key"),
        ("mqtt={port: ", "--set mqtt: "),
        ("mqtt.port", "--set 'mqtt.port': this is not KEY=VALUE"),
        ("=1", "this is not KEY=VALUE"),
        ("a..b=1", "this is not KEY=VALUE"),
        ("channels.a.sinks.3.kind=mp4", "--set channels.a.sinks.3.kind: "),
        ("channels.a.source.uri.x=1", "channels.a.source.uri holds a value that has no keys (found 'a.mp4' (text))"),
        ("model.labels.x=1", "found {x: ...} (keys), allowed: a list of 1 to 1000 labels or null"),
    ],
)
def test_a_faulty_argument_is_explained(override: str, expected: str) -> None:
    assert expected in problems_of(CHANNEL, [override])[0]


def test_two_spellings_of_one_variable_are_a_problem() -> None:
    (found,) = problems_of(CHANNEL, [], {"ZHC_MQTT__PORT": "1", "ZHC_mqtt__port": "2"})
    assert found == "ZHC_mqtt__port: mqtt.port: ZHC_MQTT__PORT sets this too; unset one of them"


def test_outputs_that_would_overwrite_each_other_or_their_source_are_refused() -> None:
    text = (
        "output_dir: .\n"
        "channels:\n"
        "  a: {source: {uri: a.mp4}, sinks: [{kind: mp4, path: b.mp4}, {kind: mp4, path: ./x/../b.mp4}]}\n"
        "  b: {source: {uri: clip:walkers}, sinks: [{kind: mp4, path: a.mp4}]}\n"
    )
    first, second = problems_of(text)
    assert first.endswith("is also channels.a.sinks.0.path; write to another one")
    assert second.endswith("is also channels.a.source.uri; write to another one")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("missing.yaml", "does not exist"), (".", "this is a folder"), ("a\0b", "can't be read"), ("x" * 5000, "read")],
)
def test_an_unreadable_file_is_a_config_error(tmp_path: Path, name: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        load(tmp_path / name)


def test_a_vanished_working_directory_is_a_config_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.yaml").write_text(CHANNEL)
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ConfigError, match="working directory does not exist"):
        load(tmp_path / "c.yaml")


def test_a_folder_whose_name_is_no_text_is_a_config_error(tmp_path: Path) -> None:
    folder = tmp_path / "b\udcff"
    folder.mkdir()
    (folder / "c.yaml").write_text(CHANNEL)
    with pytest.raises(ConfigError) as caught:
        load(folder / "c.yaml")
    str(caught.value).encode()


# -- every key and every value -----------------------------------------------------------------------------------
FULL_TREE = parse(FULL, "c.yaml")
NAMED = {("channels",), ("zones",), ("lines",)}  # the keys below are names
SCHEMA_KEYS = [path for path in FULL_TREE.keys if path[-2:-1] not in NAMED]
ALL_VALUES = [path for path in FULL_TREE.values if path]
SINK_TARGETS = {dotted(path) for path in FULL_TREE.keys if path[-1] in ("path", "url")}
REQUIRED = {"channels", "source", "uri", "kind", "points", "windows"}


@pytest.mark.parametrize("path", SCHEMA_KEYS, ids=dotted)
def test_a_misspelt_key_is_found_at_its_place_with_the_right_suggestion(path: KeyPath) -> None:
    key, place = str(path[-1]), FULL_TREE.keys[path]
    lines = FULL.splitlines(keepends=True)
    line = lines[place.line - 1]
    start = place.column - 1
    lines[place.line - 1] = line[:start] + key[0] + line[start:]  # the first letter twice
    outcome = examined("".join(lines))
    assert not isinstance(outcome, LoadedConfig)
    unknown = [problem for problem in outcome if problem.what == "unknown key"]
    assert [(p.place.line, p.place.column, p.fix) for p in unknown] == [
        (place.line, place.column, f"did you mean {key!r}?")
    ]
    assert len(outcome) == (2 if key in REQUIRED else 1)


json_values: st.SearchStrategy[object] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["port", "mp4", "a.mp4", "<<", "yes", "~/x", "~nobody/x", "clip:x", "a://b@c"]),
    lambda child: st.lists(child, max_size=4) | st.dictionaries(st.text() | st.integers(), child, max_size=4),
    max_leaves=8,
)


@given(st.sampled_from(ALL_VALUES), json_values)
@settings(deadline=None, max_examples=150)
def test_any_value_at_any_key_is_accepted_or_reported_there(path: KeyPath, value: object) -> None:
    data = yaml.safe_load(FULL)
    node = data
    for segment in path[:-1]:
        node = node[segment]
    node[path[-1]] = value
    outcome = examined(yaml.safe_dump(data))
    if not isinstance(outcome, LoadedConfig):
        # A rule over several keys is reported at one of them: at the section, or at the other of two paths.
        related = {dotted(path), dotted(path[:-1]), "mqtt", *SINK_TARGETS}
        assert all(p.key in related or p.key.startswith(dotted(path)) for p in outcome)


@pytest.mark.slow
@pytest.mark.company
@given(json_values, st.booleans())
@settings(deadline=None, max_examples=200)
def test_any_structure_is_accepted_or_explained(value: object, is_flow: bool) -> None:
    examined(yaml.safe_dump(value, default_flow_style=is_flow, allow_unicode=True))


@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(b"\xef\xbb\xbf" + DEMO.encode())
@example(b"%YAML 9999999999999.1\n---\na: 1")
@example(b"%TAG ! tag:%ff,\n---\na: !x 1")
@example(b"!!int 0x")
@example(b"!!float .")
@example(b"!!bool maybe")
@example(b"a: 0b")
@example(b"{<<: [{a: 1}, {<<: 3}], <<: {b: 2}}")
@settings(deadline=None, max_examples=300)
def test_any_bytes_are_accepted_or_explained(data: bytes) -> None:
    examined(data)


@given(st.data())
@settings(deadline=None, max_examples=150)
def test_the_demo_with_bytes_changed_is_accepted_or_explained(data: st.DataObject) -> None:
    text = bytearray(DEMO.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        stop = start + data.draw(st.integers(0, 12))
        text[start:stop] = data.draw(st.binary(max_size=6) | st.sampled_from([b": ", b"\n", b"- ", b"*a", b"{", b"!!"]))
    examined(bytes(text))


@given(
    st.lists(st.text() | st.tuples(st.sampled_from(ALL_VALUES).map(dotted), st.text()).map("=".join), max_size=3),
    st.dictionaries(st.text().map("ZHC_".__add__), st.text(), max_size=3),
)
@settings(deadline=None, max_examples=150)
def test_any_override_is_accepted_or_explained(overrides: list[str], environ: dict[str, str]) -> None:
    examined(DEMO, overrides, environ)


def test_the_tree_never_invents_a_place() -> None:
    tree: Tree = parse_value("{a: 1}", "--set x")
    assert {str(place) for place in tree.values.values()} == {"--set x"}

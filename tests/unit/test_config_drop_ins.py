"""conf.d beside a configuration file: merged in order, every value with the place where it was written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.app.check import check
from zhcedge.config.files import MAX_DROP_INS, read_tree
from zhcedge.config.load import load
from zhcedge.core.errors import ConfigError

MAIN = """\
channels:
  gate:
    source: {uri: "pattern:boxes", fps: 5}
  yard:
    source: {uri: "pattern:boxes"}
mqtt:
  port: 1884
  host: broker
"""


@pytest.fixture
def main(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(MAIN)
    (tmp_path / "conf.d").mkdir()
    return path


def put(main: Path, name: str, text: str) -> Path:
    path = main.parent / "conf.d" / name
    path.write_text(text)
    return path


def test_mappings_are_merged_and_anything_else_replaces(main: Path) -> None:
    put(main, "20-late.yaml", "mqtt: {port: 2000}\n")
    put(
        main,
        "10-early.yaml",
        "mqtt: {port: 1999}\nchannels:\n  gate:\n    source:\n      fps: 9\nmodel: {labels: [car]}\n",
    )
    loaded = load(main)
    assert (loaded.config.mqtt.port, loaded.config.mqtt.host) == (2000, "broker")
    assert loaded.config.channels["gate"].source.fps == 9
    assert loaded.config.channels["gate"].source.uri == "pattern:boxes"
    assert loaded.config.model.labels == ("car",)
    assert loaded.origins["mqtt.port"] == "20-late.yaml:1:14"
    assert loaded.origins["channels.gate.source.fps"] == "10-early.yaml:5:12"
    assert loaded.origins["mqtt.host"] == "config.yaml:8:9"


def test_null_takes_a_camera_out_and_a_new_one_is_added(main: Path) -> None:
    put(main, "a.yaml", 'channels: {yard: null, nobody: null, door: {source: {uri: "pattern:boxes"}}}\n')
    assert list(load(main).config.channels) == ["gate", "door"]


def test_cameras_can_be_taken_out_where_only_drop_ins_have_any(main: Path) -> None:
    main.write_text("mqtt: {enabled: false}\n")
    put(main, "a.yaml", 'channels: {nobody: null, gate: {source: {uri: "pattern:boxes"}}}\n')
    assert list(load(main).config.channels) == ["gate"]
    put(main, "b.yaml", 'channels: {gate: null, door: {source: {uri: "pattern:boxes"}}}\n')
    loaded = load(main)
    assert list(loaded.config.channels) == ["door"]
    assert loaded.origins["channels.door.source.uri"].startswith("b.yaml")


def test_the_environment_and_arguments_come_last(main: Path) -> None:
    put(main, "a.yaml", "mqtt: {port: 2000}\n")
    assert load(main, ["mqtt.port=3000"], {"ZHC_MQTT__PORT": "2500"}).config.mqtt.port == 3000
    assert load(main, [], {"ZHC_MQTT__PORT": "2500"}).config.mqtt.port == 2500


@pytest.mark.parametrize("name", [".hidden.yaml", "a.yaml~", "a.yml", "README"])
def test_other_files_are_left_alone(main: Path, name: str) -> None:
    put(main, name, "mqtt: {port: nonsense")
    assert load(main).config.mqtt.port == 1884


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("mqtt:\n  prot: 1\n", "2:3", "did you mean 'port'?"),
        ("mqtt: {port: no way}\n", "1:14", "mqtt.port"),
        ("- a\n", "1:1", "a list of 1"),
        ("mqtt: {port: 1\n", "2:1", ""),
        ("mqtt: 5\n", "1:7", "mqtt"),
        ("channels: {gate: {source: {}}}\nmqtt:\n  port: 1\n  port: 2\n", "4:3", "this key appears twice"),
    ],
)
def test_what_is_wrong_names_the_drop_in_with_line_and_column(main: Path, text: str, place: str, words: str) -> None:
    part = put(main, "a.yaml", text)
    report = check(main, (), {})
    assert [str(problem.place) for problem in report.problems] == [f"{part}:{place}"]
    assert words in str(report.problems[0])


def test_a_drop_in_mends_what_is_wrong_in_the_file(main: Path) -> None:
    main.write_text(MAIN.replace("1884", "nonsense"))
    put(main, "a.yaml", "mqtt: {port: 2000}\n")
    assert load(main).config.mqtt.port == 2000


def test_one_that_can_not_be_read_is_told_and_the_others_are_looked_at(main: Path) -> None:
    (main.parent / "conf.d/a.yaml").mkdir()
    put(main, "b.yaml", "mqtt: {port: 99999999}\n")
    with pytest.raises(ConfigError) as caught:
        load(main)
    assert "a.yaml: this is a folder" in str(caught.value)
    assert "b.yaml:1:14" in str(caught.value)


def test_what_is_no_file_is_told_and_not_waited_for(main: Path) -> None:
    os.mkfifo(main.parent / "conf.d/pipe.yaml")
    (main.parent / "conf.d/zero.yaml").symlink_to("/dev/zero")
    (main.parent / "conf.d/gone.yaml").symlink_to("nowhere")
    with pytest.raises(ConfigError) as caught:
        load(main)
    assert "pipe.yaml: this is not a regular file" in str(caught.value)
    assert "zero.yaml: this is not a regular file" in str(caught.value)
    assert "gone.yaml: this link leads nowhere" in str(caught.value)


def test_more_than_anybody_needs_are_refused(main: Path) -> None:
    for number in range(MAX_DROP_INS + 1):
        put(main, f"{number}.yaml", "mqtt: {port: 2000}\n")
    with pytest.raises(ConfigError, match=f"{MAX_DROP_INS + 1} files"):
        load(main)


VALUES = st.recursive(
    st.one_of(st.integers(0, 9), st.booleans(), st.sampled_from(["a", "b"]), st.lists(st.integers(0, 3), max_size=2)),
    lambda child: st.dictionaries(st.sampled_from("klm"), child, max_size=3),
    max_leaves=6,
)


def merged(a: object, b: object) -> object:
    if isinstance(a, dict) and isinstance(b, dict):
        return {**a, **{key: merged(a[key], b[key]) if key in a else b[key] for key in b}}
    return b


@given(parts=st.lists(st.dictionaries(st.sampled_from("klm"), VALUES, max_size=3), min_size=1, max_size=4))
def test_the_whole_is_the_fold_of_its_parts_and_every_value_has_one_place(
    tmp_path_factory: pytest.TempPathFactory, parts: list[dict[str, object]]
) -> None:
    folder = tmp_path_factory.mktemp("conf")
    (folder / "conf.d").mkdir()
    whole: object = {}
    for index, part in enumerate(parts):
        path = folder / "config.yaml" if index == 0 else folder / f"conf.d/{index}.yaml"
        path.write_text(str(part))  # Python's words for these are YAML
        whole = merged(whole, part)
    tree = read_tree(folder / "config.yaml")
    assert tree.data == whole
    assert tree.problems == []

    def paths(value: object, path: tuple[str | int, ...]) -> set[tuple[str | int, ...]]:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        return {path}.union(*(paths(child, (*path, key)) for key, child in items))

    assert set(tree.values) == paths(whole, ())

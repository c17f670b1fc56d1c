"""Loading a configuration: priorities, origins, paths, and the shipped files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.config.load import LoadedConfig, dump, leaves, load, load_text, parse_dump
from zhcedge.config.problems import dotted
from zhcedge.config.schema import Config, host_slug
from zhcedge.core.errors import ConfigError

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(set((ROOT / "config").glob("*.yaml")) - {ROOT / "config/asyncapi.yaml"})  # that is the contract

SMALL = """\
channels:
  gate:
    source: {uri: gate.mp4}
    sinks:
      - {kind: mp4, path: out.mp4}
mqtt:
  port: 1884
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_configurations_are_valid(path: Path) -> None:
    assert load(path).config.channels


def test_the_packaged_demo_is_the_demo_configuration() -> None:
    assert (ROOT / "zhcedge/data/demo.yaml").read_bytes() == (ROOT / "config/demo.yaml").read_bytes()


def test_the_example_shows_every_key_of_the_schema() -> None:
    origins = load(ROOT / "config/zhc-edge.yaml").origins
    # Channels and sinks differ in the keys that suit them: each key is there for one of them at least.
    general = {key: re.sub(r"^channels\.[^.]+|\.\d+", "", key) for key in origins}
    shown = "".join(f"{general[key]}.\n" for key, origin in origins.items() if origin != "default")
    assert [key for key in set(general.values()) if not re.search(rf"^{re.escape(key)}\.", shown, re.MULTILINE)] == []


def test_the_example_shows_the_defaults_it_says_it_shows(small: Path) -> None:
    example, default = load(ROOT / "config/zhc-edge.yaml").config, load(small).config
    for section in ("engine", "pipeline", "tracker", "events"):
        assert getattr(example, section) == getattr(default, section)


def test_arguments_win_over_the_environment_which_wins_over_the_file(small: Path) -> None:
    environ = {"ZHC_MQTT__PORT": "1885", "ZHC_MQTT__KEEPALIVE_S": "7", "HOME": "/nowhere"}
    loaded = load(small, ["mqtt.port=1886"], environ)
    assert (loaded.config.mqtt.port, loaded.config.mqtt.keepalive_s) == (1886, 7)
    assert loaded.origins["mqtt.port"] == "--set mqtt.port"
    assert loaded.origins["mqtt.keepalive_s"] == "ZHC_MQTT__KEEPALIVE_S"
    assert load(small, [], environ).config.mqtt.port == 1885


def test_origins_name_file_line_and_column_and_defaults(small: Path) -> None:
    origins = load(small).origins
    assert origins["mqtt.port"] == "small.yaml:7:9"
    assert origins["channels.gate.sinks.0.path"] == "small.yaml:5:27"
    assert origins["mqtt.host"] == "default"
    assert origins["device"] == "default"


def test_every_leaf_has_an_origin(small: Path) -> None:
    loaded = load(small)
    assert set(loaded.origins) == {dotted(path) for path, _ in leaves(loaded.config)}


def test_the_last_of_two_arguments_wins(small: Path) -> None:
    assert load(small, ["mqtt.port=1", "mqtt.port=2"]).config.mqtt.port == 2


def test_a_mapping_or_list_given_as_an_argument_replaces_the_whole(small: Path) -> None:
    loaded = load(small, ["mqtt={keepalive_s: 9}", "model.labels=[person, car]"])
    assert (loaded.config.mqtt.keepalive_s, loaded.config.mqtt.port) == (9, 1883)
    assert loaded.config.model.labels == ("person", "car")
    assert loaded.origins["mqtt.keepalive_s"] == "--set mqtt"
    assert loaded.origins["mqtt.port"] == "default"


def test_an_argument_reaches_list_items_by_position_and_adds_one_behind_the_last(small: Path) -> None:
    loaded = load(small, ["channels.gate.sinks.0.path=a.mp4", "channels.gate.sinks.1={kind: mp4, path: b.mp4}"])
    assert [Path(sink.path or "").name for sink in loaded.config.channels["gate"].sinks] == ["a.mp4", "b.mp4"]


def test_an_argument_can_add_a_channel(small: Path) -> None:
    loaded = load(small, ["channels.0.source.uri=clip:walkers", "channels.0.sinks.0={kind: mp4, path: b.mp4}"])
    assert loaded.config.channels["0"].source.clip == "walkers"


def test_plain_argument_text_needs_no_quoting(small: Path) -> None:
    loaded = load(small, ["channels.gate.source.uri=/clips/a: b #1, *c & [d].mp4", "mqtt.username=null"])
    assert loaded.config.channels["gate"].source.uri == "/clips/a: b #1, *c & [d].mp4"
    assert loaded.config.mqtt.username is None


def test_an_underscore_stands_for_the_hyphen_of_a_channel_name_in_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("channels: {front-door: {source: {uri: a.mp4}}}")
    assert load(path, [], {"ZHC_CHANNELS__FRONT_DOOR__SOURCE__LOOP": "true"}).config.channels["front-door"].source.loop


def test_a_relative_path_starts_where_it_was_written(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    config = load(small).config
    assert config.output_dir == here
    assert config.channels["gate"].source.uri == str(tmp_path / "gate.mp4")
    assert config.channels["gate"].sinks[0].path == here / "out.mp4"
    assert load(small, ["channels.gate.source.uri=x.mp4"]).config.channels["gate"].source.uri == str(here / "x.mp4")
    assert load(small, ["output_dir=o"]).config.channels["gate"].sinks[0].path == here / "o" / "out.mp4"
    small.write_text(SMALL + "output_dir: videos\nmodel: {bundle: ./mine}\n")
    config = load(small).config
    assert config.channels["gate"].sinks[0].path == tmp_path / "videos" / "out.mp4"
    assert config.model.bundle_path == tmp_path / "mine"


def test_a_bundle_name_and_a_clip_name_are_no_paths(small: Path) -> None:
    config = load(small, ["channels.gate.source.uri=clip:walkers"]).config
    assert config.model.bundle_path is None
    assert config.channels["gate"].source.clip == "walkers"


@pytest.mark.parametrize("uri", ["rtsp://h/1", "HTTPS://h/a", "v4l2:/dev/video0", "pattern:boxes?objects=5"])
def test_addresses_devices_and_patterns_are_no_paths(small: Path, uri: str) -> None:
    assert load(small, [f"channels.gate.source.uri={uri}"]).config.channels["gate"].source.uri == uri


def test_the_files_of_a_source_start_where_they_were_written_and_a_sink_may_have_no_path(tmp_path: Path) -> None:
    (path := tmp_path / "c.yaml").write_text(
        "channels:\n  a:\n    source: {uri: 'rtsp://h/', username: u, password_file: pw, ca_file: ca}\n"
        "    sinks: [{kind: rtsp, url: 'rtsp://o/1'}, {kind: jsonl, path: x.jsonl}]\noutput_dir: out\n"
    )
    channel = load(path).config.channels["a"]
    assert (channel.source.password_file, channel.source.ca_file) == (tmp_path / "pw", tmp_path / "ca")
    assert [sink.path for sink in channel.sinks] == [None, tmp_path / "out/x.jsonl"]


def test_a_leading_tilde_is_the_home_folder(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert load(small, ["output_dir=~/v"]).config.output_dir == tmp_path / "home" / "v"


def test_a_section_whose_keys_are_all_commented_out_means_its_defaults(small: Path) -> None:
    small.write_text(SMALL.replace("  port: 1884\n", ""))
    assert load(small).config.mqtt.port == 1883


def test_aliases_and_merge_keys_share_settings_between_channels(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "channels:\n"
        "  a: {source: &file {uri: a.mp4, loop: true}}\n"
        "  b: {source: {<<: *file, uri: b.mp4}}\n"
        "  c: {source: *file}\n"
    )
    loaded = load(path)
    sources = {name: channel.source for name, channel in loaded.config.channels.items()}
    assert {Path(source.uri).name: source.loop for source in sources.values()} == {"a.mp4": True, "b.mp4": True}
    assert sources["c"] == sources["a"]
    assert loaded.origins["channels.b.source.uri"] == "c.yaml:3:32"
    assert loaded.origins["channels.b.source.loop"] == "c.yaml:2:40"


def test_the_default_device_name_is_a_slug(small: Path) -> None:
    assert load(small).config.device == host_slug()


def test_the_dump_reads_back_equal(small: Path) -> None:
    config = load(small).config
    assert parse_dump(dump(config)) == config
    assert isinstance(load(small), LoadedConfig)


@given(
    st.floats(0, 1),
    st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1), min_size=1),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).map("./".__add__),
)
def test_the_dump_keeps_floats_and_text_exactly(fraction: float, labels: list[str], path: str) -> None:
    config = Config.model_validate(
        {
            "device": "d",
            "model": {"score_threshold": fraction, "labels": labels},
            "channels": {"a": {"source": {"uri": path}, "sinks": [{"kind": "mp4", "path": path}]}},
        }
    )
    assert parse_dump(dump(config)) == config


def test_a_text_that_a_command_made_up_is_loaded_like_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = load_text(SMALL, "detect", ["mqtt.port=9"], {"ZHC_DEVICE": "x"})
    assert (loaded.config.mqtt.port, loaded.config.device) == (9, "x")
    assert loaded.config.channels["gate"].source.uri == str(tmp_path / "gate.mp4")
    with pytest.raises(ConfigError, match="chanels: unknown key"):
        load_text("chanels: {}", "detect")


@pytest.mark.parametrize("text", ["", "{}", "[", '{"channels": 3}', "\ud800"])
def test_any_other_text_than_a_dump_is_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_dump(text)


@pytest.mark.parametrize("key", ["a.", "channels.gate.", "0."])
def test_a_key_of_thousands_of_levels_is_one_problem(tmp_path: Path, key: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("channels: {gate: {source: {uri: 'pattern:boxes'}}}\n")
    with pytest.raises(ConfigError, match="levels") as caught:
        load(path, [f"{key * 3000}b=1"])
    assert len(str(caught.value)) < 300
    with pytest.raises(ConfigError, match="levels"):
        load(path, [], {f"ZHC_{(key * 3000).replace('.', '__').upper()}B": "1"})

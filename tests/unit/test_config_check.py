"""`zhc-edge check`: what it prints and returns."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import sys
from pathlib import Path

import pytest
import yaml
from PIL import Image

from zhcedge.cli import main

DEMO = str(Path(__file__).parents[2] / "config/demo.yaml")


def test_a_good_configuration_is_printed_with_the_origin_of_every_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "-c", DEMO, "--set", "mqtt.port=1999"]) == 0
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert rows["mqtt.port"] == ["1999", "--set", "mqtt.port"]
    assert rows["channels.walkers.source.uri"][0] == "clip:walkers"
    assert rows["channels.walkers.source.uri"][1].startswith("demo.yaml:")
    assert rows["tracker.min_iou"] == ["0.25", "default"]


def test_the_columns_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "-c", DEMO, "--set", "output_dir=/v"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len({line.rindex("  ") for line in lines}) == 1


def test_text_that_looks_like_something_else_is_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "-c", DEMO, "--set", 'mqtt.username="12"', "--set", 'mqtt.topic_prefix="no"']) == 0
    out = capsys.readouterr().out
    assert '  "12"' in out
    assert '  "no"' in out


def test_the_environment_is_read(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZHC_MQTT__PORT", "2001")
    assert main(["check", "-c", DEMO, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["values"]["mqtt.port"] == {"value": 2001, "origin": "ZHC_MQTT__PORT"}


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_password_in_an_address_is_not_shown(capsys: pytest.CaptureFixture[str], form: list[str]) -> None:
    address = "rtsp://user:hunter2@host/"
    assert main(["check", "-c", DEMO, *form, "--set", f"channels.walkers.source.uri={address}"]) == 0
    captured = capsys.readouterr()
    assert "rtsp://user:***@host/" in captured.out
    assert "hunter2" not in captured.out + captured.err


def test_a_faulty_configuration_ends_with_78_and_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "-c", DEMO, "--set", "mqtt.port=x", "--set", "profile=cpi"]) == 78
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "2 problems\n" in captured.err
    assert "--set profile: found 'cpi' (text), allowed: cpu" in captured.err


def test_the_list_comes_as_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--json", "-c", DEMO, "--set", "mqtt.prot=1"]) == 78
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    assert [(p["key"], p["fix"]) for p in document["problems"]] == [("mqtt.prot", "did you mean 'port'?")]


def test_a_terminal_that_is_not_utf8_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", screen)
    assert main(["check", "-c", DEMO, "--set", "output_dir=/vidéos"]) == 0
    screen.seek(0)
    assert "/vid\\xe9os" in screen.read()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("model.bundle=nanodet", ("model.bundle", "nanodet-g-416")),
        ("model.labels=[persn]", ("model.labels", "'persn'", "'person'")),
        ("events.labels=[persn]", ("events.labels", "'person'")),
        ("channels.walkers.source.uri=absent.mp4", ("channels.walkers.source.uri", "absent.mp4", "no such file")),
        ("channels.walkers.source.uri=clip:absent", ("clip:absent", "walkers")),
    ],
)
def test_what_the_configuration_names_must_be_there(
    capsys: pytest.CaptureFixture[str], setting: str, words: tuple[str, ...]
) -> None:
    assert main(["check", "-c", DEMO, "--set", setting]) == 78
    complaint = capsys.readouterr().err
    for word in words:
        assert word in complaint


def complaints(
    folder: Path, capsys: pytest.CaptureFixture[str], sections: dict[str, object], *words: str
) -> dict[str, str]:
    """What `check` says of a configuration, by key; {} when it is good."""
    path = folder / "c.yaml"
    path.write_text(yaml.safe_dump(sections))
    code = main(["check", "-c", str(path), "--json", *words])
    document = json.loads(capsys.readouterr().out)
    assert code == (78 if document["problems"] else 0)
    found: dict[str, str] = {}
    for problem in document["problems"]:
        assert problem["place"]["line"] > 0, problem
        found[problem["key"]] = found.get(problem["key"], "") + problem["what"]
    return found


def one_channel(**source: object) -> dict[str, object]:
    return {"channels": {"a": {"source": source}}, "mqtt": {"enabled": False}}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with odd things in it."""
    (tmp_path / "text.mp4").write_text("no video\n" * 100)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "mixed").mkdir()
    for name, size in (("a.png", (64, 48)), ("b.png", (32, 48))):
        Image.new("RGB", size).save(tmp_path / "mixed" / name)
    (tmp_path / "a-file").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("source", "key", "words"),
    [
        ({"uri": "pattern:boxs"}, "uri", "no pattern is called 'boxs'"),
        ({"uri": "pattern:boxes?objects=lots"}, "uri", "objects='lots' can't be"),
        ({"uri": "rtsp://"}, "uri", "is no address of a stream"),
        ({"uri": "rtsp://user:pw@:554/x"}, "uri", "is no address of a stream"),
        ({"uri": "http://host:port/x"}, "uri", "is no address of a stream"),
        ({"uri": "v4l2:"}, "uri", "names no device"),
        ({"uri": "v4l2:/dev/video9"}, "uri", "no such camera"),
        ({"uri": "v4l2:/dev"}, "uri", "is no camera device"),
        ({"uri": "text.mp4"}, "uri", "text.mp4: "),
        ({"uri": "pipe"}, "uri", "is a device or a pipe"),
        ({"uri": "mixed"}, "uri", "is 32x48, while the images before it are 64x48"),
        ({"uri": "rtsp://h/", "username": "u", "password_file": "absent"}, "password_file", "No such file"),
        ({"uri": "rtsp://h/", "username": "u", "password_file": "pipe"}, "password_file", "not a regular file"),
        ({"uri": "rtsps://h/", "ca_file": "absent"}, "ca_file", "No such file"),
        ({"uri": "rtsps://h/", "ca_file": "text.mp4"}, "ca_file", "no certificate"),
        ({"uri": "rtsps://h/", "ca_file": "pipe"}, "ca_file", "not a regular file"),
    ],
)
def test_what_can_be_known_of_a_source_without_opening_it_is_said(
    place: Path, capsys: pytest.CaptureFixture[str], source: dict[str, object], key: str, words: str
) -> None:
    found = complaints(place, capsys, one_channel(**source))
    assert list(found) == [f"channels.a.source.{key}"]
    assert words in found[f"channels.a.source.{key}"]


@pytest.mark.parametrize(
    ("sink", "key", "words"),
    [
        ({"kind": "mp4", "path": "a-file/x.mp4"}, "path", "is no folder"),
        ({"kind": "jsonl", "path": "mixed"}, "path", "is not a regular file"),
        ({"kind": "jpeg", "path": "a-file"}, "path", "is no folder"),
        ({"kind": "mp4", "path": "/proc/sys/none/x.mp4"}, "path", "may not be written to"),
        ({"kind": "rtsp", "url": "rtsp:///x"}, "url", "is no address of a stream"),
    ],
)
def test_a_place_that_a_sink_can_not_write_to_is_said(
    place: Path, capsys: pytest.CaptureFixture[str], sink: dict[str, object], key: str, words: str
) -> None:
    if "/proc" in str(sink) and os.access("/proc/sys", os.W_OK):
        pytest.skip("cannot run here: every folder may be written to")
    channel = {"source": {"uri": "pattern:boxes"}, "sinks": [sink]}
    found = complaints(place, capsys, {"output_dir": ".", "channels": {"a": channel}})
    assert list(found) == [f"channels.a.sinks.0.{key}"]
    assert words in found[f"channels.a.sinks.0.{key}"]


def test_a_profile_without_its_packages_is_said(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if importlib.util.find_spec("pycuda") is not None:
        pytest.skip("cannot run here: the packages of the rtx profile are installed")
    found = complaints(place, capsys, {**one_channel(uri="pattern:boxes"), "profile": "rtx"})
    assert list(found) == ["profile"]
    assert found["profile"].count("pycuda is not installed") == 1


def test_what_a_profile_can_not_do_is_said(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    channel = {"source": {"uri": "pattern:boxes"}, "sinks": [{"kind": "rtsp", "url": "rtsp://h/x"}]}
    sections = {"profile": "rtx", "channels": {"a": channel}, "pipeline": {"batch": 3}}
    found = complaints(place, capsys, sections)
    assert {"channels.a.sinks.0.kind"} <= set(found) <= {"channels.a.sinks.0.kind", "profile", "pipeline.batch"}


def test_every_problem_comes_at_once_whatever_else_is_wrong(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sections = {
        "device": "No Slug",
        "prot": 1,
        "model": {"bundle": "nanodet", "nms_iou": 7, "labels": ["persn"]},
        "mqtt": {"port": "x", "username": "u", "password_file": "absent"},
        "events": {"labels": [5]},
        "output_dir": ".",
        "channels": {
            "a": {"source": {"uri": "absent.mp4", "fsp": 1}, "priority": 0, "sinks": [{"kind": "mp5"}]},
            "b": {
                "source": {"uri": "ftp://x", "password_file": "absent", "username": "u"},
                "sinks": [{"kind": "png", "path": "x"}, {"kind": "jpeg", "path": "a-file", "quality": 0}],
            },
            "c": {"source": {"uri": "mixed", "password_file": "p"}},
            "d": 5,
            "No Slug": {"source": {"uri": "absent.mp4"}},
        },
    }
    assert set(complaints(place, capsys, sections)) == {
        "device",
        "prot",
        "model.bundle",
        "model.nms_iou",
        "mqtt.port",
        "mqtt.password_file",
        "events.labels.0",
        "channels.a.source.uri",
        "channels.a.source.fsp",
        "channels.a.priority",
        "channels.a.sinks.0.kind",
        "channels.b.source.uri",
        "channels.b.source.password_file",
        "channels.b.sinks.0.kind",
        "channels.b.sinks.1.path",
        "channels.b.sinks.1.quality",
        "channels.c.source",
        "channels.c.source.uri",
        "channels.d",
        "channels.'No Slug'",
    }


def test_labels_are_not_held_against_a_model_that_nobody_asked_for(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sections = {**one_channel(uri="pattern:boxes"), "model": {"bundle": 5, "labels": ["walrus"]}}
    assert set(complaints(place, capsys, sections)) == {"model.bundle"}


def test_a_camera_that_is_away_is_no_fault(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert complaints(place, capsys, one_channel(uri="rtsp://127.0.0.1:9/x")) == {}

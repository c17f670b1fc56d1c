"""`zhc-edge check`: what it prints and returns."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

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

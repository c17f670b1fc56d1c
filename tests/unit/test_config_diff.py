"""What differs between two configurations, at what cost, and never with a password."""

from __future__ import annotations

from pathlib import Path

import pytest

from zhcedge.config.diff import Cost, changes, cost_of, dearest
from zhcedge.config.load import leaves, load_text
from zhcedge.config.schema import Config

ROOT = Path(__file__).parents[2]
BASE = """
device: box
channels:
  gate: {source: {uri: "rtsp://viewer:secret@camera/1"}, zones: {path: {points: [[0, 0], [1, 0], [1, 1]]}}}
  yard: {source: {uri: "pattern:walkers"}}
"""


def config(text: str = BASE, *overrides: str) -> Config:
    return load_text(text, "box.yaml", overrides).config


def test_equal_configurations_do_not_differ() -> None:
    assert changes(config(), config()) == ()
    assert dearest(()) is Cost.LIVE


def test_every_value_of_the_example_has_a_cost() -> None:
    example = load_text((ROOT / "config/zhc-edge.yaml").read_text(), "zhc-edge.yaml").config
    for key, _ in leaves(example):
        assert cost_of(key) in Cost


@pytest.mark.parametrize(
    ("override", "cost", "channel"),
    [
        ("channels.gate.zones.path.min_dwell_s=2", Cost.LIVE, "gate"),
        ("events.update_interval_ms=900", Cost.LIVE, ""),
        ("tracker.confirm_frames=5", Cost.LIVE, ""),
        ("channels.yard.source.fps=5", Cost.CAMERA, "yard"),
        ("model.score_threshold=0.7", Cost.RESTART, ""),
        ("mqtt.port=1999", Cost.RESTART, ""),
        ("pipeline.lanes=1", Cost.RESTART, ""),
    ],
)
def test_a_change_has_its_cost_and_its_camera(override: str, cost: Cost, channel: str) -> None:
    found = changes(config(), config(BASE, override))
    assert [(change.cost, change.channel) for change in found] == [(cost, channel)]
    assert dearest(found) is cost


def test_cameras_come_and_go_as_a_whole() -> None:
    more = config(BASE + '  lane: {source: {uri: "pattern:walkers"}}\n')
    assert [(change.key, change.text) for change in changes(config(), more)] == [(("channels", "lane"), "added")]
    assert [change.text for change in changes(more, config())] == ["removed"]


def test_no_password_is_shown() -> None:
    other = config(BASE.replace("secret", "better"))
    found = changes(config(), other)
    assert len(found) == 1
    assert "secret" not in str(found[0])
    assert "better" not in str(found[0])

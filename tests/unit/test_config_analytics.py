"""Zones, lines and schedules in a configuration, and what becomes of them."""

from __future__ import annotations

import pytest

from zhcedge.analytics.settings import event_settings, rules_settings, tracker_settings
from zhcedge.analytics.zones import Anchor
from zhcedge.config.load import load_text
from zhcedge.config.schema import Config
from zhcedge.core.errors import ConfigError

CHANNEL = """\
channels:
  gate:
    source: {{uri: gate.mp4}}
    {}
  yard:
    source: {{uri: yard.mp4}}
{}
"""
TRIANGLE = "[[0.0, 0.0], [1.0, 0.0], [0.5, 1.0]]"


def read(channel: str = "priority: 1", rest: str = "") -> Config:
    return load_text(CHANNEL.format(channel, rest), "c.yaml").config


def test_zones_and_lines_become_rules() -> None:
    windows = "schedule: {timezone: Europe/Berlin, windows: [mon-fri 18:00-07:00]}"
    config = read(
        f"zones: {{porch: {{points: {TRIANGLE}, labels: [cat], loiter_s: 5, anchor: centre, {windows}}}}}\n"
        f"    lines: {{gate: {{points: [[0.0, 0.5], [1.0, 0.5]]}}}}"
    )
    (zone,), (line,) = rules_settings(config, "gate").zones, rules_settings(config, "gate").lines
    assert (zone.name, zone.labels, zone.loiter_s, zone.anchor) == ("porch", ("cat",), 5, Anchor.CENTRE)
    assert zone.schedule is not None
    assert (line.name, line.points, line.anchor) == ("gate", ((0.0, 0.5), (1.0, 0.5)), Anchor.FOOT)
    assert rules_settings(config, "yard") == rules_settings(config, "no-such-channel")


def test_a_channel_without_a_required_zone_needs_none() -> None:
    config = read(f"zones: {{porch: {{points: {TRIANGLE}}}}}", "events: {required_zones: [porch]}")
    assert event_settings(config, "gate", ("cat",)).required_zones == ("porch",)
    assert event_settings(config, "yard", ("cat",)).required_zones == ()


def test_a_track_begins_a_tenth_above_the_detector_s_threshold_unless_it_is_said() -> None:
    assert tracker_settings(read(), 0.45).new_score == pytest.approx(0.55)
    assert tracker_settings(read(), 0.95).new_score == 1.0
    assert tracker_settings(read(rest="tracker: {new_score: 0.3}"), 0.45).new_score == 0.3


@pytest.mark.parametrize(
    ("channel", "rest", "message"),
    [
        (f"zones: {{Porch: {{points: {TRIANGLE}}}}}", "", "channels.gate.zones.Porch"),
        ("zones: {porch: {}}", "", "channels.gate.zones.porch.points: this key is missing"),
        ("zones: {porch: {points: [[0.0, 0.0], [1.0, 1.0]]}}", "", "a list of 3 to 32"),
        ("zones: {porch: {points: [[0.0, 0.0], [0.5, 0.5], [1.0, 1.0]]}}", "", "lie on one line"),
        (f"zones: {{porch: {{points: {TRIANGLE}, min_area: 0.5, max_area: 0.5}}}}", "", "min_area must be smaller"),
        (f"zones: {{porch: {{points: {TRIANGLE}, anchor: head}}}}", "", "foot or centre"),
        (f"zones: {{porch: {{points: {TRIANGLE}, loiter_s: 0}}}}", "", "a number above 0"),
        (f"zones: {{porch: {{points: {TRIANGLE}, schedule: {{windows: [mon 8-9]}}}}}}", "", "mon-fri 08:00-18:00"),
        (f"zones: {{porch: {{points: {TRIANGLE}, schedule: {{windows: []}}}}}}", "", "schedule.windows"),
        (
            f"zones: {{porch: {{points: {TRIANGLE}, schedule: {{timezone: Nowhere, windows: [mon 08:00-09:00]}}}}}}",
            "",
            "Europe/Berlin",
        ),
        ("lines: {gate: {points: [[0.5, 0.5], [0.5, 0.5]]}}", "", "must differ"),
        ("lines: {gate: {points: [[0.5, 0.5]]}}", "", "lines.gate.points"),
        ("priority: 1", "events: {required_zones: [porch]}", "no channel has a zone porch"),
        ("priority: 1", "tracker: {new_score: 2}", "tracker.new_score"),
    ],
)
def test_what_makes_no_sense_is_explained(channel: str, rest: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(channel, rest)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ("[[0.5, 0.5], [0.5, 0.5001]]", "must differ"),
        ("[[0.0, 1.0], [1.0, 1.0]]", "border"),
        ("[[1, 1], [0, 1]]", "border"),
        ("[[0.2, 0.0], [0.8, 0.0]]", "border"),
        ("[[0, 0.1], [0, 0.9]]", "border"),
        ("[[1.0, 0.9], [1.0, 0.1]]", "border"),
    ],
)
def test_a_line_that_nothing_can_cross_is_refused(ends: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read(f"lines: {{gate: {{points: {ends}}}}}")


def test_a_line_may_end_at_the_border() -> None:
    assert read("lines: {gate: {points: [[0.0, 0.0], [1.0, 1.0]]}, door: {points: [[0.0, 1.0], [0.0001, 0.5]]}}")

"""The configuration of a channel as the settings of its tracker, its rules and its event machine."""

from __future__ import annotations

from collections.abc import Iterator

from zhcedge.analytics.events import EventSettings
from zhcedge.analytics.lines import LineSettings
from zhcedge.analytics.rules import RulesSettings
from zhcedge.analytics.tracker import TrackerSettings
from zhcedge.analytics.zones import Anchor, ZoneSettings
from zhcedge.config.schema import Config
from zhcedge.core.schedule import Schedule, parse_window

_ABOVE_THRESHOLD = 0.1
"""How much better than the detector's threshold a box must be to begin a track: ByteTrack's own margin."""


def tracker_settings(config: Config, score_threshold: float) -> TrackerSettings:
    """Of every channel.

    Args:
        score_threshold: of the detections that arrive.
    """
    tracker = config.tracker
    new_score = min(score_threshold + _ABOVE_THRESHOLD, 1.0) if tracker.new_score is None else tracker.new_score
    return TrackerSettings(
        match_iou=tracker.min_iou,
        confirm_frames=tracker.confirm_frames,
        max_lost_frames=tracker.max_lost_frames,
        max_lost_ms=tracker.max_lost_ms,
        new_score=new_score,
        stationary_s=tracker.stationary_s,
        max_lost_stationary_ms=tracker.max_lost_stationary_ms,
    )


def wanted_labels(config: Config) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Every list of labels that the configuration has for events, with its key; the model must have them."""
    if config.events.labels is not None:
        yield ("events", "labels"), config.events.labels
    for name, channel in config.channels.items():
        for kind, rules in (("zones", channel.zones), ("lines", channel.lines)):
            for rule, settings in rules.items():
                if settings.labels is not None:
                    yield ("channels", name, kind, rule, "labels"), settings.labels


def rules_settings(config: Config, channel: str) -> RulesSettings:
    """Zones and lines of the channel of this name; none for a name that the configuration doesn't have.

    Raises ConfigError for a time zone that this computer doesn't know.
    """
    if channel not in config.channels:
        return RulesSettings()
    wanted = config.channels[channel]
    zones = tuple(
        ZoneSettings(
            name=name,
            points=zone.points,
            labels=zone.labels,
            min_dwell_s=zone.min_dwell_s,
            min_area=zone.min_area,
            max_area=zone.max_area,
            anchor=Anchor(zone.anchor),
            loiter_s=zone.loiter_s,
            schedule=None
            if zone.schedule is None
            else Schedule(tuple(parse_window(text) for text in zone.schedule.windows), zone.schedule.timezone),
        )
        for name, zone in wanted.zones.items()
    )
    lines = tuple(
        LineSettings(name, line.points, line.labels, Anchor(line.anchor)) for name, line in wanted.lines.items()
    )
    return RulesSettings(zones, lines)


def event_settings(config: Config, channel: str, labels: tuple[str, ...]) -> EventSettings:
    """Of the channel of this name.

    Args:
        labels: of the model, by index.
    """
    zones = config.channels[channel].zones if channel in config.channels else {}
    return EventSettings(
        camera=channel,
        labels=labels,
        update_interval_ms=config.events.update_interval_ms,
        # A channel with none of them would never have an event.
        required_zones=tuple(name for name in config.events.required_zones if name in zones),
    )

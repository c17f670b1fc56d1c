"""Home Assistant's device-based MQTT discovery: one retained message that describes the device and its entities.

Format: https://www.home-assistant.io/integrations/mqtt/#device-discovery-payload (since release 2024.11). An entity
leaves when its component stands there with nothing but its platform; the device leaves by an empty message.

The update entity comes with the updates themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from zhcedge.core.delivery import Message
from zhcedge.core.errors import ConfigError
from zhcedge.core.lifecycle import Phase
from zhcedge.publish.topics import Topics, slug

HOME_ASSISTANT_STATUS = "homeassistant/status"
"""Home Assistant publishes `online` here when it has started: then discovery and state are to be sent again."""

DEFAULT_PREFIX = "homeassistant"

PHASES = tuple(phase.value for phase in Phase)
CAMERA_STATES = ("opening", "up", "down", "paused", "ended", "failed", "removed")

Component = dict[str, object]

_GONE_AFTER_INTERVALS = 3  # figures that did not come this many times in a row are not true any more
_MAX_FPS = 1000


@dataclass(frozen=True)
class DiscoveryFacts:
    """What Home Assistant is told.

    Attributes:
        name: of the device, for people.
        version: of this software.
        profile: name of the set of backends.
        cameras: names of the channels.
        commands: words of the commands that are carried out; others get no entity.
        has_snapshots: pictures are published.
        stats_interval_s: seconds between two `stats` messages; 0 for none.
        zones, lines: names by camera.
        prefix: first levels of the discovery topics.
        gone: what `components_of` found in earlier messages: those that are there no more are removed.
    """

    name: str
    version: str
    profile: str
    cameras: tuple[str, ...]
    commands: frozenset[str] = frozenset({"detect", "threshold", "fps", "snapshot", "rebirth"})
    has_snapshots: bool = False
    stats_interval_s: int = 60
    zones: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lines: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    prefix: str = DEFAULT_PREFIX
    gone: Mapping[str, str] = field(default_factory=dict)


def discovery_topic(topics: Topics, prefix: str = DEFAULT_PREFIX) -> str:
    """Where the device is described."""
    return f"{prefix}/device/{_object_id(topics)}/config"


def discovery(topics: Topics, facts: DiscoveryFacts) -> list[Message]:
    """The retained message that makes, changes and removes the device's entities in Home Assistant.

    Unique ids are made of the topic prefix, the device, the camera and a fixed word, so they outlive a restart and a
    change of model or labels; a renamed camera is another one.
    """
    components = _device_components(topics, facts)
    for camera in facts.cameras:
        components.update(_camera_components(topics, facts, camera))
        for zone in facts.zones.get(camera, ()):
            components.update(_zone_components(topics, camera, zone))
        for line in facts.lines.get(camera, ()):
            components.update(_line_components(topics, camera, line))
    for key, component in components.items():
        if len(component) > 1:  # not one that is being removed
            component["unique_id"] = f"{_object_id(topics)}_{key}"
    components.update((key, {"platform": platform}) for key, platform in facts.gone.items() if key not in components)
    payload = {
        "device": {
            "identifiers": [_object_id(topics)],
            "name": facts.name,
            "manufacturer": "zhcedge",
            "model": f"zhc-edge ({facts.profile})",
            "sw_version": facts.version,
        },
        "origin": {"name": "zhc-edge", "sw_version": facts.version},
        "availability": [_is_online(topics)],
        "components": components,
    }
    return [_config(topics, facts.prefix, json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode())]


def removal(topics: Topics, prefix: str = DEFAULT_PREFIX) -> list[Message]:
    """The message that takes the device and all its entities out of Home Assistant."""
    return [_config(topics, prefix, b"")]


def components_of(payload: bytes) -> dict[str, str]:
    """Component -> platform of an earlier discovery message, our own or the one that the broker has kept.

    Empty for what is no such message: whoever wrote it, nothing can be learned from it.
    """
    try:
        message = json.loads(payload)
    except ValueError:
        return {}
    components = message.get("components") if isinstance(message, dict) else None
    if not isinstance(components, dict):
        return {}
    platforms = {key: value.get("platform") for key, value in components.items() if isinstance(value, dict)}
    return {key: platform for key, platform in platforms.items() if isinstance(platform, str)}


def _config(topics: Topics, prefix: str, payload: bytes) -> Message:
    return Message(discovery_topic(topics, prefix), payload, qos=1, retain=True)


def _object_id(topics: Topics) -> str:
    # No slug holds "_", so different prefixes and devices never give the same id.
    try:
        prefix = slug(topics.prefix)
    except ConfigError:  # of dots and hyphens alone
        prefix = topics.prefix.encode().hex()
    return f"{prefix}_{slug(topics.device)}"


def _is_online(topics: Topics) -> Component:
    # `stopped` is neither of the two words that Home Assistant looks for, so it would leave the device available.
    template = "{{ 'online' if value == 'online' else 'offline' }}"
    return {"topic": topics.available, "value_template": template}


def _device_components(topics: Topics, facts: DiscoveryFacts) -> dict[str, Component]:
    stats: Component = {
        "platform": "sensor",
        "state_topic": topics.stats,
        "state_class": "measurement",
        "entity_category": "diagnostic",
        "expire_after": facts.stats_interval_s * _GONE_AFTER_INTERVALS,
    }
    state: Component = {"state_topic": topics.state, "entity_category": "diagnostic"}
    figures: dict[str, Component] = {
        "device_fps": {
            **stats,
            "name": "Frame rate",
            "value_template": "{{ value_json.fps }}",
            "unit_of_measurement": "fps",
        },
        "device_outbox": {
            **stats,
            "name": "Waiting messages",
            "value_template": "{{ value_json.outbox.depth }}",
            "json_attributes_topic": topics.stats,
            "json_attributes_template": "{{ value_json.outbox | tojson }}",
        },
    }
    rebirth: Component = {
        "platform": "button",
        "name": "Send everything again",
        "command_topic": topics.command("rebirth"),
        "entity_category": "diagnostic",
    }
    return {
        "device_phase": {
            **state,
            "platform": "sensor",
            "name": "Phase",
            "device_class": "enum",
            "options": list(PHASES),
            "value_template": "{{ value_json.phase }}",
            "json_attributes_topic": topics.state,
        },
        "device_degraded": {
            **state,
            "platform": "binary_sensor",
            "name": "Degraded",
            "device_class": "problem",
            "value_template": "{{ 'ON' if value_json.degraded else 'OFF' }}",
        },
        "device_version": {
            **state,
            "platform": "sensor",
            "name": "Version",
            "value_template": "{{ value_json.version }}",
        },
        **{key: _offered(figure, facts.stats_interval_s > 0) for key, figure in figures.items()},
        "device_rebirth": _offered(rebirth, "rebirth" in facts.commands),
    }


def _seen(topics: Topics, camera: str, topic: str) -> Component:
    """Of what a camera sees: what one that is away has seen last is not what there is now."""
    is_up: Component = {
        "topic": topics.camera(camera, "status"),
        "value_template": "{{ 'online' if value_json.state == 'up' else 'offline' }}",
    }
    return {"state_topic": topic, "availability": [_is_online(topics), is_up], "availability_mode": "all"}


def _counted(topics: Topics, camera: str, topic: str, what: str) -> dict[str, Component]:
    """How many objects there are, and whether there are any."""
    seen = _seen(topics, camera, topic)
    return {
        "count": {
            **seen,
            "platform": "sensor",
            "name": f"{what} objects",
            "state_class": "measurement",
            "value_template": "{{ value_json['all'] }}",
            "json_attributes_topic": topic,  # the count of each label
        },
        "occupancy": {
            **seen,
            "platform": "binary_sensor",
            "name": f"{what} occupancy",
            "device_class": "occupancy",
            "value_template": "{{ 'ON' if value_json['all'] > 0 else 'OFF' }}",
        },
    }


def _zone_components(topics: Topics, camera: str, zone: str) -> dict[str, Component]:
    counted = _counted(topics, camera, topics.zone_count(camera, zone), f"{camera} {zone}")
    return {f"zone_{slug(camera)}_{slug(zone)}_{word}": component for word, component in counted.items()}


def _line_components(topics: Topics, camera: str, line: str) -> dict[str, Component]:
    return {
        f"line_{slug(camera)}_{slug(line)}_{way}": {
            **_seen(topics, camera, topics.line_count(camera, line)),
            "platform": "sensor",
            "name": f"{camera} {line} {way}",
            "state_class": "total_increasing",  # it begins at 0 with each start
            "value_template": f"{{{{ value_json['{way}'] }}}}",
        }
        for way in ("in", "out")
    }


def _camera_components(topics: Topics, facts: DiscoveryFacts, camera: str) -> dict[str, Component]:
    pictures = facts.has_snapshots
    status: Component = {
        "platform": "sensor",
        "name": f"{camera} status",
        "device_class": "enum",
        "options": list(CAMERA_STATES),
        "state_topic": topics.camera(camera, "status"),
        "value_template": "{{ value_json.state }}",
        "json_attributes_topic": topics.camera(camera, "status"),
        "entity_category": "diagnostic",
    }
    snapshot: Component = {
        "platform": "button",
        "name": f"{camera} take snapshot",
        "command_topic": topics.command("snapshot", camera),
    }
    image: Component = {
        "platform": "image",
        "name": f"{camera} snapshot",
        "image_topic": topics.camera(camera, "snapshot"),
        "content_type": "image/jpeg",
    }
    words: dict[str, Component] = {
        **_counted(topics, camera, topics.camera(camera, "count"), camera),
        "status": status,
        **{word: _offered(setting, word in facts.commands) for word, setting in _settings_of(topics, camera).items()},
        "snapshot": _offered(snapshot, pictures and "snapshot" in facts.commands),
        "image": _offered(image, pictures),
    }
    return {f"camera_{slug(camera)}_{word}": component for word, component in words.items()}


def _settings_of(topics: Topics, camera: str) -> dict[str, Component]:
    def setting(word: str, **rest: object) -> Component:
        return {
            "command_topic": topics.command(word, camera),
            "state_topic": topics.effect(word, camera),
            "entity_category": "config",
            **rest,
        }

    return {
        "detect": setting("detect", platform="switch", name=f"{camera} detection"),
        "threshold": setting(
            "threshold", platform="number", name=f"{camera} threshold", min=0, max=1, step=0.01, mode="slider"
        ),
        "fps": setting(
            "fps",
            platform="number",
            name=f"{camera} target frame rate",
            min=0,
            max=_MAX_FPS,
            step=0.5,
            mode="box",
            unit_of_measurement="fps",
        ),
    }


def _offered(component: Component, is_offered: bool) -> Component:
    """What is not offered is removed: it may be there from before the configuration changed."""
    return component if is_offered else {"platform": component["platform"]}

"""What Home Assistant is told: entities that stay themselves, and leave when they go."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.core.lifecycle import Phase
from zhcedge.publish.discovery import (
    CAMERA_STATES,
    DiscoveryFacts,
    components_of,
    discovery,
    discovery_topic,
    removal,
)
from zhcedge.publish.topics import Topics

TOPICS = Topics("Box 7")
ALL = frozenset({"detect", "threshold", "fps", "snapshot", "rebirth"})


def facts(*cameras: str, **others: Any) -> DiscoveryFacts:
    return DiscoveryFacts("Box 7", "1.2", "rtx", cameras, **others)


def told(what: DiscoveryFacts, topics: Topics = TOPICS) -> dict[str, Any]:
    (message,) = discovery(topics, what)
    assert (message.qos, message.retain) == (1, True)
    payload = json.loads(message.payload)
    assert isinstance(payload, dict)
    return payload


def there(payload: dict[str, Any]) -> set[str]:
    """Components that are not being removed."""
    return {key for key, component in payload["components"].items() if component.keys() != {"platform"}}


def unique_ids(payload: dict[str, Any]) -> set[str]:
    return {payload["components"][key]["unique_id"] for key in there(payload)}


def test_one_retained_message_describes_the_device() -> None:
    payload = told(facts("gate"))
    assert discovery(TOPICS, facts("gate"))[0].topic == "homeassistant/device/zhcedge_box-7/config"
    assert payload["device"]["identifiers"] == ["zhcedge_box-7"]
    assert payload["origin"] == {"name": "zhc-edge", "sw_version": "1.2"}


def test_another_prefix_of_home_assistant_is_taken() -> None:
    assert discovery_topic(TOPICS, "ha/discovery") == "ha/discovery/device/zhcedge_box-7/config"


def test_a_prefix_of_ours_without_letters_has_a_place_too() -> None:
    assert discovery_topic(Topics("box", "./-")) == "homeassistant/device/2e2f2d_box/config"
    assert discovery(TOPICS, facts(prefix="ha/discovery"))[0].topic == "ha/discovery/device/zhcedge_box-7/config"


def test_every_camera_has_its_entities() -> None:
    payload = told(facts("gate", "yard", has_snapshots=True))
    words = {"count", "occupancy", "status", "detect", "threshold", "fps", "snapshot", "image"}
    assert there(payload) >= {f"camera_{camera}_{word}" for camera in ("gate", "yard") for word in words}


def test_zones_and_lines_have_entities_and_lose_them() -> None:
    with_rules = facts("gate", "yard", zones={"gate": ("door",)}, lines={"yard": ("kerb",)})
    before = discovery(TOPICS, with_rules)[0].payload
    keys = {"zone_gate_door_count", "zone_gate_door_occupancy", "line_yard_kerb_in", "line_yard_kerb_out"}
    assert keys <= there(json.loads(before))
    components = json.loads(before)["components"]
    assert components["zone_gate_door_count"]["state_topic"] == TOPICS.zone_count("gate", "door")
    assert components["line_yard_kerb_out"]["value_template"] == "{{ value_json['out'] }}"
    after = told(facts("gate", "yard", gone=components_of(before)))
    assert all(after["components"][key].keys() == {"platform"} for key in keys)


@pytest.mark.parametrize("word", sorted(ALL))
def test_a_command_that_is_not_taken_has_no_entity(word: str) -> None:
    key = "device_rebirth" if word == "rebirth" else f"camera_gate_{word}"
    assert key in there(told(facts("gate", has_snapshots=True)))
    without = told(facts("gate", commands=ALL - {word}, has_snapshots=True))
    assert without["components"][key].keys() == {"platform"}  # it may be there from before


def test_pictures_have_entities_only_where_they_are_published() -> None:
    assert not {"camera_gate_image", "camera_gate_snapshot"} & there(told(facts("gate")))
    assert {"camera_gate_image", "camera_gate_snapshot"} <= there(told(facts("gate", has_snapshots=True)))


def test_a_camera_that_has_gone_is_removed_and_one_that_is_back_is_not() -> None:
    before = discovery(TOPICS, facts("gate", "yard"))[0].payload
    payload = told(facts("gate", gone=components_of(before)))
    assert payload["components"]["camera_yard_count"] == {"platform": "sensor"}
    assert not any(key.startswith("camera_yard") for key in there(payload))
    assert there(told(facts("gate", "yard", gone=components_of(before)))) == there(json.loads(before))


def test_the_removal_of_the_device_is_an_empty_message_in_its_place() -> None:
    (message,) = removal(TOPICS)
    assert (message.topic, message.payload, message.retain) == (discovery_topic(TOPICS), b"", True)


@given(st.binary() | st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["components", "platform", "a"]), inner),
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_nothing_is_learned_from_what_is_no_discovery_message(payload: bytes) -> None:
    assert all(isinstance(platform, str) for platform in components_of(payload).values())


names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True).filter(lambda name: "--" not in name)


@given(st.lists(names, unique=True, max_size=6), names, names)
def test_no_two_entities_share_an_id_whatever_the_names(cameras: list[str], one: str, other: str) -> None:
    first = told(facts(*cameras, has_snapshots=True), Topics(one))
    assert len(unique_ids(first)) == len(there(first))
    if one != other:
        assert not unique_ids(first) & unique_ids(told(facts(*cameras, has_snapshots=True), Topics(other)))


def test_an_entity_keeps_its_id_over_versions_settings_and_other_cameras() -> None:
    first = told(facts("gate"))
    later = told(DiscoveryFacts("Another name", "2.0", "cpu", ("yard", "gate"), has_snapshots=True))
    assert unique_ids(first) <= unique_ids(later)


def test_a_topic_and_an_id_hold_only_what_home_assistant_takes() -> None:
    (message,) = discovery(Topics("Zufahrt Süd", "site-1/zhc.edge"), facts("gate"))
    assert re.fullmatch(r"homeassistant/device/[a-zA-Z0-9_-]+/config", message.topic)


def test_every_phase_and_state_of_a_camera_is_expected() -> None:
    payload = told(facts("gate"))
    assert payload["components"]["device_phase"]["options"] == [phase.value for phase in Phase]
    assert payload["components"]["camera_gate_status"]["options"] == list(CAMERA_STATES)


def test_without_figures_nothing_waits_for_them() -> None:
    assert not {"device_fps", "device_outbox"} & there(told(facts(stats_interval_s=0)))
    assert told(facts(stats_interval_s=30))["components"]["device_fps"]["expire_after"] == 90

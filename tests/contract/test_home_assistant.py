"""Discovery judged by Home Assistant's own schemas and template engine, in a Python of its own.

HOME_ASSISTANT_PYTHON names an interpreter that has the package; tools/check-discovery makes one and runs this file.
Release 2025.4.4 takes all of it.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from zhcedge.core.lifecycle import Phase
from zhcedge.publish import device_messages
from zhcedge.publish.device_messages import CameraFlow, CameraStatus, DeviceState, Stats
from zhcedge.publish.discovery import DiscoveryFacts, components_of, discovery
from zhcedge.publish.topics import Topics

TOPICS = Topics("Box 7")
PYTHON = os.environ.get("HOME_ASSISTANT_PYTHON", "")
CHECK = Path(__file__).with_name("home_assistant_check.py")

pytestmark = pytest.mark.skipif(
    not PYTHON, reason="cannot run here: no Python with Home Assistant was named (tools/check-discovery makes one)"
)

RULES: dict[str, Any] = {"zones": {"gate": ("door",)}, "lines": {"gate": ("kerb",)}}
FULL = DiscoveryFacts("Box 7", "1.2", "rtx", ("gate", "front-door"), has_snapshots=True, **RULES)
LEAST = DiscoveryFacts("Box 7", "1.2", "cpu", (), frozenset(), stats_interval_s=0)
CHANGED = DiscoveryFacts("Box 7", "1.3", "cpu", ("gate",), gone=components_of(discovery(TOPICS, FULL)[0].payload))

Judged = dict[str, dict[str, Any]]


def judged(*variants: DiscoveryFacts, availability: bytes = device_messages.ONLINE, camera: str = "up") -> list[Judged]:
    """What Home Assistant makes of each variant, by component; the test fails where it refuses one."""
    said = [
        device_messages.available(TOPICS, availability),
        device_messages.state(
            TOPICS, DeviceState(Phase.ACTIVE, "1.2", "rtx", "nano", "ab" * 32, "boot", 9.0, ("gate",))
        ),
        device_messages.camera_status(TOPICS, CameraStatus("gate", camera, "", 0)),
        device_messages.counts(TOPICS.camera("gate", "count"), {"person": 2, "car": 1}),
        device_messages.counts(TOPICS.zone_count("gate", "door"), {"person": 1}),
        device_messages.line_counts(TOPICS.line_count("gate", "kerb"), {"in": 3, "out": 2}),
        device_messages.stats(TOPICS, Stats(0, "boot", 9.0, {"gate": CameraFlow(25, 24.5, 0)}, outbox_depth=4)),
        device_messages.effect(TOPICS, "detect", True, "gate"),
        device_messages.effect(TOPICS, "threshold", 0.4, "gate"),
    ]
    request = {
        "payloads": [json.loads(discovery(TOPICS, variant)[0].payload) for variant in variants],
        "said": {message.topic: message.payload.decode() for message in said},
    }
    run = subprocess.run([PYTHON, CHECK], input=json.dumps(request), capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    answer = json.loads(run.stdout)
    assert isinstance(answer, list)
    return answer


def test_its_schemas_take_every_variant_and_ignore_no_key() -> None:
    full, least, changed = (set(variant) for variant in judged(FULL, LEAST, CHANGED))
    assert least == {"device_phase", "device_degraded", "device_version"}
    assert changed < full
    assert not any("front-door" in key for key in changed)


def test_its_templates_find_the_values_in_our_messages() -> None:
    (full,) = judged(FULL)
    values = {key: component["value"] for key, component in full.items()}
    assert values["device_phase"] == "active"
    assert values["device_degraded"] == "OFF"
    assert values["device_version"] == "1.2"
    assert float(values["device_fps"]) == 24.5
    assert values["device_outbox"] == "4"
    assert (values["camera_gate_count"], values["camera_gate_occupancy"]) == ("3", "ON")
    assert (values["zone_gate_door_count"], values["zone_gate_door_occupancy"]) == ("1", "ON")
    assert (values["line_gate_kerb_in"], values["line_gate_kerb_out"]) == ("3", "2")
    assert values["camera_gate_status"] == "up"
    assert (values["camera_gate_detect"], values["camera_gate_threshold"]) == ("ON", "0.4")
    assert json.loads(full["device_outbox"]["attributes"])["depth"] == 4
    assert json.loads(full["camera_gate_count"]["attributes"]) == {"all": 3, "person": 2, "car": 1}


@pytest.mark.parametrize("word", [device_messages.STOPPED, device_messages.OFFLINE])
def test_a_device_that_has_stopped_has_no_entity_that_is_available(word: bytes) -> None:
    (full,) = judged(FULL, availability=word)
    assert all("offline" in component["available"] for component in full.values())


def test_a_camera_that_is_away_counts_nothing() -> None:
    (away,), (back,) = judged(FULL, camera="down"), judged(FULL)
    assert away["camera_gate_count"]["available"] == ["online", "offline"]
    assert back["camera_gate_count"]["available"] == ["online", "online"]
    assert away["camera_gate_detect"]["available"] == ["online"]

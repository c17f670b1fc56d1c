"""What a device says beside its events, each message as the contract has it."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.messages import assert_conforms, channel_of, contract
from zhcedge.core.delivery import Alert, Message
from zhcedge.core.errors import ConfigError
from zhcedge.core.lifecycle import Phase
from zhcedge.publish import device_messages
from zhcedge.publish.device_messages import Answer, CameraFlow, CameraStatus, DeviceState, Stats
from zhcedge.publish.topics import Topics, slug

TOPICS = Topics("Box 7")
NOW_NS = 1_700_000_000_123_456_789


def check(message: Message) -> dict[str, object]:
    """The payload of a message that conforms, also where the broker has kept it."""
    assert_conforms(message.topic, message.payload, message.retain, message.qos)
    channel = channel_of(message.topic)
    assert message.retain == channel.is_retained
    payload = json.loads(message.payload)
    assert isinstance(payload, dict)
    return payload


@pytest.mark.parametrize("phase", Phase)
def test_the_state_is_retained_and_names_what_runs(phase: Phase) -> None:
    facts = DeviceState(phase, "1.2", "cpu", "nano", "cd" * 32, "boot", 12.345, ("gate",), ("slow",))
    message = device_messages.state(TOPICS, facts)
    assert message.topic == "zhcedge/box-7/state"
    payload = check(message)
    assert (payload["phase"], payload["uptime_s"], payload["degraded"]) == (phase.value, 12.3, ["slow"])


def test_the_state_names_the_contract_that_it_keeps() -> None:
    facts = DeviceState(Phase.ACTIVE, "1.2", "cpu", "nano", "cd" * 32, "boot", 1.0, ())
    assert check(device_messages.state(TOPICS, facts))["contract"] == contract()["info"]["version"]


@pytest.mark.parametrize("word", [device_messages.ONLINE, device_messages.STOPPED, device_messages.OFFLINE])
def test_availability_is_one_retained_word(word: bytes) -> None:
    message = device_messages.available(TOPICS, word)
    assert (message.topic, message.payload, message.qos, message.retain) == ("zhcedge/box-7/available", word, 1, True)
    assert_conforms(message.topic, message.payload, message.retain, message.qos)


def test_a_camera_says_how_it_is_and_since_when() -> None:
    status = CameraStatus("Gate", "down", "no packet for 5 s", NOW_NS, 12.5, is_detecting=False)
    message = device_messages.camera_status(TOPICS, status)
    assert message.topic == "zhcedge/box-7/camera/gate/status"
    assert check(message) == {
        "state": "down",
        "reason": "no packet for 5 s",
        "since": 1_700_000_000.123457,
        "fps": 12.5,
        "detect": False,
        "picture": "ok",
    }


labels = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(st.dictionaries(labels, st.integers(0, 1000)))
def test_counts_hold_every_label_and_their_sum(by_label: dict[str, int]) -> None:
    payload = check(device_messages.counts(TOPICS.camera("gate", "count"), by_label))
    assert payload == {**by_label, "all": sum(by_label.values())}
    assert next(iter(payload)) == "all"


@pytest.mark.parametrize("severity", ["info", "warning", "error"])
def test_an_alert_says_when_and_in_which_run(severity: str) -> None:
    what = Alert("disk-full", "no room", severity, is_over=True)  # type: ignore[arg-type]
    payload = check(device_messages.alert(TOPICS, what, NOW_NS, "boot"))
    assert (payload["code"], payload["over"], payload["boot_id"]) == ("disk-full", True, "boot")


def test_figures_sum_up_the_frames_of_all_cameras() -> None:
    flows = {"gate": CameraFlow(25.0, 24.987, 3), "yard": CameraFlow(10.0, 5.0, 0)}
    message = device_messages.stats(TOPICS, Stats(NOW_NS, "boot", 60.0, flows, outbox_depth=4, outbox_lost=1))
    payload = check(message)
    assert (payload["fps"], payload["outbox"]) == (29.99, {"depth": 4, "dropped": 0, "lost": 1, "refused": 0})
    assert message.qos == 0


def test_a_picture_is_kept_by_nobody() -> None:
    message = device_messages.snapshot(TOPICS, "gate", b"\xff\xd8picture\xff\xd9")
    assert_conforms(message.topic, message.payload, message.retain, message.qos)
    assert (message.retain, message.qos, message.expiry_s) == (False, 0, 60)


@pytest.mark.parametrize(
    ("word", "value", "text"),
    [("detect", True, b"ON"), ("detect", False, b"OFF"), ("threshold", 0.4, b"0.4"), ("fps", 12.0, b"12")],
)
def test_an_effect_is_told_as_the_command_was_written(word: str, value: bool | float, text: bytes) -> None:
    message = device_messages.effect(TOPICS, word, value, "gate")
    assert (message.topic, message.payload, message.retain) == (f"zhcedge/box-7/camera/gate/{word}/state", text, True)
    assert_conforms(message.topic, message.payload, message.retain, message.qos)


@given(st.floats(0, 1000, allow_subnormal=False))
def test_any_number_that_a_command_can_set_can_be_told(value: float) -> None:
    message = device_messages.effect(TOPICS, "fps", value, "gate")
    assert_conforms(message.topic, message.payload, message.retain, message.qos)


def test_an_answer_carries_the_correlation_of_its_command() -> None:
    what = Answer(True, "threshold", "gate", "", 0.4, "7", b"\x00\xff")
    message = device_messages.answer("zhcedge/desk/answers", what)
    assert check(message)["value"] == "0.4"
    assert (message.topic, message.correlation, message.expiry_s) == ("zhcedge/desk/answers", b"\x00\xff", 60)


def test_a_refusal_says_why() -> None:
    what = Answer(False, "detect", "gate", "retained: the broker has kept it")
    assert check(device_messages.answer("zhcedge/desk/answers", what))["value"] is None


def test_a_camera_that_has_gone_leaves_nothing_at_the_broker() -> None:
    messages = device_messages.forget_camera(TOPICS, "gate")
    for message in messages:
        assert_conforms(message.topic, message.payload, message.retain, message.qos)
        assert (message.payload, message.retain) == (b"", True)
    kept = {  # what belongs to its zones and lines, the publisher knows by name
        channel["address"].format(prefix="zhcedge", device="box-7", camera="gate")
        for channel in contract()["channels"].values()
        if re.search(r"camera/{camera}/(?!zone|line)", channel["address"] or "")
        and channel_of(_filled(channel["address"])).is_retained
    }
    assert {message.topic for message in messages} == kept


def _filled(address: str) -> str:
    return address.format(prefix="zhcedge", device="box-7", camera="gate")


@pytest.mark.parametrize("level", ["---", "", "CAM", "a b", "\u00fc", "-a", "a-", "a--b", "%s"])
def test_what_no_camera_can_be_called_is_no_camera_of_ours(level: str) -> None:
    # Others may keep anything there: "CAM" must not take back what belongs to "cam".
    assert TOPICS.camera_of(f"{TOPICS.root}/camera/{level}/status") == ""


@given(st.text(alphabet="aB9 -\u00fc/_", min_size=1))
def test_every_camera_is_found_by_its_own_topics(name: str) -> None:
    try:
        topic = TOPICS.camera(name, "status")
    except ConfigError:
        return
    assert TOPICS.camera_of(topic) == slug(name)

"""config/asyncapi.yaml: a whole document, with examples that hold, and code that agrees with it.

The AsyncAPI schema itself is 400 kB of npm package, so the structure is checked by hand here; @asyncapi/parser found
nothing but a newer version number of the specification.
"""

from __future__ import annotations

import copy
import enum
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator, Draft202012Validator

from tests.contract.messages import (
    CONTRACT,
    accepts,
    assert_conforms,
    channel_of,
    channels,
    contract,
    is_ours,
    payload_of,
    schemas,
    validator,
)
from zhcedge.core.delivery import Alert, Incoming
from zhcedge.core.events import EndReason, EventType
from zhcedge.core.lifecycle import Phase
from zhcedge.pipeline.channel import ChannelState
from zhcedge.publish.commands import (
    CAMERA_WORDS,
    DEVICE_WORDS,
    FRESH_S,
    REMEMBERED,
    Command,
    CommandPolicy,
    CommandReader,
)
from zhcedge.publish.device_messages import ANSWER_EXPIRY_S, CONTRACT_VERSION, SNAPSHOT_EXPIRY_S
from zhcedge.publish.discovery import CAMERA_STATES
from zhcedge.publish.topics import DEFAULT_PREFIX, Topics

TOPICS = Topics("box")
ROOT = CONTRACT.parents[1]

# What JSON Schema 2020-12 and draft-07 both know and mean alike, as far as the contract has use for it.
KEYWORDS = {
    *("$ref", "type", "enum", "const", "format", "pattern", "description", "examples"),
    *("minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength", "minItems", "maxItems", "items"),
    *("properties", "required", "additionalProperties", "minProperties", "maxProperties"),
    *("allOf", "oneOf", "if", "then", "else"),
}


def all_messages() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = contract()["components"]["messages"]
    return found


def examples() -> Iterator[tuple[str, Any]]:
    for name, message in all_messages().items():
        for example in message.get("examples", ()):
            yield name, example["payload"]


def example_of(message: str) -> dict[str, Any]:
    payload: dict[str, Any] = copy.deepcopy(all_messages()[message]["examples"][0]["payload"])
    return payload


def schema_of(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = contract()["components"]["schemas"][name]
    return schema


# -- the document ----------------------------------------------------------------------------------------------
def test_every_reference_leads_somewhere() -> None:
    references = [node["$ref"] for node in schemas(contract()) if "$ref" in node]
    assert references
    for reference in references:
        target: Any = contract()
        for key in reference.removeprefix("#/").split("/"):
            assert key in target, reference
            target = target[key]


def test_every_part_is_used() -> None:
    used = {node["$ref"] for node in schemas(contract()) if "$ref" in node}
    for kind in ("messages", "schemas", "parameters"):
        for name in contract()["components"][kind]:
            assert f"#/components/{kind}/{name}" in used, name


def test_every_channel_has_one_operation_and_the_parameters_of_its_address() -> None:
    document = contract()
    assert document["asyncapi"] == "3.0.0"
    used = [operation["channel"]["$ref"].rpartition("/")[2] for operation in document["operations"].values()]
    assert sorted(used) == sorted(document["channels"])
    for channel in document["channels"].values():
        assert set(re.findall(r"{(\w+)}", channel["address"] or "")) == set(channel.get("parameters", ()))


def test_every_operation_says_how_it_is_sent_and_every_command_where_its_answer_goes() -> None:
    for operation in contract()["operations"].values():
        if operation["action"] == "send":
            binding = operation["bindings"]["mqtt"]
            assert {"qos", "retain", "bindingVersion"} <= binding.keys()
        else:
            assert operation["reply"]["channel"] == {"$ref": "#/channels/answers"}


def test_the_schemas_mean_the_same_in_both_versions_of_json_schema() -> None:
    for name, schema in contract()["components"]["schemas"].items():
        Draft202012Validator.check_schema(schema)
        Draft7Validator.check_schema(schema)
        names = {key for node in schemas(schema) for key in node} - _property_names(schema)
        assert names <= KEYWORDS, name


def _property_names(schema: dict[str, Any]) -> set[str]:
    return {key for node in schemas(schema) for key in node.get("properties", ())}


def test_every_field_is_described() -> None:
    for name, schema in contract()["components"]["schemas"].items():
        for key, field in schema.get("properties", {}).items():
            target = schema_of(field["$ref"].rpartition("/")[2]) if "$ref" in field else field
            assert field.get("description") or target.get("description"), f"{name}.{key}"


def test_a_device_always_sends_every_field_that_it_may_send() -> None:
    for channel in channels().values():
        for message in channel.messages if channel.is_sent else ():
            for schema in schemas(validator(message).schema["components"]):
                if schema.get("type") == "object" and "required" in schema and "all" not in schema["required"]:
                    is_command = "id" in schema["properties"] and "expires_s" in schema["properties"]
                    assert is_command or set(schema["required"]) == set(schema["properties"])


@pytest.mark.parametrize(("message", "payload"), list(examples()))
def test_every_example_holds(message: str, payload: Any) -> None:
    assert not list(validator(message).iter_errors(payload))
    assert accepts(message, payload)
    open_schema = validator(message, is_closed=False).schema
    assert not list(
        Draft7Validator({"allOf": [open_schema], "components": open_schema["components"]}).iter_errors(payload)
    )


def test_every_message_but_a_picture_has_an_example() -> None:
    assert {name for name, _ in examples()} == all_messages().keys() - {"snapshot"}


def test_the_page_is_what_the_document_says(tmp_path: Path) -> None:
    output = tmp_path / "page.md"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    subprocess.run([sys.executable, ROOT / "tools" / "make-reference", output], check=True, env=environment)
    assert output.read_text() == (ROOT / "config" / "MQTT.md").read_text(), "run tools/make-reference"


# -- the code --------------------------------------------------------------------------------------------------
def test_the_code_names_this_version() -> None:
    assert contract()["info"]["version"] == CONTRACT_VERSION


@pytest.mark.parametrize(
    ("schema", "field", "values"),
    [
        ("State", "phase", [phase.value for phase in Phase]),
        ("Event", "type", [kind.value for kind in EventType]),
        ("Event", "end_reason", [*(reason.value for reason in EndReason), None]),
        ("Alert", "severity", list(get_args(get_type_hints(Alert)["severity"]))),
        ("CameraStatus", "state", list(CAMERA_STATES)),
    ],
)
def test_the_lists_of_words_are_those_of_the_code(schema: str, field: str, values: list[str | None]) -> None:
    assert sorted(map(str, schema_of(schema)["properties"][field]["enum"])) == sorted(map(str, values))


@pytest.mark.parametrize("state", ChannelState)
def test_every_state_of_a_channel_can_be_told(state: enum.Enum) -> None:
    assert state.value in schema_of("CameraStatus")["properties"]["state"]["enum"]


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        (TOPICS.available, "available"),
        (TOPICS.state, "state"),
        (TOPICS.events, "events"),
        (TOPICS.alerts, "alerts"),
        (TOPICS.stats, "stats"),
        (TOPICS.camera("Gate", "status"), "cameraStatus"),
        (TOPICS.camera("Gate", "count"), "count"),
        (TOPICS.camera("Gate", "snapshot"), "snapshot"),
        (TOPICS.effect("detect", "Gate"), "detectState"),
        (TOPICS.effect("threshold", "Gate"), "thresholdState"),
        (TOPICS.effect("fps", "Gate"), "fpsState"),
        ("zhcedge/desk-1/replies", "answers"),
    ],
)
def test_every_topic_has_its_channel(topic: str, name: str) -> None:
    assert channel_of(topic).name == name


def test_the_commands_are_those_that_the_code_takes() -> None:
    taken = {TOPICS.command(word, "gate") for word in CAMERA_WORDS} | {TOPICS.command(word) for word in DEVICE_WORDS}
    said = {
        channel["address"].format(prefix=DEFAULT_PREFIX, device="box", camera="gate")
        for name, channel in contract()["channels"].items()
        if not channels()[name].is_sent
    }
    assert said == taken


def command_examples() -> Iterator[tuple[str, bytes]]:
    for name, channel in channels().items():
        for message in () if channel.is_sent else channel.messages:
            topic = contract()["channels"][name]["address"].format(prefix=DEFAULT_PREFIX, device="box", camera="gate")
            for example in all_messages()[message]["examples"]:
                yield topic, payload_of(example, all_messages()[message]["contentType"])


@pytest.mark.parametrize(("topic", "payload"), list(command_examples()))
def test_every_example_of_a_command_is_taken(topic: str, payload: bytes) -> None:
    allow = frozenset({*CAMERA_WORDS, *DEVICE_WORDS})
    reader = CommandReader(TOPICS, CommandPolicy(allow, 16_384), lambda: ("gate",))
    command = reader.read(Incoming(topic, payload), 1_735_689_601.0, True)
    assert isinstance(command, Command), command
    assert_conforms(topic, payload, False, 1)


def test_the_figures_in_the_text_are_those_of_the_code() -> None:
    text = " ".join(contract()["info"]["description"].split())
    assert f"among the last {REMEMBERED:,}" in text
    assert f"({FRESH_S:.0f} s if that is not given)" in text
    expiry = {"saySnapshot": SNAPSHOT_EXPIRY_S, "sayAnswer": ANSWER_EXPIRY_S}
    for name, seconds in expiry.items():
        assert contract()["operations"][name]["bindings"]["mqtt"]["messageExpiryInterval"] == seconds


# -- the judge -------------------------------------------------------------------------------------------------
EVENT = json.dumps(example_of("event")).encode()


@pytest.mark.parametrize(
    ("topic", "payload", "retain", "qos"),
    [
        ("zhcedge/box/state/more", b"{}", False, 1),
        ("zhcedge/box/explode/state", b"ON", False, 1),
        ("zhcedge/box/camera/gate/explode", b"{}", False, 1),
        ("zhcedge/box/events", EVENT, True, 1),
        ("zhcedge/box/events", EVENT, False, 0),
        ("zhcedge/box/events", b"", False, 1),
        ("zhcedge/box/events", b"{", False, 1),
        ("zhcedge/box/events", b"[]", False, 1),
        ("zhcedge/box/events", EVENT.replace(b"0.625", b"NaN"), False, 1),
        ("zhcedge/box/available", b"up", False, 1),
        ("zhcedge/box/camera/gate/snapshot", b"GIF89a", False, 0),
        ("zhcedge/Box/available", b"online", False, 1),
        ("zhcedge/elsewhere", b"anything", False, 1),
        ("other/box/available", b"online", False, 1),
    ],
)
def test_what_the_contract_does_not_allow_is_refused(topic: str, payload: bytes, retain: bool, qos: int) -> None:
    with pytest.raises(AssertionError):
        assert_conforms(topic, payload, retain, qos)


def test_an_empty_message_takes_a_retained_topic_back() -> None:
    assert_conforms("zhcedge/box/camera/gate/status", b"", False, 1)


def test_foreign_topics_and_commands_are_nobodys_promise() -> None:
    assert is_ours("zhcedge/box/state")
    assert not is_ours("homeassistant/status")
    assert not is_ours("zhcedge/box/camera/gate/detect/set")


json_values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.just([])


@given(st.data())
def test_the_quick_judge_says_what_the_thorough_one_says(data: st.DataObject) -> None:
    payload = example_of("event")
    part = data.draw(st.sampled_from([payload, payload["after"], payload["before"]]))
    key = data.draw(st.sampled_from(sorted(part)) | st.text())
    if data.draw(st.booleans()):
        part.pop(key, None)
    else:
        part[key] = data.draw(json_values)
    assert accepts("event", payload) == validator("event").is_valid(payload)


@pytest.mark.parametrize("level", [(), ("after",), ("before",)])
def test_a_field_that_is_missing_or_not_in_the_contract_is_refused(level: tuple[str, ...]) -> None:
    for key in [*_part(example_of("event"), level), "more"]:
        payload = example_of("event")
        part = _part(payload, level)
        if key == "more":
            part[key] = 1
        else:
            del part[key]
        assert not accepts("event", payload), key


def _part(payload: dict[str, Any], level: tuple[str, ...]) -> dict[str, Any]:
    for key in level:
        payload = payload[key]
    return payload


@pytest.mark.parametrize(
    "change",
    [
        {"type": "new"},
        {"type": "update"},
        {"end_reason": None},
        {"before": None},
        {"after": {**example_of("event")["after"], "end_time": None}},
    ],
)
def test_an_end_that_is_half_a_one_is_refused(change: dict[str, Any]) -> None:
    assert accepts("event", example_of("event"))
    assert not accepts("event", {**example_of("event"), **change})

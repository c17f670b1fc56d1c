"""The contract config/asyncapi.yaml as a judge of messages: tests/contract/brokers.Subscriber asks it for each one.

Stricter than what a receiver needs: a field that the contract does not name fails here, and so does a missing one.

fastjsonschema judges, because tests hear tens of thousands of messages (20 us instead of 1.4 ms each); jsonschema says
what is wrong with a refused one, and test_contract.py has the two compared.
"""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastjsonschema
import yaml
from jsonschema import Draft202012Validator

from zhcedge.publish.topics import DEFAULT_PREFIX

CONTRACT = Path(__file__).resolve().parents[2] / "config" / "asyncapi.yaml"

DRAFT_07 = "http://json-schema.org/draft-07/schema#"

_SLUG = "[a-z0-9]+(-[a-z0-9]+)*"


@dataclass(frozen=True)
class Channel:
    """One topic of the contract.

    Attributes:
        name: key below `channels`.
        pattern: of the topic behind the prefix; None for the answers, whose topic a sender chooses.
        is_sent: by the device; else it is a command.
        qos, is_retained: what the operation promises.
        messages: keys below `components.messages`, any of which may come.
    """

    name: str
    pattern: re.Pattern[str] | None
    is_sent: bool
    qos: int
    is_retained: bool
    messages: tuple[str, ...]


@functools.cache
def contract() -> dict[str, Any]:
    """The document as it stands in the file."""
    document = yaml.safe_load(CONTRACT.read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


@functools.cache
def channels() -> dict[str, Channel]:
    """Every channel by name."""
    document = contract()
    found = {}
    for operation in document["operations"].values():
        name = operation["channel"]["$ref"].rpartition("/")[2]
        channel = document["channels"][name]
        binding = operation.get("bindings", {}).get("mqtt", {})
        messages = tuple(message["$ref"].rpartition("/")[2] for message in channel["messages"].values())
        found[name] = Channel(
            name=name,
            pattern=_pattern(channel["address"]),
            is_sent=operation["action"] == "send",
            qos=binding.get("qos", 1),
            is_retained=binding.get("retain", False),
            messages=messages,
        )
    return found


def is_ours(topic: str, prefix: str = DEFAULT_PREFIX) -> bool:
    """Whether the contract speaks of this message of a device: below the prefix, and no command.

    Anybody may send any command, so there is nothing to hold a heard one to.
    """
    return topic.startswith(f"{prefix}/") and not topic.endswith("/set")


def assert_conforms(topic: str, payload: bytes, retain: bool, qos: int, prefix: str = DEFAULT_PREFIX) -> None:
    """AssertionError when the contract does not allow this message, as a subscriber at QoS 1 hears it.

    The flag `retain` is only set on what the broker has kept, so its absence says nothing.
    """
    channel = channel_of(topic, prefix)
    where = f"{topic} ({channel.name})"
    if channel.is_sent:
        assert qos == channel.qos, f"{where}: QoS {qos}, the contract says {channel.qos}"
        assert channel.is_retained or not retain, f"{where}: retained against the contract"
    if channel.is_retained and not payload:
        return  # takes the topic back
    faults = [fault for name in channel.messages if (fault := _fault(name, payload))]
    assert len(faults) < len(channel.messages), f"{where}: {'; '.join(faults)}: {payload[:2000]!r}"


def channel_of(topic: str, prefix: str = DEFAULT_PREFIX) -> Channel:
    """The channel of a topic. A topic below the prefix that no device speaks on can only be an answer's.

    AssertionError when there is none.
    """
    assert topic.startswith(f"{prefix}/"), f"{topic} is not below {prefix}"
    rest = topic.removeprefix(f"{prefix}/")
    for channel in channels().values():
        if channel.pattern and channel.pattern.fullmatch(rest):
            return channel
    first_words = {address.split("/")[2] for address in addresses()}
    levels = rest.split("/")
    is_spoken = levels[-1] in ("set", "state") or (len(levels) > 1 and levels[1] in first_words)
    assert not is_spoken, f"the contract knows no topic {topic}"
    return channels()["answers"]


def addresses() -> Iterator[str]:
    """Addresses of the channels that have one."""
    return (channel["address"] for channel in contract()["channels"].values() if channel["address"])


def validator(message: str, *, is_closed: bool = True) -> Draft202012Validator:
    """Of a message's payload. `is_closed` refuses fields that the contract does not name."""
    return _validator(message, is_closed)


@functools.cache
def _validator(message: str, is_closed: bool) -> Draft202012Validator:
    document = _closed() if is_closed else contract()
    schema = document["components"]["messages"][message]["payload"]
    # The references are paths within the document, so the schema is given its components.
    return Draft202012Validator({**schema, "components": {"schemas": document["components"]["schemas"]}})


@functools.cache
def _judge(message: str) -> Callable[[object], object]:
    judge = fastjsonschema.compile({**_validator(message, True).schema, "$schema": DRAFT_07})
    assert callable(judge)
    return judge


def accepts(message: str, value: object) -> bool:
    """Whether the value is a payload of the message, without a reason."""
    try:
        _judge(message)(value)
    except fastjsonschema.JsonSchemaValueException:
        return False
    return True


@functools.cache
def _closed() -> dict[str, Any]:
    document = copy.deepcopy(contract())
    for schema in schemas(document["components"]["schemas"]):
        if schema.get("type") == "object" and "properties" in schema:
            schema.setdefault("additionalProperties", False)
    return document


def schemas(node: object) -> Iterator[dict[str, Any]]:
    """Every mapping within a part of the document: the schemas, and what holds them."""
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from schemas(value)
    elif isinstance(node, list):
        for value in node:
            yield from schemas(value)


def _fault(message: str, payload: bytes) -> str:
    """Why it isn't this message; empty when it is."""
    content_type = contract()["components"]["messages"][message]["contentType"]
    if content_type == "image/jpeg":
        return "" if payload[:2] == b"\xff\xd8" and payload[-2:] == b"\xff\xd9" else "not a JPEG file"
    try:
        text = payload.decode()
        value = json.loads(text, parse_constant=_no_number) if content_type == "application/json" else text
    except ValueError as error:
        return f"{message}: {error}"
    if accepts(message, value):
        return ""
    errors = [f"{message}: {error.json_path}: {error.message}" for error in validator(message).iter_errors(value)]
    return "; ".join(errors) or f"{message}: refused for a reason that jsonschema does not see"


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


def _pattern(address: str | None) -> re.Pattern[str] | None:
    if address is None:
        return None
    prefix, _, rest = address.partition("/")
    assert prefix == "{prefix}", address
    return re.compile(re.sub(r"\\\{(device|camera|zone|line)\\\}", lambda _: _SLUG, re.escape(rest)))


def payload_of(example: Mapping[str, Any], content_type: str) -> bytes:
    """An example of the contract as the bytes of a message."""
    payload = example["payload"]
    return json.dumps(payload).encode() if content_type == "application/json" else str(payload).encode()

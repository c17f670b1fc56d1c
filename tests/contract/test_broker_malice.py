"""What somebody else who may write to a device's topics can do to it: nothing but be refused."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paho.mqtt.publish as paho_publish
import pytest

from tests.contract.brokers import HOST, Subscriber, find_mosquitto, running, start_mosquitto, wait_until
from tests.contract.mqtt_device import TOPICS, Device, device
from zhcedge.app import publisher as publisher_module
from zhcedge.app.publisher import Publisher
from zhcedge.config.schema import Config
from zhcedge.core.delivery import Incoming, Message
from zhcedge.publish.discovery import HOME_ASSISTANT_STATUS
from zhcedge.publish.topics import Topics
from zhcedge.service.clock import SystemClock

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed"),
]  # processes and servers: minutes in all

BOM = "a\ufeffb".encode()
COMMAND = f"{TOPICS.root}/detect/set"


def text(value: bytes) -> bytes:
    return struct.pack("!H", len(value)) + value


RESPONSE_TOPIC, CONTENT_TYPE = b"\x08" + text(b"zhcedge/" + BOM), b"\x03" + text(BOM)
USER_PROPERTY = b"\x26" + text(b"key") + text(BOM)


def publish_raw(port: int, topic: str, properties: bytes, flags: int) -> None:
    """One PUBLISH of MQTT 5 with properties that paho would not send. Returns once the broker has taken it.

    Args:
        flags: of the packet: 1 is retained, 2 is QoS 1.
    """
    hello = text(b"MQTT") + b"\x05\x02\x00\x3c\x00" + text(b"malice")
    body = text(topic.encode()) + (b"\x00\x01" if flags & 6 else b"") + bytes([len(properties)]) + properties + b"ON"
    with socket.create_connection((HOST, port), timeout=10) as near:
        near.sendall(bytes([0x10, len(hello)]) + hello)
        near.recv(100)
        near.sendall(bytes([0x30 | flags, len(body)]) + body + b"\xc0\x00")  # and a sign of life, which is answered
        assert near.recv(100)


@pytest.mark.parametrize("properties", [RESPONSE_TOPIC, CONTENT_TYPE, USER_PROPERTY])
@pytest.mark.parametrize("flags", [0, 2], ids=["qos0", "qos1"])
def test_properties_that_can_not_be_read_end_no_session(tmp_path: Path, properties: bytes, flags: int) -> None:
    with (
        running(start_mosquitto, tmp_path) as broker,
        device(broker.port, subscriptions=(COMMAND,), session_expiry_s=60) as one,
    ):
        paho_publish.single(COMMAND, b"ON", retain=True, hostname=HOST, port=broker.port)
        wait_until(lambda: bool(one.incoming), "the subscription")
        publish_raw(broker.port, COMMAND, properties, flags)
        wait_until(lambda: bool(one.problems), "a word about it")
        paho_publish.single(COMMAND, b"OFF", qos=1, hostname=HOST, port=broker.port)
        wait_until(lambda: one.incoming[-1].payload == b"OFF", "the next command")
        assert {incoming.payload for incoming in one.incoming} == {b"ON", b"OFF"}
        assert one.connects == 1
        assert "can't be read" in one.problems[0]


def test_a_kept_message_that_can_not_be_read_ends_no_session_either(tmp_path: Path) -> None:
    with running(start_mosquitto, tmp_path) as broker:
        publish_raw(broker.port, COMMAND, USER_PROPERTY, flags=3)
        with device(broker.port, subscriptions=(COMMAND,)) as one:
            one.add(range(3))
            one.pump_until(0)
            wait_until(lambda: bool(one.problems), "a word about it")
            assert one.connects == 1


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_two_daemons_with_one_name_are_told_of_each_other(tmp_path: Path, protocol: str) -> None:
    with running(start_mosquitto, tmp_path) as broker, device(broker.port, protocol=protocol) as one:
        one.wait_connected()
        other = Device(broker.port, protocol=protocol)
        other.broker.start()
        try:
            wait_until(lambda: "client-id-cloned" in one.codes() + other.codes(), "the alert")
        finally:
            other.broker.stop([], 5.0)


def publisher(port: int, wake: Callable[[], None], **mqtt: object) -> Publisher:
    config = Config.model_validate(
        {
            "device": "box",
            "channels": {"gate": {"source": {"uri": "pattern:boxes"}}},
            "mqtt": {"host": HOST, "port": port, **mqtt},
        }
    )
    return Publisher(config, "0" * 64, "b" * 32, SystemClock(), wake)


def test_what_is_left_out_is_not_said_to_be_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(start_mosquitto, tmp_path) as broker:
        publish_raw(broker.port, "zhcedge/box/detect/set", USER_PROPERTY, flags=3)
        one = publisher(broker.port, lambda: None)
        one.start()
        try:
            wait_until(lambda: "left out" in caplog.text, "a word about it")
            assert "tried again" not in caplog.text
        finally:
            one.finish()
            one.close()


def test_home_assistant_that_starts_again_and_again_is_answered_once_a_second(tmp_path: Path) -> None:
    prefix = "not-the-contract"
    topic, command = f"{prefix}/box/state", f"{prefix}/box/rebirth/set"
    with running(start_mosquitto, tmp_path) as broker, Subscriber(broker.port, topic) as subscriber:
        one = publisher(broker.port, lambda: None, topic_prefix=prefix, discovery={"enabled": True})
        commands: list[Incoming] = []
        one.on_command = commands.append

        def start_home_assistant() -> None:
            before = len(commands)
            for name in (HOME_ASSISTANT_STATUS, command):  # what was sent first has come when the second has
                paho_publish.single(name, b"online", qos=1, hostname=HOST, port=broker.port)
            wait_until(lambda: len(commands) > before, "the messages")

        one.put(Message(topic, b"{}", retain=True))
        paho_publish.single(command, b"x", qos=1, retain=True, hostname=HOST, port=broker.port)
        one.start()
        try:
            wait_until(lambda: bool(commands and subscriber.heard), "the session")
            start_home_assistant()
            one.turn(10.0)
            wait_until(lambda: len(subscriber.heard) == 2, "the repetition")
            start_home_assistant()
            one.turn(10.5)
            one.put(Message(topic, b"{ }", retain=True))
            wait_until(lambda: bool(subscriber.payloads("state")[2:]), "the next state")
            assert subscriber.payloads("state") == [b"{}", b"{}", b"{ }"]
            one.turn(11.5)
            wait_until(lambda: len(subscriber.heard) == 4, "the second repetition")
        finally:
            one.finish()
            one.close()


def test_cameras_that_others_have_made_up_are_looked_at_bit_by_bit(tmp_path: Path) -> None:
    topics = [Topics("box").camera(f"made-up-{number}", "status") for number in range(200)]
    with running(start_mosquitto, tmp_path) as broker:
        kept: Any = [{"topic": topic, "payload": b"x" * 1000, "qos": 1, "retain": True} for topic in topics]
        paho_publish.multiple(kept, hostname=HOST, port=broker.port)
        one = publisher(broker.port, lambda: None)
        one.start()
        try:
            found: list[str] = []

            def is_done() -> bool:
                looked_at = one.kept()
                assert len(looked_at) <= publisher_module._KEPT_PER_TURN
                found.extend(incoming.topic for incoming in looked_at)
                return len(found) == len(topics)

            wait_until(is_done, "all of them")
            assert set(found) == set(topics)
        finally:
            one.finish()
            one.close()

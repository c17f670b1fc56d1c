"""MqttBroker and Courier against real brokers: what subscribers see, whatever happens to the connection."""

from __future__ import annotations

import contextlib
import importlib.util
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest

from tests.contract.brokers import (
    HOST,
    PATIENCE_S,
    CuttingProxy,
    RunningBroker,
    Subscriber,
    find_mosquitto,
    free_port,
    running,
    start_amqtt,
    start_mosquitto,
    wait_until,
)
from tests.contract.mqtt_device import STOPPED, TOPICS, Device, device
from zhcedge.core.delivery import Message
from zhcedge.core.errors import BrokerError
from zhcedge.publish import device_messages
from zhcedge.publish.mqtt import MqttBroker
from zhcedge.publish.settings import BrokerSettings

needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
needs_amqtt = pytest.mark.skipif(importlib.util.find_spec("amqtt") is None, reason="amqtt is not installed")


@pytest.fixture(params=[pytest.param("mosquitto", marks=needs_mosquitto), pytest.param("amqtt", marks=needs_amqtt)])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningBroker]:
    start = {"mosquitto": start_mosquitto, "amqtt": start_amqtt}[request.param]
    with running(start, tmp_path) as process:
        yield process


def test_a_session_tells_the_full_state_then_online_then_events_and_stopped_last(broker: RunningBroker) -> None:
    with Subscriber(broker.port) as subscriber:
        with device(broker.port) as one:
            one.add(range(100))
            assert one.courier.drain(one.broker, 30.0)
        subscriber.wait_for("available", b"stopped")
        heard = [(message.topic.rpartition("/")[2], message.payload) for message in subscriber.heard]
        assert heard == [
            ("state", b"state-1"),
            ("available", b"online"),
            *[("events", b"%d" % number) for number in range(100)],
            ("available", b"stopped"),
        ]
    assert one.problems == []


def test_late_subscribers_find_state_and_availability(broker: RunningBroker) -> None:
    with device(broker.port) as one:
        wait_until(lambda: one.broker.is_connected, "a session")
        with Subscriber(broker.port) as subscriber:
            subscriber.wait_for("state", b"state-1")
            subscriber.wait_for("available", b"online")
    with Subscriber(broker.port) as subscriber:
        subscriber.wait_for("available", b"stopped")


def test_a_broken_connection_shows_the_will_then_the_newest_state(broker: RunningBroker) -> None:
    proxy = CuttingProxy(broker.port)
    with Subscriber(broker.port) as subscriber, contextlib.closing(proxy), device(proxy.port) as one:
        subscriber.wait_for("available", b"online")
        one.state = b"state-2"
        proxy.cut()
        subscriber.wait_for("state", b"state-2")
        wait_until(lambda: len(subscriber.payloads("available")) >= 3, "online again")
        assert subscriber.payloads("available") == [b"online", b"offline", b"online"]
        assert subscriber.payloads("state") == [b"state-1", b"state-2"]
    assert len(one.problems) == 1
    assert "lost" in one.problems[0]


@needs_mosquitto
@pytest.mark.parametrize("seed", range(5))
def test_connections_cut_at_random_lose_no_event_and_no_order(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    with running(start_mosquitto, tmp_path) as broker, Subscriber(broker.port) as subscriber:
        proxy = CuttingProxy(broker.port)
        with contextlib.closing(proxy), device(proxy.port) as one:
            for start in range(0, 1000, 100):
                one.add(range(start, start + 100))
                target = one.outbox.depth - draw.randrange(100)

                one.pump_until(target)
                proxy.cut()
            one.pump_until(0)
        subscriber.wait_for("available", b"stopped")
        arrived = [int(payload) for payload in subscriber.payloads("events")]
    assert list(dict.fromkeys(arrived)) == list(range(1000))
    assert proxy.accepted > 5


@needs_mosquitto
def test_a_broker_that_comes_late_and_goes_away_gets_everything(tmp_path: Path) -> None:
    port = free_port()
    with device(port) as one:
        one.add(range(10))
        wait_until(lambda: bool(one.problems), "a word about the missing broker")
        assert not one.broker.publish(Message(TOPICS.events, b"x"))
        first = start_mosquitto(tmp_path, port)
        one.pump_until(0)
        first.kill()
        wait_until(lambda: not one.broker.is_connected, "the loss of the session")
        one.add(range(10, 30))
        second = start_mosquitto(tmp_path, port)
        try:
            one.pump_until(0)
            with Subscriber(port) as subscriber:
                subscriber.wait_for("available", b"online")
        finally:
            one.broker.stop([STOPPED], 5.0)
            second.kill()
    assert one.connects == 2
    assert f"{HOST}:{port}: nothing listens there; start the MQTT broker" in one.problems[0]


def test_a_missing_broker_is_told_once_however_often_it_is_tried() -> None:
    # Accepts and hangs up: each try is seen, and every one fails in the same way.
    with socket.create_server((HOST, 0)) as server, device(server.getsockname()[1]) as one:
        for _ in range(5):
            connection, _ = server.accept()
            connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        assert len(one.problems) == 1
        assert "hangs up" in one.problems[0]
        assert one.broker.session == 0


@needs_mosquitto
@pytest.mark.parametrize(("username", "password"), [("", ""), ("camera", "wrong")])
def test_a_refused_login_says_who_where_and_what_to_do(tmp_path: Path, username: str, password: str) -> None:
    with running(lambda folder: start_mosquitto(folder, users={"camera": "right"}), tmp_path) as broker:
        with device(broker.port, username=username, password=password) as one:
            wait_until(lambda: bool(one.problems), "the refusal")
            text = one.problems[0]
            assert text.startswith(f"{HOST}:{broker.port}: the MQTT broker refuses ")
            assert "check mqtt.username and mqtt.password" in text
            assert "wrong" not in text
            assert not one.broker.is_connected
        with device(broker.port, username="camera", password="right") as one:
            wait_until(lambda: one.broker.is_connected, "a session with the right password")


def test_a_host_name_that_is_none_is_told_as_such() -> None:
    problems: list[str] = []
    will = device_messages.available(TOPICS, device_messages.OFFLINE)
    for host, words in (("no-such-host.invalid", "resolved"), ("a..b", "can't be reached")):
        one = MqttBroker(BrokerSettings(host, 1883, "box"), will, list, on_problem=problems.append)
        one.start()
        wait_until(lambda: bool(problems), "a word about the name")
        one.stop([], 5.0)
        assert f"{host}:1883" in problems[0]
        assert words in problems[0]
        problems.clear()


def test_an_acknowledgement_faster_than_the_publishing_thread_is_not_lost(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = paho.Client.publish

    def publish_and_dawdle(client: paho.Client, *arguments: Any) -> paho.MQTTMessageInfo:
        info = publish(client, *arguments)
        if not threading.current_thread().name.startswith("paho"):  # that one would wait for itself
            info.wait_for_publish(PATIENCE_S)
        return info

    with device(broker.port) as one:
        wait_until(lambda: one.broker.is_connected, "a session")
        with monkeypatch.context() as patch:
            patch.setattr(paho.Client, "publish", publish_and_dawdle)
            one.add(range(50))
            one.pump_until(0)


def test_a_topic_that_mqtt_can_not_carry_is_an_error_of_ours(broker: RunningBroker) -> None:
    with device(broker.port) as one:
        wait_until(lambda: one.broker.is_connected, "a session")
        with pytest.raises(BrokerError, match="a/#"):
            one.broker.publish(Message("a/#", b""))


def test_a_message_for_another_session_is_not_taken(broker: RunningBroker) -> None:
    with device(broker.port) as one:
        wait_until(lambda: one.broker.is_connected, "a session")
        assert one.broker.publish(Message(TOPICS.events, b"1"), session=one.broker.session)
        assert not one.broker.publish(Message(TOPICS.events, b"2"), session=one.broker.session + 1)


def test_stopping_is_safe_at_any_time() -> None:
    with socket.create_server((HOST, 0)) as server:  # accepts by itself and never answers
        one = Device(server.getsockname()[1])
        one.broker.stop([STOPPED], 1.0)  # before start
        other = Device(server.getsockname()[1])
        other.broker.start()
        for _ in range(2):
            other.broker.stop([STOPPED], 5.0)
        assert other.problems == []


def test_the_password_is_in_no_repr() -> None:
    assert "secret" not in repr(BrokerSettings(HOST, 1883, "box", "user", "secret"))

"""MqttBroker against a broker that refuses, hangs, throws out: what no real broker does on demand."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter

import pytest

from tests.contract.brokers import HOST, free_port, wait_until
from tests.contract.mqtt_device import STOPPED, TOPICS, Device, device
from tests.sim.mqtt_broker import ScriptedBroker
from zhcedge.core.delivery import Message
from zhcedge.publish import deferral, proof, session
from zhcedge.publish.courier import WINDOW

pytestmark = pytest.mark.slow  # processes, servers and sockets: minutes in all

ACCEPTED, QUOTA_EXCEEDED, FORMAT_INVALID, TAKEN_OVER = 0, 0x97, 0x99, b"\xe0\x02\x8e\x00"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferral, "PAUSES_S", (0.02,) * 5)


def events(broker: ScriptedBroker) -> list[bytes]:
    return [payload for payload in broker.heard if payload.isdigit()]


def silent_to_events(payload: bytes) -> int | None:
    return None if payload.isdigit() else ACCEPTED


def test_what_a_broker_can_not_take_now_is_tried_again_in_order() -> None:
    tries: Counter[bytes] = Counter()

    def answer(payload: bytes) -> int:
        tries[payload] += 1
        return QUOTA_EXCEEDED if payload.isdigit() and int(payload) >= 5 and tries[payload] < 4 else ACCEPTED

    with ScriptedBroker(answer) as broker, device(broker.port) as one:
        one.add(range(40))
        one.pump_until(0)
        assert one.refused == {}
        assert {tries[b"%d" % number] for number in range(5, 10)} == {4}
        # The last arrival of each: those that were accepted, in the outbox's order.
        accepted = list(dict.fromkeys(reversed(events(broker))))[::-1]
        assert accepted == [b"%d" % number for number in range(40)]


def test_nothing_new_follows_while_something_is_held_back() -> None:
    tries: Counter[bytes] = Counter()

    def answer(payload: bytes) -> int:
        tries[payload] += 1
        return QUOTA_EXCEEDED if payload == b"9" and tries[payload] < 4 else ACCEPTED

    with ScriptedBroker(answer) as broker, device(broker.port) as one:
        one.add(range(400))
        one.pump_until(0)
        arrived = [int(payload) for payload in events(broker)]
    last_try = len(arrived) - 1 - arrived[::-1].index(9)
    # Behind it, no more than a window was on its way before the first refusal came.
    assert max(arrived[:last_try]) < 9 + WINDOW + 1


def test_no_more_is_on_its_way_than_the_broker_allows() -> None:
    with ScriptedBroker(silent_to_events, receive_maximum=3) as broker, device(broker.port) as one:
        one.add(range(10))

        def is_full() -> bool:
            one.courier.pump(one.broker)
            return len(events(broker)) >= 3

        wait_until(is_full, "the first ones")
        for _ in range(100):
            one.courier.pump(one.broker)
        assert one.broker.publish(Message(TOPICS.stats, b"after", qos=0))  # which needs no acknowledgement
        wait_until(lambda: b"after" in broker.heard, "what was sent last")
        assert events(broker) == [b"0", b"1", b"2"]


def test_what_a_broker_never_takes_is_refused_after_five_more_tries() -> None:
    with ScriptedBroker(lambda payload: QUOTA_EXCEEDED if payload == b"3" else ACCEPTED) as broker:
        with device(broker.port) as one:
            one.add(range(10))
            one.pump_until(0)
            assert one.refused == {4: "Quota exceeded"}
            assert one.outbox.refused == 1
        assert Counter(events(broker))[b"3"] == 6


def test_a_final_refusal_is_not_tried_again() -> None:
    with ScriptedBroker(lambda payload: FORMAT_INVALID if payload == b"3" else ACCEPTED) as broker:
        with device(broker.port) as one:
            one.add(range(10))
            one.pump_until(0)
            assert one.refused == {4: "Payload format invalid"}
        assert Counter(events(broker))[b"3"] == 1


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_a_denied_subscription_is_told(protocol: str) -> None:
    filters = ("a/set", "b/set")
    with ScriptedBroker(grant=0x80) as broker, device(broker.port, protocol=protocol, subscriptions=filters) as one:
        assert "a/set" in one.wait_alert("subscribe-denied").text
        wait_until(lambda: len(one.alerts) == 2, "the other one")


def test_3_1_1_that_lets_nobody_subscribe_is_believed_and_told() -> None:
    with ScriptedBroker(grant=0x80) as broker, device(broker.port, protocol="3.1.1") as one:
        one.add(range(10))
        one.pump_until(0)
        assert TOPICS.events in one.wait_alert("subscribe-denied").text
        assert events(broker) == [b"%d" % number for number in range(10)]


def test_3_1_1_sends_one_event_until_it_has_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "PROOF_S", 0.1)
    monkeypatch.setattr(proof, "RETRY_S", 0.1)
    with ScriptedBroker() as broker, device(broker.port, protocol="3.1.1") as one:  # passes nothing on
        one.add(range(10))
        one.wait_alert("publish-denied")

        def is_tried_again() -> bool:
            one.courier.pump(one.broker)
            return len(events(broker)) >= 3

        wait_until(is_tried_again, "more tries")
        assert set(events(broker)) == {b"0"}
        assert one.outbox.depth == 10
        assert one.broker.publish(Message(TOPICS.stats, b"x", qos=0))  # what is not an event goes on
    assert one.codes() == ["publish-denied"]


@pytest.mark.parametrize(
    ("protocol", "farewell", "words"),
    [
        ("5", TAKEN_OVER, ": another client has this id"),
        ("5", b"", "probably another client has this id"),
        ("3.1.1", b"", "probably another client has this id"),
    ],
)
def test_a_cloned_client_id_is_recognised(protocol: str, farewell: bytes, words: str) -> None:
    with ScriptedBroker(farewell=farewell) as broker, device(broker.port, protocol=protocol) as one:
        alert = one.wait_alert("client-id-cloned")
        assert words in alert.text
        assert "'box'" in alert.text
        assert broker.accepted >= 3
        assert one.codes() == ["client-id-cloned"]


def test_the_next_broker_is_taken_while_the_first_is_away() -> None:
    port = free_port()
    with ScriptedBroker() as second, device(port, fallbacks=((HOST, second.port),)) as one:
        one.add(range(3))
        one.pump_until(0)
        assert events(second) == [b"0", b"1", b"2"]
    assert "nothing listens there" in one.problems[0]


def test_after_a_loss_the_first_broker_is_tried_first() -> None:
    with ScriptedBroker() as first, ScriptedBroker(farewell=b"") as second:
        one = Device(free_port(), fallbacks=((HOST, second.port), (HOST, first.port)))
        one.broker.start()
        wait_until(lambda: second.accepted >= 2, "two sessions with the first that answers")
        one.broker.stop([], 5.0)
        assert first.accepted == 0


def test_a_broker_that_stops_reading_costs_neither_time_nor_memory() -> None:
    with ScriptedBroker(is_stuck=True) as broker:
        one = Device(broker.port, keepalive_s=2, protocol="5")
        one.broker.start()
        one.wait_connected()
        picture = Message(f"{TOPICS.root}/picture", bytes(100_000), qos=0)
        began_s = time.monotonic()
        taken = sum(one.broker.publish(picture) for _ in range(10_000))
        # The kernel's buffers take some megabytes while paho empties its own.
        assert taken < 200
        one.add(range(5000))
        for _ in range(1000):
            one.courier.pump(one.broker)
        assert one.broker.is_connected or time.monotonic() - began_s > 2
        wait_until(lambda: bool(one.problems), "the loss")
        # 1.5 times the keepalive, and what a busy machine adds.
        assert time.monotonic() - began_s < 30
        assert one.outbox.depth == 5000
        one.broker.stop([STOPPED], 1.0)


def test_a_broker_that_acknowledges_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "STUCK_S", 0.1)
    with ScriptedBroker(silent_to_events) as broker, device(broker.port) as one:
        one.add(range(3))

        def is_told() -> bool:
            one.courier.pump(one.broker)
            return bool(one.problems)

        wait_until(is_told, "the end of the session")
        assert "has acknowledged nothing" in one.problems[0]
        assert one.outbox.depth == 3


def test_bytes_that_are_no_mqtt_end_the_session_and_not_the_client() -> None:
    with socket.create_server((HOST, 0)) as server:
        answered = threading.Event()

        def answer() -> None:
            for reply in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x20\x03\x00\x00\x00\x30\x02\xff\xff"):
                near, _ = server.accept()
                near.recv(1024)
                near.sendall(reply)
                near.shutdown(socket.SHUT_WR)
            answered.set()

        threading.Thread(target=answer, daemon=True).start()
        with device(server.getsockname()[1], protocol="5") as one:
            wait_until(lambda: answered.is_set() and len(one.problems) >= 2, "two ends of sessions")

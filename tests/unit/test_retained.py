"""Retained topics: every session begins with what is true now, and a change is told once."""

from __future__ import annotations

from tests.unit.support_brokers import ListBroker
from zhcedge.app.rates import FlowMeter
from zhcedge.core.delivery import Message
from zhcedge.publish.device_messages import CameraFlow
from zhcedge.publish.pacing import INTERVAL_S, Pacing
from zhcedge.publish.retained import Retained


def message(topic: str, payload: bytes) -> Message:
    return Message(topic, payload, retain=True)


def test_a_change_is_told_once_and_the_same_value_not_again() -> None:
    broker, retained = ListBroker(), Retained()
    for payload in (b"1", b"1", b"2"):
        retained.put(message("a", payload))
        retained.flush(broker)
        retained.flush(broker)
    assert [one.payload for one in broker.published] == [b"1", b"2"]


def test_what_changed_without_a_connection_is_told_later_in_its_latest_form() -> None:
    broker, retained = ListBroker(), Retained()
    broker.is_connected = False
    for payload in (b"1", b"2"):
        retained.put(message("a", payload))
        retained.flush(broker)
    broker.is_connected = True
    retained.flush(broker)
    assert [one.payload for one in broker.published] == [b"2"]


def test_a_session_begins_with_everything_and_does_not_hear_it_twice() -> None:
    broker, retained = ListBroker(), Retained()
    for topic in "ab":
        retained.put(message(topic, b"1"))
    assert [one.topic for one in retained.birth()] == ["a", "b"]
    retained.put(message("b", b"2"))  # after the session's beginning was put together
    retained.flush(broker)
    assert broker.published == [message("b", b"2")]


def test_a_repetition_is_told_although_the_session_began_with_it() -> None:
    broker, retained = ListBroker(), Retained()
    retained.put(message("a", b"1"))
    retained.birth()
    retained.repeat()
    retained.flush(broker)
    assert broker.published == [message("a", b"1")]


def test_an_empty_message_removes_its_topic() -> None:
    broker, retained = ListBroker(), Retained()
    retained.put(message("a", b"1"))
    retained.put(message("a", b""))
    retained.flush(broker)
    assert broker.published == [message("a", b"")]
    assert not retained.birth()


def test_values_that_follow_closely_are_held_back_and_the_last_one_gets_through() -> None:
    pacing = Pacing()
    pacing.note(message("count", b"1"))
    assert pacing.due(0.0) == [message("count", b"1")]
    for payload in (b"2", b"3"):
        pacing.note(message("count", payload))
        assert pacing.due(INTERVAL_S / 2) == []
    assert pacing.due(INTERVAL_S) == [message("count", b"3")]
    assert pacing.due(10.0) == []


def test_a_value_that_came_back_to_what_was_told_is_no_news() -> None:
    pacing = Pacing()
    pacing.note(message("count", b"0"))
    assert pacing.due(0.0) == [message("count", b"0")]
    pacing.note(message("count", b"1"))
    pacing.note(message("count", b"0"))
    assert pacing.due(9.0) == []


def test_rates_are_those_since_they_were_last_asked() -> None:
    meter = FlowMeter()
    assert meter.rates() == {}
    meter.note({"gate": (100, 10)}, 1_000_000_000)
    meter.rates()
    meter.note({"gate": (150, 20)}, 6_000_000_000)
    assert meter.rates() == {"gate": CameraFlow(fps_in=10.0, fps_out=8.0, dropped=20)}


def test_the_first_rates_are_those_since_the_first_counters() -> None:
    meter = FlowMeter()
    for at_s, came in ((1, 10), (2, 20), (3, 30)):
        meter.note({"gate": (came, 0)}, at_s * 1_000_000_000)
    assert meter.rates() == {"gate": CameraFlow(fps_in=10.0, fps_out=10.0, dropped=0)}


def test_counters_that_began_again_count_from_zero() -> None:
    meter = FlowMeter()
    meter.note({"gate": (100, 0)}, 1_000_000_000)
    meter.rates()
    meter.note({"gate": (20, 5)}, 2_000_000_000)
    assert meter.rates() == {"gate": CameraFlow(fps_in=20.0, fps_out=15.0, dropped=5)}

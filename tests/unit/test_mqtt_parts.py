"""Small parts of the MQTT client that need no broker."""

from __future__ import annotations

import shutil
import threading
import time
from collections import deque
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.certificates import Authority, needs_openssl
from zhcedge.app.broker_settings import broker_settings
from zhcedge.app.passwords import read_password, secret_file
from zhcedge.config.load import load_text
from zhcedge.core.delivery import Message
from zhcedge.core.errors import ConfigError
from zhcedge.publish.agenda import Agenda
from zhcedge.publish.certificates import file_validity, validity
from zhcedge.publish.clones import CloneWatch
from zhcedge.publish.courier import HISTORICAL_S, Courier
from zhcedge.publish.in_flight import InFlight, Outgoing
from zhcedge.publish.limits import BrokerLimits, packet_bytes
from zhcedge.publish.settings import BrokerSettings
from zhcedge.store.memory import MemoryOutbox

BASE = "device: box\nchannels: {a: {source: {uri: 'pattern:x'}}}\n"


# -- certificates ----------------------------------------------------------------------------------------------
@needs_openssl
def test_a_chain_is_valid_as_long_as_all_of_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    soon, late = (
        authority.sign("soon", begins_days=-3, ends_days=5),
        authority.sign("late", begins_days=-1, ends_days=9),
    )
    chain = tmp_path / "chain.pem"
    chain.write_text("a comment\n" + late.chain.read_text() + soon.chain.read_text())
    found, now = file_validity(chain), datetime.now(timezone.utc)
    minute = timedelta(minutes=1)
    assert abs(found.ends - (now + timedelta(days=5))) < minute
    assert abs(found.begins - (now - timedelta(days=1))) < minute


@needs_openssl
def test_dates_of_the_next_century_are_read(tmp_path: Path) -> None:
    # From 2050 on they are written in another way (RFC 5280, 4.1.2.5).
    far = Authority(tmp_path / "ca").sign("far", ends_days=36_500)
    assert file_validity(far.chain).ends.year > 2100


@given(st.binary(max_size=200))
def test_bytes_that_are_no_certificate_are_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"certificate|ascii|time data|unconverted"):
        validity(data)


# -- agenda ----------------------------------------------------------------------------------------------------
def test_things_are_done_in_order_of_their_time_until_the_end() -> None:
    agenda, done = Agenda(), list[str]()
    agenda.after(0.02, lambda: done.append("second"))
    agenda.after(0.0, lambda: done.append("first"))
    agenda.after(0.03, agenda.end)
    agenda.after(60.0, lambda: done.append("never"))
    agenda.run()
    assert done == ["first", "second"]


def test_something_sooner_wakes_the_sleeper() -> None:
    agenda = Agenda()
    agenda.after(60.0, agenda.end)
    thread = threading.Thread(target=agenda.run)
    thread.start()
    agenda.after(0.0, agenda.end)
    thread.join(30.0)
    assert not thread.is_alive()


# -- clones ----------------------------------------------------------------------------------------------------
def watch(*ends: tuple[float, float, bool, bool]) -> list[bool]:
    one = CloneWatch()
    return [
        one.note_end(at_s, lasted_s, was_taken_over=taken, was_closed=closed) for at_s, lasted_s, taken, closed in ends
    ]


def test_three_sessions_taken_over_within_a_minute_show_a_clone() -> None:
    assert watch((0, 5, True, False), (20, 5, True, False), (59, 5, True, False)) == [False, False, True]
    assert watch((0, 5, True, False), (20, 5, True, False), (61, 5, True, False)) == [False, False, False]


def test_other_losses_show_none() -> None:
    assert not any(watch(*[(at, 100, False, True) for at in range(9)]))  # they lasted
    assert not any(watch(*[(at, 1, False, False) for at in range(9)]))  # not the broker's doing
    assert watch(*[(at, 1, False, True) for at in range(3)])[-1]


# -- what is in flight -----------------------------------------------------------------------------------------
@given(
    st.lists(
        st.tuples(st.sampled_from(["enter", "queue", "answer", "feed"]), st.integers(0, 1), st.integers(1, 400_000))
    ),
    st.integers(1, 5),
)
def test_bounds_hold_and_queued_messages_go_first(steps: list[tuple[str, int, int]], receive_maximum: int) -> None:
    flight = InFlight()
    flight.set_limits(BrokerLimits(receive_maximum=receive_maximum))
    sent: deque[tuple[int, Outgoing]] = deque()
    queued: deque[Outgoing] = deque()
    for number, (step, qos, size) in enumerate(steps):
        entry = Outgoing(Message("t", b"", qos=qos), number, size)
        if step == "enter":
            if flight.enter(entry):
                assert not queued
                flight.note(number, entry)
                sent.append((number, entry))
        elif step == "queue":
            flight.queue([entry])
            queued.append(entry)
        elif step == "answer" and sent:
            packet, expected = sent.popleft()
            assert flight.answered(packet, None) is expected  # type: ignore[arg-type]
        elif step == "feed" and (first := flight.next_waiting()) is not None:
            assert first is queued.popleft()
            flight.note(number, first)
            flight.fed()
            sent.append((number, first))
        entries = [entry for _, entry in sent]
        assert sum(entry.message.qos for entry in entries) <= receive_maximum
        assert len(entries) <= 1 or sum(entry.size for entry in entries) <= 512 * 1024
        assert flight.progress[0] == len(sent)


@given(
    st.text(st.characters(codec="utf-8"), max_size=40), st.binary(max_size=300), st.booleans(), st.binary(max_size=40)
)
def test_a_packet_is_never_larger_than_said(topic: str, payload: bytes, expires: bool, correlation: bytes) -> None:
    from zhcedge.publish.wire import properties_of

    message = Message(topic, payload, expiry_s=60 if expires else None, correlation=correlation)
    properties = properties_of(message)
    packed = len(properties.pack()) if properties is not None else 1  # type: ignore[no-untyped-call]
    real = 1 + 4 + 2 + len(topic.encode()) + 2 + packed + len(payload)
    assert real <= packet_bytes(message) <= real + 3


# -- courier ---------------------------------------------------------------------------------------------------
class OldClock:
    """A wall clock that is ahead by some seconds."""

    def __init__(self, ahead_s: float) -> None:
        self._ahead_ns = int(ahead_s * 1e9)

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        return time.time_ns() + self._ahead_ns

    def is_synced(self) -> bool:
        return True


class TakingBroker:
    """Takes everything."""

    is_connected, session, protocol = True, 1, 5

    def __init__(self) -> None:
        self.taken: list[Message] = []

    def start(self) -> None: ...

    def publish(self, message: Message, token: int = 0, session: int = 0) -> bool:
        self.taken.append(message)
        return True

    def hurry(self) -> None: ...

    def stop(self, last: object, timeout_s: float) -> None: ...


@pytest.mark.parametrize(
    ("ahead_s", "word"), [(HISTORICAL_S + 1, b"true"), (HISTORICAL_S - 5, b"false"), (-99, b"false")]
)
def test_an_event_that_has_waited_is_one_of_the_past(ahead_s: float, word: bytes) -> None:
    outbox, broker = MemoryOutbox(10), TakingBroker()
    outbox.append(Message("events", b'{"seq":1,"historical":false}'))
    Courier(outbox, OldClock(ahead_s)).pump(broker)
    assert [message.payload for message in broker.taken] == [b'{"seq":1,"historical":' + word + b"}"]


def test_the_loop_is_woken_once_for_many_answers() -> None:
    outbox, broker = MemoryOutbox(10), TakingBroker()
    courier = Courier(outbox)
    assert [courier.on_ack(1), courier.on_ack(2), courier.on_refused(3, "no")] == [True, False, False]
    courier.pump(broker)
    assert courier.on_ack(4)


# -- configuration ---------------------------------------------------------------------------------------------
def settings_of(text: str) -> BrokerSettings:
    return broker_settings(load_text(BASE + text, "c.yaml").config)


@pytest.mark.parametrize(("text", "protocol"), [("5", "5"), ("'5'", "5"), ("3.1.1", "3.1.1"), ("auto", "auto")])
def test_versions_are_taken_as_they_are_written(text: str, protocol: str) -> None:
    assert settings_of(f"mqtt: {{protocol: {text}}}").protocol == protocol


def test_brokers_are_tried_in_the_order_of_the_file() -> None:
    settings = settings_of("mqtt: {host: a, fallbacks: [{host: b, port: 8883}, {host: 'fe80::1'}]}")
    assert [one.address for one in settings.brokers] == ["a:1883", "b:8883", "[fe80::1]:1883"]


def test_a_key_needs_a_certificate() -> None:
    with pytest.raises(ConfigError, match="a key needs a certificate_file beside it"):
        settings_of("mqtt: {tls: {key_file: k}}")


def test_credentials_of_systemd_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mqtt-password").write_text("s3cret\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    settings = settings_of("mqtt: {username: u, password_file: 'credential:mqtt-password'}")
    assert settings.password == "s3cret"
    assert "s3cret" not in repr(settings)
    for name in ("../mqtt-password", "", ".."):
        with pytest.raises(ConfigError, match="no credential's name"):
            secret_file(Path(f"credential:{name}"), "mqtt.password_file")
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    with pytest.raises(ConfigError, match="LoadCredential=mqtt-password"):
        read_password(Path("credential:mqtt-password"), "mqtt.password_file")


@needs_openssl
def test_files_of_tls_stand_beside_the_configuration(tmp_path: Path) -> None:
    from zhcedge.config.load import load

    authority = Authority(tmp_path / "ca")
    client = authority.sign("box")
    shutil.copy(client.chain, tmp_path / "own.pem")
    shutil.copy(client.key, tmp_path / "own.key")
    file = tmp_path / "c.yaml"
    tls = "{enabled: true, ca_file: ca/ca.pem, certificate_file: own.pem, key_file: own.key}"
    file.write_text(BASE + f"mqtt: {{tls: {tls}}}\n")
    found = broker_settings(load(file, []).config).tls
    assert found is not None
    assert (found.ca_file, found.key_file) == (authority.file, tmp_path / "own.key")
    file.write_text(BASE + "mqtt: {tls: {enabled: true, ca_file: own.key}}\n")
    with pytest.raises(ConfigError, match="name a PEM file"):
        broker_settings(load(file, []).config)

"""MqttBroker against real brokers of every sort: versions, TLS, client certificates, access lists, limits."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.contract.brokers import (
    HOST,
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
from tests.contract.certificates import Authority, Certificate, needs_openssl
from tests.contract.mqtt_device import STOPPED, TOPICS, Device, device
from zhcedge.core.delivery import Incoming, Message
from zhcedge.core.errors import ConfigError
from zhcedge.publish import proof
from zhcedge.publish.mqtt import MqttBroker
from zhcedge.publish.settings import BrokerSettings, TlsSettings
from zhcedge.publish.tls import make_context

needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
needs_amqtt = pytest.mark.skipif(importlib.util.find_spec("amqtt") is None, reason="amqtt is not installed")
pytestmark = [pytest.mark.slow, needs_mosquitto, needs_openssl]

PASSWORD = "a-password-that-nobody-may-see"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates") / "ca")


@pytest.fixture(scope="module")
def server(authority: Authority) -> Certificate:
    return authority.sign("broker")


@pytest.fixture(scope="module")
def client(authority: Authority) -> Certificate:
    return authority.sign("box", ends_days=400)


ACL = f"topic readwrite {TOPICS.root}/#\npattern readwrite {TOPICS.root}/#\n"


# Pairwise: each protocol with each transport, each transport with and without an access list.
@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
@pytest.mark.parametrize(
    ("transport", "has_acl"), [("plain", True), ("plain", False), ("tls", True), ("tls", False), ("mutual", True)]
)
def test_events_and_commands_pass(
    tmp_path: Path,
    authority: Authority,
    server: Certificate,
    client: Certificate,
    protocol: str,
    transport: str,
    has_acl: bool,
) -> None:
    more: dict[str, Any] = {}
    tls = None
    if transport != "plain":
        more["tls"] = server
        tls = TlsSettings(ca_file=authority.file)
    if transport == "mutual":
        more["client_ca"] = authority.file
        tls = TlsSettings(ca_file=authority.file, certificate_file=client.chain, key_file=client.key)
    with running(lambda folder: start_mosquitto(folder, acl=ACL if has_acl else "", **more), tmp_path) as broker:
        command = f"{TOPICS.root}/detect/set"
        with device(broker.port, protocol=protocol, tls=tls, subscriptions=(command,)) as one:
            one.add(range(50))
            one.pump_until(0)
            assert one.broker.protocol == int(protocol[0])
            one.broker.publish(Message(command, b"ON"))
            wait_until(lambda: bool(one.incoming), "our own command")
            heard = one.incoming[0]
            assert (heard.topic, heard.payload, heard.protocol) == (command, b"ON", int(protocol[0]))
            assert not heard.is_retained
    assert (one.problems, one.alerts, one.refused) == ([], [], {})


@needs_amqtt
def test_a_broker_that_knows_no_5_is_remembered_as_such(tmp_path: Path) -> None:
    with running(start_amqtt, tmp_path) as broker, contextlib.closing(CuttingProxy(broker.port)) as proxy:
        with device(proxy.port) as one:
            one.wait_connected()
            assert (one.broker.protocol, proxy.accepted) == (3, 2)
            proxy.cut()
            wait_until(lambda: one.connects == 2, "the second session")
            assert (one.broker.protocol, proxy.accepted) == (3, 3)
        assert len(one.problems) == 1  # of the cut
        with device(broker.port, protocol="5") as other:
            wait_until(lambda: bool(other.problems), "a refusal")
            assert other.connects == 0


# -- TLS -------------------------------------------------------------------------------------------------------
def told(port: int, **more: Any) -> str:
    """The problem that keeps a device from connecting."""
    with device(port, connect_timeout_s=10.0, **more) as one:
        wait_until(lambda: bool(one.problems), "a problem")
        assert one.connects == 0
        return one.problems[0]


@pytest.mark.parametrize(
    ("begins", "ends", "names", "words"),
    [
        (-10, -1, "IP:127.0.0.1", ("has expired on 20", "this device's clock says 20")),
        (2, 9, "IP:127.0.0.1", ("is not valid before 20", "this device's clock says 20", "set the clock")),
        (-1, 9, "DNS:elsewhere.example", ("is not for '127.0.0.1'", "mqtt.tls.server_name")),
    ],
    ids=["expired", "not yet valid", "other name"],
)
def test_a_broker_with_a_wrong_certificate_is_refused(
    tmp_path: Path, authority: Authority, begins: float, ends: float, names: str, words: tuple[str, ...]
) -> None:
    wrong = authority.sign("wrong", names, begins_days=begins, ends_days=ends)
    with running(lambda folder: start_mosquitto(folder, tls=wrong), tmp_path) as broker:
        problem = told(broker.port, tls=TlsSettings(ca_file=authority.file))
        assert problem.startswith(f"{HOST}:{broker.port}: the MQTT broker's certificate ")
        for word in words:
            assert word in problem


def test_another_name_can_be_asked_for(tmp_path: Path, authority: Authority) -> None:
    other = authority.sign("other", "DNS:elsewhere.example")
    with (
        running(lambda folder: start_mosquitto(folder, tls=other), tmp_path) as broker,
        device(broker.port, tls=TlsSettings(ca_file=authority.file, server_name="elsewhere.example")) as one,
    ):
        one.wait_connected()


def test_an_authority_that_nobody_knows_is_refused(tmp_path: Path, server: Certificate) -> None:
    stranger = Authority(tmp_path / "stranger", "Stranger")
    with running(lambda folder: start_mosquitto(folder, tls=server), tmp_path) as broker:
        for tls in (TlsSettings(ca_file=stranger.file), TlsSettings()):
            assert "signed by an authority that this device does not know" in told(broker.port, tls=tls)


@pytest.mark.parametrize("version", ["tlsv1.2", "tlsv1.3"])
def test_a_broker_that_wants_another_certificate_says_so(
    tmp_path: Path, authority: Authority, server: Certificate, version: str
) -> None:
    stranger = Authority(tmp_path / "stranger", "Stranger").sign("box")

    def start(folder: Path) -> RunningBroker:
        return start_mosquitto(folder, tls=server, client_ca=authority.file, more=[f"tls_version {version}"])

    with running(start, tmp_path) as broker:
        ca = authority.file
        assert "wants a client certificate" in told(broker.port, tls=TlsSettings(ca_file=ca))
        own = TlsSettings(ca_file=ca, certificate_file=stranger.chain, key_file=stranger.key)
        assert "refuses our certificate" in told(broker.port, tls=own)


def test_tls_against_none_and_none_against_tls(tmp_path: Path, authority: Authority, server: Certificate) -> None:
    with running(start_mosquitto, tmp_path) as broker:
        problem = told(broker.port, tls=TlsSettings(ca_file=authority.file))
        assert "TLS" in problem
        assert "mqtt.port" in problem or "on this port" in problem
    with running(lambda folder: start_mosquitto(folder, tls=server), tmp_path) as broker:
        problem = told(broker.port)
        assert "hangs up" in problem
        assert "mqtt.tls.enabled" in problem


def test_certificates_that_expire_soon_are_told_once(tmp_path: Path, authority: Authority) -> None:
    soon, own = authority.sign("soon", ends_days=20.5), authority.sign("own", ends_days=1.5)
    tls = TlsSettings(ca_file=authority.file, certificate_file=own.chain, key_file=own.key)
    with (
        running(lambda folder: start_mosquitto(folder, tls=soon, client_ca=authority.file), tmp_path) as broker,
        contextlib.closing(CuttingProxy(broker.port)) as proxy,
        device(proxy.port, tls=tls) as one,
    ):
        wait_until(lambda: len(one.alerts) == 2, "both alerts")
        theirs, ours = one.alerts
        assert (theirs.code, theirs.severity, ours.severity) == ("certificate-expires", "warning", "error")
        assert f"MQTT broker {HOST}:{proxy.port} expires on 20" in theirs.text
        assert "in 20 days" in theirs.text
        assert str(own.chain) in ours.text
        proxy.cut()
        wait_until(lambda: one.connects == 2, "the second session")
        assert len(one.alerts) == 2


def test_files_that_can_not_be_used_are_named(tmp_path: Path, authority: Authority, client: Certificate) -> None:
    other, nothing = authority.sign("another"), tmp_path / "nothing"
    nothing.write_text("no PEM")
    locked = authority.encrypt(client, PASSWORD)
    cases: list[tuple[TlsSettings, str]] = [
        (TlsSettings(ca_file=tmp_path / "absent"), "absent: can't be read: No such file"),
        (TlsSettings(ca_file=nothing), "nothing: "),
        (TlsSettings(certificate_file=nothing), "nothing: holds no certificate"),
        (TlsSettings(certificate_file=client.chain), "holds no private key"),
        (TlsSettings(certificate_file=client.chain, key_file=nothing), "nothing: holds no private key"),
        (TlsSettings(certificate_file=client.chain, key_file=other.key), "the key does not belong to the certificate"),
        (TlsSettings(certificate_file=client.chain, key_file=locked), "the key is encrypted"),
        (TlsSettings(None, client.chain, locked, lambda: PASSWORD + "x"), "can't be decrypted with this password"),
    ]
    for settings, words in cases:
        with pytest.raises(ConfigError) as caught:
            make_context(settings)
        assert words in str(caught.value)
        assert PASSWORD not in str(caught.value)
    make_context(TlsSettings(None, client.chain, locked, lambda: PASSWORD))


def test_secrets_are_in_no_text(tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server, own = authority.sign("b"), authority.sign("c")
    tls = TlsSettings(authority.file, own.chain, authority.encrypt(own, PASSWORD), lambda: PASSWORD)

    def start(folder: Path) -> RunningBroker:
        return start_mosquitto(folder, users={"camera": "another"}, tls=server)

    with running(start, tmp_path) as broker:
        one = Device(broker.port, username="camera", password=PASSWORD, tls=tls)
        one.broker.start()
        wait_until(lambda: bool(one.problems), "the refusal")
        one.broker.stop([STOPPED], 5.0)
    texts = [repr(one.broker), repr(one.broker._settings), repr(vars(one.broker)), *one.problems, caplog.text]
    assert not any(PASSWORD in text for text in texts)


# -- what a broker forbids -------------------------------------------------------------------------------------
def test_5_tells_what_is_forbidden_and_the_message_is_set_aside(tmp_path: Path) -> None:
    acl = f"topic readwrite {TOPICS.root}/#\ntopic deny {TOPICS.events}\n"
    with running(lambda folder: start_mosquitto(folder, acl=acl), tmp_path) as broker, device(broker.port) as one:
        one.add(range(3))
        one.add(range(3, 5), topic=TOPICS.alerts)
        one.pump_until(0)
        assert one.outbox.refused == 3
        assert set(one.refused.values()) == {"Not authorized"}
        assert one.codes() == ["publish-denied"]
        assert TOPICS.events in one.alerts[0].text


@pytest.mark.parametrize(
    "acl",
    [f"topic readwrite {TOPICS.root}/#\ntopic deny {TOPICS.events}\n", f"topic write {TOPICS.root}/#\n"],
    ids=["may not write", "may not read"],
)
def test_3_1_1_keeps_what_is_acknowledged_and_not_passed_on(
    tmp_path: Path, acl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "PROOF_S", 0.3)
    monkeypatch.setattr(proof, "RETRY_S", 0.3)
    port = free_port()
    with running(lambda folder: start_mosquitto(folder, port, acl=acl), tmp_path):
        one = Device(port, protocol="3.1.1")
        one.broker.start()
        one.add(range(5))
        alert = one.wait_alert("publish-denied")
        assert TOPICS.events in alert.text
        assert one.outbox.depth == 5
        assert one.codes() == ["publish-denied"]
    # The operator mends it: everything arrives, in order, and the alert is over.
    with running(lambda folder: start_mosquitto(folder, port), tmp_path), Subscriber(port) as subscriber:
        one.pump_until(0)
        one.broker.stop([STOPPED], 5.0)
        subscriber.wait_for("available", b"stopped")
        assert list(dict.fromkeys(subscriber.payloads("events"))) == [b"%d" % number for number in range(5)]
    assert one.codes() == ["publish-denied", "-publish-denied"]


def test_3_1_1_without_the_check_believes_the_broker(tmp_path: Path) -> None:
    with (
        running(lambda folder: start_mosquitto(folder, acl=f"topic write {TOPICS.root}/#\n"), tmp_path) as broker,
        device(broker.port, protocol="3.1.1", checks_delivery=False) as one,
    ):
        one.add(range(5))
        one.pump_until(0)
        assert one.alerts == []


# -- limits ----------------------------------------------------------------------------------------------------
def test_a_broker_that_takes_few_and_small_messages_gets_no_others(tmp_path: Path) -> None:
    lines = ["max_inflight_messages 3", "max_packet_size 400"]
    with (
        running(lambda folder: start_mosquitto(folder, more=lines), tmp_path) as broker,
        Subscriber(broker.port) as subscriber,
    ):
        one = Device(broker.port)
        one.retained = [Message(f"{TOPICS.root}/many/{number}", b"x", retain=True) for number in range(30)]
        one.retained.append(Message(f"{TOPICS.root}/large", b"x" * 500, retain=True))
        one.broker.start()
        one.add(range(20))
        one.outbox.append(Message(TOPICS.events, b"x" * 400))
        one.add(range(20, 40))
        one.pump_until(0)
        one.broker.stop([STOPPED], 5.0)
        subscriber.wait_for("available", b"stopped")
        heard = [message.topic.rpartition("/")[2] for message in subscriber.heard]
    assert heard == ["state", *map(str, range(30)), "available", *["events"] * 40, "available"]
    assert (one.connects, one.outbox.refused) == (1, 1)
    assert one.refused == {21: "larger than the 400 bytes that the MQTT broker takes"}
    assert len(one.problems) == 1
    assert f"{TOPICS.root}/large" in one.problems[0]


@pytest.mark.parametrize(
    ("line", "words"), [("max_qos 0", "acknowledges no message"), ("retain_available false", "keeps no retained")]
)
def test_a_broker_that_lacks_something_is_used_and_told_of(tmp_path: Path, line: str, words: str) -> None:
    with (
        running(lambda folder: start_mosquitto(folder, more=[line]), tmp_path) as broker,
        Subscriber(broker.port) as subscriber,
        device(broker.port) as one,
    ):
        one.add(range(10))
        one.pump_until(0)
        subscriber.wait_for("events", b"9")
        assert one.codes() == ["broker-limits"]
        assert words in one.alerts[0].text
        assert one.broker.protocol == 5


def test_5_carries_expiry_and_correlation(tmp_path: Path) -> None:
    found: list[Any] = []
    with running(start_mosquitto, tmp_path) as broker:
        listener = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        listener.on_message = lambda client, userdata, message: found.append(message.properties)
        listener.connect(HOST, broker.port)
        listener.subscribe("answers")
        listener.loop_start()
        wait_until(listener.is_connected, "the listener")
        with device(broker.port) as one:
            one.wait_connected()
            message = Message("answers", b"x", expiry_s=60, correlation=b"\x00\xff")

            def is_heard() -> bool:  # the subscription may come later than the first one
                one.broker.publish(message)
                return bool(found)

            wait_until(is_heard, "the answer")
        listener.disconnect()
        listener.loop_stop()
    assert found[0].CorrelationData == b"\x00\xff"
    assert 0 < found[0].MessageExpiryInterval <= 60


def test_5_keeps_commands_while_the_device_is_away(tmp_path: Path) -> None:
    command = f"{TOPICS.root}/detect/set"
    with (
        running(start_mosquitto, tmp_path) as broker,
        contextlib.closing(CuttingProxy(broker.port)) as proxy,
        device(proxy.port, subscriptions=(command,)) as one,
        device(broker.port, client_id="other") as other,
    ):

        def is_heard() -> bool:  # the subscription comes later than the connection
            other.broker.publish(Message(command, b"ON"))
            return bool(one.incoming)

        wait_until(is_heard, "the first command")
        proxy.close()
        wait_until(lambda: not one.broker.is_connected, "the loss")
        assert other.broker.publish(Message(command, b"OFF"))
        again = Device(broker.port, subscriptions=(command,))
        again.broker.start()
        wait_until(lambda: b"OFF" in [incoming.payload for incoming in again.incoming], "the command")
        again.broker.stop([], 5.0)


def test_a_handler_that_fails_ends_the_session_and_not_the_client(tmp_path: Path) -> None:
    command, problems = f"{TOPICS.root}/detect/set", list[str]()

    def fail(incoming: Incoming) -> None:
        raise ZeroDivisionError("on purpose")

    with running(start_mosquitto, tmp_path) as broker:
        settings = BrokerSettings(HOST, broker.port, "box", reconnect_min_s=0.02, reconnect_max_s=0.1)
        one = MqttBroker(settings, STOPPED, list, subscriptions=(command,), on_message=fail, on_problem=problems.append)
        one.start()
        wait_until(lambda: one.is_connected, "a session")
        first = one.session

        def is_begun_again() -> bool:  # the subscription may come later than the first one
            one.publish(Message(command, b"ON"))
            return one.session > first

        wait_until(is_begun_again, "the next session")
        one.stop([], 5.0)
    assert "ZeroDivisionError: on purpose" in problems[0]

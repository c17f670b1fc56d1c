"""`zhc-edge mqtt test` against real brokers: which step breaks, and what to do."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.contract.brokers import (
    HOST,
    Subscriber,
    find_mosquitto,
    free_port,
    running,
    start_amqtt,
    start_mosquitto,
    wait_until,
)
from tests.contract.certificates import Authority, needs_openssl
from tests.contract.mqtt_device import device
from zhcedge.cli import main

pytestmark = pytest.mark.slow  # processes, servers and sockets: minutes in all

needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
needs_amqtt = pytest.mark.skipif(importlib.util.find_spec("amqtt") is None, reason="amqtt is not installed")

STEPS = ["resolve", "connect", "tls", "mqtt", "subscribe", "publish", "permissions"]


def outcome(capsys: pytest.CaptureFixture[str], tmp_path: Path, **mqtt: Any) -> tuple[int, dict[str, dict[str, str]]]:
    """Exit code, and the steps towards the first broker by name."""
    mqtt = {"host": HOST, "connect_timeout_s": 5, "topic_prefix": "not-the-contract", **mqtt}
    config = tmp_path / "test.json"  # JSON is YAML
    config.write_text(
        json.dumps({"device": "box", "channels": {"a": {"source": {"uri": "pattern:x"}}}, "mqtt": mqtt}, default=str)
    )
    code = main(["mqtt", "test", "--json", "-c", str(config)])
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] == (code == 0)
    steps = {step["name"]: step for step in document["brokers"][0]["steps"]}
    assert list(steps) == STEPS
    return code, steps


def broken(steps: dict[str, dict[str, str]]) -> str:
    """Name of the step that failed; those before it were good, those behind it were not tried."""
    results = [step["result"] for step in steps.values()]
    at = results.index("failed")
    assert results == ["ok"] * at + ["failed"] + ["skipped"] * (len(STEPS) - at - 1)
    return STEPS[at]


@needs_mosquitto
@pytest.mark.parametrize("protocol", ["auto", "3.1.1"])
def test_every_step_is_good(tmp_path: Path, capsys: pytest.CaptureFixture[str], protocol: str) -> None:
    with running(start_mosquitto, tmp_path) as broker, Subscriber(broker.port) as subscriber:
        with device(broker.port, client_id="zhc-edge-box") as daemon:
            daemon.wait_connected()
            code, steps = outcome(capsys, tmp_path, port=broker.port, protocol=protocol)
            assert daemon.connects == 1  # it keeps its session
            assert daemon.problems == []
        assert code == 0
        assert steps["mqtt"]["text"].startswith("MQTT 5; takes 20" if protocol == "auto" else "MQTT 3.1.1")
        wait_until(lambda: bool(subscriber.payloads("/test")), "the test message")
        tests = [message for message in subscriber.heard if message.topic.endswith("/test")]
        assert [(message.topic, message.retain) for message in tests] == [("not-the-contract/box/test", False)]


@needs_amqtt
def test_a_broker_of_3_1_1_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(start_amqtt, tmp_path) as broker:
        code, steps = outcome(capsys, tmp_path, port=broker.port)
        assert code == 0
        assert steps["mqtt"]["text"].startswith("MQTT 3.1.1")


@needs_mosquitto
@needs_openssl
def test_tls_says_who_signed_and_until_when(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority = Authority(tmp_path / "ca", "Yard Authority")
    server, client = authority.sign("broker", ends_days=40.5), authority.sign("box", ends_days=9.5)
    tls = {"enabled": True, "ca_file": authority.file}
    own = {"certificate_file": client.chain, "key_file": client.key}
    with running(lambda folder: start_mosquitto(folder, tls=server, client_ca=authority.file), tmp_path) as broker:
        code, steps = outcome(capsys, tmp_path, port=broker.port, tls={**tls, **own})
        assert code == 0
        assert "broker: broker, signed by Yard Authority, valid until 20" in steps["tls"]["text"]
        assert "(40 days); our certificate valid until 20" in steps["tls"]["text"]

        code, steps = outcome(capsys, tmp_path, port=broker.port, tls={"enabled": True})
        assert (code, broken(steps)) == (69, "tls")
        assert "does not know" in steps["tls"]["text"]
        assert "mqtt.tls.ca_file" in steps["tls"]["fix"]

        code, steps = outcome(capsys, tmp_path, port=broker.port, tls=tls)
        assert broken(steps) == "mqtt"
        assert "wants a client certificate" in steps["mqtt"]["text"]


@needs_mosquitto
@pytest.mark.parametrize(
    ("acl", "protocol", "step", "words"),
    [
        ("topic read #\n", "5", "publish", "forbids publishing to not-the-contract/box/test (Not authorized)"),
        ("topic read #\n", "3.1.1", "permissions", "does not come back"),
        ("topic write #\n", "5", "permissions", "does not come back"),
    ],
)
def test_missing_rights_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], acl: str, protocol: str, step: str, words: str
) -> None:
    with running(lambda folder: start_mosquitto(folder, acl=acl), tmp_path) as broker:
        code, steps = outcome(capsys, tmp_path, port=broker.port, protocol=protocol)
    assert (code, broken(steps)) == (69, step)
    assert words in steps[step]["text"]
    assert "access to its topics" in steps[step]["fix"]


@needs_mosquitto
def test_a_wrong_password_breaks_the_login(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    password = tmp_path / "password"
    password.write_text("wrong-secret\n")
    with running(lambda folder: start_mosquitto(folder, users={"camera": "right"}), tmp_path) as broker:
        mqtt = {"port": broker.port, "username": "camera", "password_file": password}
        code, steps = outcome(capsys, tmp_path, **mqtt)
    assert (code, broken(steps)) == (69, "mqtt")
    assert "refuses user 'camera'" in steps["mqtt"]["text"]
    assert "wrong-secret" not in json.dumps(steps)


def test_a_name_and_a_port_that_lead_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, steps = outcome(capsys, tmp_path, host="no-such-host.invalid")
    assert (code, broken(steps)) == (69, "resolve")
    code, steps = outcome(capsys, tmp_path, port=free_port())
    assert (code, broken(steps)) == (69, "connect")
    assert "nothing listens there" in steps["connect"]["text"]


@needs_mosquitto
def test_each_broker_is_tried_and_shown_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    away = free_port()
    config = tmp_path / "c.yaml"
    with running(start_mosquitto, tmp_path) as broker:
        config.write_text(
            "device: box\nchannels: {a: {source: {uri: 'pattern:x'}}}\n"
            f"mqtt: {{port: {away}, fallbacks: [{{host: {HOST}, port: {broker.port}}}], topic_prefix: other}}\n"
        )
        assert main(["mqtt", "test", "-c", str(config)]) == 69
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{HOST}:{away}"
    assert lines[2].split(maxsplit=2)[:2] == ["connect", "failed"]
    second = lines.index(f"{HOST}:{broker.port}")
    assert [line.split()[:2] for line in lines[second + 1 :]] == [[step, "ok"] for step in STEPS]

"""The real daemon and a real broker: what is sent to .../set happens, is answered, and stands on .../state."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.contract.brokers import HOST, PATIENCE_S, find_mosquitto, running, start_mosquitto, wait_until
from tests.contract.messages import assert_conforms, is_ours
from tests.system.test_run import children_of, started, write_config

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed"),
]  # processes and servers: minutes in all

REPLIES = "zhcedge/client/replies"
CLIP = {"uri": "clip:walkers", "realtime": True, "loop": True}


@dataclass
class Commander:
    """A client with MQTT 5 that sends commands, hears everything and holds the device to its contract."""

    port: int
    heard: list[paho.MQTTMessage] = field(default_factory=list)
    _client: paho.Client = field(init=False)

    def __enter__(self) -> Commander:
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self._client.on_message = lambda client, userdata, message: self.heard.append(message)
        subscribed: list[object] = []
        self._client.on_connect = lambda client, *_: client.subscribe("zhcedge/#", qos=1)
        self._client.on_subscribe = lambda *_: subscribed.append(True)
        self._client.connect(HOST, self.port)
        self._client.loop_start()
        wait_until(lambda: bool(subscribed), "the subscription")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        for message in self.heard if kind is None else ():
            if is_ours(message.topic):
                assert_conforms(message.topic, bytes(message.payload), message.retain, message.qos)

    def ask(
        self, command: str, payload: bytes | object = b"", *, retain: bool = False, reply: str = REPLIES
    ) -> dict[str, object]:
        """Send a command, `command` being its topic below the device's, and wait for its answer."""
        mark = self.send(command, payload, retain=retain, reply=reply)

        def answers() -> list[paho.MQTTMessage]:
            return [m for m in list(self.heard) if getattr(m.properties, "CorrelationData", None) == mark]

        wait_until(lambda: any(m.topic == reply for m in answers()), f"an answer to {command}")
        (found,) = [m for m in answers() if m.topic == reply]
        said = json.loads(found.payload)
        assert isinstance(said, dict)
        return said

    def send(self, command: str, payload: bytes | object = b"", *, retain: bool = False, reply: str = "") -> bytes:
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        mark = uuid.uuid4().bytes
        if reply:
            properties.ResponseTopic = reply
            properties.CorrelationData = mark
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        topic = f"zhcedge/test/{command}/set"
        self._client.publish(topic, data, qos=1, retain=retain, properties=properties).wait_for_publish(PATIENCE_S)
        return mark

    def since(self, start: int, topic: str) -> list[bytes]:
        return [bytes(m.payload) for m in self.heard[start:] if m.topic == f"zhcedge/test/{topic}"]

    def latest(self, topic: str) -> bytes:
        return (self.since(0, topic) or [b""])[-1]

    def wait_for(self, topic: str, payload: bytes, start: int = 0) -> None:
        wait_until(lambda: payload in self.since(start, topic), f"{payload!r} on {topic}")

    def wait_active(self, start: int = 0) -> None:
        wait_until(
            lambda: any(json.loads(state)["phase"] == "active" for state in self.since(start, "state")),
            "the active phase",
        )

    def events(self, start: int) -> list[dict[str, object]]:
        return [json.loads(payload) for payload in self.since(start, "events")]

    def open_events(self) -> set[object]:
        """Ids of the events that have begun and not ended."""
        begun, ended = ({e["after"]["id"] for e in self.events(0) if e["type"] == kind} for kind in ("new", "end"))  # type: ignore[index]
        return begun - ended


@dataclass
class Site:
    """A broker, a daemon that is active, and a client."""

    client: Commander
    frame_pid: int


@contextlib.contextmanager
def site(folder: Path, **commands: object) -> Iterator[Site]:
    with running(start_mosquitto, folder) as broker, Commander(broker.port) as client:
        mqtt = {"port": broker.port, "snapshots": True, "commands": commands}
        changes: dict[str, object] = {"channels": {"gate": {"source": CLIP}}, "model": {"score_threshold": 0.4}}
        with started(write_config(folder, mqtt=mqtt, **changes)) as process:
            client.wait_active()
            yield Site(client, children_of(process.pid)[0])
            process.terminate()
            assert process.wait(PATIENCE_S) == 0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("site")) as made:
        yield made


def test_a_threshold_above_every_score_leaves_no_new_objects(shared: Site) -> None:
    client = shared.client
    assert client.ask("camera/gate/threshold", b"1")["value"] == "1"
    client.wait_for("camera/gate/threshold/state", b"1")
    wait_until(lambda: json.loads(client.latest("camera/gate/count"))["all"] == 0, "the objects to be gone")
    start = len(client.heard)
    assert client.ask("camera/gate/threshold", b"0.4")["ok"] is True
    wait_until(lambda: any(event["type"] == "new" for event in client.events(start)), "objects again")
    lowest = client.ask("camera/gate/threshold", b"0.01")
    assert (lowest["ok"], str(lowest["reason"])[:8]) == (False, "failed: ")
    client.wait_for("camera/gate/threshold/state", b"0.4", start)


def test_detection_off_ends_what_is_there_and_on_begins_anew(shared: Site) -> None:
    client = shared.client
    assert client.ask("camera/gate/detect", b"off")["value"] == "OFF"
    client.wait_for("camera/gate/detect/state", b"OFF")
    wait_until(lambda: client.open_events() == set(), "every event to have its end")
    wait_until(lambda: json.loads(client.latest("camera/gate/count"))["all"] == 0, "the objects to be gone")
    start = len(client.heard)
    assert client.ask("camera/gate/detect", b"ON")["ok"] is True
    wait_until(lambda: any(event["type"] == "new" for event in client.events(start)), "objects again")
    client.wait_for("camera/gate/detect/state", b"ON", start)


def test_a_frame_rate_is_in_force_until_the_next_one(shared: Site) -> None:
    client, start = shared.client, len(shared.client.heard)
    assert client.ask("camera/gate/fps", b"5")["value"] == "5"
    client.wait_for("camera/gate/fps/state", b"5")
    assert client.ask("camera/gate/fps", {"value": 0})["ok"] is True
    client.wait_for("camera/gate/fps/state", b"0", start)


def test_a_snapshot_comes_as_a_jpeg(shared: Site) -> None:
    client, start = shared.client, len(shared.client.heard)
    assert client.ask("camera/gate/snapshot", b"PRESS")["ok"] is True
    wait_until(lambda: bool(client.since(start, "camera/gate/snapshot")), "a picture")
    (picture,) = client.since(start, "camera/gate/snapshot")
    assert picture.startswith(b"\xff\xd8")


def test_a_rebirth_tells_everything_again(shared: Site) -> None:
    client, start = shared.client, len(shared.client.heard)
    assert client.ask("rebirth")["ok"] is True
    topics = ("state", "camera/gate/detect/state", "camera/gate/count")
    wait_until(lambda: all(client.since(start, topic) for topic in topics), "all of them again")


def test_retained_unknown_and_malformed_commands_are_answered_and_do_nothing(shared: Site) -> None:
    client = shared.client
    before = client.latest("camera/gate/detect/state")
    for command, payload, word in (
        ("camera/gate/detect", b"maybe", "malformed"),
        ("camera/gate/detect", b"\xff", "malformed"),
        ("camera/gate/detect", b"x" * 20_000, "oversized"),
        ("camera/gate/detect", {"value": "OFF", "id": "a", "time": 1}, "expired"),
        ("camera/absent/detect", b"OFF", "unknown-camera"),
        ("update", b"", "unknown-command"),
        ("cameras", {"remove": "gate"}, "not-allowed"),
    ):
        said = client.ask(command, payload)
        clock_is_off = word == "expired" and said["ok"]  # where nothing sets the clock, times are not judged
        assert clock_is_off or str(said["reason"]).startswith(f"{word}: "), said
    assert client.ask("camera/gate/detect", {"value": before.decode()})["ok"] is True


def test_the_same_id_is_carried_out_once(shared: Site) -> None:
    name = uuid.uuid4().hex
    first = shared.client.ask("rebirth", {"id": name})
    second = shared.client.ask("rebirth", {"id": name})
    assert (first["ok"], second["ok"], second["id"]) == (True, False, name)
    assert str(second["reason"]).startswith("replayed: ")


def test_a_command_that_the_broker_has_kept_is_refused_at_the_next_start(tmp_path: Path) -> None:
    with running(start_mosquitto, tmp_path) as broker, Commander(broker.port) as client:
        mark = client.send("camera/gate/detect", b"OFF", retain=True, reply=REPLIES)
        with started(write_config(tmp_path, channels={"gate": {"source": CLIP}}, mqtt={"port": broker.port})):

            def answers() -> list[str]:
                ours = [m for m in list(client.heard) if getattr(m.properties, "CorrelationData", None) == mark]
                return [json.loads(m.payload)["reason"] for m in ours if m.topic == REPLIES]

            wait_until(lambda: bool(answers()), "the refusal")
            assert answers()[0].startswith("retained: ")
            client.wait_active()
            assert client.latest("camera/gate/detect/state") == b"ON"


@pytest.mark.slow
def test_cameras_and_values_survive_a_killed_frame_process(tmp_path: Path) -> None:
    with site(tmp_path, allow=["cameras", "detect", "fps", "snapshot"]) as made:
        client = made.client
        assert client.ask("cameras", {"add": {"porch": {"source": CLIP}}})["ok"] is True
        assert client.ask("camera/gate/detect", b"OFF")["ok"] is True
        start = len(client.heard)
        os.kill(made.frame_pid, signal.SIGKILL)
        client.wait_active(start)
        wait_until(
            lambda: any(json.loads(said)["state"] == "up" for said in client.since(start, "camera/porch/status")),
            "the added camera",
        )
        # The frame process takes commands one after the other: what it was given at first is in force now.
        assert client.ask("camera/gate/fps", b"0")["ok"] is True
        assert client.ask("camera/gate/snapshot")["ok"] is True  # what was on its way until then has come
        wait_until(lambda: json.loads(client.latest("camera/gate/count"))["all"] == 0, "the objects to be gone")
        wait_until(lambda: not any(id.startswith("gate-") for id in client.open_events()), "the ends of their events")
        start = len(client.heard)
        assert client.ask("camera/gate/snapshot")["ok"] is True  # a second later
        assert [event for event in client.events(start) if event["after"]["camera"] == "gate"] == []  # type: ignore[index]
        assert client.ask("cameras", {"remove": "porch"})["ok"] is True
        client.wait_for("camera/porch/detect/state", b"")


def test_a_stop_leaves_nothing_behind_that_is_there_no_more(tmp_path: Path) -> None:
    with running(start_mosquitto, tmp_path) as broker, Commander(broker.port) as client:
        zone = {"everywhere": {"points": [[0, 0], [1, 0], [1, 1], [0, 1]]}}
        channels = {"gate": {"source": CLIP, "zones": zone}}
        with started(write_config(tmp_path, mqtt={"port": broker.port}, channels=channels)) as process:
            count, zone_count = "camera/gate/count", "camera/gate/zone/everywhere/count"
            for topic in (count, zone_count):
                wait_until(lambda topic=topic: json.loads(client.latest(topic) or b"{}").get("all", 0) > 0, topic)  # type: ignore[misc]
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
        wait_until(lambda: client.latest("available") == b"stopped", "the goodbye")
        assert client.open_events() == set()
        assert [json.loads(client.latest(topic))["all"] for topic in (count, zone_count)] == [0, 0]
        assert json.loads(client.latest("camera/gate/status"))["state"] == "ended"
        reasons = {event["end_reason"] for event in client.events(0) if event["type"] == "end"}
        assert "shutdown" in reasons
        assert reasons <= {"lost", "shutdown"}


def test_a_command_with_the_retain_flag_is_refused_also_when_it_comes_live(shared: Site) -> None:
    client = shared.client
    said = client.ask("camera/gate/fps", b"3", retain=True)
    client.send("camera/gate/fps", b"", retain=True)  # takes it back, which is no command
    assert (said["ok"], str(said["reason"])[:9]) == (False, "retained:")

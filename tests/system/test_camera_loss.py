"""The daemon and its cameras: away at the start, there, lost, back, refused. Real cameras, a real broker.

Its passwords are looked for in everything that the daemon says, at its most talkative.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml

from tests.contract.brokers import Subscriber, find_mosquitto, running, start_amqtt, start_mosquitto, wait_until
from tests.system.rtsp import Camera, Proxy, black_hole, bundled_stream, need_server

CLIP = Path(__file__).parents[2] / "zhcedge" / "data" / "walkers.mp4"
USER, PASSWORD = "viewer", "open@Sesame/Xylophone?"
SECRETS = ("Sesame", "Xylophone", base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode())
LOGIN = f"{USER}:{quote(PASSWORD, safe='')}@"
READ_TIMEOUT_S = 1.0
SOURCE = {"read_timeout_s": READ_TIMEOUT_S, "connect_timeout_s": 2.0, "fps": 5.0}


@dataclass
class Daemon:
    """`zhc-edge run` with DEBUG logs, and what it publishes."""

    process: subprocess.Popen[bytes]
    subscriber: Subscriber
    log: Path

    def states(self) -> list[dict[str, object]]:
        return [json.loads(payload) for payload in self.subscriber.states()]

    @property
    def degraded(self) -> list[str] | None:
        """What the latest state says is wrong; None while the daemon is not active."""
        states = self.states()
        if not states or states[-1]["phase"] != "active":
            return None
        reasons = states[-1]["degraded"]
        assert isinstance(reasons, list)
        return reasons

    def wait_for_degraded(self, *channels: str) -> None:
        """Wait until the state names these channels and no other, within 30 s."""

        def is_so() -> bool:
            reasons = self.degraded
            if reasons is None or len(reasons) != len(channels):
                assert self.process.poll() is None, self.log.read_text()
                return False
            return all(any(f"channel {name} is down" in reason for reason in reasons) for name in channels)

        wait_until(is_so, f"{channels or 'nothing'} to be degraded")

    def beginnings(self, channel: str) -> int:
        """Events of the channel that have begun so far."""
        events = [json.loads(payload) for payload in self.subscriber.payloads("/events")]
        return sum(event["type"] == "new" and event["after"]["camera"] == channel for event in events)

    def wait_for_events(self, *channels: str) -> None:
        """Wait until each of the channels has begun another event."""
        before = {name: self.beginnings(name) for name in channels}
        wait_until(lambda: all(self.beginnings(name) > before[name] for name in channels), f"events of {channels}")

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@contextmanager
def daemon(folder: Path, subscriber: Subscriber, channels: dict[str, dict[str, object]]) -> Iterator[Daemon]:
    """The daemon with these sources beside a clip, whose channel is called `clip`."""
    sources = {**channels, "clip": {"uri": "clip:walkers", "realtime": True, "loop": True}}
    config = {
        "device": "test",
        "channels": {name: {"source": source, "detect_interval": 2} for name, source in sources.items()},
        "pipeline": {"warmup_frames": 2},
        "tracker": {"max_lost_ms": 300},
        "mqtt": {"port": subscriber.port},
    }
    path, log = folder / "config.yaml", folder / "daemon.log"
    path.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "zhcedge", "run", "-c", str(path), "--log-level", "DEBUG"]
    outputs = ["--summary", str(folder / "summary.json"), "--trace", str(folder / "trace.json")]
    with log.open("wb") as output:
        process = subprocess.Popen([*command, *outputs], stdout=output, stderr=output, start_new_session=True)
    try:
        yield Daemon(process, subscriber, log)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def subscriber(tmp_path: Path) -> Iterator[Subscriber]:
    with (
        running(start_mosquitto if find_mosquitto() else start_amqtt, tmp_path) as broker,
        Subscriber(broker.port) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def walkers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_server()
    return bundled_stream(tmp_path_factory.mktemp("streams") / "walkers.ts", CLIP, 8)


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(PASSWORD + "\n")
    return path


def both_ways(camera: Camera, password_file: Path) -> dict[str, dict[str, object]]:
    """One camera twice: its password in the address, and in a file."""
    return {
        "gate": {**SOURCE, "uri": camera.address(login=LOGIN)},
        "yard": {**SOURCE, "uri": camera.address(), "username": USER, "password_file": str(password_file)},
    }


def assert_no_secret(folder: Path, subscriber: Subscriber) -> None:
    """Neither in logs, summary and trace, nor in any message, nor in what `check` prints."""
    checks = [
        subprocess.run(
            [sys.executable, "-m", "zhcedge", "check", "-c", str(folder / "config.yaml"), *options],
            capture_output=True,
            check=True,
        )
        for options in ([], ["--json"])
    ]
    said = {name: (folder / name).read_text() for name in ("daemon.log", "summary.json", "trace.json")}
    said |= {f"check {number}": (done.stdout + done.stderr).decode() for number, done in enumerate(checks)}
    said["MQTT"] = "\n".join(f"{message.topic} {message.payload!r}" for message in list(subscriber.heard))
    for where, text in said.items():
        assert text, where
        for secret in SECRETS:
            assert secret not in text, where
    assert "yard" in said["check 0"]


@pytest.mark.slow
def test_a_camera_that_is_away_comes_and_goes_while_the_others_run_on(
    tmp_path: Path, subscriber: Subscriber, walkers: Path, password_file: Path
) -> None:
    camera = Camera(walkers, "--user", USER, "--password", PASSWORD)
    with ExitStack() as stack:
        stack.callback(camera.kill)
        run = stack.enter_context(daemon(tmp_path, subscriber, both_ways(camera, password_file)))
        run.wait_for_degraded("gate", "yard")
        run.wait_for_events("clip")
        camera.start()
        run.wait_for_degraded()
        run.wait_for_events("gate", "yard")
        camera.kill()
        run.wait_for_degraded("gate", "yard")
        run.wait_for_events("clip")
        assert run.terminate() == 0, run.log.read_text()
    states = run.states()
    assert states[-1]["phase"] == "stopped"
    assert {state["phase"] for state in states}.isdisjoint({"failed"})
    assert_no_secret(tmp_path, subscriber)


@pytest.mark.slow
def test_silence_is_noticed_within_the_timeout_and_a_wrong_password_is_told_apart(
    tmp_path: Path, subscriber: Subscriber, walkers: Path, password_file: Path
) -> None:
    camera = Camera(walkers, "--user", USER, "--password", PASSWORD)
    with ExitStack() as stack:
        stack.enter_context(camera)
        proxy = stack.enter_context(Proxy(camera.port))
        channels = both_ways(camera, password_file)
        channels["yard"]["uri"] = proxy.address()
        run = stack.enter_context(daemon(tmp_path, subscriber, channels))
        run.wait_for_degraded()
        run.wait_for_events("gate", "yard")
        proxy.is_stalled = True  # nothing is closed: only the timeout can tell
        began_s = time.monotonic()
        run.wait_for_degraded("yard")
        assert time.monotonic() - began_s < READ_TIMEOUT_S + 10
        proxy.is_stalled = False
        run.wait_for_degraded()
        camera.kill()
        run.wait_for_degraded("gate", "yard")
        other = Camera(walkers, "--user", USER, "--password", "changed")
        other.port = camera.port
        stack.enter_context(other)
        wait_until(
            lambda: len([reason for reason in run.degraded or () if "password is wrong" in reason]) == 2,
            "the state to say why the cameras can't be had now",
        )
        assert run.terminate() == 0, run.log.read_text()
    assert_no_secret(tmp_path, subscriber)


@pytest.mark.slow
def test_a_camera_that_is_killed_again_and_again_is_back_within_30_s_each_time(
    tmp_path: Path, subscriber: Subscriber, walkers: Path
) -> None:
    with Camera(walkers) as camera, daemon(tmp_path, subscriber, {"gate": {**SOURCE, "uri": camera.address()}}) as run:
        for _ in range(4):
            run.wait_for_degraded()
            run.wait_for_events("gate", "clip")
            camera.kill()
            run.wait_for_degraded("gate")
            run.wait_for_events("clip")
            camera.start()
        run.wait_for_degraded()
        assert run.terminate() == 0, run.log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("is_active", [True, False], ids=["active", "initialising"])
def test_the_daemon_stops_in_time_although_a_camera_with_a_long_timeout_never_answers(
    tmp_path: Path, subscriber: Subscriber, is_active: bool
) -> None:
    with ExitStack() as stack:
        port = stack.enter_context(black_hole())
        proxy = stack.enter_context(Proxy(port))
        source = {"uri": proxy.address(), "connect_timeout_s": 14.0 if is_active else 300.0, "read_timeout_s": 300.0}
        run = stack.enter_context(daemon(tmp_path, subscriber, {"gate": source}))
        if is_active:
            run.wait_for_degraded("gate")
        wait_until(lambda: proxy.connections > is_active, "the camera to be tried")
        began_s = time.monotonic()
        assert run.terminate() == 0, run.log.read_text()
        assert time.monotonic() - began_s < 10
    assert run.states()[-1]["phase"] == "stopped"

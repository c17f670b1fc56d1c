"""Real brokers for tests, a proxy that cuts connections to them, and a subscriber that keeps what it hears."""

from __future__ import annotations

import contextlib
import getpass
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from tests.contract.certificates import Certificate
from tests.contract.messages import assert_conforms, is_ours

HOST = "127.0.0.1"
PATIENCE_S = 30.0
"""How long anything may take before a test gives up; what is waited for comes in milliseconds."""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Return once `condition` holds; AssertionError naming `what` when it does not come true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.005)


def free_port() -> int:
    with socket.create_server((HOST, 0)) as server:
        port: int = server.getsockname()[1]
        return port


def find_mosquitto() -> str | None:
    """Debian keeps it in sbin, which is not on every user's PATH."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


@dataclass
class RunningBroker:
    """A broker process on the loopback."""

    port: int
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def start_mosquitto(
    folder: Path,
    port: int = 0,
    users: dict[str, str] | None = None,
    *,
    tls: Certificate | None = None,
    client_ca: Path | None = None,
    acl: str = "",
    more: Sequence[str] = (),
) -> RunningBroker:
    """Start mosquitto without persistence.

    Args:
        users: name -> password; nobody else may connect.
        tls: its own certificate; without one it speaks in the clear.
        client_ca: who must have signed the clients' certificates; their common name is their user name.
        acl: lines of its access list.
        more: lines of its configuration.
    """
    port = port or free_port()
    lines = [f"listener {port} {HOST}", "persistence false", f"user {getpass.getuser()}", *more]
    if tls is not None:
        lines += [f"certfile {tls.chain}", f"keyfile {tls.key}"]
    if client_ca is not None:
        lines += [f"cafile {client_ca}", "require_certificate true", "use_identity_as_username true"]
    if users is None:
        lines.append("allow_anonymous true")
    else:
        password_file = folder / "passwords"
        password_file.touch(mode=0o600)
        for name, password in users.items():
            subprocess.run(["mosquitto_passwd", "-b", password_file, name, password], check=True)
        lines += ["allow_anonymous false", f"password_file {password_file}"]
    if acl:
        (folder / "acl").write_text(acl)
        (folder / "acl").chmod(0o600)
        lines.append(f"acl_file {folder / 'acl'}")
    config = folder / "mosquitto.conf"
    config.write_text("\n".join(lines) + "\n")
    return _launch([find_mosquitto() or "mosquitto", "-c", str(config)], port, folder)


def start_amqtt(folder: Path, port: int = 0) -> RunningBroker:
    """Start amqtt, the broker of machines without mosquitto."""
    port = port or free_port()
    config = folder / "amqtt.yaml"
    config.write_text(
        f"listeners:\n  default:\n    type: tcp\n    bind: {HOST}:{port}\n"
        "plugins:\n  amqtt.plugins.authentication.AnonymousAuthPlugin:\n    allow_anonymous: true\n"
    )
    command = [sys.executable, "-c", "from amqtt.scripts.broker_script import main; main()", "-c", str(config)]
    return _launch(command, port, folder)


def _launch(command: list[str], port: int, folder: Path) -> RunningBroker:
    log = folder / "broker.log"
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    broker = RunningBroker(port, process)
    try:
        wait_until(lambda: _answers(port) or process.poll() is not None, f"{command[0]} to listen")
        assert process.poll() is None, log.read_text()
    except AssertionError:
        broker.kill()
        raise
    return broker


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


class CuttingProxy:
    """A TCP proxy in front of a broker. `cut` breaks all connections, in the middle of a packet if need be."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server = socket.create_server((HOST, 0))
        self.port: int = self._server.getsockname()[1]
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self.accepted = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection((HOST, self._target_port))
                with self._lock:
                    self.accepted += 1
                    self._sockets += [near, far]
                for a, b in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(a, b), daemon=True).start()

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@dataclass
class Subscriber:
    """Any client: keeps every message below `topic` in order of arrival.

    At the end each message of a device below the prefix `zhcedge` is held to the contract (messages.py); a test that
    publishes something else than a device does takes another prefix.
    """

    port: int
    topic: str = "#"
    username: str = ""
    password: str = ""
    heard: list[paho.MQTTMessage] = field(default_factory=list)
    _client: paho.Client = field(init=False)

    def __enter__(self) -> Subscriber:
        is_ready = threading.Event()
        self._client = paho.Client(CallbackAPIVersion.VERSION2)
        if self.username:
            self._client.username_pw_set(self.username, self.password)
        self._client.on_connect = lambda client, *_: client.subscribe(self.topic, qos=1)
        self._client.on_subscribe = lambda *_: is_ready.set()
        self._client.on_message = lambda client, userdata, message: self.heard.append(message)
        self._client.connect(HOST, self.port)
        self._client.loop_start()
        assert is_ready.wait(PATIENCE_S), "the subscriber was not accepted"
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        if kind is None:  # else that is the failure to tell
            for message in self.heard:
                if is_ours(message.topic):
                    assert_conforms(message.topic, bytes(message.payload), message.retain, message.qos)

    def payloads(self, topic_end: str) -> list[bytes]:
        return [bytes(message.payload) for message in list(self.heard) if message.topic.endswith(topic_end)]

    def events(self) -> list[dict[str, Any]]:
        """What came on the devices' topic `events`."""
        is_events = re.compile("[^/]+/[^/]+/events").fullmatch
        return [json.loads(message.payload) for message in list(self.heard) if is_events(message.topic)]

    def states(self) -> list[bytes]:
        """Payloads of the devices' own `state`, not of what a command has set."""
        is_state = re.compile("[^/]+/[^/]+/state").fullmatch
        return [bytes(message.payload) for message in list(self.heard) if is_state(message.topic)]

    def wait_for(self, topic_end: str, payload: bytes) -> None:
        wait_until(lambda: payload in self.payloads(topic_end), f"{payload!r} on {topic_end}")


@contextlib.contextmanager
def running(start: Callable[[Path], RunningBroker], folder: Path) -> Iterator[RunningBroker]:
    """A broker for the length of a block."""
    broker = start(folder)
    try:
        yield broker
    finally:
        broker.kill()

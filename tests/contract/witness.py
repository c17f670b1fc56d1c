"""A receiver that misses nothing: mosquitto that keeps its sessions over a restart, and a subscriber with a session.

What such a receiver did not hear was not delivered.
"""

from __future__ import annotations

import contextlib
import getpass
import socket
import subprocess
import threading
from pathlib import Path

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from tests.contract.brokers import HOST, PATIENCE_S, find_mosquitto, free_port, wait_until
from tests.contract.messages import assert_conforms


class KeepingBroker:
    """mosquitto with persistence and no limit on what waits for a session.

    `stop` ends it with SIGTERM, on which it saves. SIGKILL would lose messages that it has acknowledged already (it
    saves at intervals): that would test mosquitto, not us.

    Args:
        folder: made for its files.
        extra: more lines of its configuration.
    """

    def __init__(self, folder: Path, extra: str = "") -> None:
        self._folder, self.port = folder, free_port()
        folder.mkdir(exist_ok=True)
        self._config = folder / "mosquitto.conf"
        self._config.write_text(
            f"listener {self.port} {HOST}\nallow_anonymous true\nuser {getpass.getuser()}\n"
            f"persistence true\npersistence_location {folder}/\n"
            f"max_queued_messages 0\nmax_queued_bytes 0\nset_tcp_nodelay true\n{extra}"
        )
        self.start()

    def start(self) -> None:
        with (self._folder / "broker.log").open("ab") as log:
            command = [find_mosquitto() or "mosquitto", "-c", str(self._config)]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            wait_until(lambda: self._answers() or self._process.poll() is not None, "mosquitto to listen")
            assert self._process.poll() is None, (self._folder / "broker.log").read_text()
        except AssertionError:
            self.close()
            raise

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), timeout=1):
            return True
        return False


class Witness:
    """Subscribes to `topic` with QoS 1 in a session that outlives connections; keeps payloads in order of arrival."""

    def __init__(self, port: int, topic: str) -> None:
        self.heard: list[paho.MQTTMessage] = []
        self._is_ready = threading.Event()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, "witness", clean_session=False)
        self._client.reconnect_delay_set(0.1, 0.2)
        self._client.on_connect = lambda client, *_: client.subscribe(topic, qos=1)
        self._client.on_subscribe = lambda *_: self._is_ready.set()
        self._client.on_message = lambda client, userdata, message: self.take(message)
        self._client.connect(HOST, port)
        self._client.loop_start()
        if not self._is_ready.wait(PATIENCE_S):
            self.close()
            raise TimeoutError("the witness was not accepted")

    def take(self, message: paho.MQTTMessage) -> None:
        """Network thread."""
        self.heard.append(message)

    def payloads(self, topic_end: str) -> list[bytes]:
        """What came on topics that end so, a retained one or a repetition included."""
        return [bytes(message.payload) for message in list(self.heard) if message.topic.endswith(topic_end)]

    def misfits(self) -> list[str]:
        """What is wrong with each message that the contract does not know."""
        found = []
        for message in list(self.heard):
            try:
                assert_conforms(message.topic, bytes(message.payload), message.retain, message.qos)
            except AssertionError as error:
                found.append(str(error))
        return found

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

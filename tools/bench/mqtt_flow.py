"""The event path from an event to the broker's acknowledgement, as the control process has it, without a pipeline."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from tests.contract.brokers import HOST
from tests.contract.scene import Scene
from zhcedge.core.events import Event, EventType
from zhcedge.publish.courier import Courier
from zhcedge.publish.device_messages import OFFLINE, available
from zhcedge.publish.mqtt import MqttBroker
from zhcedge.publish.payloads import EventEncoder
from zhcedge.publish.settings import BrokerSettings
from zhcedge.publish.topics import Topics
from zhcedge.service.clock import SystemClock
from zhcedge.store.outbox import open_outbox
from zhcedge.store.settings import OutboxSettings

TOPICS = Topics("bench")
START_S = 20.0
WINDOW = 100  # of the bare client, as the courier's
_FULL = 2000  # rows that wait: a queue that is never empty, and never long


class Flow:
    """Outbox, courier and connection. Use as a context manager; connected when the block begins.

    Args:
        port: of the broker on this computer.
        folders: disk and memory of a durable outbox; None keeps messages in this process.
    """

    def __init__(self, port: int, folders: tuple[Path, Path] | None) -> None:
        clock = SystemClock()
        settings = OutboxSettings(*folders) if folders else OutboxSettings()
        self.outbox = open_outbox(settings, clock, lambda alert: None)
        self._encoder = EventEncoder(TOPICS, "0" * 32, self.outbox.outbox_id, "0" * 64)
        self._courier = Courier(self.outbox, clock)
        self._wake = threading.Event()
        self._scene = Scene(random.Random(1))
        self.told = 0
        self._broker = MqttBroker(
            BrokerSettings(HOST, port, "bench"),
            available(TOPICS, OFFLINE),
            list,
            on_connect=self._wake.set,
            on_ack=self._on_ack,
            on_refused=self._courier.on_refused,
        )

    def __enter__(self) -> Flow:
        self._broker.start()
        deadline_s = time.monotonic() + START_S
        while not self._broker.is_connected:
            if time.monotonic() > deadline_s:
                self.__exit__()
                raise SystemExit("no connection to the broker")
            self._wake.wait(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._courier.drain(self._broker, 5.0)
        self._broker.stop((), 5.0)
        self.outbox.close()

    def _on_ack(self, token: int) -> None:
        self._courier.on_ack(token)
        self._wake.set()

    @property
    def delivered(self) -> int:
        return self.told - self.outbox.depth

    def events(self, count: int) -> list[Event]:
        """Those of one more frame, about `count`."""
        return self._scene.frame(count)

    def tell(self, events: list[Event]) -> None:
        """What the control process does with one frame's events: encode them and put them into the outbox."""
        with self.outbox.batch():
            for event in events:
                message = self._encoder.encode(event, self.outbox.next_id)
                if event.type is EventType.END:
                    self.outbox.append(message, closes=self._encoder.open_id_of(event))
                else:
                    is_update = event.type is EventType.UPDATE
                    self.outbox.append(message, is_update, opens=self._encoder.open_event_of(message, event))
        self.told += len(events)

    def pump(self) -> None:
        self._courier.pump(self._broker)

    def tick(self) -> None:
        self.outbox.tick()

    def flood_until(self, until_s: float, in_between: Callable[[], None] = lambda: None) -> None:
        """Tell as many events as are taken, until a moment of the monotonic clock."""
        while time.monotonic() < until_s:
            if self.outbox.depth < _FULL:
                self.tell(self.events(10))
            elif self._wake.wait(0.01):
                self._wake.clear()
            self.pump()
            self.tick()
            in_between()

    def paced_until(self, until_s: float, events_per_s: float) -> tuple[list[int], list[int]]:
        """Tell single events at a steady pace; nanoseconds of encode and append together, and of handing over."""
        publish_ns, pump_ns = [], []
        next_s = time.monotonic()
        while next_s < until_s:
            next_s += 1 / events_per_s
            events = self.events(1)
            started = time.perf_counter_ns()
            self.tell(events)
            told = time.perf_counter_ns()
            self.pump()
            publish_ns.append(told - started)
            pump_ns.append(time.perf_counter_ns() - told)
            while (left_s := next_s - time.monotonic()) > 0:
                if self._wake.wait(left_s):  # as the control loop: an acknowledgement is a turn of its own
                    self._wake.clear()
                    self.pump()
                self.tick()
        return publish_ns, pump_ns


def bare_rate(port: int, seconds: float, payload: bytes) -> float:
    """Messages a second of the MQTT library alone with the same window: the ceiling."""
    room, is_ready = threading.Semaphore(WINDOW), threading.Event()
    client = paho.Client(CallbackAPIVersion.VERSION2, "bare", protocol=paho.MQTTv5)
    client.max_inflight_messages_set(WINDOW)

    def published(*_: Any) -> None:
        room.release()

    client.on_publish = published
    client.on_connect = lambda *_: is_ready.set()
    client.connect(HOST, port)
    client.loop_start()
    try:
        if not is_ready.wait(START_S):
            raise SystemExit("no connection to the broker")
        started_s, sent = time.monotonic(), 0
        while time.monotonic() < started_s + seconds:
            room.acquire()
            client.publish(TOPICS.events, payload, qos=1)
            sent += 1
        for _ in range(WINDOW):
            room.acquire()
        return sent / (time.monotonic() - started_s)
    finally:
        client.disconnect()
        client.loop_stop()

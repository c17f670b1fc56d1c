"""A device's event path for tests: outbox, courier and connection, and everything that they tell."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.contract.brokers import HOST, wait_until
from zhcedge.core.delivery import Alert, Incoming, Message
from zhcedge.publish import device_messages
from zhcedge.publish.courier import Courier
from zhcedge.publish.mqtt import MqttBroker
from zhcedge.publish.settings import BrokerSettings
from zhcedge.publish.topics import Topics
from zhcedge.store.memory import MemoryOutbox

TOPICS = Topics("box", "not-the-contract")  # numbers take the place of events here
STOPPED = device_messages.available(TOPICS, device_messages.STOPPED)


class Device:
    """Not connected before `broker.start()`. `more` are fields of BrokerSettings."""

    def __init__(self, port: int, *, subscriptions: tuple[str, ...] = (), **more: Any) -> None:
        self.problems: list[str] = []
        self.alerts: list[Alert] = []
        self.incoming: list[Incoming] = []
        self.refused: dict[int, str] = {}
        self.connects = 0
        self.outbox = MemoryOutbox(100_000)
        self.courier = Courier(self.outbox)
        self.state = b"state-1"
        self.retained: list[Message] = []
        settings = BrokerSettings(HOST, port, "box", reconnect_min_s=0.02, reconnect_max_s=0.1)
        self.broker = MqttBroker(
            replace(settings, **more),
            device_messages.available(TOPICS, device_messages.OFFLINE),
            self.birth,
            subscriptions=subscriptions,
            on_connect=self.count_connect,
            on_ack=self.note_ack,
            on_refused=self.note_refusal,
            on_message=self.incoming.append,
            on_alert=self.alerts.append,
            on_problem=self.problems.append,
        )

    def birth(self) -> list[Message]:
        online = device_messages.available(TOPICS, device_messages.ONLINE)
        return [Message(TOPICS.state, self.state, retain=True), *self.retained, online]

    def count_connect(self) -> None:
        self.connects += 1

    def note_ack(self, token: int) -> None:
        self.courier.on_ack(token)

    def note_refusal(self, token: int, reason: str) -> None:
        self.refused[token] = reason
        self.courier.on_refused(token, reason)

    def add(self, numbers: range, topic: str = TOPICS.events) -> None:
        for number in numbers:
            self.outbox.append(Message(topic, b"%d" % number))

    def wait_connected(self) -> None:
        wait_until(lambda: self.broker.is_connected, "a session")

    def pump_until(self, depth: int) -> None:
        def is_there() -> bool:
            self.courier.pump(self.broker)
            return self.outbox.depth <= depth

        wait_until(is_there, f"the outbox to have {depth} messages")

    def codes(self) -> list[str]:
        """Codes of the alerts so far; those that are over have a minus in front."""
        return [("-" if alert.is_over else "") + alert.code for alert in self.alerts]

    def wait_alert(self, code: str) -> Alert:
        """Pump until there is one."""

        def is_there() -> bool:
            self.courier.pump(self.broker)
            return code in self.codes()

        wait_until(is_there, f"the alert {code}")
        return self.alerts[self.codes().index(code)]


@contextlib.contextmanager
def device(port: int, **more: Any) -> Iterator[Device]:
    """One that runs for the length of a block."""
    one = Device(port, **more)
    one.broker.start()
    try:
        yield one
    finally:
        one.broker.stop([STOPPED], 5.0)

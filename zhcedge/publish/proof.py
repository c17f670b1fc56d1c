"""Whether a broker passes on what it acknowledges.

MQTT 3.1.1 has no refusal in a PUBACK: a broker acknowledges what its access list forbids and drops it. So on such a
session the first message of an outbox must come back to us. Until it does, none follows it and it stays in the outbox;
after PROOF_S an alert says why, and the message is tried again every RETRY_S: nothing is lost, and nothing is sent to
nobody. A user that may write to the topic and not read it can't be told from one that may not write; whoever wants
that sets mqtt.check_delivery to false. Where already the subscription is refused, acknowledgements are believed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from zhcedge.publish.agenda import Agenda
from zhcedge.publish.alerts import StandingAlerts
from zhcedge.publish.in_flight import Outgoing

PROOF_S = 5.0
RETRY_S = 180.0

DENIED = "publish-denied"
UNREADABLE = "subscribe-denied"


class Subscriber(Protocol):
    """What the proof needs of its session."""

    def subscribe(self, topic: str) -> None: ...
    def unsubscribe(self, topic: str) -> None: ...


class _Stage(Enum):
    OPEN = 1  # nothing was sent yet
    SUBSCRIBING = 2
    WAITING = 3  # for the acknowledgement, the echo, or the next try
    SETTLED = 4


class DeliveryProof:
    """Of one session. Any thread; nothing is called with its lock held.

    Args:
        send: these, before all others, as soon as there is room.
        on_ack: the message's token, once it has come back.
        is_wanted: without it everything is settled from the beginning.
    """

    def __init__(
        self,
        subscriber: Subscriber,
        send: Callable[[Sequence[Outgoing]], None],
        agenda: Agenda,
        alerts: StandingAlerts,
        on_ack: Callable[[int], None],
        *,
        is_wanted: bool,
    ) -> None:
        self._subscriber, self._send, self._agenda = subscriber, send, agenda
        self._alerts, self._on_ack = alerts, on_ack
        self._lock = threading.Lock()
        self._stage = _Stage.OPEN if is_wanted else _Stage.SETTLED
        self._entry: Outgoing | None = None
        self._is_acknowledged = self._is_echoed = False

    @property
    def is_settled(self) -> bool:
        return self._stage is _Stage.SETTLED

    def begin(self, entry: Outgoing) -> bool:
        """Take the session's first message; False when another one is being proved."""
        with self._lock:
            if self._stage is not _Stage.OPEN:
                return False
            self._stage, self._entry = _Stage.SUBSCRIBING, entry
        self._agenda.after(2 * PROOF_S, lambda: self.subscribed(entry.message.topic, is_granted=False, waited=True))
        self._subscriber.subscribe(entry.message.topic)
        return True

    def subscribed(self, topic: str, *, is_granted: bool, waited: bool = False) -> None:
        """The broker has answered our subscription, or not at all (`waited`)."""
        with self._lock:
            entry = self._entry
            if self._stage is not _Stage.SUBSCRIBING or entry is None:
                return
            self._stage = _Stage.WAITING if is_granted else _Stage.SETTLED
            if not is_granted:
                self._entry = None
        if is_granted:
            self._alerts.over(UNREADABLE, topic, f"the MQTT broker lets us subscribe to {topic} again")
        else:
            why = "does not answer our subscription" if waited else "does not let us subscribe"
            self._alerts.begin(
                UNREADABLE,
                topic,
                f"the MQTT broker {why} to {topic}: whether it passes our messages on can't be seen over MQTT 3.1.1; "
                "allow it, or let the broker speak MQTT 5",
            )
        self._send([entry])

    def acknowledged(self, entry: Outgoing) -> bool:
        """The broker has acknowledged a message; whether it is the one that is being proved."""
        with self._lock:
            if entry is not self._entry:
                return False
            self._is_acknowledged = True
            is_proved = self._settle()
        if is_proved:
            self._proved(entry)
        else:
            self._agenda.after(PROOF_S, lambda: self._missed(entry))
        return True

    def heard(self, topic: str, payload: bytes) -> None:
        """A message came in that was not retained."""
        with self._lock:
            entry = self._entry
            if entry is None or (topic, payload) != (entry.message.topic, entry.message.payload):
                return
            self._is_echoed = True
            is_proved = self._settle()
        if is_proved:
            self._proved(entry)

    def _settle(self) -> bool:
        if not (self._is_acknowledged and self._is_echoed):
            return False
        self._stage, self._entry = _Stage.SETTLED, None
        return True

    def _proved(self, entry: Outgoing) -> None:
        topic = entry.message.topic
        self._subscriber.unsubscribe(topic)
        self._alerts.over(DENIED, topic, f"the MQTT broker passes on what we publish to {topic}")
        self._on_ack(entry.token)

    def _missed(self, entry: Outgoing) -> None:
        if self._entry is not entry:
            return
        topic = entry.message.topic
        self._alerts.begin(
            DENIED,
            topic,
            f"the MQTT broker acknowledges messages to {topic} and does not pass them on: give this device's user "
            "write and read access to its topics, or let the broker speak MQTT 5; the messages are kept meanwhile",
            "error",
        )
        self._agenda.after(RETRY_S, lambda: self._try_again(entry))

    def _try_again(self, entry: Outgoing) -> None:
        with self._lock:
            if self._entry is not entry:
                return
            self._is_acknowledged = False
        self._send([entry])

"""Hands messages to paho as far as the broker takes them, and judges the broker's answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from zhcedge.core.delivery import Message
from zhcedge.core.errors import BrokerError
from zhcedge.publish.agenda import Agenda
from zhcedge.publish.alerts import StandingAlerts
from zhcedge.publish.deferral import Deferral
from zhcedge.publish.in_flight import InFlight, Outgoing
from zhcedge.publish.limits import BrokerLimits, packet_bytes
from zhcedge.publish.proof import DENIED, DeliveryProof, Subscriber
from zhcedge.publish.refusals import denial_text, is_forbidden, may_pass, reason_text
from zhcedge.publish.wire import Client, properties_of


@dataclass(frozen=True)
class Outcomes:
    """Whom a sender tells. Network thread or that of `publish`; quick, never raising.

    Attributes:
        on_ack: an acknowledged token.
        on_refused: a token and why the broker will never take its message.
        on_note: one line for people.
        on_empty: what was queued before all others is sent; told once.
    """

    on_ack: Callable[[int], None]
    on_refused: Callable[[int, str], None]
    on_note: Callable[[str], None]
    on_empty: Callable[[], None]


class Sender:
    """Of one connection. Any thread.

    Args:
        checks_delivery: whether the first message with a token must come back (proof.py).
    """

    def __init__(
        self,
        client: Client,
        protocol: int,
        outcomes: Outcomes,
        subscriber: Subscriber,
        agenda: Agenda,
        alerts: StandingAlerts,
        *,
        checks_delivery: bool,
    ) -> None:
        self._client, self._protocol, self._outcomes, self._alerts = client, protocol, outcomes, alerts
        self.limits = BrokerLimits()
        self._in_flight = InFlight()
        self._deferral = Deferral(agenda, self.send_before_others)
        self.proof = DeliveryProof(
            subscriber, self.send_before_others, agenda, alerts, outcomes.on_ack, is_wanted=checks_delivery
        )
        self._has_begun = False

    def set_limits(self, limits: BrokerLimits) -> None:
        """Before the first message."""
        self.limits = limits
        self._in_flight.set_limits(limits)

    def queue(self, messages: Sequence[Message]) -> None:
        """What the next `feed` sends before anything else."""
        self._in_flight.queue([self._outgoing(message, 0) for message in messages])

    def publish(self, message: Message, token: int) -> bool:
        """See Session.publish."""
        if not self._has_begun or (token and not self._deferral.is_empty):
            return False
        entry = self._outgoing(message, token)
        if self._is_too_large(entry):
            return True
        if not self._in_flight.enter(entry):
            return False
        if token and not self.proof.is_settled:
            self._in_flight.release(entry)
            return self.proof.begin(entry)
        return self._send(entry)

    def answered(self, packet: int, reason: ReasonCode, facts: Properties | None) -> None:
        """The broker's answer to a packet, or that one with QoS 0 is written."""
        entry = self._in_flight.answered(packet, reason)
        if entry is not None:
            self._settle(entry, reason, facts)
        if self._in_flight.is_waiting:
            self.feed()

    def send_before_others(self, entries: Sequence[Outgoing]) -> None:
        """As soon as there is room."""
        self._in_flight.queue(entries)
        self.feed()

    def feed(self) -> None:
        """Send queued messages as far as there is room."""
        while (entry := self._in_flight.next_waiting()) is not None:
            try:
                if self._is_too_large(entry):
                    self._in_flight.release(entry)
                elif not self._send(entry):
                    return  # the connection is gone
            except BrokerError as error:
                self._outcomes.on_note(str(error))
            finally:
                self._in_flight.fed()
        if not self._has_begun and not self._in_flight.is_waiting:
            self._has_begun = True
            self._outcomes.on_empty()

    def wait_empty(self, timeout_s: float) -> None:
        """Until everything that was sent is answered, `close` is called, or the time is over."""
        self._in_flight.wait_empty(timeout_s)

    @property
    def progress(self) -> tuple[int, int]:
        """Messages that are on their way, and answers that have come so far."""
        return self._in_flight.progress

    def close(self) -> None:
        """The connection is gone."""
        self._in_flight.close()

    def _outgoing(self, message: Message, token: int) -> Outgoing:
        message = self.limits.fitted(message)
        try:
            return Outgoing(message, token, packet_bytes(message))
        except ValueError as error:  # half a UTF-16 pair in the topic
            raise BrokerError(f"can't be published: {error}", where=ascii(message.topic)) from error

    def _is_too_large(self, entry: Outgoing) -> bool:
        if entry.size <= self.limits.packet_bytes:
            return False
        reason = f"larger than the {self.limits.packet_bytes} bytes that the MQTT broker takes"
        if entry.token:
            self._outcomes.on_refused(entry.token, reason)
        else:
            self._outcomes.on_note(f"{entry.message.topic}: {entry.size} bytes, {reason}; it is left out")
        return True

    def _send(self, entry: Outgoing) -> bool:
        """Hand over a message that has its room; False when the connection is gone."""
        message = entry.message
        facts = properties_of(message) if self._protocol == 5 else None
        try:
            info = self._client.publish(message.topic, message.payload, message.qos, message.retain, facts)
        except ValueError as error:
            self._in_flight.release(entry)
            raise BrokerError(f"can't be published: {error}", where=message.topic) from error
        if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
            self._in_flight.release(entry)
            return False
        if (reason := self._in_flight.note(info.mid, entry)) is not None:
            self._settle(entry, reason, None)
        return True

    def _settle(self, entry: Outgoing, reason: ReasonCode, facts: Properties | None) -> None:
        if reason.is_failure and may_pass(reason) and self._deferral.take(entry):
            return
        self._deferral.settled(entry)
        token, topic = entry.token, entry.message.topic
        if not reason.is_failure:
            if self.proof.is_settled or not self.proof.acknowledged(entry):
                self._alerts.over(DENIED, topic, f"the MQTT broker lets us publish to {topic} again")
                if token:
                    self._outcomes.on_ack(token)
            return
        text = reason_text(reason, facts)
        if is_forbidden(reason):
            self._alerts.begin(DENIED, topic, denial_text(topic), "error")
        elif not token:
            self._outcomes.on_note(f"{topic}: the MQTT broker refuses a message ({text}); it is left out")
        if token:
            self._outcomes.on_refused(token, text)

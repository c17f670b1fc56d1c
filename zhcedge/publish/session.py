"""One MQTT connection, from CONNECT to its end. Never used again once it is lost.

paho-mqtt keeps unacknowledged messages over a reconnect of its own and sends them again after the new connection's
first messages, so that an old retained state would overwrite a newer one, and new events would overtake old ones. A
client object per connection has no past: the outbox alone remembers what is not delivered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import paho.mqtt.client as paho
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from zhcedge.core.delivery import Incoming, Message
from zhcedge.core.errors import BrokerError
from zhcedge.publish.agenda import Agenda
from zhcedge.publish.alerts import StandingAlerts
from zhcedge.publish.dial import Dialer
from zhcedge.publish.expiry import ExpiryWatch
from zhcedge.publish.limits import BrokerLimits, limits_of
from zhcedge.publish.proof import UNREADABLE
from zhcedge.publish.refusals import (
    QOS_NOT_SUPPORTED,
    RETAIN_NOT_SUPPORTED,
    TAKEN_OVER,
    UNSUPPORTED_VERSION,
    reason_text,
    refusal_error,
)
from zhcedge.publish.sender import Outcomes, Sender
from zhcedge.publish.settings import BrokerSettings
from zhcedge.publish.subscriptions import Subscriptions
from zhcedge.publish.wire import Client, disconnect, make_client

_LOST = "if it goes on, look for another daemon with this device name, or see the broker's log"

ECHO_S = 1.0
"""How long the last message may take to come back to us before we disconnect."""

FALL_BACK_S = 1.5
"""A broker that says nothing to MQTT 5 for this long, and ten times what the connection took, may know 3.1.1 only."""

STUCK_S = 60.0
"""A broker that answers signs of life and for this long acknowledges nothing of what waits is given up."""


@dataclass(frozen=True)
class SessionHandlers:
    """Whom a session tells what happens. Called in paho's thread or that of `publish`; quick, never raising.

    Attributes:
        on_accept: the broker has accepted us: call `queue_first` with what comes first, and `begin`.
        on_begun: that is sent; the session may be published to.
        on_ack: an acknowledged token.
        on_refused: a token and why the broker will never take its message.
        on_message: what came in on our subscriptions.
        on_note: one line for people.
        on_grant: one of our subscriptions, and whether the broker allows it.
    """

    on_accept: Callable[[Session], None] = lambda session: session.begin()
    on_begun: Callable[[Session], None] = lambda session: None
    on_ack: Callable[[int], None] = lambda token: None
    on_refused: Callable[[int, str], None] = lambda token, reason: None
    on_message: Callable[[Incoming], None] = lambda message: None
    on_note: Callable[[str], None] = lambda text: None
    on_grant: Callable[[str, bool], None] = lambda topic, is_granted: None


class Session:
    """A connection and what is in flight on it. `run` belongs to one thread, `publish` and `finish` to any other one.

    Args:
        number: of this session.
        settings: of the broker; its fallbacks and its `protocol` are not looked at.
        protocol: 5, or 3 for MQTT 3.1.1.
        will: sent by the broker when the connection breaks; None for nothing.
        subscriptions: topic filters.
        may_fall_back: another version is tried if this one finds no answer, so it need not be waited for that long.

    Attributes:
        was_accepted: by the broker, at some time.
        is_hung_up: the broker closed the connection before it answered.
        is_silent: it did not answer at all.
        refusal: reason code of its refusal; 0 for none.
        was_taken_over: it ended the session because of another client with our id.
        was_closed: it closed the connection of an accepted session without a reason.
        agenda: what the session's own thread has to do later.
    """

    def __init__(
        self,
        number: int,
        settings: BrokerSettings,
        protocol: Literal[3, 5],
        will: Message | None,
        subscriptions: Sequence[str],
        handlers: SessionHandlers,
        alerts: StandingAlerts,
        *,
        may_fall_back: bool = False,
    ) -> None:
        self.number, self.protocol, self._may_fall_back = number, protocol, may_fall_back
        self.was_accepted = self.is_hung_up = self.is_silent = self.was_taken_over = self.was_closed = False
        self.refusal = 0
        self._settings, self._subscriptions = settings, tuple(subscriptions)
        self._handlers, self._alerts = handlers, alerts
        self._problem: BrokerError | None = None
        self.agenda = Agenda()
        self._changed = threading.Condition()  # guards the echo; never held while paho is called
        self._echo: Message | None = None  # a message of ours that we have subscribed to and wait for
        self._answered = threading.Event()
        self._client = self._make_client(will)
        self._dialer = Dialer(self._client, settings, protocol)
        self._sender = Sender(
            self._client,
            protocol,
            Outcomes(handlers.on_ack, handlers.on_refused, handlers.on_note, lambda: handlers.on_begun(self)),
            self,
            self.agenda,
            alerts,
            checks_delivery=protocol == 3 and settings.checks_delivery,
        )
        self._asked = Subscriptions(self._client, self._granted)

    def _make_client(self, will: Message | None) -> Client:
        client = make_client(self._settings, self.protocol, will)
        client.on_crash = self._crashed
        client.on_unreadable = self._left_out
        client.on_connect = self._connected
        client.on_disconnect = self._disconnected
        client.on_publish = self._published
        client.on_subscribe = self._subscribed
        client.on_message = self._received
        return client

    # -- the session's own thread ------------------------------------------------------------------------------
    def run(self) -> None:
        """Connect and stay until the connection ends or `end` is called.

        Raises BrokerError when the broker can't be reached, refuses us, or the connection breaks, and ConfigError
        when a file for TLS can't be used.
        """
        began_s = time.monotonic()
        self._dialer.dial()
        self._client.loop_start()
        try:
            if not self._answered.wait(self._patience_s(time.monotonic() - began_s)):
                self.is_silent = True
                what = "something accepts connections and does not answer as an MQTT broker"
                self._fail(what, "check mqtt.host and mqtt.port")
            self._watch_acknowledgements((0, 0))
            self.agenda.run()
        finally:
            self._sender.close()
            self._hang_up()
        if self._problem is not None:
            raise self._problem

    def _patience_s(self, dialled_s: float) -> float:
        """For the answer to CONNECT. amqtt 0.12 waits for more after a CONNECT of MQTT 5 with a will."""
        longest_s = self._settings.connect_timeout_s
        return min(longest_s, FALL_BACK_S + 10 * dialled_s) if self._may_fall_back else longest_s

    def _watch_acknowledgements(self, before: tuple[int, int]) -> None:
        now = self._sender.progress
        if before[0] and now[0] and before[1] == now[1]:  # something waits, and did a while ago
            self._fail(f"the MQTT broker has acknowledged nothing for {STUCK_S:.0f} s")
        self.agenda.after(STUCK_S, lambda: self._watch_acknowledgements(now))

    def _hang_up(self) -> None:
        """End the connection and paho's thread. Wanted ends tell the broker not to send the will."""
        if self._problem is not None:
            self._dialer.cut()  # a broker that does not read would keep paho from its goodbye, and us waiting
        disconnect(self._client, self._settings, self.protocol, is_wanted=self._problem is None)
        self._client.loop_stop()

    def _fail(self, what: str, fix: str = _LOST) -> None:
        if self._problem is None:
            self._problem = BrokerError(what, where=self._settings.address, fix=fix)
        self.end()

    # -- other threads -----------------------------------------------------------------------------------------
    @property
    def server(self) -> str:
        """host:port of the broker."""
        return self._settings.address

    def queue_first(self, first: Sequence[Message]) -> None:
        """What `begin` sends before anything else."""
        self._sender.queue(first)

    def begin(self) -> None:
        """Send what is queued, then tell `on_begun`. In `on_accept`."""
        self._sender.feed()
        self._asked.ask(self._subscriptions, as_published=True)

    def publish(self, message: Message, token: int) -> bool:
        """Queue a message; False when the connection is gone, holds as much as the broker takes, or, for one with a
        token, while an earlier one is being proved or held back.

        Raises BrokerError for a topic or payload that MQTT can't carry.
        """
        return self._sender.publish(message, token)

    def finish(self, last: Sequence[Message], timeout_s: float) -> None:
        """Publish `last`, wait for every acknowledgement, then end the session.

        The last message of all must also come back to us: amqtt 0.12 acknowledges before it distributes, and forgets
        what it has not distributed when the publisher disconnects. A broker that does not let us subscribe to the
        topic costs at most ECHO_S.
        """
        deadline = time.monotonic() + timeout_s
        if last:
            self._echo = last[-1]
            self._asked.ask([last[-1].topic])
        self._sender.queue(last)
        self._sender.feed()
        self._sender.wait_empty(timeout_s)
        with self._changed:
            echo_s = min(deadline - time.monotonic(), ECHO_S)
            self._changed.wait_for(lambda: self._echo is None or self.agenda.has_ended, max(echo_s, 0.0))
        self.end()

    def end(self) -> None:
        """Make `run` disconnect, which the broker takes as wanted: it does not send the will."""
        self._answered.set()
        self.agenda.end()
        self._sender.close()
        with self._changed:
            self._changed.notify_all()

    # -- subscriptions -----------------------------------------------------------------------------------------
    def subscribe(self, topic: str) -> None:
        """For the proof."""
        self._asked.ask([topic])

    def unsubscribe(self, topic: str) -> None:
        """For the proof."""
        self._client.unsubscribe(topic)

    def _granted(self, topic: str, is_granted: bool) -> None:
        if self._echo is not None and topic == self._echo.topic:
            if not is_granted:
                self._echo_is_over()
            return
        if topic not in self._subscriptions:
            self._sender.proof.subscribed(topic, is_granted=is_granted)
            return
        self._handlers.on_grant(topic, is_granted)
        if is_granted:
            self._alerts.over(UNREADABLE, topic, f"the MQTT broker lets us subscribe to {topic} again")
        else:
            text = f"the MQTT broker does not let us subscribe to {topic}: commands do not arrive; allow it there"
            self._alerts.begin(UNREADABLE, topic, text)

    # -- paho's callbacks, in its thread -----------------------------------------------------------------------
    def _connected(
        self,
        client: paho.Client,
        userdata: object,
        flags: paho.ConnectFlags,
        reason: ReasonCode,
        facts: Properties | None,
    ) -> None:
        if reason.is_failure:
            self.refusal = reason.value
            self._problem = refusal_error(self._settings, reason, facts)
            self.end()
            return
        self._sender.set_limits(limits_of(facts if self.protocol == 5 else None))
        self.was_accepted = True
        self._answered.set()
        self._handlers.on_accept(self)
        if self.certificate is not None and self._settings.tls is not None:
            own = self._settings.tls.certificate_file
            ExpiryWatch(self._settings.address, self.certificate, own, self._alerts, self.agenda).check()

    def _disconnected(
        self,
        client: paho.Client,
        userdata: object,
        flags: paho.DisconnectFlags,
        reason: ReasonCode,
        facts: Properties | None,
    ) -> None:
        if not self.agenda.has_ended:
            self._note_loss(reason, facts, is_told=flags.is_disconnect_packet_from_server)
        self.end()

    def _note_loss(self, reason: ReasonCode, facts: Properties | None, *, is_told: bool) -> None:
        late = None if self.was_accepted else self._dialer.late_refusal()
        if late is not None:
            self._problem = late
            return
        self.was_taken_over = is_told and reason.value == TAKEN_OVER
        self.was_closed = self.was_accepted and not is_told and reason.getName() == "Unspecified error"
        self.is_hung_up = not self.was_accepted
        if self.is_hung_up:
            wish = "TLS on this port (mqtt.tls.enabled)"
            if self._settings.tls is not None:
                wish = "a client certificate (mqtt.tls.certificate_file), or no TLS on this port"
            fix = f"see its log; it may want {wish}, or not this device's name or address"
            self._problem = BrokerError("the MQTT broker hangs up", where=self._settings.address, fix=fix)
            return
        what = f"the connection to the MQTT broker is lost ({reason_text(reason, facts)})"
        self._problem = BrokerError(what, where=self._settings.address, fix=_LOST)

    def _published(
        self, client: paho.Client, userdata: object, packet: int, reason: ReasonCode, facts: Properties | None
    ) -> None:
        self._sender.answered(packet, reason, facts)

    def _subscribed(
        self, client: paho.Client, userdata: object, packet: int, grants: list[ReasonCode], facts: Properties | None
    ) -> None:
        self._asked.answered(packet, grants)

    def _received(self, client: paho.Client, userdata: object, message: paho.MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            return  # it can't be one of ours
        payload, echo = bytes(message.payload), self._echo
        if not message.retain:  # a retained one is what was there before
            if echo and (topic, payload) == (echo.topic, echo.payload):
                self._echo_is_over()
            if not self._sender.proof.is_settled:
                self._sender.proof.heard(topic, payload)
        if any(paho.topic_matches_sub(one, topic) for one in self._subscriptions):
            self._handlers.on_message(
                Incoming(
                    topic,
                    payload,
                    is_retained=message.retain,
                    protocol=self.protocol,
                    response_topic=getattr(message.properties, "ResponseTopic", ""),
                    correlation=getattr(message.properties, "CorrelationData", b""),
                )
            )

    def _echo_is_over(self) -> None:
        with self._changed:
            self._echo = None
            self._changed.notify_all()

    def _crashed(self, error: Exception) -> None:
        self._fail(f"the MQTT broker's messages can't be handled ({type(error).__name__}: {error})")

    def _left_out(self) -> None:
        self._handlers.on_note(
            f"{self._settings.address}: a message with properties that can't be read is left out; see who may send to "
            "this device's topics"
        )

    # -- facts -------------------------------------------------------------------------------------------------
    @property
    def limits(self) -> BrokerLimits:
        """Of the broker, once accepted."""
        return self._sender.limits

    @property
    def certificate(self) -> bytes | None:
        """The broker's, in DER; None without TLS."""
        return self._dialer.certificate

    @property
    def refuses_version(self) -> bool:
        """Whether the broker may take another MQTT version: old ones hang up at what they don't know, or wait."""
        return self.is_hung_up or self.is_silent or self.refusal == UNSUPPORTED_VERSION

    @property
    def refuses_will(self) -> bool:
        """Whether it takes no will that is retained, or none that is acknowledged."""
        return self.refusal in (RETAIN_NOT_SUPPORTED, QOS_NOT_SUPPORTED)

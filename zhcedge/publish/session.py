"""One MQTT connection, from CONNECT to its end. Never used again once it is lost.

paho-mqtt keeps unacknowledged messages over a reconnect of its own and sends them again after the new connection's
first messages, so that an old retained state would overwrite a newer one, and new events would overtake old ones. A
client object per connection has no past: the outbox alone remembers what is not delivered.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from zhcedge.core.errors import BrokerError
from zhcedge.core.ports import Message

_LOST = "trying again; if it goes on, look for another daemon with this device name, or see the broker's log"

MAX_UNACKNOWLEDGED = 1000
"""Most QoS 1 messages that a connection holds; more are refused, never silently dropped."""

ECHO_S = 1.0
"""How long the last message may take to come back to us before we disconnect."""


@dataclass(frozen=True)
class BrokerSettings:
    """Where the broker is and how to stay connected.

    Attributes:
        client_id: unique at the broker, the same for every connection of a device.
        username, password: empty for none. The password is in no repr.
        keepalive_s: a broker that has been silent for 1.5 times this is given up.
        connect_timeout_s: for the TCP connection, and again for the broker's answer.
        reconnect_min_s, reconnect_max_s: the wait before a new try is drawn from 0 to a bound that doubles from the
            first to the second ("full jitter"), so that many devices don't come back at once.
    """

    host: str
    port: int
    client_id: str
    username: str = ""
    password: str = field(default="", repr=False)
    keepalive_s: int = 30
    connect_timeout_s: float = 10.0
    reconnect_min_s: float = 1.0
    reconnect_max_s: float = 120.0

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class Session:
    """A connection and what is in flight on it. `run` belongs to one thread, `publish` and `finish` to any other one.

    Args:
        number: of this session.
        settings: of the broker.
        will: sent by the broker when the connection breaks.
        on_accept: called in the network thread once the broker has accepted us; its publications come first.
        on_ack: called with each acknowledged non-zero token, mostly in the network thread.
    """

    def __init__(
        self,
        number: int,
        settings: BrokerSettings,
        will: Message,
        on_accept: Callable[[Session], None],
        on_ack: Callable[[int], None],
    ) -> None:
        self.number = number
        self.was_accepted = False
        self._settings, self._on_accept, self._on_ack = settings, on_accept, on_ack
        self._problem: BrokerError | None = None
        # Guards the three below. Never held while paho is called: paho calls back with its own lock held.
        self._changed = threading.Condition()
        self._tokens: dict[int, int] = {}  # message id -> token, of what is not acknowledged
        self._early: set[int] = set()  # acknowledged before publish() could note the token
        self._echo: Message | None = None  # a message of ours that we have subscribed to and wait for
        self._answered = threading.Event()
        self._ended = threading.Event()
        self._client = self._make_client(will)

    def _make_client(self, will: Message) -> paho.Client:
        settings = self._settings
        client = paho.Client(
            CallbackAPIVersion.VERSION2, settings.client_id, protocol=paho.MQTTv311, reconnect_on_failure=False
        )
        client.will_set(will.topic, will.payload, will.qos, will.retain)
        if settings.username:
            client.username_pw_set(settings.username, settings.password or None)
        client.connect_timeout = settings.connect_timeout_s
        client.max_inflight_messages_set(MAX_UNACKNOWLEDGED)
        client.max_queued_messages_set(MAX_UNACKNOWLEDGED)
        client.on_connect = self._connected
        client.on_disconnect = self._disconnected
        client.on_publish = self._published
        client.on_subscribe = self._subscribed
        client.on_message = self._received
        return client

    def run(self) -> None:
        """Connect and stay until the connection ends or `end` is called.

        Raises BrokerError when the broker can't be reached, refuses us, or the connection breaks.
        """
        try:
            self._client.connect(self._settings.host, self._settings.port, self._settings.keepalive_s)
        except (OSError, ValueError) as error:  # ValueError: a name that is no host name
            raise connect_error(self._settings, error) from error
        self._client.loop_start()
        try:
            if not self._answered.wait(self._settings.connect_timeout_s):
                raise BrokerError(
                    "something accepts connections and does not answer as an MQTT broker",
                    where=self._settings.address,
                    fix="check mqtt.host and mqtt.port",
                )
            self._ended.wait()
        finally:
            self._client.disconnect()
            self._client.loop_stop()
        if self._problem is not None:
            raise self._problem

    def publish(self, message: Message, token: int) -> bool:
        """Queue a message; False when the connection is gone or holds too much. Raises BrokerError for a bad topic."""
        try:
            info = self._client.publish(message.topic, message.payload, message.qos, message.retain)
        except ValueError as error:
            raise BrokerError(f"can't be published: {error}", where=message.topic) from error
        if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
            return False
        with self._changed:
            is_early = info.mid in self._early
            if is_early:
                self._early.remove(info.mid)
            else:
                self._tokens[info.mid] = token
        if is_early and token:
            self._on_ack(token)
        return True

    def finish(self, last: Sequence[Message], timeout_s: float) -> None:
        """Publish `last`, wait for every acknowledgement, then end the session.

        The last message of all must also come back to us: amqtt 0.12 acknowledges before it distributes, and forgets
        what it has not distributed when the publisher disconnects. A broker that does not let us subscribe to the
        topic costs at most ECHO_S.
        """
        deadline = time.monotonic() + timeout_s
        if last:
            self._echo = last[-1]
            self._client.subscribe(self._echo.topic)
        for message in last:
            self.publish(message, 0)
        with self._changed:
            self._changed.wait_for(lambda: not self._tokens or self._ended.is_set(), timeout_s)
            echo_s = min(deadline - time.monotonic(), ECHO_S)
            self._changed.wait_for(lambda: self._echo is None or self._ended.is_set(), max(echo_s, 0.0))
        self.end()

    def end(self) -> None:
        """Make `run` disconnect, which the broker takes as wanted: it does not send the will."""
        self._answered.set()
        self._ended.set()

    # -- paho's callbacks, in its network thread ---------------------------------------------------------------
    def _connected(
        self,
        client: paho.Client,
        userdata: object,
        flags: paho.ConnectFlags,
        reason: ReasonCode,
        facts: Properties | None,
    ) -> None:
        if reason.is_failure:
            self._problem = refusal_error(self._settings, reason)
            self.end()
            return
        self.was_accepted = True
        self._on_accept(self)
        self._answered.set()

    def _disconnected(
        self,
        client: paho.Client,
        userdata: object,
        flags: paho.DisconnectFlags,
        reason: ReasonCode,
        facts: Properties | None,
    ) -> None:
        if not self._ended.is_set():
            what = "the connection to the MQTT broker is lost" if self.was_accepted else "the MQTT broker hangs up"
            self._problem = BrokerError(f"{what} ({reason})", where=self._settings.address, fix=_LOST)
        self.end()
        with self._changed:
            self._changed.notify_all()

    def _published(
        self, client: paho.Client, userdata: object, mid: int, reason: ReasonCode, facts: Properties | None
    ) -> None:
        with self._changed:
            token = self._tokens.pop(mid, None)
            if token is None:
                self._early.add(mid)
            self._changed.notify_all()
        if token:
            self._on_ack(token)

    def _subscribed(
        self, client: paho.Client, userdata: object, mid: int, reasons: list[ReasonCode], facts: Properties | None
    ) -> None:
        if any(reason.is_failure for reason in reasons):
            self._echo_is_over()

    def _received(self, client: paho.Client, userdata: object, message: paho.MQTTMessage) -> None:
        echo = self._echo
        # A retained one is what was there before.
        if echo and not message.retain and (message.topic, message.payload) == (echo.topic, echo.payload):
            self._echo_is_over()

    def _echo_is_over(self) -> None:
        with self._changed:
            self._echo = None
            self._changed.notify_all()


def connect_error(settings: BrokerSettings, error: Exception) -> BrokerError:
    """What a failed attempt to connect means."""
    if isinstance(error, socket.gaierror):
        what, fix = "the MQTT broker's name can't be resolved", "check mqtt.host and this network's DNS"
    elif isinstance(error, ConnectionRefusedError):
        what, fix = "nothing listens there", "start the MQTT broker, or correct mqtt.host and mqtt.port"
    elif isinstance(error, TimeoutError):
        what = f"the MQTT broker does not answer within {settings.connect_timeout_s:g} s"
        fix = "check mqtt.host, the network and firewalls"
    else:
        what, fix = f"the MQTT broker can't be reached ({error})", "check mqtt.host, mqtt.port and the network"
    return BrokerError(what, where=settings.address, fix=fix)


def refusal_error(settings: BrokerSettings, reason: ReasonCode) -> BrokerError:
    """What the broker's refusal means."""
    name = reason.getName()
    if name in ("Bad user name or password", "Not authorized"):
        who = f"user {settings.username!r}" if settings.username else "a client without a user name"
        fix = "check mqtt.username and mqtt.password, and the broker's list of users"
        return BrokerError(f"the MQTT broker refuses {who} ({name})", where=settings.address, fix=fix)
    return BrokerError(
        f"the MQTT broker refuses client {settings.client_id!r} ({name})",
        where=settings.address,
        fix="see the broker's log",
    )

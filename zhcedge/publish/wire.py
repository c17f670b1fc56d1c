"""paho-mqtt's client, made for one connection, and the MQTT 5 properties that go with packets."""

from __future__ import annotations

from collections.abc import Callable

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from zhcedge.core.delivery import Message
from zhcedge.publish.settings import BrokerSettings

INCOMING_BYTES = 256 * 1024
"""Largest packet that we ask a broker to send us (MQTT 5)."""

INCOMING_MAXIMUM = 100
"""Most messages that a broker may send us unacknowledged (MQTT 5)."""


class Client(paho.Client):
    """Tells when its thread dies: of a broker's bytes that paho can't take, or of a callback.

    A message whose MQTT 5 properties paho can't read ends no connection: whoever may send us one (U+FEFF in a response
    topic is enough, which brokers pass on) could keep us away for ever, as an unacknowledged one comes again with every
    session. It is acknowledged and left out.
    """

    on_crash: Callable[[Exception], None]
    on_unreadable: Callable[[], None]

    def _handle_publish(self) -> MQTTErrorCode:  # paho's own, for every PUBLISH that has come
        try:
            return super()._handle_publish()
        # Decoding raises many kinds; one of a callback's goes on.
        except Exception:
            packet = _unreadable_packet(self._in_packet["command"], bytes(self._in_packet["packet"]))
            if packet is None or self._protocol != paho.MQTTv5:
                raise
        self.on_unreadable()
        return self._send_puback(packet) if packet else MQTTErrorCode.MQTT_ERR_SUCCESS

    def loop_forever(self, timeout: float = 1.0, retry_first_connection: bool = False) -> MQTTErrorCode:
        try:
            return super().loop_forever(timeout, retry_first_connection)
        # Whatever it is, nobody else would learn that the connection is dead.
        except Exception as error:  # noqa: BLE001
            self.on_crash(error)
            return MQTTErrorCode.MQTT_ERR_UNKNOWN


def make_client(settings: BrokerSettings, protocol: int, will: Message | None) -> Client:
    """Connects nothing. Everything that is published goes out at once: bounds are the session's affair."""
    version = paho.MQTTv5 if protocol == 5 else paho.MQTTv311
    client = Client(CallbackAPIVersion.VERSION2, settings.client_id, protocol=version, reconnect_on_failure=False)
    if will is not None:
        client.will_set(will.topic, will.payload, will.qos, will.retain)
    if settings.username:
        client.username_pw_set(settings.username, settings.password or None)
    client.connect_timeout = settings.connect_timeout_s
    client.max_inflight_messages_set(0)
    client.max_queued_messages_set(0)
    return client


def connect(client: Client, settings: BrokerSettings, protocol: int) -> None:
    """TCP, TLS where it is set, and CONNECT; blocks. Raises OSError and ValueError, as paho does."""
    # A broker must hear from us within 1.5 times the keepalive, and paho gives up one that has been silent for twice
    # the time: with three quarters of it, both fit into 1.5 times.
    keepalive_s = max(1, settings.keepalive_s * 3 // 4)
    if protocol != 5:
        client.connect(settings.host, settings.port, keepalive_s)
        return
    facts = _properties(PacketTypes.CONNECT)
    facts.SessionExpiryInterval = settings.session_expiry_s
    facts.ReceiveMaximum = INCOMING_MAXIMUM
    facts.MaximumPacketSize = INCOMING_BYTES
    is_clean = settings.session_expiry_s == 0
    client.connect(settings.host, settings.port, keepalive_s, clean_start=is_clean, properties=facts)


def disconnect(client: Client, settings: BrokerSettings, protocol: int, *, is_wanted: bool) -> None:
    """Say goodbye, if there is a connection. A daemon that wants to end has no commands kept for it."""
    facts = None
    if protocol == 5 and is_wanted and settings.session_expiry_s:
        facts = _properties(PacketTypes.DISCONNECT)
        facts.SessionExpiryInterval = 0
    client.disconnect(properties=facts)


def properties_of(message: Message) -> Properties | None:
    """What MQTT 5 sends along with a message; None for nothing."""
    if message.expiry_s is None and not message.correlation:
        return None
    facts = _properties(PacketTypes.PUBLISH)
    if message.expiry_s is not None:
        facts.MessageExpiryInterval = message.expiry_s
    if message.correlation:
        facts.CorrelationData = message.correlation
    return facts


def _unreadable_packet(command: int, packet: bytes) -> int | None:
    """The identifier of a PUBLISH (0 at QoS 0) whose properties can't be read; None for one that is fine, or that has
    another fault."""
    qos, properties_at = (command >> 1) & 3, 2 + int.from_bytes(packet[:2], "big")
    identifier = int.from_bytes(packet[properties_at : properties_at + 2], "big") if qos else 0
    properties_at += 2 if qos else 0
    if qos > 1 or properties_at >= len(packet):
        return None
    try:
        _properties(PacketTypes.PUBLISH).unpack(packet[properties_at:])  # type: ignore[no-untyped-call]
    # Whatever it is: paho raises its own kinds and those of struct, of text and of lists.
    except Exception:  # noqa: BLE001
        return identifier
    return None


def _properties(packet_type: int) -> Properties:
    return Properties(packet_type)  # type: ignore[no-untyped-call]

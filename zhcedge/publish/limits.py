"""What a broker takes: told by it at the start of an MQTT 5 session (section 3.2.2.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from paho.mqtt.properties import Properties

from zhcedge.core.delivery import Message

MAX_UNACKNOWLEDGED = 1000
"""Most messages that a connection holds, whatever the broker allows."""

LARGEST_PACKET = 268_435_455 + 5  # MQTT's own limit, with the fixed header

_MOST_OVERHEAD = 1 + 4 + 2 + 2 + 4  # type, remaining length, topic's length, packet identifier, properties' length
_EXPIRY_BYTES = 5
_CORRELATION_BYTES = 3  # and the data


@dataclass(frozen=True)
class BrokerLimits:
    """Of one session. The defaults are those of MQTT 3.1.1, which tells nothing.

    Attributes:
        receive_maximum: most unacknowledged QoS 1 messages on their way to it.
        packet_bytes: it takes no larger packet.
        maximum_qos: it takes no higher one.
        may_retain: whether it keeps retained messages.
    """

    receive_maximum: int = MAX_UNACKNOWLEDGED
    packet_bytes: int = LARGEST_PACKET
    maximum_qos: int = 2
    may_retain: bool = True

    def fitted(self, message: Message) -> Message:
        """The message as the broker takes it: with a lower QoS, or not retained, where it must be."""
        if message.qos <= self.maximum_qos and (self.may_retain or not message.retain):
            return message
        return replace(message, qos=min(message.qos, self.maximum_qos), retain=message.retain and self.may_retain)

    def lacks(self) -> str:
        """What a message loses there, for people; empty for nothing."""
        missing = []
        if self.maximum_qos < 1:
            missing.append("acknowledges no message (QoS 0 only), so that messages can be lost")
        if not self.may_retain:
            missing.append("keeps no retained message, so that late subscribers see no state")
        return " and ".join(missing)


def limits_of(facts: Properties | None) -> BrokerLimits:
    """Out of a CONNACK's properties; None for 3.1.1."""
    if facts is None:
        return BrokerLimits()
    return BrokerLimits(
        receive_maximum=min(getattr(facts, "ReceiveMaximum", MAX_UNACKNOWLEDGED), MAX_UNACKNOWLEDGED),
        packet_bytes=getattr(facts, "MaximumPacketSize", LARGEST_PACKET),
        maximum_qos=getattr(facts, "MaximumQoS", 2),
        may_retain=bool(getattr(facts, "RetainAvailable", 1)),
    )


def packet_bytes(message: Message) -> int:
    """The most that its PUBLISH packet can take."""
    size = _MOST_OVERHEAD + len(message.topic.encode()) + len(message.payload)
    if message.expiry_s is not None:
        size += _EXPIRY_BYTES
    if message.correlation:
        size += _CORRELATION_BYTES + len(message.correlation)
    return size

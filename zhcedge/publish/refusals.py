"""What a broker's refusals and a network's failures mean. Codes: MQTT 5, section 2.4; 3.1.1's are made such by paho."""

from __future__ import annotations

import socket

from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from zhcedge.core.errors import BrokerError
from zhcedge.publish.settings import BrokerSettings

UNSUPPORTED_VERSION = 0x84
TAKEN_OVER = 0x8E
RETAIN_NOT_SUPPORTED = 0x9A
QOS_NOT_SUPPORTED = 0x9B

_BAD_LOGIN = (0x86, 0x87, 0x8C)  # user name or password, not authorised, authentication method
_BAD_CLIENT_ID = 0x85
_NOT_AUTHORISED = 0x87
_BUSY = (0x88, 0x89, 0x97, 0x9F)  # unavailable, busy, quota exceeded, connection rate exceeded
_ELSEWHERE = (0x9C, 0x9D)  # use another server, server moved
# Unspecified, implementation specific, packet identifier in use, quota exceeded: another try may be taken.
_PASSING = (0x80, 0x83, 0x91, 0x97)


def may_pass(reason: ReasonCode) -> bool:
    """Whether a message that was refused so may be taken a little later."""
    return reason.value in _PASSING


def is_forbidden(reason: ReasonCode) -> bool:
    """Whether the broker's access list is what refuses a message."""
    return reason.value == _NOT_AUTHORISED


def reason_text(reason: ReasonCode, facts: Properties | None = None) -> str:
    """The reason's name, and what the broker adds to it."""
    more = getattr(facts, "ReasonString", "") if facts is not None else ""
    return f"{reason.getName()}: {more}" if more else str(reason.getName())


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


def refusal_error(settings: BrokerSettings, reason: ReasonCode, facts: Properties | None = None) -> BrokerError:
    """What the broker's refusal of a connection means."""
    text, fix = reason_text(reason, facts), "see the broker's log"
    what = f"the MQTT broker refuses client {settings.client_id!r} ({text})"
    if reason.value in _BAD_LOGIN:
        who = f"user {settings.username!r}" if settings.username else "a client without a user name"
        what = f"the MQTT broker refuses {who} ({text})"
        fix = "check mqtt.username and mqtt.password_file, and the broker's list of users"
    elif reason.value == UNSUPPORTED_VERSION:
        fix = "set mqtt.protocol to auto"
    elif reason.value == _BAD_CLIENT_ID:
        fix = "allow this client id at the broker"
    elif reason.value in _BUSY:
        fix = "it is tried again; if it goes on, see the broker's limits"
    elif reason.value in _ELSEWHERE:
        server = getattr(facts, "ServerReference", "") if facts is not None else ""
        fix = f"set mqtt.host to {server}" if server else "ask its operator where it has gone"
    return BrokerError(what, where=settings.address, fix=fix)


def denial_text(topic: str) -> str:
    """For an alert: a topic that we may not publish to."""
    return f"the MQTT broker forbids publishing to {topic}: give this device's user write access to its topics"

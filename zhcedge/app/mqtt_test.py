"""Use case `mqtt test`: goes the way of the daemon's connection step by step, and says where it ends and why."""

from __future__ import annotations

import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Literal

from zhcedge.app.broker_settings import broker_settings
from zhcedge.config.schema import Config
from zhcedge.core.delivery import Alert, Incoming, Message
from zhcedge.core.errors import BrokerError, ZhcEdgeError
from zhcedge.publish.alerts import StandingAlerts
from zhcedge.publish.certificates import file_validity, validity
from zhcedge.publish.limits import LARGEST_PACKET, MAX_UNACKNOWLEDGED
from zhcedge.publish.refusals import connect_error, denial_text
from zhcedge.publish.session import Session, SessionHandlers
from zhcedge.publish.settings import BrokerSettings
from zhcedge.publish.tls import fetch_certificate, make_context, tls_error
from zhcedge.publish.topics import Topics

Result = Literal["ok", "failed", "skipped"]

_ECHO_S = 5.0


@dataclass(frozen=True)
class Step:
    """One step: what was found, or what is wrong and how to mend it."""

    name: str
    result: Result
    text: str = ""
    fix: str = ""


@dataclass(frozen=True)
class BrokerReport:
    """All steps towards one broker, in order; after a failed one the rest are skipped."""

    address: str
    steps: tuple[Step, ...]

    @property
    def is_ok(self) -> bool:
        return all(step.result == "ok" for step in self.steps)


def check_brokers(config: Config) -> Iterator[BrokerReport]:
    """Try the configured broker and those that stand in for it, one after the other; blocks, some seconds each.

    Connects under the device's client id with "-test" behind it, so that a daemon that runs keeps its connection, and
    publishes one message, on `<prefix>/<device>/test`, not retained.

    Raises ConfigError when a file of the connection can't be used.
    """
    topics = Topics(config.device, config.mqtt.topic_prefix)
    settings = broker_settings(config)
    settings = replace(settings, client_id=f"{settings.client_id}-test", session_expiry_s=0, checks_delivery=False)
    for broker in settings.brokers:
        yield BrokerReport(broker.address, tuple(_steps(_Visit(broker, topics))))


def _steps(visit: _Visit) -> Iterator[Step]:
    steps: tuple[tuple[str, Callable[[], str]], ...] = (
        ("resolve", visit.resolve),
        ("connect", visit.connect),
        ("tls", visit.shake_hands),
        ("mqtt", visit.log_in),
        ("subscribe", visit.subscribe),
        ("publish", visit.publish),
        ("permissions", visit.permissions),
    )
    is_broken = False
    try:
        for name, step in steps:
            if is_broken:
                yield Step(name, "skipped")
                continue
            try:
                yield Step(name, "ok", step())
            except ZhcEdgeError as error:
                is_broken = True
                yield Step(name, "failed", error.what, error.fix)
    finally:
        visit.close()


@dataclass
class _Heard:
    """What the session has told. Filled by its threads."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    has_begun: bool = False
    error: ZhcEdgeError | None = None
    is_acknowledged: bool = False
    refusal: str = ""
    grants: dict[str, bool] = field(default_factory=dict)
    payloads: list[bytes] = field(default_factory=list)

    def note(self, change: Callable[[], None]) -> None:
        with self.changed:
            change()
            self.changed.notify_all()

    def wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: condition() or self.error is not None, timeout_s) and condition()


class _Visit:
    """The steps towards one broker, called in order. Each returns what it has found, or raises a ZhcEdgeError."""

    def __init__(self, settings: BrokerSettings, topics: Topics) -> None:
        self._settings, self._topics = settings, topics
        self._test_topic = f"{topics.root}/test"
        self._payload = b'{"test":"%s"}' % secrets.token_hex(8).encode()
        self._session: Session | None = None
        self._thread: threading.Thread | None = None
        self._heard = _Heard()

    def resolve(self) -> str:
        settings = self._settings
        try:
            found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise connect_error(settings, error) from error
        return ", ".join(dict.fromkeys(str(entry[4][0]) for entry in found))

    def connect(self) -> str:
        began_s = time.monotonic()
        with self._open() as plain:
            peer = plain.getpeername()
        return f"{peer[0]} port {peer[1]} answers in {1000 * (time.monotonic() - began_s):.0f} ms"

    def shake_hands(self) -> str:
        settings = self._settings
        if settings.tls is None:
            return "off: nothing on this connection is encrypted"
        context = make_context(settings.tls)
        with self._open() as plain:
            try:
                wrapped = context.wrap_socket(plain, server_hostname=settings.host)
            except OSError as error:
                shown = None
                if isinstance(error, ssl.SSLCertVerificationError):
                    shown = fetch_certificate(settings.host, settings.port, settings.connect_timeout_s)
                raise tls_error(settings, error, shown) from error
            with wrapped:
                facts, der, version = wrapped.getpeercert() or {}, wrapped.getpeercert(True), wrapped.version()
        text = f"{version}; broker: {_name(facts, 'subject')}, signed by {_name(facts, 'issuer')}"
        text += f", {_until(validity(der).ends)}" if der else ""
        if settings.tls.certificate_file is not None:
            text += f"; our certificate {_until(file_validity(settings.tls.certificate_file).ends)}"
        return text

    def log_in(self) -> str:
        settings = self._settings
        versions = _versions(settings)
        for version in versions:
            session = self._begin(version, may_fall_back=len(versions) == 2 and version == 5)
            if self._heard.wait(lambda: self._heard.has_begun, 3 * settings.connect_timeout_s):
                return self._describe(session)
            if not (session.refuses_version and version == 5 and len(versions) == 2):
                break
            self._end()
        raise self._heard.error or BrokerError("the MQTT broker does not answer", where=settings.address)

    def subscribe(self) -> str:
        topic = self._test_topic
        if not self._heard.wait(lambda: topic in self._heard.grants, self._settings.connect_timeout_s):
            raise self._lost("does not answer our subscription")
        if not self._heard.grants[topic]:
            fix = "give this device's user read access to its topics"
            raise BrokerError(f"the MQTT broker forbids subscribing to {topic}", fix=fix)
        return topic

    def publish(self) -> str:
        heard, topic = self._heard, self._test_topic
        session = self._session
        if session is None or not session.publish(Message(topic, self._payload), token=1):
            raise self._lost("takes no message")
        if not heard.wait(lambda: heard.is_acknowledged or bool(heard.refusal), self._settings.connect_timeout_s):
            raise self._lost("does not acknowledge")
        if heard.refusal:
            what, _, fix = denial_text(topic).partition(": ")
            raise BrokerError(f"{what} ({heard.refusal})", fix=fix)
        return f"{topic} is acknowledged"

    def permissions(self) -> str:
        heard = self._heard
        if not heard.wait(lambda: self._payload in heard.payloads, _ECHO_S):
            raise BrokerError(
                f"what the MQTT broker has acknowledged on {self._test_topic} does not come back",
                fix="give this device's user write and read access to its topics",
            )
        wanted = (self._topics.events, *self._topics.command_filters)
        heard.wait(lambda: all(topic in heard.grants for topic in wanted), self._settings.connect_timeout_s)
        denied = [topic for topic in wanted if not heard.grants.get(topic, False)]
        if denied:
            fix = "give this device's user read access to them: commands come from there"
            raise BrokerError(f"the MQTT broker forbids subscribing to {', '.join(denied)}", fix=fix)
        return "the message has come back; events and commands may be subscribed to"

    def close(self) -> None:
        self._end()

    def _open(self) -> socket.socket:
        settings = self._settings
        try:
            return socket.create_connection((settings.host, settings.port), settings.connect_timeout_s)
        except OSError as error:
            raise connect_error(settings, error) from error

    def _begin(self, version: Literal[3, 5], *, may_fall_back: bool) -> Session:
        heard = self._heard = _Heard()
        subscriptions = (self._test_topic, self._topics.events, *self._topics.command_filters)
        handlers = SessionHandlers(
            on_begun=lambda session: heard.note(lambda: setattr(heard, "has_begun", True)),
            on_ack=lambda token: heard.note(lambda: setattr(heard, "is_acknowledged", True)),
            on_refused=lambda token, reason: heard.note(lambda: setattr(heard, "refusal", reason)),
            on_message=lambda message: heard.note(lambda: self._keep(heard, message)),
            on_grant=lambda topic, is_granted: heard.note(lambda: heard.grants.update({topic: is_granted})),
        )
        session = Session(
            1,
            self._settings,
            version,
            None,
            subscriptions,
            handlers,
            StandingAlerts(_ignore),
            may_fall_back=may_fall_back,
        )

        def run() -> None:
            try:
                session.run()
                error: ZhcEdgeError = BrokerError("the connection has ended", where=self._settings.address)
            except ZhcEdgeError as caught:
                error = caught
            heard.note(lambda: setattr(heard, "error", error))

        self._session = session
        self._thread = threading.Thread(target=run, name="mqtt-test", daemon=True)
        self._thread.start()
        return session

    def _keep(self, heard: _Heard, message: Incoming) -> None:
        if message.topic == self._test_topic and not message.is_retained:
            heard.payloads.append(message.payload)

    def _end(self) -> None:
        if self._session is not None and self._thread is not None:
            self._session.end()
            self._thread.join(self._settings.connect_timeout_s)
        self._session = self._thread = None

    def _lost(self, what: str) -> ZhcEdgeError:
        return self._heard.error or BrokerError(f"the MQTT broker {what}", fix="see its log")

    def _describe(self, session: Session) -> str:
        if session.protocol != 5:
            return "MQTT 3.1.1, which tells no limits"
        limits = session.limits
        parts = []
        if limits.receive_maximum < MAX_UNACKNOWLEDGED:
            parts.append(f"takes {limits.receive_maximum} unacknowledged messages")
        if limits.packet_bytes < LARGEST_PACKET:
            parts.append(f"takes packets of up to {limits.packet_bytes} bytes")
        parts += [limits.lacks()] if limits.lacks() else []
        return "; ".join(["MQTT 5", *parts])


def _versions(settings: BrokerSettings) -> tuple[Literal[3, 5], ...]:
    if settings.protocol == "auto":
        return (5, 3)
    return (5,) if settings.protocol == "5" else (3,)


def _ignore(alert: Alert) -> None:
    """The steps say it."""


def _name(facts: object, which: str) -> str:
    """The common name, else the organisation, of what ssl says of a certificate."""
    entries = facts.get(which, ()) if isinstance(facts, dict) else ()
    named = {key: value for part in entries for key, value in part}
    return str(named.get("commonName") or named.get("organizationName") or "an unnamed authority")


def _until(ends: datetime) -> str:
    days = (ends - datetime.now(timezone.utc)).days
    return f"valid until {ends:%Y-%m-%d} ({days} days)"

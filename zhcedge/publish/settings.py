"""Where the MQTT brokers are and how to stay connected to one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

Protocol = Literal["auto", "5", "3.1.1"]


@dataclass(frozen=True)
class TlsSettings:
    """How the broker is checked, and what we show it. Files are read anew for every connection: renewed ones count.

    Attributes:
        ca_file: PEM file of the authorities that may have signed the broker's certificate; None for the system's.
        certificate_file: PEM file with our certificate and its chain; None for none.
        key_file: PEM file with its key; None when that is in certificate_file.
        key_password: gives the key's password, empty for none; may raise ConfigError.
        server_name: name that the broker's certificate must hold; empty for the host that is connected to.
    """

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    key_password: Callable[[], str] = field(default=str, repr=False)
    server_name: str = ""


@dataclass(frozen=True)
class BrokerSettings:
    """One broker, and others to go to when it is away.

    Attributes:
        client_id: unique at the broker, the same for every connection of a device.
        username, password: empty for none. The password is in no repr.
        keepalive_s: a broker that has been silent for 1.5 times this is given up.
        connect_timeout_s: for the TCP connection, and again for the broker's answer.
        reconnect_min_s, reconnect_max_s: the wait before a new round over the brokers is drawn from 0 to a bound that
            doubles from the first to the second ("full jitter"), so that many devices don't come back at once.
        protocol: MQTT version; auto is 5, and 3.1.1 at brokers that refuse 5.
        fallbacks: host and port of the brokers to try, in this order, when the first one does not accept us.
        tls: None for a connection in the clear.
        session_expiry_s: how long the broker keeps commands for us while we are away (MQTT 5); 0 for not at all.
        checks_delivery: whether, on MQTT 3.1.1, the first message of an outbox must come back to us before others
            follow it: such a broker acknowledges what its access list forbids.
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
    protocol: Protocol = "auto"
    fallbacks: tuple[tuple[str, int], ...] = ()
    tls: TlsSettings | None = None
    session_expiry_s: int = 60
    checks_delivery: bool = True

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def brokers(self) -> tuple[BrokerSettings, ...]:
        """These settings for each broker alone, in the order in which they are tried."""
        others = (replace(self, host=host, port=port, fallbacks=()) for host, port in self.fallbacks)
        return (replace(self, fallbacks=()), *others)

"""The configuration's MQTT brokers, with passwords and files read or found."""

from __future__ import annotations

from pathlib import Path

from zhcedge.app.passwords import read_password, secret_file
from zhcedge.config.delivery import TlsConfig
from zhcedge.config.schema import Config
from zhcedge.publish.settings import BrokerSettings, TlsSettings
from zhcedge.publish.tls import make_context


def broker_settings(config: Config) -> BrokerSettings:
    """The brokers that the configuration names. Raises ConfigError when a file of theirs can't be used."""
    mqtt = config.mqtt
    check_tls(config)
    return BrokerSettings(
        host=mqtt.host,
        port=mqtt.port,
        client_id=f"zhc-edge-{config.device}",
        username=mqtt.username or "",
        password=read_password(mqtt.password_file, "mqtt.password_file"),
        keepalive_s=mqtt.keepalive_s,
        connect_timeout_s=mqtt.connect_timeout_s,
        protocol=mqtt.protocol,
        fallbacks=tuple((server.host, server.port) for server in mqtt.fallbacks),
        tls=_tls_settings(mqtt.tls) if mqtt.tls.enabled else None,
        session_expiry_s=mqtt.session_expiry_s,
        checks_delivery=mqtt.check_delivery,
    )


def check_tls(config: Config) -> None:
    """Read the files of TLS, if it is on. Raises ConfigError for one that can't be used."""
    if config.mqtt.tls.enabled:
        make_context(_tls_settings(config.mqtt.tls))


def _tls_settings(tls: TlsConfig) -> TlsSettings:
    return TlsSettings(
        ca_file=_file(tls.ca_file, "ca_file"),
        certificate_file=_file(tls.certificate_file, "certificate_file"),
        key_file=_file(tls.key_file, "key_file"),
        key_password=lambda: read_password(tls.key_password_file, "mqtt.tls.key_password_file"),
        server_name=tls.server_name or "",
    )


def _file(path: Path | None, key: str) -> Path | None:
    return None if path is None else secret_file(path, f"mqtt.tls.{key}")

"""What the doctor finds of the certificates that the configuration names: when they expire."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

from zhcedge.app.findings import Finding
from zhcedge.app.passwords import secret_file
from zhcedge.config.schema import Config
from zhcedge.core.errors import ConfigError
from zhcedge.core.files import is_credential
from zhcedge.publish.certificates import file_validity
from zhcedge.publish.expiry import URGENT_DAYS, WARN_DAYS

_FIX = "renew it: connections fail without it"


def look_at_certificates(config: Config) -> Iterator[Finding]:
    """One line each. A broker's own certificate is seen on the way to it."""
    for key, path in _named(config).items():
        if is_credential(path) and not os.environ.get("CREDENTIALS_DIRECTORY"):
            yield Finding("certificate", "skipped", f"{path}: only the service has it, run this as root")
            continue
        try:
            yield _of_end(path, file_validity(secret_file(path, key)).ends)
        except ConfigError as error:
            yield Finding("certificate", "bad", f"{path}: {error.what}", error.fix)


def _named(config: Config) -> dict[str, Path]:
    tls = config.mqtt.tls
    named = {f"channels.{name}.source.ca_file": one.source.ca_file for name, one in config.channels.items()}
    if config.mqtt.enabled and tls.enabled:
        named |= {"mqtt.tls.certificate_file": tls.certificate_file, "mqtt.tls.ca_file": tls.ca_file}
    return {key: path for key, path in named.items() if path is not None}


def _of_end(path: Path, ends: datetime) -> Finding:
    left = ends - datetime.now(timezone.utc)
    if left < timedelta(0):
        return Finding("certificate", "bad", f"{path} has expired on {ends:%Y-%m-%d}", _FIX)
    text = f"{path} is valid until {ends:%Y-%m-%d}, {left.days} days"
    if left < timedelta(days=URGENT_DAYS):
        return Finding("certificate", "bad", text, _FIX)
    return (
        Finding("certificate", "note", text, _FIX)
        if left < timedelta(days=WARN_DAYS)
        else Finding("certificate", "ok", text)
    )

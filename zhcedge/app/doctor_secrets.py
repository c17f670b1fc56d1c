"""What of a configuration must not be in a report: its secrets and its hosts, also those of a faulty or former one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from zhcedge.app.doctor_redaction import Redactor
from zhcedge.app.given_folders import state_folder
from zhcedge.app.last_good import LastGood
from zhcedge.app.passwords import secret_file
from zhcedge.config.load import examine_parts
from zhcedge.config.overrides import PREFIX
from zhcedge.config.schema import Config
from zhcedge.core.errors import ConfigError
from zhcedge.core.files import read_regular
from zhcedge.profiles import PROFILES

_LIMIT_BYTES = 4 << 20
_LOGIN = re.compile(r"//([^\s/\"'<>]+)@")
_ARGUMENT = re.compile(r"(?i)(?:pass|pwd|psw|token|secret|auth|sig|key)\w*\s*=\s*([^&\s\"'#]+)")
_SECRET_KEY = re.compile(r"(?i)^\s*[\w-]*(?:password|passwd|token|secret)\s*:\s*[\"']?([^\s\"'#]+)", re.MULTILINE)
_VERSION = re.compile(r"\d+(?:\.\d+){3}")
_HOST = re.compile(r"(?i)//(?:[^\s/@]*@)?(\[[^\]\s]+\]|[\w.-]+)|\bhost\s*:\s*[\"']?([\w.:-]+)")


def redactor_of(path: Path, environ: Mapping[str, str], said: Iterable[str] = (), *, shows_hosts: bool) -> Redactor:
    """One that knows the configuration in `path`, the last good one, and the credentials. Reads their files.

    Args:
        said: lines about this computer, without addresses: what looks like one in them is a version.
    """
    configs = [one for one in (examine_parts(path, (), environ, profiles=PROFILES).config, _former(environ)) if one]
    raw = list(_raw_texts(path, environ))
    secrets = {secret for config in configs for secret in _secrets_of(config)}
    secrets |= {secret for text in raw for secret in _secrets_in(text)}
    secrets |= {secret for file in _credentials(environ) for secret in _lines_of(file)}
    hosts: dict[str, str] = {}
    for config in configs:
        hosts = {**_hosts_of(config), **hosts}
    unnamed = dict.fromkeys(found[0] or found[1] for text in raw for found in _HOST.findall(text))
    hosts |= {host: f"<configured-{number}>" for number, host in enumerate(unnamed) if host.lower() not in hosts}
    versions = [found for line in said for found in _VERSION.findall(line)]
    return Redactor(secrets, hosts, versions, shows_hosts=shows_hosts)


def _former(environ: Mapping[str, str]) -> Config | None:
    """The journal may tell of what is not configured any more."""
    state = state_folder(environ)
    return LastGood.from_environment({"STATE_DIRECTORY": str(state)}).load() if state is not None else None


def _raw_texts(path: Path, environ: Mapping[str, str]) -> Iterator[str]:
    """A faulty configuration has secrets, too."""
    for file in (path, *sorted((path.parent / "conf.d").glob("*.yaml"))):
        try:
            yield read_regular(file, _LIMIT_BYTES).decode(errors="replace")
        except (OSError, ValueError):
            continue
    yield from (text for name, text in environ.items() if name.startswith(PREFIX))


def _secrets_of(config: Config) -> Iterator[str]:
    tls = config.mqtt.tls
    files = [config.mqtt.password_file, tls.key_password_file, tls.key_file, tls.certificate_file]
    files += [channel.source.password_file for channel in config.channels.values()]
    for file in files:
        if file is not None:
            yield from _lines_of(_found(file), is_certificate=file == tls.certificate_file)
    for _, uri in _addresses(config):
        yield from _secrets_in(uri)
        yield from _password_of(uri.partition("//")[2].rpartition("@")[0])


def _secrets_in(text: str) -> Iterator[str]:
    for login in _LOGIN.findall(text):
        yield from _password_of(login)
    yield from _ARGUMENT.findall(text)
    yield from _SECRET_KEY.findall(text)


def _password_of(login: str) -> Iterator[str]:
    """Of "user:password"; a lone word may be a token."""
    user, colon, password = login.partition(":")
    secret = password if colon else user
    if secret and "/" not in user:
        yield from (secret, unquote(secret))


def _found(file: Path) -> Path | None:
    try:
        return secret_file(file, "")
    except ConfigError:
        return None


def _credentials(environ: Mapping[str, str]) -> list[Path]:
    folder = environ.get("CREDENTIALS_DIRECTORY")
    return sorted(Path(folder).glob("*")) if folder else []


def _lines_of(path: Path | None, *, is_certificate: bool = False) -> Iterator[str]:
    """Every line of a secret file; of a certificate those of the private key that may stand beside it."""
    if path is None:
        return
    try:
        text = read_regular(path, _LIMIT_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return
    is_inside = not is_certificate
    for line in map(str.strip, text.splitlines()):
        if line.startswith("-----"):
            is_inside = not is_certificate or (line.startswith("-----BEGIN") and "PRIVATE KEY" in line)
        elif line and is_inside:
            yield line


def _addresses(config: Config) -> Iterator[tuple[str, str]]:
    """What stands for the host of each, and the address."""
    for name, channel in config.channels.items():
        if "://" in channel.source.uri:
            yield f"<camera-{name}>", channel.source.uri
        yield from ((f"<sink-{name}>", sink.url) for sink in channel.sinks if sink.url is not None)


def _hosts_of(config: Config) -> dict[str, str]:
    """What stands for each host; the first use counts."""
    named: list[tuple[str, str | None]] = []
    for name, uri in _addresses(config):
        try:
            named.append((name, urlsplit(uri).hostname))
        except ValueError:
            continue
    mqtt = config.mqtt
    named += [(f"<broker-{number}>", one) for number, one in enumerate((mqtt.host, *(o.host for o in mqtt.fallbacks)))]
    named.append(("<broker-name>", mqtt.tls.server_name))
    return {host.lower(): name for name, host in reversed(named) if host}

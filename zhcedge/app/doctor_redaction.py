"""Takes out of a report what must not leave the device: passwords, tokens, keys, user names in addresses, hosts.

Two nets, one behind the other: what is known to be secret, because the configuration names it, and what looks like it.
Each hides too much rather than too little.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from functools import partial
from urllib.parse import quote, unquote

from zhcedge.core.addresses import HIDDEN, without_password

_SHORT = 6
"""A secret of fewer letters counts as whole word only: "a" is in every line."""

_PRIVATE_KEY = re.compile(r"-----BEGIN [^-]*PRIVATE KEY-----.*?(?:-----END [^-]*PRIVATE KEY-----|\Z)", re.DOTALL)
_HEADER = re.compile(r"(?i)\b((?:proxy-)?authorization\s*[:=]|bearer\s|basic\s(?=[A-Za-z0-9+/=]{8}))\s*\S.*")
_USER_INFO = re.compile(r"(//)[^/\s@]*@")
_URL_HOST = re.compile(r"(?i)\b((?:rtsps?|https?|mqtts?)://)(\[[^\]\s]+\]|[^/\s:\[\]<>\"',;?#]+)")
_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?!\d|\.\d)")
_IPV6 = re.compile(r"(?<![\w:])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,8}(?![\w:])")


class Redactor:
    """Cleans text and JSON values. One thread.

    Args:
        secrets: texts that must not be seen.
        hosts: names and addresses of cameras and brokers, and what stands for each; whatever else looks like one
            becomes <host-1>, <host-2>, ...: the same one always the same.
        versions: what looks like an address and is none.
    """

    def __init__(
        self,
        secrets: Iterable[str],
        hosts: Mapping[str, str] | None = None,
        versions: Iterable[str] = (),
        *,
        shows_hosts: bool = False,
    ) -> None:
        forms = {form for secret in secrets for form in _forms(secret)}
        # The longest first: one may be part of another.
        self._secrets = [_pattern(form) for form in sorted(forms, key=len, reverse=True)]
        self._versions, self._shows_hosts, self._others = frozenset(versions), shows_hosts, 0
        self._names = {host.lower(): name for host, name in (hosts or {}).items() if not _is_local(host)}
        self._hosts = [
            (re.compile(rf"(?i)(?<![\w.-]){re.escape(host)}(?![\w-])"), name)
            for host, name in sorted(self._names.items(), key=lambda pair: len(pair[0]), reverse=True)
        ]

    def clean(self, text: str) -> str:
        """Any text, line by line."""
        return "\n".join(map(self._line, self._hidden(text).split("\n")))

    def clean_value(self, value: object) -> object:
        """The same of every text of a JSON value: what hides the rest of a line must not eat its brackets."""
        if isinstance(value, str):
            return self.clean(value)
        if isinstance(value, dict):
            # A key is a word of ours, which a host may be, too: "mqtt".
            return {self._hidden(str(key)): self.clean_value(child) for key, child in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.clean_value(child) for child in value]
        return value

    def _hidden(self, text: str) -> str:
        text = _PRIVATE_KEY.sub(HIDDEN, text)
        for secret in self._secrets:
            text = secret.sub(HIDDEN, text)
        return text

    def _line(self, line: str) -> str:
        line = _HEADER.sub(lambda match: f"{match[1]} {HIDDEN}", without_password(line))
        line = _USER_INFO.sub(rf"\g<1>{HIDDEN}@", line)
        if self._shows_hosts:
            return line
        for host, name in self._hosts:
            line = host.sub(partial(_always, name), line)
        line = _URL_HOST.sub(lambda match: match[1] + self._of_url(match[2]), line)
        return _IPV6.sub(self._address, _IPV4.sub(self._address, line))

    def _of_url(self, authority: str) -> str:
        user, at, host = authority.rpartition("@")
        return user + at + self._name(host)

    def _address(self, match: re.Match[str]) -> str:
        text = match[0]
        try:
            ipaddress.ip_address(text)
        except ValueError:  # a time, or a version of other parts
            return text
        return text if text in self._versions else self._name(text)

    def _name(self, host: str) -> str:
        """What stands for a host; itself for this computer."""
        bare = host.strip("[]").lower()
        if not bare or _is_local(bare):
            return host
        if bare not in self._names:
            self._others += 1
            self._names[bare] = f"<host-{self._others}>"
        return self._names[bare]


def _always(name: str, match: re.Match[str]) -> str:
    return name


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _forms(secret: str) -> set[str]:
    """The ways in which a secret may be written: plain, in an address, in a Python or JSON text."""
    forms = {secret, quote(secret, safe=""), quote(secret), unquote(secret), repr(secret)[1:-1]}
    forms |= {secret.replace("\\", "\\\\").replace('"', '\\"')}
    return {form for form in forms if len(form) > 1}


def _pattern(secret: str) -> re.Pattern[str]:
    text = re.escape(secret)
    return re.compile(text if len(secret) >= _SHORT else rf"(?<!\w){text}(?!\w)")

"""How long certificates are valid: their dates, read from the file or from what a server shows.

Python's ssl decodes only certificates that it has verified, so that our own, and a server's that is refused, are read
here: RFC 5280, section 4.1, as far as the dates.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from zhcedge.core.errors import ConfigError
from zhcedge.core.files import read_regular

MAX_FILE_BYTES = 16 * 1024 * 1024
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18


@dataclass(frozen=True)
class Validity:
    """When a certificate begins and ends to be valid, UTC."""

    begins: datetime
    ends: datetime


def validity(der: bytes) -> Validity:
    """Of a certificate in DER. Raises ValueError for what is none."""
    try:
        tag, certificate, _ = _element(der)
        body_tag, body, _ = _element(certificate)
        if (tag, body_tag) != (_SEQUENCE, _SEQUENCE):
            raise ValueError("not a certificate")
        rest = body
        if rest[0] == _VERSION:
            _, _, rest = _element(rest)
        for _ in range(3):  # serial number, algorithm, issuer
            _, _, rest = _element(rest)
        _, dates, _ = _element(rest)
        begin_tag, begins, rest = _element(dates)
        end_tag, ends, _ = _element(rest)
        return Validity(_time(begin_tag, begins), _time(end_tag, ends))
    except IndexError as error:
        raise ValueError("a certificate that is cut off") from error


def file_validity(path: Path) -> Validity:
    """Of the certificates in a PEM file, what holds for all: a chain breaks with its first link.

    Raises ConfigError for a file that can't be read or holds none.
    """
    try:
        text = read_regular(path, MAX_FILE_BYTES).decode("ascii", "replace")
        all_of_it = [validity(ssl.PEM_cert_to_DER_cert(pem)) for pem in _PEM.findall(text)]
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise ConfigError(f"the certificate can't be read: {reason}", where=str(path), fix="check the path") from error
    if not all_of_it:
        raise ConfigError("holds no certificate", where=str(path), fix="name a PEM file")
    return Validity(max(one.begins for one in all_of_it), min(one.ends for one in all_of_it))


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """Tag and contents of the first DER element, and what follows it."""
    length, start = data[1], 2
    if length & 0x80:
        size = length & 0x7F
        start += size
        length = int.from_bytes(data[2:start], "big")
    if len(data) < start + length:
        raise IndexError
    return data[0], data[start : start + length], data[start + length :]


def _time(tag: int, value: bytes) -> datetime:
    text = value.decode("ascii")
    if tag == _UTC_TIME:  # RFC 5280, 4.1.2.5.1: 50 to 99 are of the last century
        text = ("19" if text[:2] >= "50" else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError("a certificate without dates")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=timezone.utc)

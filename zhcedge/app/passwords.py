"""Passwords and other secrets that the configuration names by file."""

from __future__ import annotations

import os
import re
from pathlib import Path

from zhcedge.core.errors import ConfigError
from zhcedge.core.files import CREDENTIAL_PREFIX, is_credential, read_regular

_MAX_FILE_BYTES = 64 * 1024
_MAX_BYTES = 65_535  # MQTT 3.1.1, section 1.5.3; more than any camera takes


def secret_file(file: Path, key: str) -> Path:
    """The file itself: `credential:NAME` is NAME in $CREDENTIALS_DIRECTORY, which systemd sets (systemd.exec(5)).

    Raises ConfigError naming `key` when there is no such folder or NAME can't be one of its files.
    """
    if not is_credential(file):
        return file
    name = str(file).removeprefix(CREDENTIAL_PREFIX)
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name):
        raise ConfigError("is no credential's name", where=str(file), fix=f"correct {key}")
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    if not folder:
        what = "there are no credentials, because systemd has not started this program with any"
        raise ConfigError(what, where=str(file), fix=f"add LoadCredential={name}:PATH to the unit, or correct {key}")
    return Path(folder, name)


def read_password(file: Path | None, key: str) -> str:
    """The first line of `file`, empty without one. Raises ConfigError naming `key` when it can't be read.

    A credential of systemd is read where it lies. Only a regular file of at most 64 KiB will do: a device or a pipe
    might never end.
    """
    if file is None:
        return ""
    file = secret_file(file, key)
    try:
        password = read_regular(file, _MAX_FILE_BYTES).decode().partition("\n")[0].rstrip("\r")
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name, or bytes that are no UTF-8
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else _words(error)
        raise ConfigError(f"the password can't be read: {reason}", where=str(file), fix=f"correct {key}") from None
    if len(password.encode()) > _MAX_BYTES:
        raise ConfigError(f"the password is longer than {_MAX_BYTES} bytes", where=str(file), fix=f"correct {key}")
    return password


def _words(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)

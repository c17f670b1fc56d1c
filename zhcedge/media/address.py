"""Addresses of streams: which they are, how they look to FFmpeg. In messages: core/addresses.py."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from zhcedge.core.errors import MediaError

STREAM_SCHEMES = ("rtsp", "rtsps", "http", "https")
CAMERA_PREFIX = "v4l2:"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_LONGEST_LOGIN_BYTES = 127
"""FFmpeg's RTSP client keeps "user:password", percent-encoded, in 128 bytes and cuts off the rest."""


def scheme_of(uri: str) -> str:
    """What stands before "://", in lower case; empty for a path."""
    match = _SCHEME.match(uri)
    return match[1].lower() if match else ""


def is_live_address(uri: str) -> bool:
    """Whether `uri` is a network stream or a camera, not a file."""
    return scheme_of(uri) in STREAM_SCHEMES or uri.startswith(CAMERA_PREFIX)


def with_credentials(uri: str, username: str | None, password: str | None, where: str) -> str:
    """The URL that FFmpeg gets; never to be shown. Given credentials replace those inside `uri`.

    Raises MediaError for a URL that can't be read or credentials that are too long for FFmpeg.
    """
    try:
        parts = urlsplit(uri)
        login, _, host = parts.netloc.rpartition("@")
        # A stream has no fragments: what looks like one is the end of a login with a # in it.
        has_host = bool(parts.hostname) and "@" not in parts.fragment
        _ = parts.port  # raises for one that is no number
    except ValueError:
        has_host, login, host = False, "", ""
    if not has_host:
        raise MediaError(
            "is no address of a stream",
            where=where,
            fix="write scheme://host/path, and a login with odd characters as username and password_file",
        )
    if username is None:
        user, separator, secret = login.partition(":")
        # What a user typed by hand may hold characters that would end the login; encode it as if it were plain text.
        username, password = unquote(user), unquote(secret) if separator else None
    if not (username or password):
        return urlunsplit(parts._replace(netloc=host))
    login = quote(username, safe="")
    if password is not None:
        login += f":{quote(password, safe='')}"
    if len(login) > _LONGEST_LOGIN_BYTES:
        raise MediaError(
            "user name and password are too long for the stream client",
            where=where,
            fix=f"choose shorter ones: {_LONGEST_LOGIN_BYTES} bytes in all, percent-encoded",
        )
    return urlunsplit(parts._replace(netloc=f"{login}@{host}"))

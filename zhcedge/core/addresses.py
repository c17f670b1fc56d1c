"""Addresses with a password inside: how they are shown."""

from __future__ import annotations

import re

HIDDEN = "***"

_LOGIN = re.compile(r"((?:\A[^/:@]*:|//|(?i:rtsps?|https?):)/*)(.*)@", re.DOTALL)
"""A login as far as the last @: behind a scheme, also one with too few slashes, or behind the first two slashes."""

_SCHEME = re.compile(r"(?i:rtsps?|https?|file):/*|//+")

_PORTLESS = re.compile(r"(\A[^/:@]*:/+[^/?#:@\[]*:)(?!\d*(?:[/?#]|\Z))[^@]*\Z")
"""What stands where a port does and is none: more likely the password of a login whose host was forgotten."""

_SECRET_ARGUMENT = re.compile(
    r"((?:pass(?:word|wd|phrase)?|pwd|psw|token|secret|auth|sig(?:nature)?|key)\s*=).*", re.DOTALL | re.IGNORECASE
)


def without_password(text: str) -> str:
    """`text` with the password of the address in it replaced: rtsp://user:***@host/. Anything else stays.

    The only way in which an address gets into a message. It hides too much rather than too little: a password may hold
    any character, a slash, an @ or a # written as they are too, so it ends at the last @ of the text; one in an
    argument with a telling name (password=, token=, ..., in a path as well) ends with the text. A lone user name is
    hidden where it could be a token. Pure, in a time that grows as the text does: cameras and brokers write some of it.
    """
    # As far as the last @, so that what begins like a login is one: a search that fails late would try everything.
    login, argument = _LOGIN.search(text, 0, text.rfind("@") + 1), _SECRET_ARGUMENT.search(text)
    if login is None:
        shown = _PORTLESS.sub(rf"\g<1>{HIDDEN}", text)
    elif argument is not None and argument.start() < login.end():  # whose the @ is nobody can tell
        if ":" in text[login.end(1) : argument.start()]:
            return f"{text[: login.end(1)]}{HIDDEN}"
        shown = text
    else:
        shown = f"{text[: login.start()]}{_hide(login)}{text[login.end() :]}"
    return _SECRET_ARGUMENT.sub(rf"\g<1>{HIDDEN}", shown)


def _hide(match: re.Match[str]) -> str:
    lead, login = match[1], match[2]
    user, colon, _ = login.partition(":")
    if not _SCHEME.fullmatch(lead) or (colon and set(user) & set("/?#=")):
        return f"{lead}{HIDDEN}@"  # the user name may be what looks like a scheme, or not end at the colon
    if colon:
        return f"{lead}{user}:{HIDDEN}@"
    # Without a colon, an @ behind a slash belongs to the path: https://host/@name.
    return match[0] if "/" in login and "//" in lead else f"{lead}{HIDDEN}@"


def without_passwords(value: object) -> object:
    """The same of every text in dictionaries, lists and tuples; tuples become lists."""
    if isinstance(value, str):
        return without_password(value)
    if isinstance(value, dict):
        return {name: without_passwords(child) for name, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_passwords(child) for child in value]
    return value

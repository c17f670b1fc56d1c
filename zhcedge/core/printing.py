"""Text from files, servers and metadata on its way to a terminal or a log."""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    """`text` with every character escaped that could move a cursor, ring a bell, change colours or reorder letters.

    Args:
        keep: characters that stay although they are not printable, such as the line ends of a table.

    Pure; what is printable in any language stays.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in keep else repr(letter)[1:-1] for letter in text)


def utf8_text(name: str) -> str:
    """A file's name as text that can be encoded: each byte of it that is not UTF-8 as %XX, as in an address. Pure."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return "".join(_utf8_letter(letter) for letter in name)
    return name


def _utf8_letter(letter: str) -> str:
    if "\udc80" <= letter <= "\udcff":  # how Python keeps a byte that it can't decode (PEP 383)
        return f"%{ord(letter) - 0xDC00:02X}"
    return "\N{REPLACEMENT CHARACTER}" if "\ud800" <= letter <= "\udfff" else letter

"""Class names for an import: from ultralytics' metadata, a file, or a list. Never evaluates what it reads."""

from __future__ import annotations

import ast
import re
import warnings
from pathlib import Path

from zhcedge.core.errors import ModelError, SourceMissingError

MAX_LABELS = 10_000
MAX_LABEL_LENGTH = 200
_MAX_TEXT = 1024 * 1024
_MAX_LITERAL = 512 * 1024  # takes some hundred times as much memory while it is parsed
_MAX_BITS = 64  # Python refuses to print an integer of thousands of digits
_INDEX = re.compile("0|[1-9][0-9]{0,5}")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]+")


def literal(text: str) -> object:
    """The value of a Python literal as metadata holds it; None for anything else, or for half a megabyte of it."""
    if len(text) > _MAX_LITERAL:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd escapes, which are not our text's
            value: object = ast.literal_eval(text.strip())
    # Nesting without end makes it fail in the last two ways.
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return value


def labels_of_metadata(text: str) -> tuple[str, ...] | None:
    """Class names by index from the text of a Python dict {0: "person", ...} or list; None when it is neither.

    A dict must name the whole numbers 0, 1, 2, ... without a gap, also written as text; a key that only looks like one,
    0.5 or True, would take another class's place.
    """
    value = literal(text)
    if isinstance(value, dict):
        by_index = {_index(key): name for key, name in value.items()}
        if len(by_index) != len(value) or set(by_index) != set(range(len(value))):
            return None
        value = [by_index[index] for index in range(len(value))]
    if not isinstance(value, (list, tuple)) or not 0 < len(value) <= MAX_LABELS:
        return None
    if not all(map(_is_name, value)):
        return None
    return tidy([str(name) for name in value])


def _index(key: object) -> int | None:
    if isinstance(key, str):
        return int(key) if _INDEX.fullmatch(key) else None
    return key if type(key) is int else None


def _is_name(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_LABEL_LENGTH
    return isinstance(value, float) or (isinstance(value, int) and value.bit_length() <= _MAX_BITS)


def labels_of_option(text: str) -> tuple[str, ...]:
    """Class names of a file with one a line, or of a list with commas: what is a file is taken for one.

    Raises SourceMissingError for a name that looks like a file's and is none; ModelError for one that can't be read,
    and for too many labels or one that is too long.
    """
    path = Path(text)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # too long for a path, or a NUL byte: then it is a list
        is_file = False
    if not is_file:
        if "," not in text and ("/" in text or path.suffix):
            raise SourceMissingError("there is no such file of labels", where=text, fix="check the path")
        return _bounded([part.strip() for part in text.split(",")], "--labels")
    try:
        with path.open("rb") as stream:
            data = stream.read(_MAX_TEXT + 1)
        if len(data) > _MAX_TEXT:
            raise ModelError(f"larger than {_MAX_TEXT} bytes", where=text, fix="name a file with one label a line")
        return _bounded(data.decode("utf-8-sig").rstrip("\r\n").splitlines(), text)
    except UnicodeDecodeError as error:
        raise ModelError(f"is not UTF-8 text (byte {error.start})", where=text, fix="save it as UTF-8") from error
    except OSError as error:
        raise ModelError(f"can't be read: {error.strerror}", where=text, fix="check its permissions") from error


def _bounded(names: list[str], where: str) -> tuple[str, ...]:
    if len(names) > MAX_LABELS:
        raise ModelError(f"{len(names)} labels are more than {MAX_LABELS}", where=where, fix="check the labels")
    for number, name in enumerate(names, start=1):
        if len(name) > MAX_LABEL_LENGTH:
            what = f"label {number} has {len(name)} characters, more than {MAX_LABEL_LENGTH}"
            raise ModelError(what, where=where, fix="shorten it")
    return tidy(names)


def tidy(names: list[str]) -> tuple[str, ...]:
    """One printable line for each name, none empty and none twice: what a bundle wants. The number never changes."""
    tidied: list[str] = []
    seen: set[str] = set()
    numbers: dict[str, int] = {}  # of the next copy: to begin at 2 each time would take minutes over many equal names
    for index, name in enumerate(names):
        base = _UNPRINTABLE.sub(" ", "".join(c if c.isprintable() else " " for c in name)).strip() or f"class {index}"
        label, number = base, numbers.get(base, 2)
        while label in seen:
            label, number = f"{base} ({number})", number + 1
        numbers[base] = number
        seen.add(label)
        tidied.append(label)
    return tuple(tidied)

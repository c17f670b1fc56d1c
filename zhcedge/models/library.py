"""Where bundles lie: inside the package, and in the folders that `zhc-edge model import` writes to.

A name means the built-in bundle of that name, else the first folder of that name in `search_folders`, the first of
which is where an import writes. Nothing is verified here; bundle.py does that.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from zhcedge.core.errors import ModelError
from zhcedge.models.manifest import MANIFEST_NAME, NAME_PATTERN

SYSTEM_FOLDER = Path("/var/lib/zhc-edge/models")
"""Bundles for every user of the computer, and for the service."""


@dataclass(frozen=True)
class Entry:
    """A bundle that was found: its name, its folder, and whether it came with the package."""

    name: str
    folder: Path
    is_embedded: bool


def search_folders() -> tuple[Path, ...]:
    """Folders that are searched by name, in order: the user's (XDG base directories), then the computer's.

    For root the computer's comes first, unless XDG_DATA_HOME is set: what root imports is for the service.
    """
    data = os.environ.get("XDG_DATA_HOME", "")
    is_named = Path(data).is_absolute()  # the specification: a relative path is to be ignored
    if not is_named:
        try:
            data = str(Path.home() / ".local" / "share")
        except RuntimeError:  # a service without a home
            return (SYSTEM_FOLDER,)
    user = Path(data) / "zhcedge" / "models"
    return (SYSTEM_FOLDER, user) if os.geteuid() == 0 and not is_named else (user, SYSTEM_FOLDER)


def plan_folder() -> Path:
    """Where plans are kept: beside the computer's bundles where this process may write there, else the user's."""
    system = SYSTEM_FOLDER.with_name("plans")
    folders = search_folders()
    return system if len(folders) == 1 or os.access(system, os.W_OK) else folders[0].with_name("plans")


def embedded_bundles() -> tuple[str, ...]:
    """Names of the bundles that come with the package, sorted."""
    root = resources.files("zhcedge.models") / "bundles"
    return tuple(
        sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith((".", "_")))
    )


def all_bundles() -> tuple[Entry, ...]:
    """Every bundle that a name leads to: the built-in ones, then those of the search folders, sorted in each.

    A folder that may not be read has none.
    """
    entries = {name: Entry(name, _embedded_folder(name), True) for name in embedded_bundles()}
    for folder in search_folders():
        try:
            found = sorted(path for path in folder.iterdir() if _is_bundle(path))
        except OSError:
            continue
        for path in found:
            entries.setdefault(path.name, Entry(path.name, path, False))
    return tuple(entries.values())


def find_bundle(name_or_path: str | Path) -> Path:
    """The folder of a bundle, by its name or its path. Raises ModelError where there is none."""
    text = str(name_or_path)
    if isinstance(name_or_path, str) and re.fullmatch(NAME_PATTERN, text):
        if text in embedded_bundles():
            return _embedded_folder(text)
        for folder in search_folders():
            if _is_bundle(folder / text):
                return folder / text
    path = Path(name_or_path)
    try:
        if path.is_dir():
            return path
    except (OSError, ValueError) as error:  # a name too long, a NUL byte
        raise ModelError(f"not a usable path: {error}", where=repr(text), fix="name a bundle or its folder") from error
    names = [entry.name for entry in all_bundles()]
    close = difflib.get_close_matches(text, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"
    raise ModelError("no such model bundle", where=text, fix=f"name a bundle or a bundle's folder ({hint})")


def _embedded_folder(name: str) -> Path:
    folder = resources.files("zhcedge.models") / "bundles" / name
    if not isinstance(folder, Path):
        # Engines open a model by its path, so the package can't stay inside a zip file.
        raise ModelError("the package lies in an archive", where=name, fix="install zhcedge as a normal package")
    return folder


def _is_bundle(path: Path) -> bool:
    try:
        return re.fullmatch(NAME_PATTERN, path.name) is not None and (path / MANIFEST_NAME).is_file()
    except OSError:  # a folder that may not be entered
        return False

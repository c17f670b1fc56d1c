"""The configuration's files as one tree: the file itself, and what lies in conf.d beside it laid over it.

Drop-ins are conf.d/*.yaml in the order of their names, without hidden files. Mappings are merged, any other value
replaces what was there; null in the place of a camera takes the camera out. Every value keeps the place where it was
written.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

from zhcedge.config.problems import KeyPath, Place, Problem, found
from zhcedge.config.tree import MAX_BYTES, Tree, parse

FOLDER = "conf.d"

MAX_DROP_INS = 64


def read_tree(path: Path) -> Tree:
    """The values of `path` and of its drop-ins. Every fault, a missing file included, becomes a problem of the tree."""
    tree = _read(path)
    try:
        parts = drop_ins(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        tree.problems.append(Problem(Place(str(path.parent / FOLDER)), "", f"can't be looked into ({error})"))
        return tree
    if len(parts) > MAX_DROP_INS:
        what = f"{len(parts)} files; at most {MAX_DROP_INS} are read"
        tree.problems.append(Problem(Place(str(path.parent / FOLDER)), "", what, fix="put several into one"))
    for part in parts[:MAX_DROP_INS]:
        _lay_over(tree, _read_part(part))
    return tree


def drop_ins(path: Path) -> list[Path]:
    """Those of the configuration file `path`, in their order. Raises OSError."""
    folder = path.parent / FOLDER
    if not folder.is_dir():
        return []
    return sorted(file for file in folder.iterdir() if file.suffix == ".yaml" and not file.name.startswith("."))


def drop_in_with(path: Path, segments: Sequence[str]) -> Path | None:
    """The last drop-in that says something about the value at a key path, or about what it stands in; None for none."""
    try:
        parts = drop_ins(path)
    except (OSError, ValueError):
        return None
    for part in reversed(parts):
        node = _read_part(part).data
        for segment in segments:
            if not isinstance(node, dict) or segment not in node:
                break
            node = node[segment]
            if not isinstance(node, dict):
                return part
        else:
            return part
    return None


def _lay_over(tree: Tree, part: Tree) -> None:
    tree.problems += part.problems
    if not part.is_readable or part.data is None:
        return
    if not isinstance(part.data, dict):
        tree.problems.append(Problem(part.place_of(()), "", found(part.data), "keys and values, as in the main file"))
        return
    if tree.data is None and tree.is_readable:
        tree.data = {}
    if isinstance(tree.data, dict):
        _merge(tree, part, tree.data, part.data, ())


def _merge(tree: Tree, part: Tree, values: dict[str, object], more: dict[str, object], path: KeyPath) -> None:
    for key, value in more.items():
        child = (*path, key)
        here = values.get(key)
        if value is None and path == ("channels",):
            values.pop(key, None)
            _forget(tree, child)
        elif isinstance(value, dict) and isinstance(here, dict):
            _merge(tree, part, here, value, child)
        else:
            values[key] = value
            _forget(tree, child)
            for places, written in ((tree.values, part.values), (tree.keys, part.keys)):
                places.update({at: place for at, place in written.items() if at[: len(child)] == child})
            tree.broken += [at for at in part.broken if at[: len(child)] == child]
            if child == ("channels",) and isinstance(value, dict):
                _merge(tree, part, value, {name: None for name, camera in value.items() if camera is None}, child)


def _forget(tree: Tree, path: KeyPath) -> None:
    """Where the value at `path` was written, and what was wrong with it."""
    depth = len(path)
    tree.values = {at: place for at, place in tree.values.items() if at[:depth] != path}
    tree.keys = {at: place for at, place in tree.keys.items() if at[:depth] != path}
    tree.broken = [at for at in tree.broken if at[:depth] != path]


def _read_part(path: Path) -> Tree:
    """A drop-in, which is a plain file: for a pipe's writer a daemon would wait for ever."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return _unreadable(str(path), "this link leads nowhere", "remove it")
    except OSError:
        return _read(path)  # which says why
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return _read(path)
    return _unreadable(str(path), "this is not a regular file", "remove it")


def _read(path: Path) -> Tree:
    source = str(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return _unreadable(source, "this file does not exist", "check the path given with --config")
    except IsADirectoryError:
        return _unreadable(source, "this is a folder", "give the path of a YAML file")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return _unreadable(source, f"the file can't be read ({reason})", "check its permissions")
    if len(data) > MAX_BYTES:
        return _unreadable(source, f"the file is larger than {MAX_BYTES // 1024} KiB", "is it the right file?")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        good = data[: error.start].decode("utf-8-sig", "replace")
        place = Place(source, good.count("\n") + 1, len(good) - (good.rfind("\n") + 1) + 1)
        problem = Problem(place, "", f"the byte 0x{data[error.start]:02X} is not UTF-8", fix="save the file as UTF-8")
        return Tree(source, problems=[problem], is_readable=False)
    return parse(text, source)


def _unreadable(source: str, what: str, fix: str) -> Tree:
    return Tree(source, problems=[Problem(Place(source), "", what, fix=fix)], is_readable=False)

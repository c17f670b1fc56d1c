"""What is left of a faulty configuration: the values that are right by themselves, so that they can be examined."""

from __future__ import annotations

import copy
from collections.abc import Collection

from pydantic import ValidationError

from zhcedge.config.explain import without_branches
from zhcedge.config.problems import KeyPath
from zhcedge.config.schema import Config

_MAX_ROUNDS = 8  # a rule about several keys is only looked at once each of them is right
_NOTHING = {"source": {"uri": "pattern:boxes"}}
"""Stands where a channel can't be read. It names no file, so nothing is said about it."""


def salvage(
    data: object, error: ValidationError, profiles: Collection[str]
) -> tuple[Config, frozenset[KeyPath]] | None:
    """A configuration with what is right in `data`, and the key paths of what was left out of it; None for hopeless.

    Positions stay: in place of a channel, source or sink that can't be read stands one that names nothing. Pure.
    """
    kept = copy.deepcopy(data)
    dropped: set[KeyPath] = set()
    for _ in range(_MAX_ROUNDS):
        if not isinstance(kept, dict):
            return None
        for detail in error.errors(include_url=False, include_context=False):
            path: KeyPath = detail["loc"]
            if detail["type"] != "extra_forbidden":
                path = without_branches(path)
            dropped.add(_drop(kept, path))
        try:
            return Config.model_validate(kept, context={"profiles": tuple(profiles)}), frozenset(dropped)
        except ValidationError as later:
            error = later
    return None


def _drop(data: dict[str, object], path: KeyPath) -> KeyPath:
    """Take out of `data` what is wrong at `path`, as little as will do. Returns the key path of what went."""
    if path[:1] != ("channels",):
        path = path[:2]
        section = data.get(str(path[0])) if path else None
        if len(path) == 2 and isinstance(section, dict):
            section.pop(path[1], None)
            if not isinstance(path[1], str):
                data.pop(str(path[0]), None)
        elif path:
            data.pop(str(path[0]), None)
        return path
    channels = data.get("channels")
    name = path[1] if len(path) > 1 else None
    if not isinstance(channels, dict) or name not in channels:
        data["channels"] = {"none": _NOTHING}
        return path[:1]
    return path[:2] + _drop_in_channel(channels, str(name), path[2:])


def _drop_in_channel(channels: dict[str, object], name: str, path: KeyPath) -> KeyPath:
    channel = channels[name]
    if not isinstance(channel, dict) or not path or path[0] == "[key]":
        del channels[name]
        channels.setdefault("none", _NOTHING)
        return ()
    key, rest = path[0], path[1:]
    value = channel.get(str(key))
    if key == "source":
        if isinstance(value, dict) and not rest and value.pop("password_file", None) is not None:
            return "source", "password_file"  # it lacks a user name: the only rule about several keys of a source
        if not isinstance(value, dict) or not rest:
            channel["source"] = dict(_NOTHING["source"])
            return path[:1]
        value.pop(str(rest[0]), None)
        value.setdefault("uri", _NOTHING["source"]["uri"])
        return path[:2]
    if key == "sinks" and isinstance(value, list) and rest and isinstance(rest[0], int) and rest[0] < len(value):
        index, sink = rest[0], value[rest[0]]
        inner = rest[1:2]
        if isinstance(sink, dict) and inner and inner[0] not in ("kind", "path", "url"):
            sink.pop(str(inner[0]), None)
            return path[:3]
        value[index] = {"kind": "rtsp", "url": f"rtsp://none/{name}/{index}"}
        return path[:2]
    channel.pop(str(key), None)
    return path[:1]

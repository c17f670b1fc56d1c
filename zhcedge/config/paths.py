"""Relative paths made absolute, by one rule: a path starts where it was written.

In the file that is the file's folder, for its drop-ins too; on the command line, in the environment and in defaults
it is the working directory. A sink's path starts at output_dir, wherever it was written. A leading ~ is the home
folder. Nothing on disk is touched; whether a file exists is for whoever opens it. Addresses of streams, v4l2: and
pattern: are no paths; credential:NAME, a file that systemd hands over, is left as it is too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from zhcedge.config.problems import KeyPath, Problem, dotted, shortened
from zhcedge.config.schema import Config
from zhcedge.config.tree import Tree
from zhcedge.core.files import is_credential

_TARGETS = {"mp4": "the file", "jsonl": "the file", "jpeg": "the folder", "rtsp": "the address"}


class PathResolver:
    """Rewrites the paths of one configuration. `problems` collects what can't be resolved."""

    def __init__(self, tree: Tree, file_folder: Path, working_folder: Path) -> None:
        self._tree = tree
        self._file_folder = file_folder
        self._working_folder = working_folder
        self.problems: list[Problem] = []

    def resolve(self, config: Config) -> dict[str, object]:
        """The data of `config` with absolute paths, to be validated again."""
        data = config.model_dump()
        data["output_dir"] = self._absolute(("output_dir",), config.output_dir)
        if config.model.bundle_path is not None:
            data["model"]["bundle"] = str(self._absolute(("model", "bundle"), config.model.bundle_path))
        if config.mqtt.password_file is not None:
            data["mqtt"]["password_file"] = self._absolute(("mqtt", "password_file"), config.mqtt.password_file)
        for key in ("ca_file", "certificate_file", "key_file", "key_password_file"):
            if (file := getattr(config.mqtt.tls, key)) is not None:
                data["mqtt"]["tls"][key] = self._absolute(("mqtt", "tls", key), file)
        for section, key in (("control", "socket"), ("storage", "dir"), ("outbox", "dir"), ("outbox", "memory_dir")):
            if (path := getattr(getattr(config, section), key)) is not None:
                data[section][key] = self._absolute((section, key), path)
        for name, channel in config.channels.items():
            own = data["channels"][name]
            source: KeyPath = ("channels", name, "source")
            if channel.source.is_path:
                own["source"]["uri"] = str(self._absolute((*source, "uri"), Path(channel.source.uri)))
            for key in ("password_file", "ca_file"):
                if (file := getattr(channel.source, key)) is not None:
                    own["source"][key] = self._absolute((*source, key), file)
            for index, sink in enumerate(channel.sinks):
                if sink.path is not None:
                    where: KeyPath = ("channels", name, "sinks", index, "path")
                    own["sinks"][index]["path"] = self._absolute(where, sink.path, data["output_dir"])
        return data

    def _absolute(self, key: KeyPath, path: Path, base: Path | None = None) -> Path:
        if is_credential(path):
            return path
        if base is None:
            is_from_file = self._tree.holds(key) and self._tree.place_of(key).is_in_file
            base = self._file_folder if is_from_file else self._working_folder
        try:
            return base / path.expanduser()
        except RuntimeError:  # pathlib's word for a home folder that nobody knows
            what = f"found {shortened(str(path))}, and the home folder is unknown"
            self.problems.append(Problem(self._tree.place_of(key), dotted(key), what, fix="write the whole path"))
            return path


def clashes(config: Config, tree: Tree) -> Iterator[Problem]:
    """Sinks that would overwrite each other or a source."""
    taken: dict[str, str] = {}
    for name, channel in config.channels.items():
        if channel.source.is_path:
            taken.setdefault(os.path.realpath(channel.source.uri), dotted(("channels", name, "source", "uri")))
    for name, channel in config.channels.items():
        for index, sink in enumerate(channel.sinks):
            target = sink.url if sink.path is None else os.path.realpath(sink.path)
            key: KeyPath = ("channels", name, "sinks", index, "url" if sink.path is None else "path")
            first = taken.setdefault(str(target), dotted(key))
            if first != dotted(key):
                what = f"{_TARGETS[sink.kind]} {shortened(str(sink.path or sink.url))} is also {first}"
                yield Problem(tree.place_of(key), dotted(key), what, fix="write to another one")

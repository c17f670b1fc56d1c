"""The last configuration that the daemon was well with, kept for a boot at which the file is broken."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from zhcedge.app.given_folders import given_folder
from zhcedge.config.load import dump, parse_dump
from zhcedge.config.schema import Config
from zhcedge.core.errors import ConfigError, OutputError
from zhcedge.core.files import read_regular, write_whole

log = logging.getLogger(__name__)

_LIMIT_BYTES = 4 << 20


class LastGood:
    """One file, readable by the daemon's user alone: it holds resolved values, passwords in addresses included.

    Args:
        file: None keeps nothing.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> LastGood:
        """In $STATE_DIRECTORY, which systemd gives; nowhere without it."""
        folder = given_folder(environ, "STATE_DIRECTORY")
        return cls(folder / "last-good.json" if folder is not None else None)

    def keep(self, config: Config) -> None:
        """Write it. A disk that does not take it is told in the log."""
        if self._file is None:
            return
        try:
            write_whole(self._file, dump(config).encode(), "the last good configuration", mode=0o600, is_synced=True)
        except OutputError as error:
            log.warning("%s", error)

    def load(self) -> Config | None:
        """What was kept last; None where there is nothing, or nothing that this version understands."""
        if self._file is None:
            return None
        try:
            return parse_dump(read_regular(self._file, _LIMIT_BYTES).decode())
        except (OSError, UnicodeDecodeError):
            return None
        except ConfigError as error:
            log.warning("the last good configuration can't be used: %s", error)
            return None

"""A configuration file and its former versions: installed as a whole, kept, brought back.

Versions lie in `.history` beside the file, for their owner alone, the newest KEPT of them; their names begin with the
time at which they were replaced, so their order is that of time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from zhcedge.config.tree import MAX_BYTES
from zhcedge.core.errors import NotNowError, OutputError, SourceMissingError
from zhcedge.core.files import read_regular, write_whole

KEPT = 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class ConfigVersions:
    """Of one file. For one process at a time: use as a context manager, which locks.

    Raises NotNowError on entering while another process holds it, OutputError where its folder can't be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder = path.parent / ".history"
        self._lock = -1

    def __enter__(self) -> ConfigVersions:
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            # Not the folder of the file: a daemon locks that of its socket for a moment, which may be the same one.
            self._lock = os.open(self._folder, _FOLDER)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._unlock()
            raise NotNowError("somebody else is editing it", where=str(self.path), fix="try again later") from error
        except OSError as error:
            self._unlock()
            raise self._error(error) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def read(self) -> bytes:
        """What is there now. Raises SourceMissingError."""
        try:
            return read_regular(self.path, MAX_BYTES)
        except OSError as error:
            raise SourceMissingError(f"can't be read: {error.strerror or error}", where=str(self.path)) from error

    @contextlib.contextmanager
    def draft(self, data: bytes) -> Iterator[Path]:
        """A copy beside the file, so that relative paths in it mean the same. Gone afterwards. Raises OutputError."""
        path = self.path.parent / f".draft-{os.getpid()}-{self.path.name}"
        write_whole(path, data, "the draft", mode=0o600)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def install(self, data: bytes) -> Path | None:
        """Put `data` in place in one step, owner and mode as before; the kept former version, None when there was none.

        Raises OutputError, and then leaves the file as it was.
        """
        former = self._keep() if self.path.exists() else None
        try:
            with self.draft(data) as draft:
                if former is not None:
                    shutil.copymode(self.path, draft)
                    owner = self.path.stat()
                    os.chown(draft, owner.st_uid, owner.st_gid)
                with draft.open("rb") as stream:
                    os.fsync(stream.fileno())
                draft.replace(self.path)
                folder = os.open(self.path.parent, _FOLDER)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
        except OSError as error:
            raise self._error(error) from error
        return former

    def _keep(self) -> Path:
        who = os.environ.get("SUDO_USER") or os.environ.get("LOGNAME") or str(os.getuid())
        who = "".join(letter for letter in who if letter.isalnum() or letter in "-_")[:32]
        kept = self._folder / f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}.{time.time_ns() % 10**9:09d}-{who}.yaml"
        write_whole(kept, self.read(), "the former version", mode=0o600, is_synced=True)
        for old in self.versions()[:-KEPT]:
            old.unlink(missing_ok=True)
        return kept

    def versions(self) -> list[Path]:
        """The kept ones, the oldest first."""
        return sorted(self._folder.glob("*.yaml"))

    def _error(self, error: OSError) -> OutputError:
        return OutputError(f"can't be written: {error.strerror}", where=str(self.path.parent), fix="use sudo")

"""Whole files or none: what a reader finds under a name is complete, whatever happens to the writer. And small files,
read without ever waiting for what turns out to be none."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from zhcedge.core.errors import OutputError

CREDENTIAL_PREFIX = "credential:"
"""Before the name of a file that the service manager hands over (systemd's LoadCredential)."""


def is_credential(path: Path) -> bool:
    """Whether a configured path names such a file."""
    return str(path).startswith(CREDENTIAL_PREFIX)


def write_whole(path: Path, data: bytes, what: str, *, mode: int = 0o644, is_synced: bool = False) -> None:
    """Write `data` to `path`, replacing an older file only once everything is on its way to the disk.

    Args:
        what: for the message: "the summary".
        is_synced: wait until a power cut can't lose it.

    Raises OutputError, and then leaves an older file as it was and nothing else.
    """
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            if is_synced:
                stream.flush()
                os.fsync(stream.fileno())
        Path(temporary).chmod(mode)  # mkstemp makes files for their owner alone
        Path(temporary).replace(path)
        if is_synced:
            _sync_folder(path.parent)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        reason = error.strerror or str(error)
        raise OutputError(f"{what} can't be written: {reason}", where=str(path), fix="choose another place") from error


def _sync_folder(folder: Path) -> None:
    """The name of a file is on the disk only when its folder is (fsync(2))."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_regular(path: Path, limit_bytes: int) -> bytes:
    """The contents of a plain file. Raises OSError, also for a device, a pipe or a folder, and for a larger file."""
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            data = stream.read(limit_bytes + 1)
    finally:
        os.close(descriptor)
    if len(data) > limit_bytes:
        raise OSError(f"it is larger than {limit_bytes} bytes")
    return data


def check_folder(path: Path, what: str) -> None:
    """See that `path` could be written, before the work that it will hold. Raises OutputError."""
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK) or path.is_dir():
        raise OutputError(f"{what} can't be written there", where=str(path), fix="choose another place")

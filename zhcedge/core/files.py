"""Whole files or none: what a reader finds under a name is complete, whatever happens to the writer."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from zhcedge.core.errors import OutputError


def write_whole(path: Path, data: bytes, what: str) -> None:
    """Write `data` to `path`, replacing an older file only once everything is on its way to the disk.

    Args:
        what: for the message: "the summary".

    Raises OutputError, and then leaves an older file as it was and nothing else.
    """
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
        Path(temporary).chmod(0o644)  # mkstemp makes files for their owner alone
        Path(temporary).replace(path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        reason = error.strerror or str(error)
        raise OutputError(f"{what} can't be written: {reason}", where=str(path), fix="choose another place") from error


def check_folder(path: Path, what: str) -> None:
    """See that `path` could be written, before the work that it will hold. Raises OutputError."""
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK) or path.is_dir():
        raise OutputError(f"{what} can't be written there", where=str(path), fix="choose another place")

"""A text file of lines that has its name only when it is whole."""

from __future__ import annotations

import contextlib
from pathlib import Path

from zhcedge.media.mux import PendingFile, output_error


class LineFile:
    """Writes UTF-8 lines. Owned by one thread. The constructor raises OutputError and then leaves nothing behind."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = PendingFile(path)
        try:
            self._stream = self._file.temporary.open("wb")
        except OSError as error:
            self._file.discard()
            raise output_error(error, path) from error
        self.bytes_written = 0
        self.lines_written = 0

    def write(self, line: str) -> None:
        """Append a line, given without its end. Raises OutputError."""
        data = line.encode() + b"\n"
        try:
            self._stream.write(data)
        except OSError as error:
            raise output_error(error, self._path) from error
        self.bytes_written += len(data)
        self.lines_written += 1

    def finish(self) -> None:
        """Give the file its name, replacing an older one. Raises OutputError, with nothing left behind."""
        try:
            self._stream.close()  # writes what is still in its buffer
        except OSError as error:
            self._file.discard()
            raise output_error(error, self._path) from error
        self._file.commit()

    def abandon(self) -> None:
        """Remove the file. Never raises for a full or vanished disk."""
        with contextlib.suppress(OSError):  # what could not be written goes anyway
            self._stream.close()
        self._file.discard()

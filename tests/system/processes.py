"""Starting whole programs in tests, and finding what they leave behind."""

from __future__ import annotations

import os
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Marked:
    """An environment that every descendant of a program inherits, so that none of them can hide.

    Attributes:
        folder: gets the program's temporary files.
        environ: to start the program with.
    """

    folder: Path
    environ: dict[str, str] = field(init=False)
    _mark: str = field(init=False, default_factory=lambda: f"TEST_PROGRAM_MARK={uuid.uuid4().hex}")

    def __post_init__(self) -> None:
        self.folder.mkdir()
        name, _, value = self._mark.partition("=")
        ours = {name: value, "TMPDIR": str(self.folder), "NO_COLOR": "1"}
        self.environ = {key: text for key, text in os.environ.items() if not key.startswith("ZHC_")} | ours

    def processes(self) -> list[str]:
        """Command lines of the living processes that carry the mark; a zombie has none and does not count."""
        found = []
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and self._mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:  # it has ended meanwhile, or belongs to somebody else
                continue
        return found

    def left_over(self, within_s: float = 20.0) -> list[str]:
        """What still runs after waiting for everything to end."""
        deadline = time.monotonic() + within_s
        while (found := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

"""What an outbox is told: where it keeps its rows and how many of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class OutboxLimits:
    """Beyond these an outbox gives up rows, counted: expendable ones first, then the oldest.

    Attributes:
        max_messages: rows that wait.
        max_bytes: of all rows that wait, as `rows.size_of` counts them.
        max_age_s: age after which a row is given up.

    Raises:
        ValueError: for a limit below 1.
    """

    max_messages: int = 200_000
    max_bytes: int = 512 * 1024 * 1024
    max_age_s: float = 168 * 3600.0

    def __post_init__(self) -> None:
        if self.max_messages < 1 or self.max_bytes < 1 or self.max_age_s <= 0:
            raise ValueError("an outbox needs room for at least one row, for some time")


@dataclass(frozen=True)
class OutboxSettings:
    """Folders and limits of an outbox.

    Attributes:
        dir: folder on a disk that survives a power cut; None for none.
        memory_dir: folder in memory (tmpfs), which survives the end of the process; None for none.
        limits: of all rows together.
        max_memory_bytes: of rows that are not on the disk in `dir` yet, because it is slow, full or broken.
    """

    dir: Path | None = None
    memory_dir: Path | None = None
    limits: OutboxLimits = OutboxLimits()
    max_memory_bytes: int = 64 * 1024 * 1024

"""Outboxes for tests: each kind that there is, a clock that the test moves, and their files as a kill leaves them."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from zhcedge.core.delivery import Alert, Message, Outbox, Row
from zhcedge.store.durable import DurableOutbox
from zhcedge.store.memory import MemoryOutbox
from zhcedge.store.settings import OutboxLimits, OutboxSettings

OutboxMaker = Callable[[int], Outbox]
KINDS = ("memory", "memory-dir", "dir", "both")

_PATIENCE_S = 20.0


class HandClock:
    """Implements Clock: stands still until it is moved."""

    def __init__(self, is_set: bool = True) -> None:
        self.at_ns = 1_000_000_000
        self.is_set = is_set

    def move(self, seconds: float) -> None:
        self.at_ns += int(seconds * 1e9)

    def monotonic_ns(self) -> int:
        return self.at_ns

    def wall_ns(self) -> int:
        return 1_700_000_000_000_000_000 + self.at_ns

    def is_synced(self) -> bool:
        return self.is_set


@dataclass
class Place:
    """Two folders, and the outboxes that are opened in them one after the other."""

    root: Path
    kind: str = "both"
    limits: OutboxLimits = OutboxLimits()  # noqa: RUF009 - frozen
    clock: HandClock = field(default_factory=HandClock)
    alerts: list[Alert] = field(default_factory=list)

    @property
    def disk(self) -> Path:
        return self.root / "disk"

    @property
    def tmpfs(self) -> Path:
        return self.root / "tmpfs"

    def settings(self) -> OutboxSettings:
        for folder in (self.disk, self.tmpfs):
            folder.mkdir(parents=True, exist_ok=True)
        return OutboxSettings(
            self.disk if self.kind in ("dir", "both") else None,
            self.tmpfs if self.kind in ("memory-dir", "both") else None,
            self.limits,
        )

    def open(self) -> DurableOutbox:
        return DurableOutbox(self.settings(), self.clock, self.alerts.append)

    def copy(self, root: Path) -> Place:
        """The files as they are now, in another place: what a killed process leaves."""
        shutil.copytree(self.root, root)
        return Place(root, self.kind, self.limits, self.clock, self.alerts)

    @property
    def codes(self) -> list[str]:
        return [alert.code for alert in self.alerts]


@contextmanager
def maker(kind: str) -> Iterator[OutboxMaker]:
    """Makes outboxes with room for so many rows, each in a place of its own; closes them afterwards."""
    with ExitStack() as stack:

        def make(limit: int) -> Outbox:
            limits, clock = OutboxLimits(limit), HandClock()
            if kind == "memory":
                return MemoryOutbox(limits, clock)
            root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            outbox = Place(root, kind, limits, clock).open()
            stack.callback(outbox.close)
            return outbox

        yield make


def message(number: int, size: int = 0) -> Message:
    return Message("events", b"%d" % number + b" " * size)


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {_PATIENCE_S} s for {what}")
        time.sleep(0.001)


def rows(outbox: Outbox) -> list[Row]:
    """All rows that wait; a durable outbox reads them by and by."""
    found: list[Row] = []

    def is_all() -> bool:
        found.extend(outbox.pending(found[-1].id if found else 0, 1_000))
        return len(found) >= outbox.depth

    wait_for(is_all, "the rows on flash")
    return found


def held(outbox: Outbox) -> list[int]:
    return [int(row.message.payload) for row in rows(outbox)]


def settle(outbox: DurableOutbox, clock: HandClock) -> None:
    """Let the time pass that it takes until nothing waits for the flash."""

    def is_settled() -> bool:
        outbox.tick()
        if not outbox.is_writing:
            clock.move(1.1)
            outbox.tick()
        return not outbox.is_writing and outbox.rows_in_memory == 0

    wait_for(is_settled, "the flash")


def rest(outbox: DurableOutbox) -> None:
    """Wait until the thread writes nothing."""

    def is_resting() -> bool:
        outbox.pending(0, 1)
        return not outbox.is_writing

    wait_for(is_resting, "the end of a write")


def pass_time(outbox: DurableOutbox, clock: HandClock, seconds: float) -> None:
    """Move the simulated clock. Not while a real disk writes: beside such a clock it would look as if it hung."""
    rest(outbox)
    clock.move(seconds)
    outbox.tick()

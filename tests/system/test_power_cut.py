"""Power cuts: an ext4 file system on a loop device that stops in the middle of whatever the outbox writes.

ZHC_POWER_CUTS is how often (50); tools/soak power takes 500.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path

import pytest

from tests.contract.disks import cut_power, make_disk, mounted
from tests.contract.outboxes import HandClock, Place, message, rows
from zhcedge.core.delivery import OpenEvent
from zhcedge.store.durable import DurableOutbox

CUTS = int(os.environ.get("ZHC_POWER_CUTS", "50"))


_LEFT = 1_000  # rows that stay from one cut to the next


class HastyClock(HandClock):
    """Implements Clock: a thousand seconds in each, so that the outbox syncs as often as the disk can."""

    def monotonic_ns(self) -> int:
        return time.monotonic_ns() * 1_000


class Life:
    """What the test knows of all rows ever: which must be there, and which may be."""

    def __init__(self) -> None:
        self.number = 0
        self.last_id = 0
        self.waiting: dict[int, int] = {}  # id -> number, without an acknowledgement
        self.synced: set[int] = set()  # of those, what had left the memory
        self.seen: dict[int, int] = {}  # every id ever -> number
        self.open: set[str] = set()
        self.ended: set[str] = set()

    def work(self, outbox: DurableOutbox, chance: random.Random, seconds: float) -> None:
        """Append and acknowledge for so long."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for _ in range(chance.randrange(1, 30)):
                self._append(outbox, chance)
            outbox.tick()
            for row in outbox.pending(0, chance.randrange(10)):
                outbox.ack(row.id)
                self.waiting.pop(row.id, None)
                self.synced.discard(row.id)
            in_memory = outbox.rows_in_memory
            ids = list(self.waiting)
            self.synced.update(ids[: len(ids) - in_memory])

    def _append(self, outbox: DurableOutbox, chance: random.Random) -> None:
        self.number += 1
        event = str(self.number) if chance.random() < 0.3 else ""
        closes = chance.choice(sorted(self.open)) if self.open and not event and chance.random() < 0.5 else ""
        row_id = outbox.append(
            message(self.number, chance.randrange(1_500)),
            chance.random() < 0.5,
            opens=OpenEvent(event, b"open") if event else None,
            closes=closes,
        )
        assert row_id > self.last_id, "an id came twice"
        self.last_id = row_id
        self.waiting[row_id] = self.seen[row_id] = self.number
        if event:
            self.open.add(event)
        if closes:
            self.open.discard(closes)
            self.ended.add(closes)

    def check(self, outbox: DurableOutbox) -> None:
        """After a cut: go on with what is there."""
        found = {row.id: int(row.message.payload) for row in rows(outbox)}
        assert self.synced <= found.keys(), "a row was lost after its sync"
        assert found.items() <= self.seen.items(), "a row that was never appended"
        events = {event.id for event in outbox.open_events()}
        assert events <= self.open | self.ended
        self.open, self.ended = events, set()
        # The disk is small, and every cut leaves more: what is checked may go, in order, as by a broker.
        for row_id in list(found)[:-_LEFT]:
            outbox.ack(row_id)
            del found[row_id]
        self.waiting, self.synced = found, set(found)


@pytest.mark.slow
def test_nothing_that_was_synced_is_lost_by_a_power_cut(tmp_path: Path) -> None:
    chance = random.Random(7)
    image, life, synced_at_cut = tmp_path / "disk.image", Life(), 0
    place = Place(tmp_path / "place", clock=HastyClock())
    place.settings()
    make_disk(image, 64)
    name = ""
    for _ in range(CUTS):
        with mounted(image, place.disk):
            shutil.rmtree(place.tmpfs)
            outbox = place.open()
            name = name or outbox.outbox_id
            assert outbox.outbox_id == name
            life.check(outbox)
            life.work(outbox, chance, chance.uniform(0.01, 0.12))
            cut_power(place.disk)
            synced_at_cut += len(life.synced)
            dropped = outbox.dropped
            outbox.close()
        assert dropped == 0, "the limits take rows too, so they must not be reached here"
        place.alerts = [alert for alert in place.alerts if alert.code != "outbox-disk-error"]
        assert place.alerts == [], "a file was damaged, or its disk was full"
    with mounted(image, place.disk):
        outbox = place.open()
        life.check(outbox)
        outbox.close()
    assert synced_at_cut > CUTS * 5, "hardly anything was on the disk, so nothing was proved"

"""A broker that is away for long: what waits is on disk, not in memory, and all of it is delivered afterwards.

ZHC_OFFLINE_ROWS is how many messages (50000); tools/soak offline takes a million.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.contract.outboxes import Place, settle, wait_for
from zhcedge.core.delivery import Message, OpenEvent
from zhcedge.store.settings import OutboxLimits

ROWS = int(os.environ.get("ZHC_OFFLINE_ROWS", "50000"))
_IN_MEMORY = 2_000  # rows that may wait for the disk before the test lets it catch up
_SAMPLES = 20
_WINDOW = 100
_STEADY_MB = 12  # what buffers and caches take, however many rows there are
_BYTES_A_ROW = 16


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.slow
@pytest.mark.company
def test_memory_stays_flat_while_messages_wait_and_all_are_delivered(tmp_path: Path) -> None:
    place = Place(tmp_path, limits=OutboxLimits(max_messages=ROWS, max_bytes=ROWS * 2_000))
    outbox = place.open()
    sizes: list[float] = []
    for number in range(ROWS):
        payload = b"%d" % number + b" " * 900
        outbox.append(Message("zhcedge/device/events", payload), opens=OpenEvent(str(number % 10), payload))
        if outbox.rows_in_memory >= _IN_MEMORY:
            settle(outbox, place.clock)
            place.clock.move(60)  # as long as that takes: the flash's bytes of a day must not be the limit here
        if (number + 1) % (ROWS // _SAMPLES) == 0:
            settle(outbox, place.clock)
            sizes.append(resident_mb())
    assert (outbox.depth, outbox.dropped) == (ROWS, 0)
    allowed_mb = _STEADY_MB + ROWS * _BYTES_A_ROW / 1e6
    print(f"resident MB every {ROWS // _SAMPLES} rows: {[round(size, 1) for size in sizes]}")
    assert max(sizes) - sizes[1] < allowed_mb, f"grew from {sizes[1]:.1f} to {max(sizes):.1f} MB"

    outbox.close()
    outbox = place.open()
    expected = last_id = 0
    while expected < ROWS:
        wait_for(lambda after_id=last_id: outbox.pending(after_id, 1) != [], "more rows from the disk")
        for row in outbox.pending(last_id, _WINDOW):
            assert int(row.message.payload) == expected, "lost, repeated or out of order"
            expected, last_id = expected + 1, row.id
            outbox.ack(row.id)
        if expected % 10_000 == 0:
            settle(outbox, place.clock)
            place.clock.move(60)
    settle(outbox, place.clock)
    assert outbox.depth == 0
    print(f"resident MB after delivery: {resident_mb():.1f}")
    assert resident_mb() - sizes[1] < allowed_mb
    outbox.close()
    assert place.alerts == []

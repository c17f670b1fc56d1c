"""A process that appends and acknowledges until it is killed, and says so: `+ id number` after, `- id` before.

Arguments: the place's folder. Its time runs twenty times as fast.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.contract.outboxes import HandClock, Place, message
from zhcedge.core.delivery import OpenEvent


class FastClock(HandClock):
    """Implements Clock: twenty seconds in each."""

    def monotonic_ns(self) -> int:
        return time.monotonic_ns() * 20


def main(root: Path) -> None:
    outbox = Place(root, clock=FastClock()).open()
    number = 0
    while True:
        with outbox.batch():
            ids = [outbox.append(message(number + step), opens=OpenEvent(str(number + step), b"")) for step in range(3)]
        for row_id in ids:
            print("+", row_id, number, flush=True)
            number += 1
        outbox.tick()
        for row in outbox.pending(0, 2):
            print("-", row.id, flush=True)
            outbox.ack(row.id)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""A device without cameras: the daemon's own Publisher, told of made-up events, that may be killed at any moment.

python -m tests.system.delivery_child ORDER, a JSON object:

    config          of the daemon
    truth           file that hears of every batch before and after it is appended
    seed            of the events
    events_per_s    about
    reconnect_s     shortest and longest bound of the wait between two connections
    keepalive_s     shorter than a configuration may ask for, so that a test need not wait
    most_open       events at a time
    events          at most; null goes on until SIGTERM

Ends on SIGTERM: ends its events, delivers everything and exits with 0.
"""

from __future__ import annotations

import json
import logging
import math
import random
import signal
import sys
import threading
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.contract.delivery_ledger import Content, TruthWriter
from tests.contract.scene import Scene
from zhcedge.app import publisher as publisher_module
from zhcedge.app.publisher import Publisher
from zhcedge.config.schema import Config
from zhcedge.core.events import Event
from zhcedge.service.clock import SystemClock

_FRAMES_PER_S = 50


class Device:
    """The loop of the control process, with a scene instead of a ring."""

    def __init__(self, order: dict[str, Any]) -> None:
        config = Config.model_validate(order["config"])
        self._pace, self._most = order["events_per_s"] / _FRAMES_PER_S, order["events"] or math.inf
        self._boot_id, self._draw = uuid.uuid4().hex, random.Random(order["seed"])
        self._truth, self._scene = TruthWriter(Path(order["truth"])), Scene(self._draw, order["most_open"])
        self._wake, self._is_over = threading.Event(), threading.Event()
        self._publisher = Publisher(config, "0" * 64, self._boot_id, SystemClock(), self._wake.set)

    def finish(self) -> None:
        self._is_over.set()
        self._wake.set()

    def run(self) -> None:
        self._publisher.start()
        next_s, created = time.monotonic(), 0
        while not self._is_over.is_set():
            next_s = max(next_s + 1 / _FRAMES_PER_S, time.monotonic())  # what is late is not made up for
            if created < self._most:
                whole, part = divmod(self._pace, 1)
                events = self._scene.frame(int(whole) + (self._draw.random() < part))
                self._tell(events)
                created += len(events)
            self._turn_until(next_s)
        self._tell(self._scene.end_all())
        while self._publisher.outbox.depth:
            self._turn_until(time.monotonic() + 0.05)
        error = self._publisher.finish()
        self._publisher.close()
        if error is not None:
            raise error

    def _tell(self, events: list[Event]) -> None:
        """As the daemon does it, in between two words to the truth."""
        outbox = self._publisher.outbox
        rows = [(outbox.next_id + index, self._content(event)) for index, event in enumerate(events)]
        batch = self._truth.intend(self._boot_id, outbox.outbox_id, rows)
        self._publisher.tell(events)
        self._truth.done(batch)
        self._publisher.pump()

    def _content(self, event: Event) -> Content:
        return event.type.value, f"{self._boot_id}/{event.after.id}", event.after.frame.sequence

    def _turn_until(self, until_s: float) -> None:
        while True:
            self._publisher.turn(time.monotonic())
            remaining_s = until_s - time.monotonic()
            if remaining_s <= 0:
                return
            if self._wake.wait(remaining_s):
                self._wake.clear()


def main() -> None:
    order = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    settings_of = publisher_module.broker_settings

    def hasty_settings(config: Config) -> Any:
        """The settings of the configuration, with waits that suit a test."""
        first_s, most_s = order["reconnect_s"]
        return replace(
            settings_of(config),
            reconnect_min_s=first_s,
            reconnect_max_s=most_s,
            keepalive_s=order["keepalive_s"],
            connect_timeout_s=2 * order["keepalive_s"],
        )

    publisher_module.broker_settings = hasty_settings
    device = Device(order)
    signal.signal(signal.SIGTERM, lambda *_: device.finish())
    device.run()


if __name__ == "__main__":
    main()

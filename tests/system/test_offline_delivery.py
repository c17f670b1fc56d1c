"""A device whose broker is away for long: its memory stays flat, and everything arrives afterwards.

ZHC_OFFLINE_EVENTS is how many events wait for the broker, 50,000 by default; `tools/soak offline` takes a million.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import paho.mqtt.client as paho
import pytest

from tests.contract.brokers import HOST, find_mosquitto
from tests.contract.witness import KeepingBroker, Witness

EVENTS = int(os.environ.pop("ZHC_OFFLINE_EVENTS", "50000"))
EVENTS_PER_S = 1250  # far beyond any device: what four seconds of it take in memory is a plateau soon
FLAT_MIB = 16
"""Of growth in the last half. What waits for a slow disk comes and goes; half of the events would be 40 MiB."""

ROOT = Path(__file__).parents[2]


@dataclass
class Memory:
    """Resident memory of a process while a file grows: MiB by bytes of the file."""

    pid: int
    told: Path
    samples: list[tuple[int, float]] = field(default_factory=list)

    def sample(self) -> None:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        self.samples.append((self.size, pages * os.sysconf("SC_PAGE_SIZE") / 2**20))

    @property
    def size(self) -> int:
        return self.told.stat().st_size if self.told.exists() else 0

    def most_mib(self, from_part: float, to_part: float) -> float:
        """The most between two parts (0..1) of what the file holds now."""
        ends = from_part * self.size, to_part * self.size
        return max(mib for size, mib in self.samples if ends[0] <= size <= ends[1])


def start(folder: Path, port: int) -> subprocess.Popen[bytes]:
    for name in ("disk", "memory"):
        (folder / name).mkdir()
    limits = {"max_messages": 2 * EVENTS, "max_mb": 50_000}
    config = {
        "device": "box",
        "channels": {"gate": {"source": {"uri": "clip:walkers"}}},
        "mqtt": {"host": HOST, "port": port, "stats_interval_s": 0},
        "outbox": {"dir": str(folder / "disk"), "memory_dir": str(folder / "memory"), **limits},
    }
    order = {
        "config": config,
        "truth": str(folder / "truth"),
        "seed": 1,
        "events_per_s": EVENTS_PER_S,
        "most_open": 2 * EVENTS_PER_S // 50,
        "events": EVENTS,
        "reconnect_s": (0.1, 1.0),
        "keepalive_s": 30,
    }
    command = [sys.executable, "-m", "tests.system.delivery_child", json.dumps(order)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL)


def created(truth: Path) -> set[int]:
    seqs: set[int] = set()
    for line in truth.read_text().splitlines():
        if line.startswith('{"batch"'):
            seqs.update(seq for seq, _ in json.loads(line)["rows"])
    return seqs


class Tally(Witness):
    """Counts different seqs instead of keeping payloads."""

    def __init__(self, port: int) -> None:
        self.seqs: set[int] = set()
        super().__init__(port, "zhcedge/box/events")

    def take(self, message: paho.MQTTMessage) -> None:
        self.seqs.add(json.loads(message.payload)["seq"])


@pytest.mark.slow
@pytest.mark.company
@pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
def test_what_waits_for_the_broker_takes_no_memory_and_all_of_it_arrives(tmp_path: Path) -> None:
    truth = tmp_path / "truth"
    with closing(KeepingBroker(tmp_path / "broker")) as broker, closing(Tally(broker.port)) as witness:
        broker.stop()  # it keeps the witness's session
        with start(tmp_path, broker.port) as device:
            try:
                memory = Memory(device.pid, truth)
                before, unchanged = -1, 0
                while unchanged < 20:  # it creates no more
                    memory.sample()
                    unchanged = unchanged + 1 if memory.size == before > 1 else 0
                    before = memory.size
                    time.sleep(0.1)
                    assert device.poll() is None
                broker.start()
                device.terminate()  # it ends its events, delivers everything and leaves
                assert device.wait(120 + EVENTS / 500) == 0
                expected, deadline_s = created(truth), time.monotonic() + 60 + EVENTS / 2000
                while not witness.seqs >= expected and time.monotonic() < deadline_s:
                    time.sleep(0.1)
            finally:
                device.kill()
    assert len(expected) >= EVENTS
    assert witness.seqs == expected
    grown_mib = memory.most_mib(0.9, 1.0) - memory.most_mib(0.3, 0.5)
    assert grown_mib < FLAT_MIB, memory.samples[:: max(1, len(memory.samples) // 20)]

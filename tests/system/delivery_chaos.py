"""Seeded schedules of misfortune between a device and its broker, and what became of the device's events.

python -m tests.system.delivery_chaos --out FILE [--schedules N] [--first SEED] [--jobs N]

writes a JSON line per schedule, and leaves out the seeds that FILE has already. Exit code 1 when a promise was broken.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from tests.contract.brokers import HOST, wait_until
from tests.contract.chaos_proxy import ChaosProxy
from tests.contract.delivery_ledger import Findings, Truth, compare
from tests.contract.witness import KeepingBroker, Witness

ROOT = Path(__file__).parents[2]
LOAD_S = 4.0
EVENTS_PER_S = 400
LEAST_EVENTS = 120
"""A schedule goes on until the device has created so many: a slow machine spends its time with starting it."""
PATIENCE_S = 60.0
"""How long everything may take to arrive once the weather is clear: seconds, on a machine that has them to give."""


class Step(NamedTuple):
    """After `wait_s` the fault begins; it lasts `last_s`. `size` is in bytes for a cut, in seconds for a delay."""

    wait_s: float
    fault: str
    last_s: float
    size: float


FAULTS = ("cut", "reset", "delay", "stall", "deaf", "refuse", "broker", "kill")


def schedule(seed: int) -> list[Step]:
    """The misfortunes of one run, about LOAD_S long; there is always a kill among them."""
    draw = random.Random(seed)
    steps: list[Step] = []
    while sum(step.wait_s + step.last_s for step in steps) < LOAD_S:
        fault = draw.choice(FAULTS)
        size = draw.uniform(0.001, 0.05) if fault == "delay" else float(draw.randrange(20_000))
        steps.append(Step(draw.uniform(0.1, 0.6), fault, draw.uniform(0.05, 0.6), size))
    if not any(step.fault == "kill" for step in steps):
        index = draw.randrange(len(steps))
        steps[index] = steps[index]._replace(fault="kill")
    return steps


@dataclass
class Outcome:
    """What one schedule has shown.

    Attributes:
        created: messages that the device's outbox had certainly taken.
        violations: broken promises, a line each.
    """

    seed: int
    faults: dict[str, int]
    created: int
    heard: int
    duplicates: int
    crash_ends: int
    connections: int
    seconds: float
    violations: list[str]


class Run:
    """One schedule under way: a broker, a witness at it, and a device behind the proxy. A context manager."""

    def __init__(self, seed: int, folder: Path) -> None:
        self._seed, self._folder, self._stack = seed, folder, ExitStack()
        self._truth, self._starts = folder / "truth", 0
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Run:
        with ExitStack() as stack:  # a failure on the way closes what there is already
            self._broker = stack.enter_context(closing(KeepingBroker(self._folder / "broker")))
            self._witness = stack.enter_context(closing(Witness(self._broker.port, "zhcedge/box/#")))
            self._proxy = stack.enter_context(closing(ChaosProxy(self._broker.port)))
            self._log = stack.enter_context((self._folder / "device.log").open("ab"))
            stack.callback(self._kill)
            self._start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def work(self) -> Outcome:
        """Go through the schedule, then let everything arrive."""
        self._wait_started()
        began_s, steps = time.monotonic(), schedule(self._seed)
        for step in steps:
            if (
                step.fault != "kill"
            ):  # which may hit a device that has just been started; other faults hit one that talks
                self._wait_started()
            time.sleep(step.wait_s)
            self._do(step)
        problems = self._finish()
        findings = self._findings()
        return Outcome(
            seed=self._seed,
            faults=dict(Counter(step.fault for step in steps)),
            created=len(Truth.read(self._truth).created),
            heard=findings.heard,
            duplicates=findings.duplicates,
            crash_ends=findings.crash_ends,
            connections=self._proxy.accepted,
            seconds=round(time.monotonic() - began_s, 1),
            violations=problems + findings.violations,
        )

    def _do(self, step: Step) -> None:
        proxy = self._proxy
        if step.fault == "kill":
            self._kill()
            self._start()
        elif step.fault == "broker":
            self._broker.stop()
            time.sleep(step.last_s)
            self._broker.start()
        else:
            faults: dict[str, Callable[[], None]] = {
                "cut": lambda: proxy.cut(int(step.size)),
                "reset": proxy.reset,
                "delay": lambda: proxy.delay(step.size),
                "stall": proxy.stall,
                "deaf": proxy.deafen,
                "refuse": proxy.refuse,
            }
            faults[step.fault]()
            time.sleep(step.last_s)
            if step.fault == "deaf":
                proxy.reset()
            proxy.heal()

    def _finish(self) -> list[str]:
        """Let the device end in peace and the witness hear it; what did not come about."""
        assert self._child is not None
        self._wait_started()
        enough = f"{LEAST_EVENTS} events"
        wait_until(lambda: len(Truth.read(self._truth).created) >= LEAST_EVENTS or self._has_ended(), enough)
        self._child.send_signal(signal.SIGTERM)
        try:
            code = self._child.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            return [f"the device did not deliver within {PATIENCE_S:g} s"]
        if code:
            return [f"the device ended with {code}: {(self._folder / 'device.log').read_text()[-2000:]}"]
        created, deadline_s = Truth.read(self._truth).created.keys(), time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s and b"stopped" not in self._witness.payloads("/available")[-1:]:
            time.sleep(0.05)
        return [] if created else ["the device created nothing"]

    def _findings(self) -> Findings:
        findings = compare(Truth.read(self._truth), self._witness.payloads("/events"))
        findings.violations += self._witness.misfits()
        # Alerts are rows as well, so each may take a seq; nothing else may.
        alerts = len(self._witness.payloads("/alerts"))
        for outbox_id, gaps in findings.gaps.items():
            if len(gaps) > alerts:
                findings.violations.append(f"{outbox_id}: {len(gaps)} seqs unheard, {alerts} alerts: {gaps[:20]}")
        for outbox_id, jumps in findings.jumps.items():
            if jumps >= self._starts:
                findings.violations.append(f"{outbox_id}: {jumps} jumps of seq in {self._starts} starts")
        if len(findings.gaps) > 1:
            findings.violations.append(f"{len(findings.gaps)} outboxes where one was meant")
        return findings

    def _start(self) -> None:
        self._starts += 1
        self._told_before = self._told()
        folders = {"dir": str(self._folder / "disk"), "memory_dir": str(self._folder / "memory")}
        for folder in folders.values():
            Path(folder).mkdir(exist_ok=True)
        config = {
            "device": "box",
            "channels": {"gate": {"source": {"uri": "clip:walkers"}}},
            "mqtt": {"host": HOST, "port": self._proxy.port, "stats_interval_s": 0},
            "outbox": folders,
        }
        order = {
            "config": config,
            "truth": str(self._truth),
            "seed": self._seed * 1000 + self._starts,
            "events_per_s": EVENTS_PER_S,
            "most_open": 12,
            "events": None,
            "reconnect_s": (0.05, 0.5),
            "keepalive_s": 1,
        }
        command = [sys.executable, "-m", "tests.system.delivery_child", json.dumps(order)]
        self._child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)

    def _wait_started(self) -> None:
        """Until the device has told of a batch, and so minds SIGTERM; or has ended, which is a finding of its own."""
        wait_until(lambda: self._told() > self._told_before + 1 or self._has_ended(), "the device's first event")

    def _told(self) -> int:
        """Bytes that the device has told so far."""
        return self._truth.stat().st_size if self._truth.exists() else 0

    def _has_ended(self) -> bool:
        return self._child is not None and self._child.poll() is not None

    def _kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()


def run_schedule(seed: int, folder: Path) -> Outcome:
    """One schedule from its beginning to its end, in a folder that exists."""
    with Run(seed, folder) as run:
        return run.work()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines, added to")
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="first seed; default 0")
    parser.add_argument("--jobs", type=int, default=4, help="schedules at a time; default 4")
    args = parser.parse_args()
    seeds = set(range(args.first, args.first + args.schedules))
    if args.out.exists():
        seeds -= {json.loads(line)["seed"] for line in args.out.read_text().splitlines()}
    broken = 0
    with (
        tempfile.TemporaryDirectory(prefix="zhc-edge-chaos-") as root,
        ThreadPoolExecutor(args.jobs) as pool,
        args.out.open("a") as out,
    ):

        def one(seed: int) -> Outcome:
            with tempfile.TemporaryDirectory(dir=root) as folder:
                return run_schedule(seed, Path(folder))

        for number, future in enumerate(as_completed([pool.submit(one, seed) for seed in sorted(seeds)]), 1):
            outcome = future.result()
            broken += bool(outcome.violations)
            print(json.dumps(asdict(outcome)), file=out, flush=True)
            verdict = "; ".join(outcome.violations[:3]) or "nothing lost"
            print(f"{number}/{len(seeds)}: seed {outcome.seed}: {verdict}", file=sys.stderr, flush=True)
    print(f"{len(seeds)} schedules, {broken} with a broken promise")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

"""Many devices at one broker that goes away and comes back: when each of them tries again.

python -m tests.contract.fleet [--devices N] [--away S] [--out FOLDER]

writes fleet.json and fleet.svg, with the waits that the daemon's default settings draw. Exit code 1 when the waits are
not spread out, or a device did not come back.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import functools
import itertools
import json
import math
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from tests.contract.brokers import HOST
from tests.contract.witness import KeepingBroker
from zhcedge.core.backoff import Backoff
from zhcedge.core.delivery import Message
from zhcedge.publish.mqtt import MqttBroker
from zhcedge.publish.settings import BrokerSettings

ROOT = Path(__file__).parents[2]
SQUAD = 200  # devices of a process: paho waits with select(), which knows no file above number 1023
_CERTAINTY = 1e-6
"""How often a fair draw may be taken for an unfair one."""


@dataclass(frozen=True)
class Wait:
    """One wait between two connections of a device: drawn, and the longest that it could have been."""

    drawn_s: float
    bound_s: float


@dataclass
class Restart:
    """What the fleet did when its broker went away.

    Attributes:
        waits: that the devices drew, all of them.
        back_s: when each device was connected again, since the broker's return; in order.
    """

    devices: int
    away_s: float
    waits: list[Wait]
    back_s: list[float]


class Device:
    """A device's connection; counts its sessions."""

    def __init__(self, number: int, port: int, first_s: float, most_s: float) -> None:
        self.connected_s: list[float] = []
        name = f"device-{number}"
        self.broker = MqttBroker(
            BrokerSettings(HOST, port, name, reconnect_min_s=first_s, reconnect_max_s=most_s),
            Message(f"zhcedge/{name}/available", b"offline", retain=True),
            lambda: [Message(f"zhcedge/{name}/available", b"online", retain=True)],
            on_connect=lambda: self.connected_s.append(time.monotonic()),
        )


class Squad:
    """Some of the devices, in a process of their own; see `serve` for what it is told and what it answers."""

    def __init__(self, numbers: range, port: int, first_s: float, most_s: float) -> None:
        order = [numbers.start, numbers.stop, port, first_s, most_s]
        command = [sys.executable, "-m", "tests.contract.fleet", "--squad", json.dumps(order)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Waits for it; the squad itself gives up when something takes too long."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "a squad of devices has ended: some of them have not connected"
        return json.loads(line)

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._process.wait()


def serve(first: int, end: int, port: int, first_s: float, most_s: float) -> None:
    """A squad's process: connect, answer; on a word watch the waits, answer; answer again when all are back; end."""
    patience_s = 60 + 4 * most_s
    devices = [Device(number, port, first_s, most_s) for number in range(first, end)]
    try:
        for device in devices:
            device.broker.start()
            time.sleep(0.005)  # a queue of the broker's socket holds 100
        wait_for(devices, 1, patience_s)
        say("connected")
        sys.stdin.readline()
        with watched_waits() as waits:
            say("watching")
            wait_for(devices, 2, patience_s)
        drawn = [(wait.drawn_s, wait.bound_s) for wait in waits]
        say({"waits": drawn, "back_s": [device.connected_s[1] for device in devices]})
        sys.stdin.readline()
    finally:
        stop_all(devices)


def say(what: object) -> None:
    print(json.dumps(what), flush=True)


def restart(folder: Path, count: int, away_s: float, first_s: float, most_s: float) -> Restart:
    """Connect `count` devices, take their broker away for `away_s`, and wait until all of them are back."""
    allow_files(2 * count + 200)
    with ExitStack() as stack:
        broker = stack.enter_context(closing(KeepingBroker(folder / "broker", f"max_connections {2 * count}\n")))
        numbers = [range(first, min(first + SQUAD, count)) for first in range(0, count, SQUAD)]
        squads = [stack.enter_context(closing(Squad(some, broker.port, first_s, most_s))) for some in numbers]
        for squad in squads:
            assert squad.answer() == "connected"
        for squad in squads:
            squad.tell("watch")
            assert squad.answer() == "watching"
        broker.stop()
        time.sleep(away_s)
        broker.start()
        returned_s = time.monotonic()  # a squad's clock is the same one
        answers = [squad.answer() for squad in squads]
        waits = [Wait(*wait) for answer in answers for wait in answer["waits"]]
        back_s = sorted(at - returned_s for answer in answers for at in answer["back_s"])
        return Restart(count, away_s, waits, back_s)


def wait_for(devices: Sequence[Device], sessions: int, patience_s: float) -> None:
    deadline_s = time.monotonic() + patience_s
    while missing := sum(len(device.connected_s) < sessions for device in devices):
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{missing} of {len(devices)} devices have not connected")
        time.sleep(0.02)


def stop_all(devices: Sequence[Device]) -> None:
    threads = [threading.Thread(target=device.broker.stop, args=((), 5.0)) for device in devices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def watched_waits() -> Iterator[list[Wait]]:
    """Every wait that any Backoff draws meanwhile, with its bound; the draws themselves are untouched."""
    waits: list[Wait] = []
    draw = Backoff.next_s

    @functools.wraps(draw)
    def watched(self: Backoff, at_most_s: float = math.inf) -> float:
        bound_s = min(self.bound_s, at_most_s)
        waits.append(Wait(draw(self, at_most_s), bound_s))
        return waits[-1].drawn_s

    with mock.patch.object(Backoff, "next_s", watched):
        yield waits


def allow_files(count: int) -> None:
    """Raise this process's limit of open files, and so that of a broker that it starts, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


def unevenness(shares: Sequence[float]) -> float:
    """Kolmogorov-Smirnov distance of values in 0..1 from the uniform distribution."""
    ordered, count = sorted(shares), len(shares)
    return max(max((index + 1) / count - share, share - index / count) for index, share in enumerate(ordered))


def most_uneven(count: int) -> float:
    """The distance that fair draws exceed with a chance of _CERTAINTY (asymptotic; above the exact one)."""
    return math.sqrt(-math.log(_CERTAINTY / 2) / (2 * count))


def faults(seen: Restart) -> list[str]:
    """Why these waits would let devices come back together; empty is what one wants."""
    found = []
    first_s = min((wait.bound_s for wait in seen.waits), default=0.0)
    firsts = [wait for wait in seen.waits if wait.bound_s == first_s]
    if len(firsts) < seen.devices:
        found.append(f"{len(firsts)} of {seen.devices} devices began with the shortest wait")
    for name, waits in (("first", firsts), ("all", seen.waits)):
        if not waits:
            continue
        distance, limit = unevenness([wait.drawn_s / wait.bound_s for wait in waits]), most_uneven(len(waits))
        if distance > limit:
            found.append(f"{name} waits are not spread evenly from 0 to their bound: {distance:.3f}, limit {limit:.3f}")
    bounds = sorted({wait.bound_s for wait in seen.waits})
    if any(later > 2.001 * earlier for earlier, later in itertools.pairwise(bounds)):
        found.append(f"bounds do not double step by step: {bounds}")
    return found


def summary(seen: Restart) -> dict[str, object]:
    bounds = sorted({wait.bound_s for wait in seen.waits})
    within_1_s = max(bisect.bisect(seen.back_s, at + 1.0) - index for index, at in enumerate(seen.back_s))
    return {
        "devices": seen.devices,
        "away_s": seen.away_s,
        "faults": faults(seen),
        "waits": {f"{bound:g}": sum(wait.bound_s == bound for wait in seen.waits) for bound in bounds},
        "unevenness": unevenness([wait.drawn_s / wait.bound_s for wait in seen.waits]),
        "unevenness_limit": most_uneven(len(seen.waits)),
        "back_s": {"first": seen.back_s[0], "median": seen.back_s[len(seen.back_s) // 2], "last": seen.back_s[-1]},
        "most_within_one_second": within_1_s,
    }


_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 720, 300, 56, 44


def plot(seen: Restart) -> str:
    """An SVG: how many devices came back in each slice of time after the broker's return, and all of them summed up."""
    slices = 40
    last_s = max(seen.back_s[-1], 0.1)
    counts = [0] * slices
    for back_s in seen.back_s:
        counts[min(max(int(back_s / last_s * slices), 0), slices - 1)] += 1
    top, across, up = max(counts), _WIDTH - _LEFT - 16, _HEIGHT - _BOTTOM - 40
    base = _HEIGHT - _BOTTOM
    step = across / slices
    bars = "".join(
        f'<rect x="{_LEFT + index * step:.1f}" y="{base - up * count / top:.1f}" width="{step - 1:.1f}" '
        f'height="{up * count / top:.1f}" fill="#4a7ebb"/>'
        for index, count in enumerate(counts)
    )
    line = " ".join(
        f"{_LEFT + across * max(back_s, 0) / last_s:.1f},{base - up * number / seen.devices:.1f}"
        for number, back_s in enumerate(seen.back_s, 1)
    )
    marks = "".join(
        f'<text x="{_LEFT + across * part / 4:.0f}" y="{base + 16}" text-anchor="middle">{last_s * part / 4:.1f}</text>'
        for part in range(5)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="{_LEFT}" y="20" font-size="14">{seen.devices} devices after their broker was away for '
        f"{seen.away_s:g} s</text>"
        f'<text x="{_LEFT}" y="36" fill="#4a7ebb">bars: devices back in {last_s / slices:.2g} s, most {top}</text>'
        f'<text x="{_WIDTH - 16}" y="36" text-anchor="end" fill="#c0504d">line: share of all devices, to 100 %</text>'
        f'{bars}<polyline points="{line}" fill="none" stroke="#c0504d" stroke-width="1.5"/>'
        f'<line x1="{_LEFT}" y1="{base}" x2="{_LEFT + across}" y2="{base}" stroke="black"/>{marks}'
        f'<text x="{_LEFT + across / 2:.0f}" y="{_HEIGHT - 8}" text-anchor="middle">seconds after its return</text>'
        f'<text x="{_LEFT - 6}" y="{base - up + 4}" text-anchor="end">{top}</text>'
        f'<text x="{_LEFT - 6}" y="{base}" text-anchor="end">0</text></svg>\n'
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1000, help="default 1000")
    parser.add_argument("--away", type=float, default=20.0, help="seconds without a broker; default 20")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the results; default: here")
    parser.add_argument("--squad", help=argparse.SUPPRESS)  # we are one of our own processes
    args = parser.parse_args()
    if args.squad:
        serve(*json.loads(args.squad))
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="zhc-edge-fleet-") as folder:
        seen = restart(Path(folder), args.devices, args.away, 1.0, 120.0)
    result = summary(seen)
    (args.out / "fleet.json").write_text(json.dumps(result, indent=2) + "\n")
    (args.out / "fleet.svg").write_text(plot(seen))
    print(json.dumps(result, indent=2))
    return 1 if result["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())

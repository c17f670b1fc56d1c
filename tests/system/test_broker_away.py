"""The daemon under load while its broker is away and it is killed itself: nothing is lost, and no frame waits for it.

ZHC_BROKER_AWAY_S is how long the broker is away, 20 s by default; `tools/soak broker-away` takes ten minutes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.contract.brokers import find_mosquitto, wait_until
from tests.contract.delivery_ledger import Truth, broken_lives, compare
from tests.contract.witness import KeepingBroker, Witness
from tests.system.test_run import children_of, daemon, is_alive, write_config

AWAY_S = float(os.environ.pop("ZHC_BROKER_AWAY_S", "20"))
AROUND_S = 6.0  # of load before the broker goes, and after it is back
RETURN_S = 180.0  # the longest wait between two tries is 120 s
LEAST_KEPT = 0.9
"""How much of the frames' share that came through with a broker must come through without one."""

needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")


@dataclass
class Heard:
    """What the witness heard after everything, and when things happened (monotonic clock)."""

    payloads: list[bytes]
    alerts: int
    trace: Path
    active_s: float  # of the second daemon
    back_s: float  # of the broker

    def events(self) -> list[dict[str, Any]]:
        """Different messages, in order of arrival."""
        first: dict[tuple[str, int], dict[str, Any]] = {}
        for payload in self.payloads:
            said = json.loads(payload)
            first.setdefault((said["outbox_id"], said["seq"]), said)
        return list(first.values())

    def kept_share(self, from_s: float, to_s: float) -> float:
        """Frames that came out of the frame process between two moments, of those that the camera gave."""
        numbers = [
            span["args"]["frame"]
            for span in json.loads(self.trace.read_text())["traceEvents"]
            if span["name"] == "collect" and from_s <= (span["ts"] + span["dur"]) / 1e6 <= to_s
        ]
        return len(set(numbers)) / (max(numbers) - min(numbers) + 1) if numbers else 0.0


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Heard:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed")
    folder = tmp_path_factory.mktemp("away")
    for name in ("disk", "memory"):
        (folder / name).mkdir()
    with ExitStack() as stack:
        broker = stack.enter_context(closing(KeepingBroker(folder / "broker")))
        witness = stack.enter_context(closing(Witness(broker.port, "zhcedge/test/#")))
        config = write_config(
            folder,
            channels={"gate": {"source": {"uri": "clip:walkers", "realtime": True, "loop": True}}},
            mqtt={"port": broker.port, "stats_interval_s": 0},
            events={"update_interval_ms": 100},
            outbox={"dir": str(folder / "disk"), "memory_dir": str(folder / "memory")},
        )

        def start(*arguments: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(daemon(config, *arguments), start_new_session=True)
            stack.callback(kill_group, process)
            return process

        first = start()
        wait_until(lambda: bool(witness.payloads("/events")), "an event")
        time.sleep(AROUND_S)
        broker.stop()
        time.sleep(AWAY_S / 2)
        (frame_process,) = children_of(first.pid)
        first.kill()
        first.wait()
        wait_until(lambda: not is_alive(frame_process), "the frame process to end")
        trace = folder / "trace.json"
        second = start("--trace", str(trace))
        active_s = time.monotonic() + 5.0  # from here on it has been warm for long on any machine
        time.sleep(max(AWAY_S / 2, AROUND_S + 5.0))
        broker.start()
        back_s = time.monotonic()
        wait_for(lambda: b"online" in witness.payloads("/available")[-1:], RETURN_S)
        wait_for(lambda: not is_historical(witness.payloads("/events")[-1]), RETURN_S)
        time.sleep(AROUND_S)
        second.terminate()
        assert second.wait(60) == 0
        wait_until(lambda: b"stopped" in witness.payloads("/available")[-1:], "the goodbye")
        assert witness.misfits() == []
        return Heard(witness.payloads("/events"), len(witness.payloads("/alerts")), trace, active_s, back_s)


def wait_for(condition: Callable[[], bool], within_s: float) -> None:
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, "the daemon did not come back"
        time.sleep(0.05)


def is_historical(payload: bytes) -> bool:
    return bool(json.loads(payload)["historical"])


def kill_group(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@needs_mosquitto
@pytest.mark.slow
def test_no_seq_is_missing_over_both_lives_of_the_daemon(heard: Heard) -> None:
    findings = compare(Truth(), heard.payloads)
    ((_, gaps),) = findings.gaps.items()  # one outbox: the second daemon goes on with the first one's
    assert len(gaps) <= heard.alerts, gaps  # alerts take a seq each
    assert sum(findings.jumps.values()) <= 1  # the kill


@needs_mosquitto
@pytest.mark.slow
def test_every_event_has_its_one_end_though_the_daemon_was_killed(heard: Heard) -> None:
    events = heard.events()
    assert broken_lives(events) == []
    boots = list(dict.fromkeys(said["boot_id"] for said in events))
    assert len(boots) == 2
    crashed = [said for said in events if said["end_reason"] == "crash"]
    assert crashed
    assert {said["boot_id"] for said in crashed} == {boots[0]}


@needs_mosquitto
@pytest.mark.slow
def test_what_waited_for_the_broker_is_told_as_history(heard: Heard) -> None:
    events = heard.events()
    historical = [said for said in events if said["historical"] and said["end_reason"] != "crash"]
    assert historical
    assert not events[0]["historical"]
    assert not events[-1]["historical"]
    newest = max(said["after"]["frame_time"] for said in events)
    assert max(said["after"]["frame_time"] for said in historical) < newest - AROUND_S / 2


@needs_mosquitto
@pytest.mark.slow
def test_the_frame_process_does_not_mind_the_missing_broker(heard: Heard) -> None:
    without, with_broker = heard.kept_share(heard.active_s, heard.back_s), heard.kept_share(heard.back_s, float("inf"))
    assert without >= LEAST_KEPT * with_broker
    assert with_broker > 0

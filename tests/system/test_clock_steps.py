"""The wall clock steps for hours, both ways, while events flow: none is lost, none out of order, none ends before it
began. A library of ours (clock_steps.c) moves the wall clock of the daemon's processes; the monotonic one stays."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.contract.brokers import Subscriber, find_mosquitto, running, start_mosquitto, wait_until
from tests.system.test_control_socket import site

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed"),
]

HOUR_S = 3600
STEPS_S = (5 * HOUR_S, -3 * HOUR_S, -400 * 24 * HOUR_S, 0)


def built_clock(folder: Path) -> Path:
    library = folder / "clock_steps.so"
    source = Path(__file__).with_name("clock_steps.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


def test_whatever_the_wall_clock_does_every_event_is_told_in_order(tmp_path: Path) -> None:
    outbox, offset = tmp_path / "outbox", tmp_path / "offset"
    outbox.mkdir()
    offset.write_bytes(struct.pack("=q", 0))
    environ = {**os.environ, "LD_PRELOAD": str(built_clock(tmp_path)), "CLOCK_STEP_FILE": str(offset)}
    with running(start_mosquitto, tmp_path) as broker, Subscriber(broker.port, "zhcedge/#") as client:
        mqtt, before = {"port": broker.port}, 0
        with site(tmp_path, environ=environ, mqtt=mqtt, outbox={"dir": str(outbox)}) as here:
            hours = set()
            for step_s in STEPS_S:
                wait_until(lambda before=before: len(client.events()) > before + 5, "events")  # type: ignore[misc]
                hours.add(round(client.events()[-1]["after"]["frame_time"] / 3600))
                before = len(client.events())
                with offset.open("r+b") as file:  # in place: it is mapped
                    file.write(struct.pack("=q", step_s))
            wait_until(lambda: len(client.events()) > before + 5, "events after the last step")
            assert len(hours) == len(STEPS_S)  # the steps were seen
            facts = here.status()["outbox"]
            assert isinstance(facts, dict)
            assert (facts["dropped"], facts["lost"]) == (0, 0)
            here.process.terminate()
            assert here.process.wait(60) == 0
        told = client.events()
    assert_in_order(told)


def assert_in_order(told: list[dict[str, Any]]) -> None:
    assert [event["seq"] for event in told] == sorted({event["seq"] for event in told})
    by_id: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in told:
        by_id[event["after"]["id"]].append(event)
    for steps in by_id.values():
        kinds = [step["type"] for step in steps]
        assert kinds == ["new", *["update"] * (len(kinds) - 2), "end"]
        assert steps[-1]["after"]["end_time"] >= steps[-1]["after"]["start_time"]

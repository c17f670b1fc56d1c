"""Whatever happens between a device and its broker, or to the device: every event arrives, once and in order.

Once, after the receiver has dropped what it had heard already: that is the contract. `tools/soak mqtt` runs 1,000
schedules.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contract.brokers import find_mosquitto
from tests.system.delivery_chaos import FAULTS, LEAST_EVENTS, Outcome, run_schedule, schedule

needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
SCHEDULES, AT_A_TIME = 20, 4


def run_all(seeds: range, folder: Path) -> list[Outcome]:
    folders = [folder / str(seed) for seed in seeds]
    for one in folders:
        one.mkdir()
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        return list(pool.map(run_schedule, seeds, folders))


@needs_mosquitto
@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SCHEDULES, AT_A_TIME))
def test_every_created_event_arrives_once_and_in_order(first: int, tmp_path: Path) -> None:
    outcomes = run_all(range(first, first + AT_A_TIME), tmp_path)
    assert [(one.seed, one.violations) for one in outcomes if one.violations] == []
    assert all(one.created >= LEAST_EVENTS for one in outcomes)
    # The faults were real: messages were sent twice, events were cut off, connections were lost.
    assert sum(one.duplicates for one in outcomes) > 0
    assert sum(one.crash_ends for one in outcomes) > 0
    assert sum(one.connections for one in outcomes) > 3 * AT_A_TIME


def test_a_schedule_is_the_same_every_time_and_always_kills() -> None:
    assert schedule(7) == schedule(7)
    assert all(any(step.fault == "kill" for step in schedule(seed)) for seed in range(50))
    assert {step.fault for seed in range(SCHEDULES) for step in schedule(seed)} == set(FAULTS)

"""tools/bench/camera-loss: its counts between two frames, its ratio and its verdict."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "bench" / "camera-loss"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    loader = SourceFileLoader("bench_camera_loss", str(TOOL))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module, path = importlib.util.module_from_spec(spec), sys.path[:]
    loader.exec_module(module)
    sys.path[:] = path
    return module


def test_a_steady_rate_is_measured_exactly_wherever_a_block_begins(tool: ModuleType) -> None:
    times = {name: [0.1 * index for index in range(200)] for name in tool.OTHERS}
    for start_s in (1.0, 1.03, 1.099):
        spans = [(start_s, start_s + 4.27), (start_s + 6.0, start_s + 9.5)]
        assert tool.rates(times, spans) == pytest.approx(dict.fromkeys(tool.OTHERS, 10.0))


def test_a_pause_counts_also_when_it_lies_at_the_blocks_beginning(tool: ModuleType) -> None:
    times = {name: [0.1 * index for index in range(200) if not 50 <= index < 60] for name in tool.OTHERS}
    assert tool.rates(times, [(4.95, 9.95)]) == pytest.approx(dict.fromkeys(tool.OTHERS, 8.0), rel=0.02)


@pytest.mark.parametrize(
    ("dead", "sent_fps", "verdict"),
    [
        ((10.0, 9.99, 10.0), 10.0, "met"),
        ((9.9, 9.6, 9.9), 10.0, "missed"),
        ((13.0, 13.1, 13.0), 15.0, "unproved"),  # too slow for all: what was lost is hidden by what was gained
    ],
)
def test_the_goal_is_met_when_the_whole_interval_lies_above_it_and_nothing_was_overloaded(
    tool: ModuleType, dead: tuple[float, ...], sent_fps: float, verdict: str
) -> None:
    def rate(fps: float) -> dict[str, float]:
        return dict.fromkeys(tool.OTHERS, fps)

    result = tool.summarise([tool.Round(rate(10.0), rate(fps), 1.0, 100.0, 20) for fps in dead], sent_fps)
    assert result["ratio"]["mean"] == pytest.approx(sum(dead) / 30)
    assert result["verdict"] == verdict
    assert result["kept_while_alive"]["mean"] == pytest.approx(10.0 / sent_fps)

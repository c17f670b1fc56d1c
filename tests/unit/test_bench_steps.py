"""tools/bench/steps: its table, and the model whose batch it leaves open."""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from zhcedge.models.bundle import load_bundle

FOLDER = Path(__file__).parents[2] / "tools" / "bench"


def load(name: str) -> ModuleType:
    loader = SourceFileLoader(f"bench_{name.partition('.')[0]}", str(FOLDER / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.path[:]
    loader.exec_module(module)
    sys.path[:] = before
    return module


def test_ratios_are_taken_within_a_round() -> None:
    steps = load("steps")
    blocks = [
        {"round": number, "step": step.name, "fps": fps * slow, "cpu_ms": 10.0, "rss_mib": 100.0, "mean_batch": 1.0}
        for number, slow in enumerate((1.0, 0.5))
        for step, fps in zip(steps.STEPS, (10.0, 15.0, 20.0, 30.0), strict=True)
    ]
    result = steps.summarise(steps.STEPS, blocks)
    assert [row["ratio"]["mean"] for row in result["rows"]] == pytest.approx([1.0, 1.5, 2.0, 3.0])
    assert [row["ratio"]["low"] for row in result["rows"]] == pytest.approx([1.0, 1.5, 2.0, 3.0])
    table = steps.as_markdown(result | {"profile": "cpu", "machine": "m"})
    assert "| + batch 16: up to 16 | 22.5 [" in table
    assert len({line.count("|") for line in table.splitlines() if line.startswith("|")}) == 1


def test_a_bundle_with_an_open_batch_loads_and_finds_the_same(tmp_path: Path) -> None:
    load("free_batch.py").free_bundle(load_bundle("nanodet-g-416").folder, tmp_path / "free")
    bundle = load_bundle(tmp_path / "free")
    assert bundle.facts.has_free_batch
    assert json.loads((tmp_path / "free" / "manifest.json").read_text())["name"] == "nanodet-g-416-free"

"""`zhc-edge audit` on the real clip: what it prints, its exit codes, and that a planted copy makes it fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from zhcedge.app.audit import audit
from zhcedge.app.check import load_configuration
from zhcedge.backends.cpu.detect import DetectStage
from zhcedge.core.types import ViolationKind
from zhcedge.pipeline.ledger import Verdict

CONFIG = Path(__file__).parents[2] / "zhcedge" / "data" / "demo.yaml"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "zhcedge", "audit", "-c", str(CONFIG), "--frames", "30", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_demo_passes_with_every_canary_seen_and_leaves_no_file(tmp_path: Path) -> None:
    result = run("--json", "--set", f"output_dir={tmp_path}")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert (report["verdict"], report["frames"]) == ("pass", 30)
    assert report["canaries_planted"] == report["canaries_seen"] == 3
    assert report["violations"] == {"arena growth": 0, "host array": 0, "host object": 0}
    assert {"decode", "letterbox", "bitstream out"} <= {hop["hop"] for hop in report["hops"]}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # the watch over Python objects sees all threads, those of a parallel test run too
def test_a_folder_of_large_pictures_passes(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (720, 1280, 3), np.uint8)
    for number in range(6):
        Image.fromarray(noise).save(tmp_path / f"{number}.jpg", quality=95)
    changes = ("sinks=[]", "source.loop=false", f"source.uri={tmp_path}")
    # In a process of its own: what threads of other tests allocate would count as the frame path's.
    result = run("--frames", "0", "--json", *(word for key in changes for word in ("--set", f"channels.walkers.{key}")))
    report = json.loads(result.stdout)
    assert (report["verdict"], report["frames"]) == ("pass", 6), report["violations"]


@pytest.mark.slow
def test_a_picture_copied_into_a_python_object_in_a_stage_is_a_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    enqueue = DetectStage.enqueue
    runs = [0]

    def copying(self: DetectStage, batch: int) -> None:
        runs[0] += 1
        if runs[0] == 100:  # past the warm-up
            self._lane.slots[0].surface.planes[0].buffer.tobytes()
        enqueue(self, batch)

    monkeypatch.setattr(DetectStage, "enqueue", copying)
    report = audit(load_configuration(CONFIG, ["channels.walkers.sinks=[]"], {}).config, frames=120)
    assert report.run.ledger.violations[ViolationKind.HOST_OBJECT] == 1
    assert report.run.ledger.verdict is Verdict.FAIL

"""The frame process starts again, with the daemon around it untouched, once its plan is built."""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs

pytestmark = pytest.mark.slow  # minutes of real processes and servers

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.system.swap_daemon import main
main({arguments})
"""


def daemon(*, is_looped: bool, build: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(root=str(ROOT), arguments=f"{is_looped}{build}")],
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )


def phases(lines: list[str]) -> list[str]:
    return [line.rpartition("phase ")[2].strip() for line in lines if " phase " in line]


def test_a_built_plan_is_taken_between_two_batches_without_an_end_of_the_daemon() -> None:
    with daemon(is_looped=True) as process:
        lines: list[str] = []
        assert process.stderr is not None
        try:
            for line in process.stderr:
                lines.append(line)
                if phases(lines).count("active") == 2:
                    process.send_signal(signal.SIGTERM)
                    break
            lines += process.stderr.readlines()
            assert process.wait(60) == 0, "".join(lines)
        finally:
            process.kill()
    once = ["initialising", "warming-up", "active", "draining"]
    assert phases(lines) == [*once, *once, "stopped"]
    assert "plan built" in "".join(lines)


@pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason=needs.wheel("tensorrt-rtx-cu13 is not installed")
)
def test_a_builder_that_is_stopped_for_its_memory_leaves_the_daemon_as_it_was(tmp_path: Path) -> None:
    store = tmp_path / "plans"
    with daemon(is_looped=True, build=f", Path({str(store)!r}), 150") as process:
        lines: list[str] = []
        assert process.stderr is not None
        try:
            for line in process.stderr:
                lines.append(line)
                if "ten more frames" in line:
                    process.send_signal(signal.SIGTERM)
                    break
            lines += process.stderr.readlines()
            assert process.wait(60) == 0, "".join(lines)
        finally:
            process.kill()
    assert phases(lines) == ["initialising", "warming-up", "active", "draining", "stopped"]
    assert re.search(
        r"the plan was not built: .*took \d+ MiB of memory, 150 are allowed: it was stopped", "".join(lines)
    )
    assert not store.exists() or list(store.iterdir()) == []


@pytest.mark.slow
def test_a_video_that_would_begin_again_is_played_to_its_end() -> None:
    with daemon(is_looped=False) as process:
        _, text = process.communicate(timeout=180)
    assert process.returncode == 0, text
    assert phases(text.splitlines()).count("active") == 1
    assert "the plan is taken at the next start" in text

"""The demo as a user runs it: a program of its own, a real broker, the bundled clip."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.processes import Marked

PHASES = ["initialising", "warming-up", "active", "draining", "stopped"]
EVENT = re.compile(
    r"^\d\d:\d\d:\d\d\.\d{3}  walkers +(new|update|end) +\S.* [01]\.\d\d   "
    r"(centre|(upper|middle|lower) (left|centre|right)) +-?\d+,-?\d+ to \d+,\d+$"
)


def need(broker: str) -> None:
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
    if broker == "mosquitto" and not shutil.which("mosquitto", path=path):
        pytest.skip("mosquitto is not installed")
    if broker == "amqtt" and importlib.util.find_spec("amqtt") is None:
        pytest.skip("amqtt is not installed: pip install 'zhcedge[demo]'")


@pytest.fixture
def marked(tmp_path: Path) -> Marked:
    return Marked(tmp_path / "temporary")


@contextlib.contextmanager
def demo(marked: Marked, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`zhc-edge demo WORDS` with its output piped; killed at the end if it still runs."""
    command = [sys.executable, "-m", "zhcedge", "demo", *words]
    with subprocess.Popen(
        command, env=marked.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        try:
            yield program
        finally:
            program.kill()


def wait_for_events(program: subprocess.Popen[str], count: int = 1) -> None:
    """Read the program's output until that many events have come."""
    assert program.stdout is not None
    seen: list[str] = []
    for line in program.stdout:
        seen.append(line)
        count -= bool(EVENT.match(line.rstrip("\n")))
        if count == 0:
            return
    pytest.fail("the demo ended before its events:\n" + "".join(seen))


def is_playable(path: Path, frames: int) -> bool:
    av = pytest.importorskip("av")
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0)) == frames


@pytest.mark.parametrize("broker", ["mosquitto", pytest.param("amqtt", marks=pytest.mark.slow)])
def test_the_demo_shows_every_event_and_ends_with_what_it_measured(broker: str, marked: Marked, tmp_path: Path) -> None:
    need(broker)
    out = tmp_path / "my: out #1"  # a folder whose name YAML would read as something else
    with demo(marked, "--out", str(out), "--broker", broker) as program:
        text, complaints = program.communicate()
    assert (program.returncode, complaints) == (0, ""), text
    lines = text.splitlines()
    assert lines[0].startswith(f"broker   {broker} on 127.0.0.1:")
    assert [line.split()[1] for line in lines if line.startswith("phase")] == PHASES
    kinds = [match[1] for line in lines if (match := EVENT.match(line))]
    assert kinds.count("new") == kinds.count("end") > 0
    ends = {
        line.split()[0]: line for line in lines if line.startswith(("frames", "latency", "events", "ledger", "wrote"))
    }
    assert ends["frames"].startswith("frames   300 in ")
    assert "all received over MQTT" in ends["events"]
    assert ends["ledger"].endswith(": pass")
    written = Path(ends["wrote"].removeprefix("wrote    "))
    assert written.parent == out
    assert is_playable(written, frames=300)
    assert "\x1b" not in text
    assert marked.left_over() == []
    assert temporary_folders(marked) == []


def temporary_folders(marked: Marked) -> list[Path]:
    """The demo's own; libraries leave files there that are not ours to remove."""
    return list(marked.folder.glob("zhc-edge-demo-*"))


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_everything_cleanly(number: signal.Signals, code: int, marked: Marked, tmp_path: Path) -> None:
    with demo(marked, "--out", str(tmp_path / "out")) as program:
        wait_for_events(program)
        program.send_signal(number)
        _, complaints = program.communicate()
    assert (program.returncode, complaints) == (code, "")
    assert marked.left_over(within_s=0) == []
    assert temporary_folders(marked) == []
    for path in (tmp_path / "out").iterdir():  # what was written so far is a whole file, or is not there
        assert path.stat().st_size > 0
        assert is_playable(path, frames=count_frames(path))


def count_frames(path: Path) -> int:
    av = pytest.importorskip("av")
    with av.open(str(path)) as container:
        return int(container.streams.video[0].frames)


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["mosquitto", "amqtt"])
def test_a_killed_demo_leaves_no_process(broker: str, marked: Marked, tmp_path: Path) -> None:
    need(broker)
    with demo(marked, "--out", str(tmp_path / "out"), "--broker", broker) as program:
        wait_for_events(program)
        program.kill()
        program.communicate()
    assert marked.left_over() == []


def test_a_daemon_that_fails_says_why_with_its_own_code(marked: Marked, tmp_path: Path) -> None:
    with demo(marked, "--out", str(tmp_path / "out"), "--profile", "nonsense") as program:
        text, complaints = program.communicate()
    assert program.returncode in (2, 78)
    assert "nonsense" in text + complaints
    assert "Traceback" not in text + complaints
    assert marked.left_over(within_s=0) == []
    assert temporary_folders(marked) == []


def test_an_output_folder_that_cannot_be_made_is_one_line(marked: Marked, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with demo(marked, "--out", str(tmp_path / "file" / "out")) as program:
        text, complaints = program.communicate()
    assert (program.returncode, text) == (73, "")
    assert len(complaints.splitlines()) == 1
    assert "--out" in complaints


def test_no_broker_says_what_to_install(marked: Marked, tmp_path: Path) -> None:
    if any(Path(folder, "mosquitto").exists() for folder in ("/usr/sbin", "/usr/local/sbin")):
        pytest.skip("cannot run here: mosquitto is installed where the demo always looks")
    marked.environ["PATH"] = ""
    with demo(marked, "--out", str(tmp_path / "out"), "--broker", "mosquitto") as program:
        _, complaints = program.communicate()
    assert program.returncode == 69
    assert "apt-get install mosquitto" in complaints

"""A frame process that fails, hangs or loses its device: reported over MQTT, started again with pauses, never a hang.

Both processes are the real ones; the frame process has a cpu device that misbehaves as a lost GPU does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import yaml

from tests.contract.brokers import Subscriber, find_mosquitto, running, start_amqtt, start_mosquitto, wait_until

pytestmark = pytest.mark.slow  # minutes of real processes and servers

FRAME = textwrap.dedent(
    """
    import os, signal, sys, time
    from pathlib import Path
    from zhcedge.app import frame
    from zhcedge.backends.cpu.detect import DetectStage
    from zhcedge.backends.cpu.device import CpuDevice
    from zhcedge.core.errors import BackendUnavailableError, PipelineError

    folder, fault = Path({folder!r}), {fault!r}
    starts = folder / "starts"
    with starts.open("a") as file:
        file.write("x")
    number = len(starts.read_text())
    enqueue, make, runs = DetectStage.enqueue, CpuDevice.__init__, [0]

    def lose(self, batch):
        runs[0] += 1
        if runs[0] > 60:
            if fault == "crash":
                signal.raise_signal(signal.SIGSEGV)  # in this thread, not in any
            if fault == "stuck":
                os.kill(os.getpid(), signal.SIGSTOP)
            while fault == "holds":
                time.sleep(1)
            raise PipelineError("the GPU reported: it is lost", where="lane 0")
        enqueue(self, batch)

    def absent(self, settings):
        if number > 1 or fault == "never there":
            raise BackendUnavailableError("the driver finds no usable GPU", where="cuda", fix="look at it")
        make(self, settings)

    DetectStage.enqueue = lose
    if fault in ("gone", "never there"):
        CpuDevice.__init__ = absent
    if fault == "never closes":
        CpuDevice.close = lambda self: time.sleep(1000)
    if code := frame.main(sys.argv[1:]):
        frame._end(code)
    """
)
CONTROL = textwrap.dedent(
    """
    import sys
    from zhcedge.app import control
    from zhcedge.cli import main
    from zhcedge.service import liveness

    liveness._CLOSING_S, liveness._WORKING_S, liveness._HOLDING_S = 1.0, 3.0, 8.0
    control.command_for = lambda module: [sys.executable, "-c", {frame!r}]
    sys.exit(main(sys.argv[1:]))
    """
)


@contextmanager
def daemon(folder: Path, fault: str, port: int) -> Iterator[subprocess.Popen[str]]:
    config = folder / "config.yaml"
    source = {"uri": "clip:walkers", "loop": True}
    values = {"device": "test", "channels": {"gate": {"source": source}}, "pipeline": {"warmup_frames": 2}}
    config.write_text(yaml.safe_dump({**values, "mqtt": {"port": port}}))
    script = CONTROL.format(frame=FRAME.format(folder=str(folder), fault=fault))
    command = [sys.executable, "-c", script, "run", "-c", str(config), "--log-level", "ERROR"]
    environ = {**os.environ, "STATE_DIRECTORY": str(folder)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environ)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


@pytest.fixture
def subscriber(tmp_path: Path) -> Iterator[Subscriber]:
    with (
        running(start_mosquitto if find_mosquitto() else start_amqtt, tmp_path) as broker,
        Subscriber(broker.port, "zhcedge/#") as client,
    ):
        yield client


def failures(subscriber: Subscriber) -> list[str]:
    """The reasons of every `failed` state so far."""
    states = [json.loads(payload) for payload in subscriber.states()]
    return ["; ".join(state["degraded"]) for state in states if state["phase"] == "failed"]


def starts(folder: Path) -> int:
    path = folder / "starts"
    return len(path.read_text()) if path.exists() else 0


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("fails", "the GPU reported: it is lost"),
        pytest.param("never closes", "the GPU reported: it is lost", marks=pytest.mark.slow),
        pytest.param("stuck", "no sign of life", marks=pytest.mark.slow),
        pytest.param("holds", "a stage has held", marks=pytest.mark.slow),
        pytest.param("gone", "no usable GPU", marks=pytest.mark.slow),
    ],
)
def test_a_lost_device_is_reported_and_the_frame_process_started_again(
    tmp_path: Path, subscriber: Subscriber, fault: str, reason: str
) -> None:
    with daemon(tmp_path, fault, subscriber.port) as process:
        wait_until(lambda: any(reason in text for text in failures(subscriber)), "the report")
        at_report = starts(tmp_path)
        wait_until(lambda: starts(tmp_path) > at_report, "another start")
        assert process.poll() is None
        process.terminate()
        assert process.wait(30) in (0, 69, 70)


@pytest.mark.parametrize(("fault", "word"), [("crash", "Segmentation fault"), ("holds", "Current thread")])
def test_a_crash_report_says_where_every_thread_was(
    tmp_path: Path, subscriber: Subscriber, fault: str, word: str
) -> None:
    with daemon(tmp_path, fault, subscriber.port):
        wait_until(lambda: list(tmp_path.glob("crashes/*.json")), "the report")
        (report, *_) = (json.loads(path.read_text()) for path in sorted(tmp_path.glob("crashes/*.json")))
    trace = "\n".join(report["trace"])
    assert word in trace
    assert " in lose" in trace  # where it was
    assert trace.count("hread 0x") > 3  # and where the others were
    assert report["ledger"]["verdict"] == "pass"


def test_a_device_that_was_never_there_ends_the_daemon_with_one_line_and_exit_69(
    tmp_path: Path, subscriber: Subscriber
) -> None:
    with daemon(tmp_path, "never there", subscriber.port) as process:
        assert process.wait(60) == 69
        assert process.stderr is not None
        assert "no usable GPU" in process.stderr.read()
    assert any("no usable GPU" in text for text in failures(subscriber))
    assert starts(tmp_path) == 1

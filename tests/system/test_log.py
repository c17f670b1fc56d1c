"""What a daemon says of itself while it runs: enough to know what goes on, and nothing over and over."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.contract.brokers import find_mosquitto, free_port, running, start_mosquitto, wait_until


@contextmanager
def daemon(folder: Path, channels: dict[str, object], *words: str, **sections: object) -> Iterator[Path]:
    """A running daemon; the file gets its log. Asked to stop at the end."""
    config, log = folder / "c.yaml", folder / "log"
    warmup: dict[str, object] = {"pipeline": {"warmup_frames": 1}, "mqtt": {"enabled": False}}
    config.write_text(yaml.safe_dump({"device": "t", "channels": channels, **warmup, **sections}))
    with log.open("wb") as stream:
        process = subprocess.Popen([sys.executable, "-m", "zhcedge", "run", "-c", str(config), *words], stderr=stream)
    try:
        yield log
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_camera_that_is_away_is_a_line_or_two_and_a_run_without_frames_proves_nothing(tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    address = f"rtsp://127.0.0.1:{free_port()}/x"
    with daemon(tmp_path, {"gate": {"source": {"uri": address}}}, "--summary", str(summary)) as log:
        wait_until(lambda: "phase active" in log.read_text(), "the active phase")
        time.sleep(4)  # several more tries
    text = log.read_text()
    assert text.count(address) == 2  # that it is tried again, and the state
    assert "gate: gate" not in text
    found = json.loads(summary.read_text())
    assert found["frames"] == 0
    assert found["ledger"]["verdict"] == "unproved"
    assert "no frame was processed" in found["ledger"]["text"]
    assert found["dropped"]["by_channel"] == {}


@pytest.mark.slow
def test_an_address_that_can_be_no_stream_is_no_camera_to_wait_for(tmp_path: Path) -> None:
    for uri in ("rtsp://", "v4l2:", "v4l2:/dev", "rtsp://host:port/x"):
        config = tmp_path / "c.yaml"
        channels = {"gate": {"source": {"uri": uri}}, "b": {"source": {"uri": "pattern:boxes"}}}
        config.write_text(yaml.safe_dump({"channels": channels, "mqtt": {"enabled": False}}))
        command = [sys.executable, "-m", "zhcedge", "run", "-c", str(config), "--log-level", "ERROR"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 78, result.stderr
        assert result.stderr.startswith("zhc-edge: channels.gate.source.uri: ")


def test_a_broker_that_comes_back_is_said(tmp_path: Path) -> None:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed")
    port = free_port()
    pattern = {"gate": {"source": {"uri": "pattern:boxes?fps=2", "realtime": True}}}
    with daemon(tmp_path, pattern, mqtt={"port": port}) as log:

        def count(words: str) -> int:
            return log.read_text().count(words)

        for number in (1, 2):
            with running(lambda folder: start_mosquitto(folder, port), tmp_path):
                wait_until(lambda number=number: count("connected to the MQTT broker") == number, "a session")  # type: ignore[misc]
            wait_until(lambda number=number: count("tried again") >= number, "its loss")  # type: ignore[misc]

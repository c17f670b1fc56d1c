"""The doctor beside a real broker and a camera that is away, and its report."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.contract.brokers import find_mosquitto, free_port, running, start_mosquitto
from tests.system.test_control_socket import site

pytestmark = [pytest.mark.slow, pytest.mark.company]


def doctor(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "zhcedge", "doctor", *words], capture_output=True, text=True, cwd=cwd, check=False
    )


def write(folder: Path, port: int) -> Path:
    (folder / "pw").write_text("sesame-secret\n")
    camera = f"rtsp://viewer:hunter2@127.0.0.1:{free_port()}/x"
    path = folder / "config.yaml"
    path.write_text(
        f"device: box\nchannels:\n  gate: {{source: {{uri: '{camera}', connect_timeout_s: 1}}}}\n"
        f"  drawn: {{source: {{uri: 'pattern:boxes'}}}}\n"
        f"mqtt: {{port: {port}, username: u, password_file: pw}}\n"
    )
    return path


@pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
def test_a_dead_camera_is_bad_and_the_rest_is_well(tmp_path: Path) -> None:
    with running(start_mosquitto, tmp_path) as broker:
        done = doctor("-c", str(write(tmp_path, broker.port)), "--json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    found = {finding["part"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert found["camera gate"]["state"] == "bad"
    assert found["camera gate"]["fix"]
    assert found["camera drawn"]["state"] == "ok"
    assert found["broker"]["state"] == "ok", found["broker"]


def test_the_report_holds_what_helps_and_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "report.tar.gz"
    done = doctor("-c", str(write(tmp_path, free_port())), "--report", str(file), "--seconds", "1", cwd=tmp_path)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with tarfile.open(file) as archive:
        members = {Path(one.name).name: archive.extractfile(one).read().decode() for one in archive}  # type: ignore[union-attr]
    whole = "\n".join(members.values())
    assert "sesame-secret" not in whole
    assert "hunter2" not in whole
    summary = json.loads(members["summary.json"])
    assert summary["verdict"] == "pass"
    assert summary["pipeline_fps"]["none"]["mean"] > 0
    assert "camera gate" in summary["bad"]
    assert json.loads(members["configuration.json"])["mqtt.username"][0] == "u"
    assert "camera gate" in members["doctor.txt"]


def test_a_report_that_can_not_be_written_is_told_before_the_minutes_are_spent(tmp_path: Path) -> None:
    done = doctor("-c", "absent.yaml", "--report", str(tmp_path / "no" / "r.tar.gz"), cwd=tmp_path)
    assert done.returncode == 73
    assert done.stdout == ""


def test_a_running_daemon_is_asked_for_its_cameras(tmp_path: Path) -> None:
    with site(tmp_path) as here:
        done = doctor("-c", str(here.config), "--json", cwd=tmp_path)
        found = {finding["part"]: finding for finding in json.loads(done.stdout)["findings"]}
        assert "frames a second" in found["camera gate"]["text"]

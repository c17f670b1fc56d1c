"""The doctor beside a real broker and a camera that is away, and its report."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.contract.brokers import find_mosquitto, free_port, running, start_mosquitto
from tests.contract.certificates import Authority, needs_openssl
from tests.system.test_control_socket import site

pytestmark = [pytest.mark.slow, pytest.mark.company]


def doctor(*words: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "zhcedge", "doctor", *words]
    ours = {**os.environ, **environ}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=ours, check=False)


def unpacked(file: Path) -> dict[str, str]:
    """Members of the archive by name."""
    with tarfile.open(file) as archive:
        return {Path(one.name).name: archive.extractfile(one).read().decode() for one in archive}  # type: ignore[union-attr]


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
    members = unpacked(file)
    whole = "\n".join(members.values())
    assert "sesame-secret" not in whole
    assert "hunter2" not in whole
    summary = json.loads(members["summary.json"])
    assert summary["verdict"] == "pass"
    assert summary["pipeline_fps"]["none"]["mean"] > 0
    assert "camera gate" in summary["bad"]
    assert json.loads(members["configuration.json"])["mqtt.username"][0] == "u"
    assert "camera gate" in members["doctor.txt"]


@needs_openssl
@pytest.mark.parametrize("more", [{}, {"nonsense": 1}], ids=["good", "faulty"])
def test_no_secret_and_no_host_of_the_configuration_is_in_a_report(tmp_path: Path, more: dict[str, int]) -> None:
    own = Authority(tmp_path / "ca").sign("device")
    secrets = {"login": "Url-Secret-4711", "sink": "Sink-Secret-2222", "mqtt": "Mqtt-Secret-0815"}
    secrets |= {"token": "tok_5f2c9be01d7744", "key-password": "KeyPw-Secret-99"}
    for name in ("mqtt", "token", "key-password"):
        (tmp_path / name).write_text(f"{secrets[name]}\n")
    hosts = ("cam.invalid", "nvr.invalid", "out.invalid", "broker.invalid", "10.20.30.40")
    told = f"{' '.join((*secrets.values(), *hosts))}\n{own.key.read_text()}"
    (tmp_path / "crashes").mkdir()
    (tmp_path / "crashes/1.json").write_text(json.dumps({"time": 1.0, "what": told}))
    sink = {"kind": "rtsp", "url": f"rtsp://pusher:{secrets['sink']}@out.invalid/"}
    nvr = {"uri": "https://nvr.invalid/live", "username": "box", "password_file": "token"}
    channels = {
        "gate": {"source": {"uri": f"rtsp://viewer:{secrets['login']}@cam.invalid/1"}, "sinks": [sink]},
        "nvr": {"source": nvr},
    }
    files = {"certificate_file": str(own.chain), "key_file": str(own.key), "key_password_file": "key-password"}
    mqtt = {"host": "broker.invalid", "username": "box", "password_file": "mqtt", "tls": {"enabled": True, **files}}
    config, file = tmp_path / "config.yaml", tmp_path / "report.tar.gz"
    config.write_text(json.dumps({"device": "box", "channels": channels, "mqtt": mqtt, **more}))
    words = ("--quick", "-c", str(config), "--report", str(file), "--seconds", "0")
    done = doctor(*words, cwd=tmp_path, STATE_DIRECTORY=str(tmp_path))
    whole = "\n".join(unpacked(file).values())
    assert "<camera-gate>" in whole, done.stderr
    lines = [line for line in own.key.read_text().splitlines() if not line.startswith("-----")]
    assert [word for word in (*secrets.values(), *hosts, *lines, "viewer", "pusher") if word in whole] == []
    doctor(*words, "--with-addresses", cwd=tmp_path, STATE_DIRECTORY=str(tmp_path))
    whole = "\n".join(unpacked(file).values())
    assert [host for host in hosts if host not in whole] == []
    assert [word for word in (*secrets.values(), *lines) if word in whole] == []


def test_a_report_that_can_not_be_written_is_told_before_the_minutes_are_spent(tmp_path: Path) -> None:
    done = doctor("-c", "absent.yaml", "--report", str(tmp_path / "no" / "r.tar.gz"), cwd=tmp_path)
    assert done.returncode == 73
    assert done.stdout == ""


def test_a_running_daemon_is_asked_for_its_cameras(tmp_path: Path) -> None:
    with site(tmp_path) as here:
        done = doctor("-c", str(here.config), "--json", cwd=tmp_path)
        found = {finding["part"]: finding for finding in json.loads(done.stdout)["findings"]}
        assert "frames a second" in found["camera gate"]["text"]
        file, words = tmp_path / "r.tar.gz", ("-c", str(here.config), "--quick", "--seconds", "1")
        doctor(*words, "--report", str(file), cwd=tmp_path)
        assert "daemon is running" in unpacked(file)["load.json"]
        doctor(*words, "--report", str(file), "--with-load", cwd=tmp_path)
        assert json.loads(unpacked(file)["summary.json"])["verdict"] == "pass"

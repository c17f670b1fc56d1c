"""Parts of the doctor on devices, programs and certificates of the test's own."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

import pytest

from tests.contract.certificates import Authority, needs_openssl
from zhcedge.app import doctor_system
from zhcedge.app.doctor_certificates import look_at_certificates
from zhcedge.app.doctor_system import look_at_board, look_at_devices
from zhcedge.config.load import load


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that comes first on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.mark.skipif(getpass.getuser() == "nobody", reason="cannot run here: the test's stranger is who runs it")
def test_groups_that_the_unit_gives_count(tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tmp_path / "nvmap"
    device.touch()
    device.chmod(0o660)
    monkeypatch.setattr(doctor_system, "_DEVICES", (str(device),))
    monkeypatch.setattr(doctor_system, "SERVICE_USER", "nobody")  # of the users that every system has
    for groups, is_closed in (("", True), (f"video {device.group()}", False)):
        program(programs, "systemctl", f"echo '{groups}'")
        states = [finding.state for finding in look_at_devices(None)]
        assert ("bad" in states) == is_closed, groups


def test_a_driver_whose_libraries_are_of_another_version_is_bad(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_system, "platform_name", lambda: "driver-580.65.06")
    program(programs, "nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    gpu = {finding.part: finding for finding in look_at_board()}["gpu"]
    assert gpu.state == "bad"
    assert "version mismatch" in gpu.text
    assert gpu.fix
    program(programs, "nvidia-smi", "echo 'NVIDIA H200, 143771 MiB, 9.0'; echo 'NVIDIA L4, 23034 MiB, 8.9'")
    gpu = {finding.part: finding for finding in look_at_board()}["gpu"]
    assert gpu.text == "NVIDIA H200, 143771 MiB, 9.0; NVIDIA L4, 23034 MiB, 8.9"


@needs_openssl
@pytest.mark.parametrize(("ends_days", "state"), [(365.0, "ok"), (10.0, "note"), (1.5, "bad"), (-0.5, "bad")])
def test_a_certificate_is_told_before_it_expires(tmp_path: Path, ends_days: float, state: str) -> None:
    authority = Authority(tmp_path / "ca")
    own = authority.sign("device", ends_days=ends_days)
    path = tmp_path / "config.yaml"
    path.write_text(
        f"channels: {{gate: {{source: {{uri: 'pattern:boxes'}}}}}}\n"
        f"mqtt: {{tls: {{enabled: true, certificate_file: {own.chain}, ca_file: {authority.file}}}}}\n"
    )
    found = {finding.text.split()[0]: finding for finding in look_at_certificates(load(path).config)}
    assert (found[str(own.chain)].state, bool(found[str(own.chain)].fix)) == (state, state != "ok")
    assert found[str(authority.file)].state == "ok"


def test_a_certificate_that_only_the_service_has_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    path = tmp_path / "config.yaml"
    path.write_text(
        "channels: {gate: {source: {uri: 'pattern:boxes'}}}\n"
        "mqtt: {tls: {enabled: true, certificate_file: 'credential:device'}}\n"
    )
    assert [finding.state for finding in look_at_certificates(load(path).config)] == ["skipped"]

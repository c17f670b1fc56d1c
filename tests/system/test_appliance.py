"""The service on a real systemd: installed by tools/install, driven by systemctl and mosquitto_sub, and hurt."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.system.nspawn import ROOT, Box, cannot_run, listening, require_system, wheelhouse
from tests.system.rtsp import Camera, bundled_stream, need_server
from tests.system.test_clock_steps import built_clock
from zhcedge.app.channels import clip_path
from zhcedge.core.message_ids import MessageId

pytestmark = pytest.mark.slow

CONFIG = "/etc/zhc-edge/config.yaml"
GOOD: dict[str, Any] = {
    "device": "box",
    "channels": {"gate": {"source": {"uri": "clip:walkers", "realtime": True, "loop": True}}},
    "mqtt": {"host": "127.0.0.1", "stats_interval_s": 0},
}
Heard = Callable[[], list[tuple[str, bytes]]]


class Appliance(Box):
    """A box with the product in it."""

    def install(self, *words: str) -> None:
        self("sh", "/src/tools/install", "--wheelhouse", "/src/wheelhouse", *words)

    def write(self, **changes: Any) -> None:
        self.path(CONFIG).write_text(yaml.safe_dump({**GOOD, **changes}))

    def ready(self) -> None:
        """Whatever was done to it before: installed, configured well, active."""
        self("systemctl", "start", "mosquitto")
        if not self.path("/etc/systemd/system/zhc-edge.service").exists():
            self.install()
        self.write()
        self("systemctl", "restart", "zhc-edge")

    def is_active(self) -> bool:
        return self("systemctl", "is-active", "zhc-edge", check=False).stdout.strip() == "active"

    def show(self, name: str) -> str:
        return self("systemctl", "show", "-P", name, "zhc-edge").stdout.strip()

    def processes(self) -> list[int]:
        """The control process and the frame process, as the box numbers them."""
        group = self("systemctl", "show", "-P", "ControlGroup", "zhc-edge").stdout.strip()
        numbers = self(
            "sh",
            "-c",
            f"cat /sys/fs/cgroup{group}/cgroup.procs /sys/fs/cgroup/systemd{group}/cgroup.procs",
            check=False,
        ).stdout.split()
        return sorted({int(number) for number in numbers})

    def status(self) -> dict[str, Any]:
        said = self("zhc-edge", "status", "--json", check=False).stdout
        return json.loads(said) if said else {"phase": "away", "degraded": []}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    require_system()
    folder = tmp_path_factory.mktemp("appliance")
    with Appliance(folder) as box:
        source = box.path("/src")
        source.mkdir()
        for name in ("systemd", "tools"):
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "README.md", source)
        wheelhouse(folder).rename(source / "wheelhouse")
        yield box


@pytest.fixture
def box(made: Appliance) -> Appliance:
    made.ready()
    return made


def events(heard: Heard) -> list[dict[str, Any]]:
    return [json.loads(payload) for topic, payload in heard() if topic == "zhcedge/box/events"]


def sequences(heard: Heard) -> list[int]:
    return [event["seq"] for event in events(heard)]


def test_start_means_active_and_events_arrive(box: Appliance) -> None:
    with listening(box, "zhcedge/#") as heard:
        assert box.is_active()
        box.wait_for(lambda: "frames a second" in box.show("StatusText"), "the status line")
        box.wait_for(lambda: events(heard), "an event")
        assert box.status()["phase"] == "active"
        assert box.status()["ledger"]["verdict"] == "pass"
        said = box("journalctl", "-o", "json", f"MESSAGE_ID={MessageId.PHASE.value}", "ZHC_PHASE=active").stdout
        entry = json.loads(said.splitlines()[0])
        assert (entry["ZHC_PROCESS"], entry["_SYSTEMD_UNIT"]) == ("control", "zhc-edge.service")
    exposure = re.search(r"exposure level for \S+: ([0-9.]+)", box("systemd-analyze", "security", "zhc-edge").stdout)
    assert exposure is not None
    assert float(exposure[1]) <= 1.5


def test_reload_takes_a_good_file_and_refuses_a_broken_one(box: Appliance) -> None:
    with listening(box, "zhcedge/#") as heard:
        box.wait_for(lambda: events(heard), "an event")
        main, processes = box.show("MainPID"), box.processes()
        box.write(events={"update_interval_ms": 250})
        box("systemctl", "reload", "zhc-edge")
        edited = box("env", "EDITOR=sed -i s/250/350/", "zhc-edge", "config", "edit", "--yes").stdout
        assert "events.update_interval_ms: 250 -> 350 (live)" in edited
        assert "in force" in edited
        box.path(CONFIG).write_text("channels:\n  gate:\n    source: {uri: 7}\n")
        refused = box("systemctl", "reload", "zhc-edge", check=False)
        assert refused.returncode != 0
        assert box.is_active()
        assert (box.show("MainPID"), box.processes()) == (main, processes)
        assert f"{CONFIG}:3:" in box("journalctl", "-u", "zhc-edge", "--no-pager").stdout
        box.write(channels={**GOOD["channels"], "yard": GOOD["channels"]["gate"]})
        box("systemctl", "reload", "zhc-edge")
        box.wait_for(lambda: box.status()["cameras"].get("yard", {}).get("state") == "up", "the new camera")
        assert box.processes() == processes
        count = len(sequences(heard))
        box.wait_for(lambda: len(sequences(heard)) > count + 5, "more events")
        numbers = sequences(heard)
        alerts = sum(topic == "zhcedge/box/alerts" for topic, _ in heard())  # they have numbers of the same row
        assert numbers == sorted(set(numbers))
        assert numbers[-1] - numbers[0] + 1 - len(numbers) <= alerts


def test_whichever_process_is_killed_the_service_comes_back_and_open_events_end(box: Appliance) -> None:
    with listening(box, "zhcedge/#") as heard:
        for which in (1, 0):
            box.wait_for(lambda: len(box.processes()) == 2 and box.status()["phase"] == "active", "both processes")
            seen = len(events(heard))
            box.wait_for(lambda seen=seen: any(e["type"] == "new" for e in events(heard)[seen:]), "an event")  # type: ignore[misc]
            victim = box.processes()[which]
            box("sh", "-c", f"kill -KILL {victim}")
            box.wait_for(lambda victim=victim: victim not in box.processes(), "its end")  # type: ignore[misc]
            box.wait_for(lambda: box.is_active() and box.status()["phase"] == "active", "the service")
        crashes = box("zhc-edge", "crashes").stdout
        assert "frame-process-died" in crashes
        assert "daemon-died" in crashes
        last = json.loads(box("zhc-edge", "crashes", "--json").stdout)[-1]
        assert last["service"] == {"Result": "signal", "ExitCode": "killed", "ExitStatus": "KILL"}
        box("systemctl", "stop", "zhc-edge")
        told = events(heard)
    begun = {(e["boot_id"], e["after"]["id"]) for e in told if e["type"] == "new"}
    ended = [(e["after"]["id"]) for e in told if e["type"] == "end"]
    assert {id for _, id in begun} <= set(ended)
    assert "crash" in {e["end_reason"] for e in told}


def test_a_control_process_that_stands_still_is_restarted_by_the_watchdog(box: Appliance) -> None:
    drop_in = box.path("/etc/systemd/system/zhc-edge.service.d/test.conf")
    drop_in.write_text("[Service]\nWatchdogSec=5\n")
    try:
        box("systemctl", "daemon-reload")
        box("systemctl", "restart", "zhc-edge")
        main = box.show("MainPID")
        box("sh", "-c", f"kill -STOP {main}")
        box.wait_for(lambda: box.show("MainPID") not in (main, "0") and box.is_active(), "another process")
        assert "watchdog" in box("journalctl", "-u", "zhc-edge", "--no-pager").stdout.lower()
    finally:
        drop_in.unlink()
        box("systemctl", "daemon-reload")


def test_a_busy_service_stops_in_time_and_says_so(box: Appliance) -> None:
    with listening(box, "zhcedge/box/available") as heard:
        box.wait_for(lambda: any(payload == b"online" for _, payload in heard()), "it to be online")
        box("systemctl", "stop", "zhc-edge")
        assert box.show("Result") == "success"
        box.wait_for(lambda: heard()[-1][1] == b"stopped", "the goodbye")
    spent_us = int(box.show("InactiveEnterTimestampMonotonic")) - int(box.show("ActiveExitTimestampMonotonic"))
    assert spent_us < 10_000_000


def test_it_boots_into_the_last_good_configuration_without_a_broker(box: Appliance) -> None:
    box.wait_for((box.path("/var/lib/zhc-edge/last-good.json")).exists, "the copy")
    box("systemctl", "disable", "--now", "mosquitto")
    box.path(CONFIG).write_text("channels: [\n")
    box.power_off()
    box.boot()
    box.wait_for(box.is_active, "the service")
    assert "last good" in "; ".join(box.status()["degraded"])
    assert box.show("NRestarts") == "0"
    box("systemctl", "enable", "--now", "mosquitto")
    with listening(box, "zhcedge/#") as heard:
        box.wait_for(lambda: events(heard), "what waited for the broker")


def test_it_starts_with_a_read_only_etc_and_a_full_disk(box: Appliance) -> None:
    box("systemctl", "stop", "zhc-edge")
    script = """
        set -e
        mount --bind /etc /etc && mount -o remount,ro,bind /etc
        mkdir -p /mnt/small && mount -t tmpfs -o size=2m,mode=750 tmpfs /var/lib/zhc-edge
        chown zhc-edge:zhc-edge /var/lib/zhc-edge
        dd if=/dev/zero of=/var/lib/zhc-edge/full bs=4k 2>/dev/null || :
    """
    box("sh", "-c", script)
    try:
        box("systemctl", "start", "zhc-edge")
        with listening(box, "zhcedge/#") as heard:
            box.wait_for(lambda: events(heard), "an event")
    finally:
        box("systemctl", "stop", "zhc-edge")
        box("sh", "-c", "umount /var/lib/zhc-edge; umount /etc")


def test_a_camera_that_goes_and_comes_back_changes_nothing_for_the_service(box: Appliance, tmp_path: Path) -> None:
    need_server()
    stream = bundled_stream(tmp_path / "walkers.ts", clip_path("walkers"), times=20)
    with Camera(stream, before=box.network) as camera, listening(box, "zhcedge/#") as heard:
        options = {"uri": camera.address(), "connect_timeout_s": 2, "read_timeout_s": 2}
        box.write(channels={**GOOD["channels"], "street": {"source": options}})
        box("systemctl", "restart", "zhc-edge")
        started = box.show("ActiveEnterTimestampMonotonic")

        def street() -> str:
            return str(box.status().get("cameras", {}).get("street", {}).get("state"))

        box.wait_for(lambda: street() == "up", "the camera")
        camera.kill()
        box.wait_for(lambda: street() == "down", "its loss")
        assert box.is_active()
        said = box("journalctl", "-o", "json", "ZHC_CAMERA=street", "ZHC_STATE=down", "--no-pager").stdout
        assert f'MESSAGE_ID":"{MessageId.CAMERA.value}' in said
        camera.start()
        box.wait_for(lambda: street() == "up", "its return")
        box.wait_for(lambda: any(e["after"]["camera"] == "street" for e in events(heard)), "its events")
        assert box.show("ActiveEnterTimestampMonotonic") == started


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_it_starts_with_an_old_clock_and_goes_on_when_that_is_set(box: Appliance, tmp_path: Path) -> None:
    """A board without a battery begins in the past; its clock is its service's here, and moved by our own library."""
    years_s = -20 * 365 * 24 * 3600
    box("systemctl", "stop", "zhc-edge")
    shutil.copy(built_clock(tmp_path), box.path("/usr/lib/clock_steps.so"))
    offset = box.path("/usr/share/clock-step")
    offset.write_bytes(struct.pack("=q", years_s))
    drop_in = box.path("/etc/systemd/system/zhc-edge.service.d/clock.conf")
    words = "LD_PRELOAD=/usr/lib/clock_steps.so CLOCK_STEP_FILE=/usr/share/clock-step"
    drop_in.write_text(f"[Service]\nEnvironment={words}\n")
    try:
        box("systemctl", "daemon-reload")
        box("systemctl", "start", "zhc-edge")
        with listening(box, "zhcedge/#") as heard:

            def times() -> list[float]:
                return [event["after"]["frame_time"] for event in events(heard)]

            box.wait_for(lambda: len(times()) > 3, "events of the past")
            assert max(times()) < time.time() - 19 * 365 * 24 * 3600
            with offset.open("r+b") as file:  # in place: it is mapped
                file.write(struct.pack("=q", 0))
            box.wait_for(lambda: abs(times()[-1] - time.time()) < 3600, "events of now")
            numbers = sequences(heard)
            assert numbers == sorted(set(numbers))
            assert box.is_active()
    finally:
        drop_in.unlink()
        box("systemctl", "daemon-reload")


def test_a_reboot_that_the_service_asks_for_is_done_by_somebody_who_may(box: Appliance) -> None:
    instead = box.path("/etc/systemd/system/zhc-edge-reboot.service.d/test.conf")
    instead.parent.mkdir(exist_ok=True)
    instead.write_text("[Service]\nExecStart=\nExecStart=/bin/mv /run/zhc-edge/reboot-requested /run/would-reboot\n")
    box("systemctl", "daemon-reload")
    request = ("runuser", "-u", "zhc-edge", "--", "touch", "/run/zhc-edge/reboot-requested")
    box(*request)
    assert box("systemctl", "is-enabled", "zhc-edge-reboot.path", check=False).stdout.strip() == "disabled"
    box("systemctl", "start", "zhc-edge-reboot.path")
    box.wait_for(lambda: box("test", "-e", "/run/would-reboot", check=False).returncode == 0, "the reboot")
    box("systemctl", "stop", "zhc-edge-reboot.path")
    instead.unlink()
    instead.parent.rmdir()


def test_an_upgrade_goes_into_the_other_bank_and_uninstalling_leaves_what_it_says(box: Appliance) -> None:
    bank = box.path("/opt/zhc-edge/current").readlink()
    written = box.path(CONFIG).read_text()
    box.install()
    assert box.path("/opt/zhc-edge/current").readlink() != bank
    assert box.is_active()
    assert box.path(CONFIG).read_text() == written
    box("sh", "/src/tools/install", "--uninstall")
    assert box.path(CONFIG).exists()
    assert not box.path("/opt/zhc-edge").exists()
    box.install("--start")
    assert box.is_active()
    box("sh", "/src/tools/install", "--uninstall", "--purge")
    left = box(
        "sh", "-c", "find / -xdev -name '*zhc-edge*' -not -path '/src/*' -not -path '/var/log/*' -not -path '/proc/*'"
    )
    assert left.stdout == ""
    assert box("id", "zhc-edge", check=False).returncode != 0


def test_the_units_are_well_formed() -> None:
    if shutil.which("systemd-analyze") is None:
        cannot_run("systemd-analyze is not installed")
    for drop_in, most in (("", 1.5), ("cameras", 2.0), ("gpu", 2.0), ("jetson", 2.0)):
        assert _exposure(drop_in) <= most, drop_in


def _exposure(drop_in: str) -> float:
    text = (ROOT / "systemd/zhc-edge.service").read_text().partition("[Install]")[0]
    if drop_in:
        text += (ROOT / f"systemd/drop-ins/{drop_in}.conf").read_text()
    with tempfile.TemporaryDirectory() as folder:
        unit = Path(folder) / "zhc-edge.service"
        unit.write_text(text)
        command = ["systemd-analyze", "security", "--offline=true", str(unit)]
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = re.search(r"exposure level for \S+: ([0-9.]+)", said)
    assert found is not None, said
    return float(found[1])

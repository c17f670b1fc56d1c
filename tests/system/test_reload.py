"""The real daemon takes another configuration while it runs: whole or not at all, and back again when it is no good."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.brokers import Subscriber, find_mosquitto, running, start_mosquitto
from tests.system.test_control_socket import CLIP, PATIENCE_S, Site, site
from tests.system.test_mqtt_commands import site as mqtt_site
from tests.system.test_run import children_of
from zhcedge.app.channels import clip_path

pytestmark = pytest.mark.slow

EVERYWHERE = {"points": [[0, 0], [1, 0], [1, 1], [0, 1]]}


def change(here: Site, **sections: Any) -> dict[str, Any]:
    """Write other sections; the configuration before."""
    before: dict[str, Any] = yaml.safe_load(here.config.read_text())
    here.config.write_text(yaml.safe_dump({**before, **sections}))
    return before


def reload(here: Site) -> subprocess.CompletedProcess[str]:
    return here.command("reload", "--wait")


def frame_pid(here: Site) -> int:
    return children_of(here.process.pid)[0]


def degraded(here: Site) -> str:
    return "; ".join(str(reason) for reason in here.status()["degraded"])  # type: ignore[attr-defined]


@pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
def test_rules_change_in_place_and_open_events_go_on(tmp_path: Path) -> None:
    with (
        running(start_mosquitto, tmp_path) as broker,
        Subscriber(broker.port, "zhcedge/#") as client,
        Subscriber(broker.port, "homeassistant/device/#") as home,
        site(tmp_path, mqtt={"port": broker.port, "discovery": {"enabled": True}}) as here,
    ):

        def entity() -> dict[str, Any] | None:
            """Of the zone, as Home Assistant was told last."""
            found: dict[str, Any] = json.loads(home.heard[-1].payload)["components"] if home.heard else {}
            return found.get("zone_gate_square_count")

        here.wait_for(lambda: client.events(), "an event")
        process, before = frame_pid(here), here.camera("gate")["since"]
        change(here, channels={"gate": {"source": CLIP, "zones": {"square": EVERYWHERE}}})
        done = reload(here)
        assert done.returncode == 0, done.stderr
        assert "channels.gate.zones.square" in done.stdout
        assert "(live)" in done.stdout
        here.wait_for(
            lambda: any("square" in e["after"]["current_zones"] for e in client.events()), "the zone in events"
        )
        here.wait_for(lambda: entity() and len(entity() or ()) > 1, "the zone at Home Assistant")
        assert "reload" not in {event["end_reason"] for event in client.events()}
        assert (frame_pid(here), here.camera("gate")["since"]) == (process, before)
        assert reload(here).stdout.strip() == "the configuration is as before"
        change(here, channels={"gate": {"source": CLIP}})
        assert reload(here).returncode == 0
        here.wait_for(lambda: entity() == {"platform": "sensor"}, "the zone to leave Home Assistant")


def test_a_broken_file_is_refused_with_every_place_and_nothing_changes(tmp_path: Path) -> None:
    with site(tmp_path) as here:
        process, good = frame_pid(here), here.config.read_text()
        broken = good + "pipelin:\n  lanes: 2\nengine:\n  threads: many\n"
        here.config.write_text(broken)
        done = reload(here)
        assert done.returncode == 78
        lines = broken.splitlines()
        for word in ("pipelin:", "  threads: many"):
            assert f"{here.config}:{lines.index(word) + 1}:" in done.stderr
        assert "Traceback" not in done.stderr
        assert here.status()["phase"] == "active"
        assert frame_pid(here) == process
        here.config.unlink()
        assert reload(here).returncode == 78
        here.config.write_text(good)
        assert reload(here).returncode == 0


def test_cameras_come_go_and_change_while_the_others_run_on(tmp_path: Path) -> None:
    with site(tmp_path) as here:
        process, since = frame_pid(here), here.camera("gate")["since"]
        yard = {"source": {**CLIP, "fps": 2}}
        change(here, channels={"gate": {"source": CLIP}, "yard": yard})
        done = reload(here)
        assert done.returncode == 0, done.stderr
        here.wait_for(lambda: here.camera("yard").get("state") == "up", "the new camera")
        change(here, channels={"gate": {"source": CLIP}, "yard": {"source": {**CLIP, "fps": 4}}})
        assert reload(here).returncode == 0
        here.wait_for(lambda: here.camera("yard").get("fps") == 4, "the changed camera")
        here.wait_for(lambda: here.camera("yard")["state"] == "up", "the changed camera")
        change(here, channels={"gate": {"source": CLIP}})
        assert reload(here).returncode == 0
        here.wait_for(lambda: not here.camera("yard"), "the camera to go")
        assert (frame_pid(here), here.camera("gate")["since"]) == (process, since)
        os.kill(process, signal.SIGKILL)  # the next frame process begins with what is in force
        here.wait_for(lambda: here.is_active() and frame_pid(here) != process, "another frame process")
        here.wait_for(lambda: here.camera("gate")["fps_out"], "frames")


def test_what_needs_everything_anew_keeps_the_process_and_its_socket(tmp_path: Path) -> None:
    with site(tmp_path) as here:
        process = frame_pid(here)
        change(here, pipeline={"warmup_frames": 3})
        done = reload(here)
        assert done.returncode == 0, done.stderr
        assert "(restart)" in done.stdout
        assert here.process.poll() is None
        assert frame_pid(here) != process
        here.wait_for(lambda: here.camera("gate")["fps_out"], "frames")


def test_it_is_built_anew_although_the_broker_is_away_and_nothing_keeps_the_messages(tmp_path: Path) -> None:
    with site(tmp_path, mqtt={"port": 1}, is_clean=False) as here:
        here.wait_for(lambda: int(here.status()["events"]["new"]), "an event")  # type: ignore[index]
        change(here, mqtt={"port": 1}, pipeline={"warmup_frames": 3})
        done = reload(here)
        assert done.returncode == 0, done.stderr + done.stdout
        here.wait_for(here.is_active, "the new configuration")


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that nobody listens at."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_a_camera_that_does_not_come_up_again_brings_the_former_configuration_back(tmp_path: Path) -> None:
    control = {"socket": str(tmp_path / "c.sock"), "reload_trial_s": 4}
    with closed_port() as port, site(tmp_path, control=control) as here:
        change(here, channels={"gate": {"source": {"uri": f"rtsp://127.0.0.1:{port}/cam"}}})
        done = reload(here)
        assert done.returncode == 1, done.stderr
        assert "not up again: gate" in done.stdout
        here.wait_for(lambda: here.camera("gate")["state"] == "up", "the former camera")
        assert "taken back" in degraded(here)
        alerts = [alert["code"] for alert in here.status()["alerts"]]  # type: ignore[attr-defined]
        assert alerts in ([], ["configuration"])  # without a broker they are in the log alone
        change(here, channels={"gate": {"source": CLIP, "lines": {}}})
        assert reload(here).returncode == 0
        assert degraded(here) == ""


def test_what_can_not_be_built_brings_the_former_configuration_back(tmp_path: Path) -> None:
    with site(tmp_path) as here:
        change(here, mqtt={"enabled": True, "port": 1}, outbox={"dir": "/proc/nowhere"})
        done = reload(here)
        assert done.returncode == 1, done.stderr + done.stdout
        here.wait_for(here.is_active, "the former configuration")
        assert "/proc/nowhere" in degraded(here)
        assert here.process.poll() is None


def test_a_stop_that_comes_while_a_configuration_is_on_trial_is_a_stop(tmp_path: Path) -> None:
    with closed_port() as port, site(tmp_path) as here:
        change(here, channels={"gate": {"source": {"uri": f"rtsp://127.0.0.1:{port}/cam"}}})
        assert here.command("reload").returncode == 0  # it has been checked, and is being tried
        here.process.terminate()
        assert here.process.wait(PATIENCE_S) == 0


def test_a_run_that_fails_on_trial_brings_the_former_configuration_back_and_the_next_stop_is_clean(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    clip = tmp_path / "clip.mp4"
    shutil.copy(clip_path("walkers"), clip)
    with site(tmp_path, environ={**os.environ, "STATE_DIRECTORY": str(state)}) as here:
        # It can be opened when it is checked, and not a picture of it can be decoded: that ends the run.
        whole = clip.read_bytes()
        pictures = whole.index(b"mdat") + 4
        clip.write_bytes(whole[:pictures] + bytes(len(whole) - pictures))
        change(here, pipeline={"warmup_frames": 3}, channels={"gate": {"source": {"uri": str(clip)}}})
        done = reload(here)
        assert done.returncode == 1, done.stderr + done.stdout
        assert "former configuration" in done.stdout
        here.wait_for(here.is_active, "the former configuration")
        assert (state / "running").exists()
    assert not (state / "running").exists()


def test_a_boot_with_a_broken_file_runs_the_last_good_configuration_and_says_so(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    environ = {**os.environ, "STATE_DIRECTORY": str(state)}
    with site(tmp_path, environ=environ, words=("--fall-back",)) as here:
        here.wait_for((state / "last-good.json").exists, "the copy")
        assert (state / "last-good.json").stat().st_mode & 0o077 == 0
        good = here.config.read_text()
    here.config.write_text("channels: [\n")
    command = [sys.executable, "-m", "zhcedge", "run", "-c", str(here.config)]
    refused = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert refused.returncode == 78
    with site(tmp_path, environ=environ, words=("--fall-back",), is_written=False) as again:
        assert "config.yaml:" in degraded(again)
        assert "last good" in degraded(again)
        again.config.write_text(good)
        assert reload(again).returncode == 0
        assert degraded(again) == ""


@pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
def test_no_event_is_lost_when_everything_is_built_anew(tmp_path: Path) -> None:
    outbox = tmp_path / "outbox"
    outbox.mkdir()
    with (
        running(start_mosquitto, tmp_path) as broker,
        Subscriber(broker.port, "zhcedge/#") as client,
        site(tmp_path, mqtt={"port": broker.port}, outbox={"dir": str(outbox)}) as here,
    ):
        here.wait_for(lambda: client.events(), "an event")
        for frames in (3, 4):
            change(here, pipeline={"warmup_frames": frames})
            assert reload(here).returncode == 0
            count = len(client.events())
            here.wait_for(lambda count=count: len(client.events()) > count, "events")  # type: ignore[misc]
        here.process.terminate()
        assert here.process.wait(PATIENCE_S) == 0
        events = client.events()
    ends = [e["after"]["id"] for e in events if e["type"] == "end"]
    assert sorted(e["after"]["id"] for e in events if e["type"] == "new") == sorted(ends)
    assert "reload" in {e["end_reason"] for e in events}
    assert json.dumps(events)


@pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
def test_over_mqtt_it_is_refused_unless_allowed_and_answered_with_what_is_wrong(tmp_path: Path) -> None:
    for allow, reason in ((["detect"], "not-allowed"), (["reload"], "failed")):
        with mqtt_site(tmp_path, allow=allow) as made:
            config = next(tmp_path.rglob("config.yaml"))
            good = config.read_text()
            config.write_text(good + "nonsense: 1\n")
            answer = made.client.ask("reload")
            assert answer["ok"] is False
            assert str(answer["reason"]).startswith(reason)
            assert ("nonsense" in str(answer["reason"])) == (reason == "failed")
            config.write_text(good.replace("uri: clip:walkers", "uri: clip:walkers\n      fps: 3.0"))
            assert made.client.ask("reload")["ok"] is (reason == "failed")

"""The real daemon on its control socket: what `zhc-edge status`, `channel` and `log-level` say and do."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.brokers import find_mosquitto, running, start_mosquitto, wait_until
from tests.system.test_run import children_of, is_alive, write_config
from zhcedge.core.errors import DaemonAwayError
from zhcedge.service.control_client import ControlClient

pytestmark = pytest.mark.slow  # processes, servers and sockets: minutes in all

CLIP = {"uri": "clip:walkers", "realtime": True, "loop": True}
PATIENCE_S = 60.0


def zhc_edge(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "zhcedge", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, **options)  # type: ignore[call-overload,no-any-return]


@dataclass
class Site:
    """A running daemon."""

    process: subprocess.Popen[bytes]
    socket: Path
    config: Path
    log: Path

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return zhc_edge(*words, "--socket", str(self.socket))

    def ask(self, **request: object) -> dict[str, object]:
        with ControlClient(self.socket, PATIENCE_S) as client:
            return client.ask(request)

    def status(self) -> dict[str, object]:
        return self.ask(do="status")

    def is_active(self) -> bool:
        try:
            return self.status()["phase"] == "active"
        except DaemonAwayError:  # not yet there; a killed one's socket may still be
            return False

    def camera(self, name: str) -> dict[str, object]:
        cameras = self.status()["cameras"]
        assert isinstance(cameras, dict)
        return cameras.get(name, {})

    def wait_for(self, is_so: Callable[[], object], what: str) -> None:
        wait_until(lambda: bool(is_so()), what)


@contextlib.contextmanager
def site(
    folder: Path,
    *,
    words: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    is_written: bool = True,
    is_clean: bool = True,
    **changes: object,
) -> Iterator[Site]:
    """One that is active; it must end well.

    Args:
        words: more arguments of `run`.
        is_clean: whether it should end with 0; without a broker it does not.
        is_written: whether the configuration is to be written; otherwise what is there is taken.
    """
    path = folder / "c.sock"
    changes = {"channels": {"gate": {"source": CLIP}}, "control": {"socket": str(path)}, **changes}
    config, log = write_config(folder, **changes) if is_written else folder / "config.yaml", folder / "log"
    command = [sys.executable, "-m", "zhcedge", "run", "-c", str(config), *words]
    with (
        log.open("ab") as stream,
        subprocess.Popen(command, stderr=stream, start_new_session=True, env=environ) as process,
    ):
        try:
            made = Site(process, path, config, log)
            made.wait_for(made.is_active, "the active phase")
            yield made
            if process.poll() is None:
                process.terminate()
                assert process.wait(PATIENCE_S) == 0 or not is_clean
                assert not path.exists()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One daemon for the tests that leave it as it was."""
    with site(tmp_path_factory.mktemp("site")) as made:
        yield made


def test_status_is_one_screen_for_people_and_an_object_for_programs(shared: Site) -> None:
    shared.wait_for(lambda: shared.camera("gate")["fps_out"], "a frame rate")
    screen = shared.command("status")
    assert screen.returncode == 0, screen.stderr
    for word in ("test", "active", "nanodet-g-416", "pass", "gate", "up"):
        assert word in screen.stdout
    facts = json.loads(shared.command("status", "--json").stdout)
    assert facts["phase"] == "active"
    assert facts["ledger"]["verdict"] == "pass"
    assert facts["ledger"]["frames"] > 0
    assert facts["cameras"]["gate"]["state"] == "up"
    assert facts["cameras"]["gate"]["detect"] is True
    assert facts["cameras"]["gate"]["fps_in"] > 1
    assert facts["broker"] is None
    assert facts["uptime_s"] > 0


def test_the_configuration_alone_leads_to_the_daemon(shared: Site) -> None:
    assert json.loads(zhc_edge("status", "--json", "-c", str(shared.config)).stdout)["device"] == "test"


def test_watching_gives_a_line_a_second_until_the_watcher_goes(shared: Site) -> None:
    command = [sys.executable, "-m", "zhcedge", "status", "--watch", "--json", "--socket", str(shared.socket)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout is not None
        seen = [json.loads(watcher.stdout.readline()) for _ in range(3)]
        watcher.send_signal(signal.SIGINT)
        assert watcher.wait(PATIENCE_S) == 130
    assert [facts["phase"] for facts in seen] == ["active"] * 3
    times = [facts["uptime_s"] for facts in seen]
    assert times == sorted(set(times))


def test_pause_and_resume_are_answered_when_they_are_done(shared: Site) -> None:
    assert shared.command("channel", "pause", "gate").returncode == 0
    shared.wait_for(lambda: shared.camera("gate")["state"] == "paused", "the pause")
    shared.wait_for(lambda: shared.camera("gate")["fps_out"] == 0, "no frame any more")
    events = shared.status()["events"]
    assert isinstance(events, dict)
    assert events["new"] == events["end"]  # nobody knows what they do meanwhile
    assert shared.command("channel", "resume", "gate").returncode == 0
    shared.wait_for(lambda: shared.camera("gate")["state"] == "up", "the resumption")
    shared.wait_for(lambda: shared.camera("gate")["fps_out"], "frames")


def test_a_camera_comes_and_goes_and_what_is_wrong_is_one_line_with_its_exit_code(shared: Site) -> None:
    assert shared.command("channel", "add", "yard", "--uri", "clip:walkers").returncode == 0
    shared.wait_for(lambda: shared.camera("yard"), "the camera")
    for words, part in (
        (("add", "yard", "--uri", "clip:walkers"), "already"),
        (("add", "lane", "--uri", "/etc/passwd"), "no file of this computer"),
        (("add", "LANE", "--uri", "clip:walkers"), "LANE"),
        (("remove", "nobody"), "no such camera"),
        (("pause", "nobody"), "nobody"),
    ):
        refused = shared.command("channel", *words)
        assert refused.returncode == 78, refused.stderr
        assert part in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    assert shared.command("channel", "remove", "yard").returncode == 0
    shared.wait_for(lambda: not shared.camera("yard"), "the camera to go")
    assert shared.camera("gate")["state"] == "up"


def test_without_its_last_camera_the_daemon_goes_on_and_takes_another(tmp_path: Path) -> None:
    with site(tmp_path) as here:
        process = children_of(here.process.pid)
        assert here.command("channel", "remove", "gate").returncode == 0
        here.wait_for(lambda: not here.camera("gate"), "the camera to go")
        assert here.status()["phase"] == "active"
        assert here.command("channel", "add", "yard", "--uri", "clip:walkers").returncode == 0
        here.wait_for(lambda: here.camera("yard").get("fps_out"), "frames of another one")
        assert children_of(here.process.pid) == process


def test_the_log_level_is_that_of_both_processes_at_once(shared: Site) -> None:
    assert shared.status()["log_level"] == "INFO"
    assert shared.command("log-level", "ERROR").returncode == 0
    assert shared.status()["log_level"] == "ERROR"
    said = shared.log.read_text()
    assert shared.ask(do="channel", action="pause", name="gate") == {"ok": True}
    assert shared.ask(do="channel", action="resume", name="gate") == {"ok": True}
    shared.wait_for(lambda: shared.camera("gate")["state"] == "up", "the resumption")
    assert shared.log.read_text() == said
    assert shared.command("log-level", "INFO").returncode == 0
    assert shared.ask(do="log-level", level="LOUD")["error"]


def test_200_connections_that_never_read_change_nothing_for_others(shared: Site) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(200):
            connection = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            connection.connect(str(shared.socket))
            connection.settimeout(1)
            with contextlib.suppress(OSError):  # it may have lost its place to a newer one already
                connection.sendall(b'{"do":"watch"}\n' + b"x" * 100_000)
        shared.wait_for(lambda: shared.status()["phase"] == "active", "an answer")
        assert len(list(Path(f"/proc/{shared.process.pid}/fd").iterdir())) < 80
        shared.wait_for(lambda: shared.camera("gate")["fps_out"], "frames")


def test_only_the_owner_and_the_group_may_use_it(shared: Site) -> None:
    assert stat.S_IMODE(shared.socket.stat().st_mode) == 0o660
    if os.geteuid() != 0:
        return
    # The way to the socket must be open, so that its own rights are what is seen.
    for folder in (shared.socket.parent, shared.socket.parent.parent, shared.socket.parent.parent.parent):
        folder.chmod(0o755)
    script = f"import socket; socket.socket(socket.AF_UNIX).connect({str(shared.socket)!r})"
    for group, part in ((65534, "PermissionError"), (shared.socket.stat().st_gid, "")):
        done = subprocess.run(
            ["/usr/bin/env", "python3", "-c", script],
            user=65534,
            group=group,
            extra_groups=[],
            capture_output=True,
            text=True,
            check=False,
        )
        assert part in done.stderr
        assert (done.returncode == 0) == (not part), done.stderr


def test_without_a_daemon_it_is_one_clear_line_and_exit_69(tmp_path: Path) -> None:
    for words in (("status",), ("status", "--watch"), ("channel", "pause", "gate"), ("log-level", "INFO")):
        result = zhc_edge(*words, "--socket", str(tmp_path / "c.sock"))
        assert result.returncode == 69
        assert "no daemon answers" in result.stderr
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_killed_daemon_s_socket_is_replaced_a_living_one_s_is_not_and_a_restart_keeps_the_pause(
    tmp_path: Path,
) -> None:
    with site(tmp_path) as first:
        frame = children_of(first.process.pid)[0]
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait(PATIENCE_S)
        wait_until(lambda: not is_alive(frame), "the frame process to end")
        assert first.socket.exists()
        assert first.command("status").returncode == 69
    with site(tmp_path) as second:
        other = zhc_edge("run", "-c", str(second.config), "--log-level", "ERROR")
        assert other.returncode == 75
        assert "another daemon" in other.stderr
        assert second.status()["phase"] == "active"
        assert second.ask(do="channel", action="pause", name="gate") == {"ok": True}
        os.kill(children_of(second.process.pid)[0], signal.SIGKILL)
        second.wait_for(lambda: second.status()["phase"] == "failed", "the failure")
        second.wait_for(lambda: second.status()["phase"] == "active", "the restart")
        second.wait_for(lambda: second.camera("gate")["state"] == "paused", "the pause")


@pytest.mark.slow
@pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
def test_the_flow_to_the_broker_is_seen(tmp_path: Path) -> None:
    outbox = tmp_path / "outbox"
    outbox.mkdir()
    with running(start_mosquitto, tmp_path) as broker:
        mqtt = {"port": broker.port}
        with site(tmp_path, mqtt=mqtt, outbox={"dir": str(outbox)}) as here:

            def facts(key: str) -> dict[str, object]:
                found = here.status()[key]
                assert isinstance(found, dict)
                return found

            here.wait_for(lambda: facts("broker")["connected"], "the connection")
            here.wait_for(lambda: int(str(facts("events")["new"])), "an event")
            assert facts("broker") == {
                "connected": True,
                "server": f"127.0.0.1:{broker.port}",
                "protocol": "5",
                "reconnects": 0,
                "problem": "",
            }
            here.wait_for(lambda: facts("outbox")["depth"] == 0, "the delivery")
            assert facts("outbox")["durable"] is True
            broker.kill()
            here.wait_for(lambda: not facts("broker")["connected"], "the loss")
            here.wait_for(lambda: int(str(facts("outbox")["depth"])), "what waits")
            here.wait_for(lambda: int(str(facts("outbox")["flash_bytes"])), "what is on flash")

"""What the control socket is asked becomes a command or a clear refusal; what status says is readable."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_mqtt_commands import Bench as Commands
from zhcedge.app import control_address
from zhcedge.app.control_address import SERVICE_SOCKET, find_control_socket, open_control_socket
from zhcedge.app.control_requests import ControlRequests
from zhcedge.app.status_facts import ledger_facts
from zhcedge.app.status_view import status_line, status_lines
from zhcedge.config.schema import Config
from zhcedge.core.errors import DaemonAwayError, NotNowError, OutputError, PipelineError
from zhcedge.core.printing import printable
from zhcedge.core.types import ViolationKind
from zhcedge.pipeline.segment import Segment
from zhcedge.publish.commands import AddCamera, Command, LogLevel, RemoveCamera
from zhcedge.service.socket_file import SocketFile

SOURCE = {"source": {"uri": "rtsp://camera.local/stream"}}


class Desk:
    """Requests over a real socket, and the commands that come out of them."""

    def __init__(self, folder: Path) -> None:
        self.commands: list[Command] = []
        self.requests = ControlRequests(
            SocketFile(folder / "c.sock"), lambda: {"phase": "active"}, self.commands.append
        )
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection.connect(str(folder / "c.sock"))
        self.connection.setblocking(False)

    def close(self) -> None:
        self.connection.close()
        self.requests.close()

    def ask(self, request: object) -> None:
        self.connection.send(json.dumps(request).encode() + b"\n")
        for _ in range(3):
            self.requests.turn()

    def hear(self) -> list[dict[str, object]]:
        self.requests.turn()
        try:
            return [json.loads(line) for line in self.connection.recv(1 << 20).splitlines()]
        except BlockingIOError:
            return []


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    made = Desk(tmp_path_factory.mktemp("desk"))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("request_", "command"),
    [
        (
            {"do": "channel", "action": "add", "name": "x", "channel": SOURCE},
            Command("cameras", value=AddCamera("x", SOURCE)),
        ),
        ({"do": "channel", "action": "remove", "name": "x"}, Command("cameras", value=RemoveCamera("x"))),
        ({"do": "channel", "action": "pause", "name": "x"}, Command("paused", "x", True)),
        ({"do": "channel", "action": "resume", "name": "x"}, Command("paused", "x", False)),
        ({"do": "log-level", "level": "DEBUG"}, Command("log-level", value=LogLevel("DEBUG"))),
    ],
)
def test_a_request_becomes_a_command_and_is_answered_when_that_is_done(
    desk: Desk, request_: dict[str, object], command: Command
) -> None:
    desk.ask(request_)
    assert desk.commands == [command]
    assert desk.hear() == []
    tell = desk.commands[0].sender.tell
    assert tell is not None
    tell(PipelineError("rtsp://me:secret@camera/ says \x1b[2J", where="x", fix="try again"))
    answer = str(desk.hear())
    assert "'code': 70" in answer
    assert "secret" not in answer
    assert "\x1b" not in answer
    desk.ask(request_)
    tell = desk.commands[1].sender.tell
    assert tell is not None
    tell(None)
    assert desk.hear() == [{"ok": True}]


@pytest.mark.parametrize("word", ["status", "watch"])
def test_status_is_answered_at_once(desk: Desk, word: str) -> None:
    desk.ask({"do": word})
    assert desk.hear()[0] == {"ok": True, "phase": "active"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = {
    "do": st.sampled_from(["channel", "log-level", "status"]) | JSON,
    "action": st.sampled_from(["add", "remove", "pause"]) | JSON,
    "name": st.just("x") | JSON,
    "channel": st.just(SOURCE) | JSON,
    "level": st.sampled_from(["INFO", "info"]) | JSON,
}


@given(st.fixed_dictionaries({}, optional=FIELDS))  # type: ignore[arg-type]
def test_any_request_is_answered_or_becomes_a_command_and_is_never_a_bug(
    shared: Desk, request_: dict[str, object]
) -> None:
    shared.commands.clear()
    shared.ask(request_)
    for command in shared.commands:
        assert command.sender.tell is not None
        command.sender.tell(None)
    (answer,) = shared.hear()
    assert "error" not in answer or "'code': 2" in str(answer)


def test_without_a_socket_nothing_is_served() -> None:
    requests = ControlRequests(None, dict, lambda command: None)
    requests.turn()
    assert not requests.is_busy
    assert requests.fileno() == -1
    requests.close()


# -- commands of the socket among those of MQTT -------------------------------------------------------------------
class Asker:
    """A sender on the socket."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def command(self, word: str, camera: str = "", value: object = None) -> Command:
        from zhcedge.publish.commands import Sender

        return Command(word, camera, value, Sender(tell=lambda error: self.told.append(str(error))))  # type: ignore[arg-type]


@pytest.fixture
def commands() -> Commands:
    return Commands(allow=[])  # what MQTT may do is not what this computer's own programs may


def test_pause_is_done_by_the_frame_process_and_told_once(commands: Commands) -> None:
    asker = Asker()
    commands.dispatcher.submit(asker.command("paused", "gate", True))
    commands.work()
    assert commands.control.asked[-1][1:] == ("pause", "gate", None)
    assert asker.told == []
    commands.answer()
    assert asker.told == ["None"]
    assert commands.control.published == [], "nobody on MQTT has asked"


def test_a_paused_camera_is_paused_in_the_next_frame_process_too(commands: Commands) -> None:
    asker = Asker()
    commands.dispatcher.submit(asker.command("paused", "gate", True))
    commands.work()
    commands.answer()
    commands.dispatcher.frame_process_ended()
    commands.dispatcher.reapply()
    assert [asked[1:] for asked in commands.control.asked] == [("pause", "gate", None)] * 2
    assert asker.told == ["None"]


def test_what_the_frame_process_can_not_do_is_told_with_its_reason(commands: Commands) -> None:
    asker = Asker()
    commands.dispatcher.submit(asker.command("paused", "gate", True))
    commands.work()
    commands.answer(NotNowError("it is busy"))
    commands.dispatcher.submit(asker.command("paused", "nobody", True))
    commands.work()
    commands.control.is_running = False
    commands.dispatcher.submit(asker.command("cameras", value=RemoveCamera("gate")))
    commands.work()
    assert [word.split(";")[0] for word in asker.told] == [
        "it is busy",
        "nobody: there is no such camera",
        "the frame path is initialising",
    ]


def test_a_later_pause_replaces_one_that_waits(commands: Commands) -> None:
    first, second = Asker(), Asker()
    commands.dispatcher.submit(first.command("paused", "gate", True))
    commands.dispatcher.submit(second.command("paused", "gate", False))
    commands.work()
    commands.answer()
    assert "later command" in first.told[0]
    assert second.told == ["None"]
    assert [asked[1] for asked in commands.control.asked] == ["resume"]


def test_the_log_level_needs_no_frame_process(commands: Commands) -> None:
    asker = Asker()
    commands.control.is_running = False
    commands.dispatcher.submit(asker.command("log-level", value=LogLevel("DEBUG")))
    commands.work()
    assert asker.told == ["None"]


@pytest.mark.parametrize("key", ["source", "sink"])
def test_a_camera_may_name_no_file_of_this_computer(commands: Commands, key: str) -> None:
    asker = Asker()
    channel: dict[str, object] = {"source": {"uri": "/etc/passwd" if key == "source" else "pattern:walk"}}
    if key == "sink":
        channel["sinks"] = [{"kind": "jsonl", "path": "/etc/passwd"}]
    commands.dispatcher.submit(asker.command("cameras", value=AddCamera("x", channel)))
    commands.work()
    assert "no file of this computer" in asker.told[0]


# -- where the socket is --------------------------------------------------------------------------------------------
def config_with(path: Path | None = None) -> Config:
    control = {"socket": path}
    return Config.model_validate({"device": "box", "channels": {"gate": SOURCE}, "control": control})


def test_the_configured_place_comes_first_then_systemd_s_then_the_user_s(tmp_path: Path) -> None:
    service, user = tmp_path / "service", tmp_path / "user"
    service.mkdir()
    user.mkdir()
    places = {"RUNTIME_DIRECTORY": f"{service}:/elsewhere", "XDG_RUNTIME_DIR": str(user)}
    for config, environment, expected in (
        (config_with(tmp_path / "own.sock"), places, tmp_path / "own.sock"),
        (config_with(), places, service / "control.sock"),
        (config_with(), {"XDG_RUNTIME_DIR": str(user)}, user / "zhc-edge" / "box.sock"),
    ):
        file = open_control_socket(config, environment)
        assert file is not None
        assert file.path == expected
        assert find_control_socket(None, None, (), environment) == expected or config.control.socket
        file.close()


def test_without_any_place_there_is_no_socket_and_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert open_control_socket(config_with(), {}) is None
    assert "no control socket" in caplog.text
    assert find_control_socket(None, None, (), {}) == SERVICE_SOCKET


def test_a_user_s_folder_that_is_not_there_costs_a_line_and_a_configured_one_is_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert open_control_socket(config_with(), {"XDG_RUNTIME_DIR": str(tmp_path / "absent")}) is None
    assert "no control socket" in caplog.text
    with pytest.raises(OutputError):
        open_control_socket(config_with(tmp_path / "absent" / "c.sock"), {})


def test_a_living_daemon_of_this_name_is_an_error_also_in_the_user_s_folder(tmp_path: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": str(tmp_path)}
    file = open_control_socket(config_with(), environment)
    with pytest.raises(NotNowError):
        open_control_socket(config_with(), environment)
    assert file is not None
    file.close()


def test_of_several_daemons_one_must_be_named(tmp_path: Path) -> None:
    (tmp_path / "zhc-edge").mkdir()
    for name in ("a", "b"):
        (tmp_path / "zhc-edge" / f"{name}.sock").touch()
    with pytest.raises(DaemonAwayError, match="several daemons"):
        find_control_socket(None, None, (), {"XDG_RUNTIME_DIR": str(tmp_path)})
    assert find_control_socket(Path("x"), None) == Path("x")


# -- what status says -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("counts", "verdict"),
    [
        ({"heartbeat": 9, "canaries_planted": 2, "canaries_seen": 2}, "pass"),
        ({"heartbeat": 0, "canaries_planted": 2, "canaries_seen": 2}, "unproved"),
        ({"heartbeat": 9, "canaries_planted": 2, "canaries_seen": 1}, "unproved"),
        ({"heartbeat": 9, "canaries_planted": 0, "canaries_seen": 0}, "unproved"),
        ({"heartbeat": 9, "canaries_planted": 2, "canaries_seen": 2, "kinds_not_visible": 1}, "unproved"),
        (
            {
                f"violations: {ViolationKind.HOST_ARRAY.value}": 1,
                "heartbeat": 9,
                "canaries_planted": 2,
                "canaries_seen": 2,
            },
            "fail",
        ),
    ],
)
def test_the_live_verdict_follows_the_ledger_s_rules(counts: dict[str, int], verdict: str) -> None:
    counters = Segment().counters
    for name, count in counts.items():
        counters[name] = count
    assert ledger_facts(counters)["verdict"] == verdict


FACTS: dict[str, object] = {
    "device": "box",
    "phase": "active",
    "version": "1.2",
    "uptime_s": 90_061.0,
    "profile": "cpu",
    "model": "m",
    "log_level": "INFO",
    "degraded": ["channel yard is down: no route"],
    "ledger": {"verdict": "pass", "frames": 10, "violations": {}, "canaries_planted": 2, "canaries_seen": 2},
    "cameras": {
        "gate": {"state": "up", "reason": "", "fps_in": 10.0, "fps_out": 9.5, "dropped": 3, "detect": True, "fps": 0.0},
        "yard": {"state": "down", "reason": "no route", "fps_in": 0, "fps_out": 0, "detect": False, "fps": 5.0},
    },
    "broker": {"connected": True, "server": "broker:1883", "protocol": "5", "reconnects": 1},
    "outbox": {"depth": 4, "dropped": 0, "lost": 0, "refused": 0, "durable": True, "flash_bytes": 2_000_000},
    "events": {"new": 3, "update": 2, "end": 1},
    "alerts": [{"time": 1.7e9, "code": "x", "text": "the disk is full", "severity": "error", "over": False}],
}


def test_one_screen_has_it_all_in_columns() -> None:
    lines = status_lines(FACTS)
    text = "\n".join(lines)
    for part in ("up 1 d 1 h", "active, degraded", "pass; no violation", "broker:1883, MQTT 5, 1 reconnects", "4 wait",
                 "2.0 MB", "new 3, update 2, end 1", "error    the disk is full"):  # fmt: skip
        assert part in text
    (head,), (gate,), (yard,) = (
        [line for line in lines if line.startswith(word)] for word in ("camera", "gate", "yard")
    )
    assert head.index("state") == gate.index("up") == yard.index("down")
    assert head.index("reason") == yard.index("no route")
    assert max(map(len, lines)) <= 100
    assert "cameras 1 of 2 up  fps 9.5  events new 3" in status_line(FACTS)


@given(st.dictionaries(st.sampled_from(sorted(FACTS)), JSON), JSON)
def test_facts_of_another_version_are_shown_as_far_as_they_go(changes: dict[str, object], camera: object) -> None:
    facts = {**FACTS, "cameras": {"\x1b[2J": camera}, **changes}
    for line in (*status_lines(facts), status_line(facts)):
        assert line == printable(line)
    assert status_lines({})


@pytest.mark.skipif(os.geteuid() != 0, reason="cannot run here: needs root")
def test_the_services_socket_is_found_also_by_who_may_not_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.setattr(control_address, "SERVICE_SOCKET", closed / "control.sock")
    os.seteuid(65534)
    try:
        found = find_control_socket(None, None, (), {"XDG_RUNTIME_DIR": "/nonexistent"})
    finally:
        os.seteuid(0)
    assert found == closed / "control.sock"

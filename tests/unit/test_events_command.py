"""`zhc-edge events`: what the history holds, for people and for programs."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

import pytest

from tests.contract.outboxes import HandClock
from tests.unit.support_history import SECOND_NS, Scene
from zhcedge.cli import main
from zhcedge.core.events import Direction
from zhcedge.store.clips import IndexedFile, MediaIndex, Use
from zhcedge.store.history import History
from zhcedge.store.media_files import CLIP


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A history: a person two hours ago, a car now, and somebody of a clock that was not set."""
    now_ns = time.time_ns()
    scene = Scene(wall_ns=now_ns - 7200 * SECOND_NS)
    history = History(tmp_path, HandClock(), lambda alert: None, "boot")
    history.take([scene.new("person", ("drive",))])
    scene.move(4)
    history.take([scene.update("gate-1", (), {"door": Direction.OUT}, 0.875), scene.end("gate-1")])
    scene.wall_ns = now_ns - 60 * SECOND_NS
    history.take([scene.new("car")])
    history.take([Scene("yard", wall_ns=now_ns - 30 * SECOND_NS, is_set=False).new("person")])
    history.close()
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["events", *words]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.usefixtures("folder")
def test_a_table_says_who_came_when_and_where(capsys: pytest.CaptureFixture[str]) -> None:
    heading, *rows = [line.split() for line in shown(capsys)]
    assert heading == ["start", "seconds", "camera", "label", "score", "zones", "lines", "end", "id"]
    assert [row[1:] for row in rows] == [
        ["4.0", "gate", "person", "0.88", "drive", "door:out", "lost", "gate-1"],
        ["0.0", "gate", "car", "0.50", "-", "-", "open", "gate-2"],
        ["0.0", "yard", "person", "0.50", "-", "-", "open", "yard-1"],
    ]
    assert [row[0].endswith("?") for row in rows] == [False, False, True]


@pytest.mark.usefixtures("folder")
def test_json_lines_have_the_names_of_the_mqtt_messages(capsys: pytest.CaptureFixture[str]) -> None:
    person, car, _ = (json.loads(line) for line in shown(capsys, "--json"))
    assert person["end_time"] - person["start_time"] == pytest.approx(4)
    assert person["line_crossings"] == {"door": "out"}
    assert person["entered_zones"] == ["drive"]
    assert (person["boot_id"], person["id"], person["end_reason"]) == ("boot", "gate-1", "lost")
    assert (car["end_time"], car["end_reason"]) == (None, None)


def test_an_event_names_the_files_of_its_clip(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clip = folder / "media" / "clips" / "gate" / "a.mp4"
    with contextlib.closing(MediaIndex(folder / "media")) as index:
        index.add(IndexedFile(clip, CLIP, "gate", 1, 2, 3), [Use("boot/gate-1", clip, 1.5, 4.25)])
    person, car, _ = (json.loads(line) for line in shown(capsys, "--json"))
    assert person["clip"] == [{"path": str(clip), "from_s": 1.5, "to_s": 4.25}]
    assert car["clip"] == []


@pytest.mark.usefixtures("folder")
def test_time_camera_label_and_number_narrow_it_down(capsys: pytest.CaptureFixture[str]) -> None:
    def ids(*words: str) -> list[str]:
        return [json.loads(line)["id"] for line in shown(capsys, "--json", *words)]

    assert ids("--since", "1h") == ["gate-2", "yard-1"]
    assert ids("--until", "1h") == ["gate-1"]
    assert ids("--camera", "yard") == ["yard-1"]
    assert ids("--label", "person", "--limit", "1") == ["yard-1"]
    assert ids("--camera", "nobody") == []


@pytest.mark.usefixtures("folder")
def test_totals_are_by_the_hour_place_and_label(capsys: pytest.CaptureFixture[str]) -> None:
    totals = [json.loads(line) for line in shown(capsys, "--totals", "--json", "--camera", "gate")]
    person = [total for total in totals if total["label"] == "person"]
    assert sum(total.get("events", 0) for total in person if "zone" not in total and "line" not in total) == 1
    assert sum(total["presence_s"] for total in person if total.get("zone") == "drive") == pytest.approx(4)
    assert [(total["in"], total["out"]) for total in person if total.get("line") == "door"] == [(0, 1)]
    assert all(total["hour"] % 3600 == 0 for total in totals)
    heading, *rows = shown(capsys, "--totals", "--camera", "gate")
    assert heading.split() == ["hour", "camera", "where", "label", "events", "seconds", "in", "out"]
    assert any("line door" in row for row in rows)


def test_the_configuration_says_where_the_history_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("STATE_DIRECTORY")
    config = folder / "config.yaml"
    config.write_text(f"channels: {{gate: {{source: {{uri: 'clip:walkers'}}}}}}\noutbox: {{dir: '{folder}'}}\n")
    assert len(shown(capsys, "-c", str(config), "--json")) == 3


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--since", "tomorrow"], 2, "--since"),
        (["--since", "1h", "--until", "2h"], 2, "--until"),
        (["-c", "absent.yaml"], 78, "absent.yaml"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_makes_no_sense_is_one_clear_line(
    words: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["events", *words]) == code
    output = capsys.readouterr()
    assert output.out == ""
    assert text in output.err
    assert "Traceback" not in output.err


def test_no_history_is_exit_66(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    assert main(["events"]) == 66
    assert "no history" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "words",
    [
        ("--since", "999999999w"),
        ("--since", "0001-01-02"),
        ("--until", "9999-12-31"),
        ("--camera", ""),
        ("--camera", "\udcff"),
        ("--label", "\udcff"),
    ],
)
def test_what_can_match_nothing_is_a_mistake_in_the_command(
    capsys: pytest.CaptureFixture[str], words: tuple[str, str]
) -> None:
    for what in ((), ("--totals",)):
        assert main(["events", *what, *words]) == 2
        assert words[0] in capsys.readouterr().err

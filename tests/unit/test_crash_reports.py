"""A process that died leaves a report and an alert; there are never too many, and a full disk stops nothing."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from zhcedge.app.crash_reports import DAEMON_DIED, FRAME_DIED, KEPT, CrashReports, find_report, list_reports
from zhcedge.app.device import Device
from zhcedge.cli import main
from zhcedge.core.delivery import Alert
from zhcedge.core.errors import ConfigError, PipelineError, SourceMissingError
from zhcedge.core.lifecycle import Phase
from zhcedge.pipeline.segment import Segment
from zhcedge.service.clock import SystemClock


class Seen:
    """What a Device offers to a watcher."""

    def __init__(self, boot_id: str = "b1") -> None:
        self.alerts: list[Alert] = []
        self.facts = SimpleNamespace(boot_id=boot_id, profile="cpu", model="m", uptime_s=12.34, degraded=("x",))

    def alert(self, what: Alert) -> None:
        self.alerts.append(what)


def begin(folder: Path | None, boot_id: str = "b1") -> tuple[CrashReports, Seen]:
    seen, reports = Seen(boot_id), CrashReports(folder, SystemClock())
    reports.begin(cast("Device", seen), Segment())
    return reports, seen


def test_a_frame_process_that_died_leaves_a_report_and_an_alert_until_it_is_back(tmp_path: Path) -> None:
    reports, seen = begin(tmp_path)
    error = PipelineError("lost rtsp://viewer:secret@camera/1", where="lane 0")
    reports.frame_process_failed(error, -9, 2.0)
    (report,) = list_reports({}, tmp_path)
    assert (report["what"], report["signal"], report["restart_in_s"]) == (FRAME_DIED, "SIGKILL", 2.0)
    assert "secret" not in str(report) + seen.alerts[0].text
    found = find_report(str(report["name"]), {}, tmp_path)
    assert {name: value for name, value in found.items() if name != "kernel"} == report
    assert str(report["name"]) in seen.alerts[0].text
    reports.phase_changed(Phase.ACTIVE, ())
    reports.phase_changed(Phase.ACTIVE, ())
    assert [(alert.code, alert.is_over) for alert in seen.alerts] == [(FRAME_DIED, False), (FRAME_DIED, True)]


def test_a_run_that_did_not_end_in_order_is_told_by_the_next_one(tmp_path: Path) -> None:
    begin(tmp_path, "first")  # killed
    (tmp_path / "failed-run").write_text("Result=watchdog\nExecMainStatus=6\n")
    reports, seen = begin(tmp_path, "second")
    (report,) = list_reports({}, tmp_path)
    assert (report["what"], report["boot_id"]) == (DAEMON_DIED, "first")
    assert report["service"] == {"Result": "watchdog", "ExecMainStatus": "6"}
    assert [alert.code for alert in seen.alerts] == [DAEMON_DIED]
    reports.stopping()
    assert begin(tmp_path, "third")[1].alerts == []


def test_the_oldest_reports_make_room(tmp_path: Path) -> None:
    reports, _ = begin(tmp_path)
    for number in range(KEPT + 5):
        reports.frame_process_failed(PipelineError(f"fault {number}"), 70, None)
    found = [report["error"]["what"] for report in list_reports({}, tmp_path)]  # type: ignore[index]
    assert found == [f"fault {number}" for number in range(5, KEPT + 5)]


def test_where_nothing_can_be_kept_there_is_an_alert_all_the_same(tmp_path: Path) -> None:
    for folder in (None, tmp_path / "nowhere"):
        reports, seen = begin(folder)
        reports.frame_process_failed(PipelineError("a fault"), 70, 1.0)
        assert "a fault" in seen.alerts[-1].text
        reports.stopping()


def test_what_can_not_be_shown_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceMissingError):
        find_report("nothing", {}, tmp_path)
    with pytest.raises(ConfigError):
        list_reports({"STATE_DIRECTORY": "relative"}, None)
    (tmp_path / "crashes").mkdir()
    (tmp_path / "crashes/broken.json").write_text("{")
    assert list_reports({}, tmp_path) == []


def test_what_the_kernel_said_around_it_is_shown_to_who_may_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "bin" / "journalctl"
    journal.parent.mkdir()
    journal.write_text(
        '#!/bin/sh\necho "$@" > $0.asked\n'
        "echo '2026 NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.'\necho '2026 usb 1-1: new device'\n"
    )
    journal.chmod(0o755)
    monkeypatch.setenv("PATH", f"{journal.parent}:/usr/bin:/bin")
    reports, _ = begin(tmp_path)
    reports.frame_process_failed(PipelineError("lost"), -9, 2.0)
    (report,) = list_reports({}, tmp_path)
    found = find_report(str(report["name"]), {}, tmp_path)
    assert found["kernel"] == ["2026 NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."]
    since = re.search(r"--since @(\d+) ", Path(f"{journal}.asked").read_text())
    assert since is not None
    assert 0 < float(str(report["time"])) - int(since[1]) < 120
    words = Path(f"{journal}.asked").read_text().split()
    assert "_TRANSPORT=kernel" in words
    assert not {"-k", "--dmesg", "-b"} & set(words)  # each means this boot, and a lost GPU may have ended that one


@pytest.mark.parametrize("time", ["null", '"yesterday"', "[]", "1e300"])
def test_a_report_without_a_time_is_shown_all_the_same(
    tmp_path: Path, time: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "crashes").mkdir()
    (tmp_path / "crashes/one.json").write_text(f'{{"what": "x", "time": {time}}}')
    assert find_report("one", {}, tmp_path)["kernel"] == []
    assert main(["crashes", "--state", str(tmp_path)]) == 0
    assert "one" in capsys.readouterr().out

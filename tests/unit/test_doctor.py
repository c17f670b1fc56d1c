"""The doctor's parts by themselves: one that fails or hangs hides nothing."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from zhcedge.app import doctor
from zhcedge.app.doctor import examine
from zhcedge.app.findings import Finding
from zhcedge.app.status import daemon_status
from zhcedge.core.errors import DaemonAwayError, MediaError

GOOD = "channels: {gate: {source: {uri: 'pattern:boxes'}}}\nmqtt: {enabled: false}\n"


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(GOOD)
    return path


def test_what_is_well_is_said_to_be(good: Path) -> None:
    found = {finding.part: finding for finding in examine(good, {})}
    assert found["configuration"].state == "ok"
    assert found["model"].state == "ok"
    assert found["camera gate"].state == "ok"
    assert found["broker"].state == "skipped"
    assert {"board", "system", "driver", "zhc-edge", "packages", "user", "clock"} <= set(found)


def test_everything_bad_has_a_fix(tmp_path: Path) -> None:
    for number, text in enumerate([GOOD + "nonsense: 1\n", "[", GOOD + "model: {bundle: nowhere}\n"]):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        bad = [finding for finding in examine(path, {}, is_quick=True) if finding.state == "bad"]
        assert "configuration" in {finding.part for finding in bad}
        assert all(finding.fix or "line" in finding.text or ":" in finding.text for finding in bad)
        assert str(path) in next(finding for finding in bad if finding.part == "configuration").text
    missing = list(examine(tmp_path / "absent.yaml", {}))
    assert any("does not exist" in finding.text for finding in missing)
    assert "camera" not in " ".join(finding.part for finding in missing)


@pytest.mark.parametrize(
    ("error", "words"),
    [(MediaError("no such thing", fix="make one"), "no such thing"), (KeyError("x"), "KeyError: 'x'")],
)
def test_a_part_that_fails_is_a_finding_and_the_others_go_on(
    good: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    def fail() -> Iterator[Finding]:
        yield Finding("board", "note", "before")
        raise error

    monkeypatch.setattr(doctor, "look_at_board", fail)
    found = list(examine(good, {}, is_quick=True))
    assert [finding.text for finding in found if finding.part == "board"] == ["before", words]
    assert any(finding.part == "clock" for finding in found)


def test_a_part_that_hangs_is_given_up(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hang() -> Iterator[Finding]:
        release.wait()
        yield Finding("board", "note", "late")

    monkeypatch.setattr(doctor, "look_at_board", hang)
    monkeypatch.setattr(doctor, "LIMIT_S", 0.2)
    began_s = time.monotonic()
    found = list(examine(good, {}, is_quick=True))
    release.set()
    assert time.monotonic() - began_s < 30
    assert found[0].state == "bad"
    assert "within" in found[0].text


def test_a_part_that_is_slow_has_a_limit_of_its_own(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LIMIT_S", 0.001)  # what asks a child takes longer
    found = {finding.part: finding for finding in examine(good, {})}
    assert found["configuration"].state == found["camera gate"].state == "ok"


@pytest.fixture
def closed() -> Iterator[Path]:
    """A folder in which others may look at nothing, with a configuration beside it."""
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o755)
        folder = Path(home, "closed")
        (folder / "outbox").mkdir(parents=True)
        yield folder
        folder.chmod(0o700)


@contextlib.contextmanager
def as_ordinary_user() -> Iterator[None]:
    if os.geteuid() != 0:
        yield
        return
    os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def test_what_an_ordinary_user_may_not_see_is_no_bug_and_no_missing_daemon(closed: Path) -> None:
    config = closed.parent / "config.yaml"
    config.write_text(f"{GOOD}control: {{socket: {closed}/s}}\noutbox: {{dir: {closed}/outbox}}\n")
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(closed / "s"))
        daemon.listen()
        closed.chmod(0)
        with as_ordinary_user(), pytest.raises(DaemonAwayError, match="may not be used"):
            daemon_status(config, {})

"""A device knows who it is, keeps it, and is somebody else where its disk is a copy."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from zhcedge.app.device import Device
from zhcedge.app.identity_watcher import COPIED, IdentityWatcher
from zhcedge.core.delivery import Alert
from zhcedge.pipeline.segment import Segment
from zhcedge.store.identity import machine_mark, read_identity, settle_identity

MACHINE_ID = "0123456789abcdef0123456789abcdef"


def test_it_is_made_once_and_kept(tmp_path: Path) -> None:
    first, former = settle_identity(tmp_path, "m", 5.0)
    assert former is None
    assert re.fullmatch("[0-9a-f]{32}", first.id)
    assert settle_identity(tmp_path, "m", 9.0) == (first, None)
    assert read_identity(tmp_path) == first
    assert settle_identity(tmp_path / "", "m", 9.0)[0].created == 5.0


def test_another_machine_with_its_disk_is_another_device(tmp_path: Path) -> None:
    first, _ = settle_identity(tmp_path, "m", 5.0)
    second, former = settle_identity(tmp_path, "other", 6.0)
    assert former == first
    assert second.id != first.id
    assert settle_identity(tmp_path, "other", 7.0) == (second, None)


def test_a_machine_without_a_mark_proves_nothing(tmp_path: Path) -> None:
    first, _ = settle_identity(tmp_path, "", 5.0)
    assert settle_identity(tmp_path, "", 6.0) == (first, None)
    bound, former = settle_identity(tmp_path, "m", 7.0)
    assert (bound.id, bound.machine, former) == (first.id, "m", None)
    assert settle_identity(tmp_path, "", 8.0) == (bound, None)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": 1}', "\0", '{"id":"x","created":"y","machine":""}'])
def test_a_file_that_says_nothing_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "identity.json").write_text(text)
    assert read_identity(tmp_path) is None
    made, former = settle_identity(tmp_path, "m", 1.0)
    assert former is None
    assert read_identity(tmp_path) == made


def test_the_mark_is_no_machine_id(tmp_path: Path) -> None:
    file = tmp_path / "machine-id"
    assert machine_mark(file) == ""
    file.write_text("uninitialized\n")
    assert machine_mark(file) == ""
    file.write_text(MACHINE_ID + "\n")
    mark = machine_mark(file)
    assert re.fullmatch("[0-9a-f]{32}", mark)
    assert mark != MACHINE_ID


def alerts_of(watcher: IdentityWatcher) -> list[Alert]:
    alerts: list[Alert] = []
    for _ in range(2):  # a reload begins another loop
        watcher.begin(cast("Device", SimpleNamespace(alert=alerts.append)), Segment())
    return alerts


def test_a_copy_is_told_once_and_sends_none_of_its_originals_messages(tmp_path: Path) -> None:
    state, outbox = tmp_path / "state", tmp_path / "outbox"
    state.mkdir()
    outbox.mkdir()
    (outbox / "outbox.db").write_bytes(b"the original's")
    assert alerts_of(IdentityWatcher(state, outbox, "m")) == []
    assert (outbox / "outbox.db").exists()
    copied = IdentityWatcher(state, outbox, "other")
    (alert,) = alerts_of(copied)
    assert alert.code == COPIED
    assert not (outbox / "outbox.db").exists()
    assert [path.read_bytes() for path in outbox.iterdir()] == [b"the original's"]
    assert alerts_of(IdentityWatcher(state, outbox, "other")) == []


def test_a_copy_that_could_not_leave_the_messages_tries_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = settle_identity(tmp_path, "m", 5.0)
    (tmp_path / "outbox.db").write_bytes(b"the original's")

    def broken(path: Path) -> Path:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("zhcedge.app.identity_watcher.set_aside", broken)
    IdentityWatcher(tmp_path, tmp_path, "other")
    assert read_identity(tmp_path) == first  # else the next start would send them
    monkeypatch.undo()
    assert len(alerts_of(IdentityWatcher(tmp_path, tmp_path, "other"))) == 1
    assert not (tmp_path / "outbox.db").exists()


def test_a_folder_that_can_not_be_written_stops_nothing(tmp_path: Path) -> None:
    assert alerts_of(IdentityWatcher(tmp_path / "absent", None, "m")) == []
    assert alerts_of(IdentityWatcher(None, None, "m")) == []

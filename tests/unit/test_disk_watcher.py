"""A disk that fills up and flash that wears out are told once, and once that it is over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.contract.brokers import wait_until
from zhcedge.app import disk_watcher
from zhcedge.app.device import Device
from zhcedge.app.disk_watcher import FILLING, INTERVAL_S, WORN, DiskWatcher
from zhcedge.config.load import load_text
from zhcedge.core.delivery import Alert
from zhcedge.core.errors import ConfigError
from zhcedge.pipeline.segment import Segment
from zhcedge.service.flash_life import FlashLife, flash_lives


class Watched:
    """A watcher whose turns are made by hand."""

    def __init__(self, watcher: DiskWatcher) -> None:
        self.alerts: list[Alert] = []
        self.watcher, self.now_s = watcher, 0.0
        watcher.begin(cast("Device", SimpleNamespace(alert=self.alerts.append)), Segment())

    def look(self) -> list[tuple[str, bool]]:
        """Codes since the last look, and whether they are over."""
        self.alerts.clear()
        self.now_s += INTERVAL_S
        self.watcher.turn(self.now_s)

        def is_looked_at() -> bool:
            self.watcher.turn(self.now_s)
            return self.watcher._thread is None

        wait_until(is_looked_at, "the look at the disks")
        return [(alert.code, alert.is_over) for alert in self.alerts]


def test_a_disk_is_told_when_little_is_free_and_when_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [10_000]
    usage = lambda place: SimpleNamespace(free=free[0] << 20, total=20_000 << 20)  # noqa: E731
    monkeypatch.setattr(disk_watcher.shutil, "disk_usage", usage)
    watched = Watched(DiskWatcher([tmp_path / "not" / "yet"], 512 << 20, lambda: iter(())))
    assert watched.look() == []
    free[0] = 999  # of 20,000: less than 5 %
    assert watched.look() == [(FILLING, False)]
    assert str(tmp_path) in watched.alerts[0].text
    assert watched.look() == []
    free[0] = 1_100
    assert watched.look() == []  # not by a hair's breadth
    free[0] = 1_501
    assert watched.look() == [(FILLING, True)]


def test_a_real_disk_is_looked_at(tmp_path: Path) -> None:
    assert Watched(DiskWatcher([tmp_path], 1 << 60, lambda: iter(()))).look() == [(FILLING, False)]


def test_folders_on_one_disk_are_told_of_once_also_when_one_is_made_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [10]
    usage = lambda place: SimpleNamespace(free=free[0] << 20, total=20_000 << 20)  # noqa: E731
    monkeypatch.setattr(disk_watcher.shutil, "disk_usage", usage)
    (tmp_path / "state").mkdir()
    watched = Watched(DiskWatcher([tmp_path / "media", tmp_path / "state"], 0, lambda: iter(())))
    assert watched.look() == [(FILLING, False)]
    (tmp_path / "media").mkdir()
    assert watched.look() == []
    free[0] = 10_000
    assert watched.look() == [(FILLING, True)]


def test_a_folder_that_may_not_be_looked_into_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tmp_path / "closed" / "media"
    real = Path.stat

    def stat(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path == closed:
            raise PermissionError(13, "Permission denied")
        return real(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", stat)
    assert Watched(DiskWatcher([closed, tmp_path], 1 << 60, lambda: iter(()))).look() == [(FILLING, False)]


def test_worn_flash_is_told_once() -> None:
    life = [FlashLife("mmcblk0", 8, 1)]
    watched = Watched(DiskWatcher([], 0, lambda: iter(life)))
    assert watched.look() == []
    life[0] = FlashLife("mmcblk0", 9, 1)
    assert watched.look() == [(WORN, False)]
    assert watched.look() == []


@pytest.mark.parametrize(
    ("life_time", "reserve", "is_worn", "words"),
    [
        ("0x01 0x02\n", "0x01\n", False, "up to 20 %"),
        ("0x03 0x09\n", "0x01\n", True, "up to 90 %"),
        ("0x0b 0x01\n", "0x01\n", True, "exceeded"),
        ("0x01 0x01\n", "0x02\n", True, "reserve is low"),
        ("0x00 0x00\n", "0x00\n", False, "does not say"),
    ],
)
def test_what_the_kernel_shows_is_understood(
    tmp_path: Path, life_time: str, reserve: str, is_worn: bool, words: str
) -> None:
    folder = tmp_path / "mmcblk0" / "device"
    folder.mkdir(parents=True)
    (folder / "life_time").write_text(life_time)
    (folder / "pre_eol_info").write_text(reserve)
    (tmp_path / "mmcblk1").mkdir()  # an SD card
    (tmp_path / "sda").mkdir()
    (life,) = flash_lives(tmp_path)
    assert life.is_worn == is_worn
    assert words in life.text


def test_the_parts_may_not_be_allowed_more_than_the_whole() -> None:
    text = "channels: {a: {source: {uri: 'pattern:boxes'}}}\nstorage: {budget_mb: 8000}\n"
    with pytest.raises(ConfigError, match="8960 together"):
        load_text(text, "x")
    load_text(text.replace("8000", "8960"), "x")


def folders(watcher: DiskWatcher) -> Iterator[Path]:
    yield from watcher._folders


def test_the_daemons_folders_are_watched(tmp_path: Path) -> None:
    text = f"channels: {{a: {{source: {{uri: 'pattern:boxes'}}}}}}\nstorage: {{dir: {tmp_path}/media}}\n"
    config = load_text(text, "x").config
    watcher = DiskWatcher.of(config, {"STATE_DIRECTORY": str(tmp_path / "state")})
    assert set(folders(watcher)) >= {tmp_path / "state"}
    assert set(folders(DiskWatcher.of(config, {}))) <= {tmp_path / "media"}

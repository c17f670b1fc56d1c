"""Disks that fill up and flash that wears out are told before anything is lost."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from zhcedge.app.device import Device
from zhcedge.app.given_folders import given_folder
from zhcedge.app.loop_watcher import LoopWatcher
from zhcedge.app.outbox_settings import outbox_settings
from zhcedge.app.storage_settings import storage_settings
from zhcedge.config.schema import Config
from zhcedge.core.delivery import Alert
from zhcedge.core.errors import ZhcEdgeError
from zhcedge.pipeline.segment import Segment
from zhcedge.service.flash_life import FlashLife, flash_lives

FILLING, WORN = "disk-filling", "flash-worn"

INTERVAL_S = 60.0
LOW_SHARE = 0.05
"""Of a disk: less than this, or than storage.min_free_mb, is little. Over again at half as much again."""


class DiskWatcher(LoopWatcher):
    """Watches the disks that the daemon writes to.

    Args:
        folders: that the daemon writes to; the disks they are on are watched.
        min_free_bytes: less is little, whatever the size of the disk.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        min_free_bytes: int,
        lives: Callable[[], Iterator[FlashLife]] = flash_lives,
    ) -> None:
        self._folders, self._min_free_bytes, self._lives = tuple(folders), min_free_bytes, lives
        self._next_s = 0.0
        self._told: set[tuple[str, str]] = set()
        self._thread: threading.Thread | None = None
        self._found: list[Alert] = []

    @classmethod
    def of(cls, config: Config, environ: Mapping[str, str]) -> DiskWatcher:
        """Of the folders that a configuration and the service manager name; those that can't be had are left out."""
        folders = [given_folder(environ, "STATE_DIRECTORY"), outbox_settings(config, environ).dir]
        try:
            storage = storage_settings(config, environ)
            folders.append(storage.dir if storage is not None else None)
        except ZhcEdgeError:  # told when something is to be kept there
            pass
        found = dict.fromkeys(folder for folder in folders if folder is not None)
        return cls(tuple(found), config.storage.min_free_mb * 2**20)

    def begin(self, device: Device, segment: Segment) -> None:
        """See LoopWatcher."""
        self._device = device

    def turn(self, now_s: float) -> None:
        """See LoopWatcher. A disk that hangs must not hold the loop: it is looked at by a thread."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
            for alert in self._found:
                self._device.alert(alert)
        if self._thread is None and now_s >= self._next_s:
            self._next_s, self._found = now_s + INTERVAL_S, []
            self._thread = threading.Thread(target=self._look, name="disk watch", daemon=True)
            self._thread.start()

    def _look(self) -> None:
        disks: dict[int, Path] = {}
        for folder in self._folders:
            place = _nearest(folder)
            with contextlib.suppress(OSError):
                disks.setdefault(place.stat().st_dev, place)  # several folders on one disk are told of once
        for disk, place in disks.items():
            try:
                usage = shutil.disk_usage(place)
            except OSError:
                continue
            little = max(self._min_free_bytes, int(LOW_SHARE * usage.total))
            free = f"{usage.free / 2**20:.0f} MiB of {usage.total / 2**20:.0f} are free"
            if usage.free < little:
                fix = "make room, or lower storage.max_mb and outbox.max_mb"
                self._tell((FILLING, str(disk)), f"{place}: {free}; {fix}", is_bad=True)
            elif usage.free > 1.5 * little:
                self._tell((FILLING, str(disk)), f"{place}: {free} again", is_bad=False)
        for life in self._lives():
            fix = "; replace it before it fails, and keep a backup"
            self._tell((WORN, life.name), life.text + (fix if life.is_worn else ""), is_bad=life.is_worn)

    def _tell(self, what: tuple[str, str], text: str, *, is_bad: bool) -> None:
        """Once when it begins, once when it is over."""
        if is_bad == (what in self._told):
            return
        self._told ^= {what}
        self._found.append(Alert(what[0], text, "warning" if is_bad else "info", is_over=not is_bad))


def _nearest(folder: Path) -> Path:
    """The folder itself, or the one above it that is there: some are made when they are first needed."""
    while not os.path.exists(folder) and folder != folder.parent:  # noqa: PTH110  Path.exists() raises for a closed one
        folder = folder.parent
    return folder

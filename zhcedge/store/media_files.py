"""How files of cameras lie in the storage folder, and which of the files there are ours.

clips/CAMERA/TIME.mp4 and snapshots/CAMERA/TIME-ANYTHING.jpg, with .part behind it while they are written. CAMERA is a
channel's name and TIME core.file_times.file_stamp. Nothing else is ours, and nothing else is ever touched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zhcedge.core.file_times import STAMP, stamp_ns

CLIP, SNAPSHOT = "clip", "snapshot"
_FOLDERS = {CLIP: "clips", SNAPSHOT: "snapshots"}
_NAMES = {
    CLIP: re.compile(STAMP.pattern + r"\.mp4(\.part)?\Z"),
    SNAPSHOT: re.compile(STAMP.pattern + r"(-[A-Za-z0-9._-]{1,120})?\.jpg(\.part)?\Z"),
}
_CAMERA = re.compile(r"[a-z0-9-]{1,63}\Z")
PART_SUFFIX = ".part"


@dataclass(frozen=True)
class StorageLimits:
    """What is kept; beyond any of these the oldest goes first.

    Attributes:
        max_bytes: of all files together.
        max_age_s: since its first picture, by the wall clock.
        min_free_bytes: of the disk, for others.
    """

    max_bytes: int
    max_age_s: float
    min_free_bytes: int


@dataclass(frozen=True)
class StorageSettings:
    """Folder and limits. The folder is made when it is first needed."""

    dir: Path
    limits: StorageLimits


@dataclass(frozen=True)
class MediaFile:
    """A file of ours that was found in the storage folder.

    Attributes:
        kind: CLIP or SNAPSHOT.
        start_ns: wall clock of its first picture, by its name.
        is_part: it is being written, or a killed process has left it.
    """

    path: Path
    kind: str
    camera: str
    start_ns: int
    is_part: bool = False


def clips_folder(storage: Path, camera: str) -> Path:
    """Where a camera's clips are."""
    return storage / _FOLDERS[CLIP] / camera


def snapshots_folder(storage: Path, camera: str) -> Path:
    """Where a camera's snapshots are."""
    return storage / _FOLDERS[SNAPSHOT] / camera


def media_files(storage: Path) -> Iterator[MediaFile]:
    """All files of ours in the storage folder, in no order; links are not followed. A folder that is not there is
    empty. Raises OSError."""
    for kind, folder in _FOLDERS.items():
        for camera in _entries(storage / folder):
            if not _CAMERA.match(camera.name) or camera.is_symlink() or not camera.is_dir():
                continue
            for path in _entries(camera):
                start_ns = stamp_ns(path.name)
                if start_ns is None or not _NAMES[kind].match(path.name) or path.is_symlink() or not path.is_file():
                    continue
                yield MediaFile(path, kind, camera.name, start_ns, path.suffix == PART_SUFFIX)


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def is_ours(storage: Path, path: Path) -> bool:
    """Whether a file lies where a file of ours would, under a name of ours. The disk is not looked at."""
    try:
        folder, camera, name = path.relative_to(storage).parts
    except ValueError:  # outside, or deeper or less deep
        return False
    kind = next((kind for kind, its in _FOLDERS.items() if its == folder), None)
    return kind is not None and bool(_CAMERA.match(camera)) and bool(_NAMES[kind].match(name))

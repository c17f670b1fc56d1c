"""Small, full, frozen and cut-off disks: tmpfs and ext4 on a loop device. They need root."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_FIFREEZE, _FITHAW = 0xC0045877, 0xC0045878  # linux/fs.h
_EXT4_IOC_SHUTDOWN = 0x8004587D  # fs/ext4/ext4.h: _IOR('X', 125, __u32)
_NOLOGFLUSH = 2  # nothing that has not been synced reaches the disk, as with a power cut
_PATIENCE_S = 30.0


def need_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("cannot run here: mounting a disk needs root")


def fill(folder: Path) -> Path:
    """Leave no room on the file system; returns the file that takes it."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler


@contextmanager
def small_tmpfs(folder: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    need_root()
    _run("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        _run("umount", "-l", str(folder))


def make_disk(image: Path, size_mb: int = 32) -> None:
    """An ext4 file system in a file."""
    need_root()
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("e2fsprogs is not installed")
    with image.open("wb") as file:
        file.truncate(size_mb * 1024 * 1024)
    _run("mkfs.ext4", "-q", "-F", str(image))


@contextmanager
def mounted(image: Path, folder: Path, *, read_only: bool = False) -> Iterator[Path]:
    mount = ["mount", "-o", "loop,ro" if read_only else "loop", str(image), str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot run here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        _run("umount", "-l", str(folder))


@contextmanager
def small_disk(folder: Path, *, read_only: bool = False) -> Iterator[Path]:
    image = folder.with_suffix(".image")
    make_disk(image)
    with mounted(image, folder, read_only=read_only) as disk:
        yield disk


@contextmanager
def frozen(folder: Path) -> Iterator[None]:
    """Every write and sync to the file system waits until the block ends, or for half a minute."""
    fd = os.open(folder, os.O_RDONLY)
    is_thawed = threading.Event()

    def thaw() -> None:
        if not is_thawed.is_set():
            is_thawed.set()
            fcntl.ioctl(fd, _FITHAW, 0)

    watchdog = threading.Timer(_PATIENCE_S, thaw)  # a test that waits for the disk must fail, not hang
    fcntl.ioctl(fd, _FIFREEZE, 0)
    watchdog.start()
    try:
        yield
        assert not is_thawed.is_set(), "somebody has waited for the disk"
    finally:
        watchdog.cancel()
        thaw()
        os.close(fd)


def cut_power(folder: Path) -> None:
    """From now on nothing reaches this ext4 file system's disk; what was not synced is lost."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, _EXT4_IOC_SHUTDOWN, struct.pack("I", _NOLOGFLUSH))
    finally:
        os.close(fd)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)

"""What the doctor finds of the computer: board, software, devices, the service, folders, the clock."""

from __future__ import annotations

import grp
import os
import platform
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from zhcedge import __version__
from zhcedge.app.doctor_commands import ask
from zhcedge.app.findings import Finding
from zhcedge.app.given_folders import SYSTEM_STATE
from zhcedge.app.outbox_settings import outbox_settings
from zhcedge.app.platform_facts import platform_name
from zhcedge.app.storage_settings import storage_settings
from zhcedge.config.schema import Config
from zhcedge.core.errors import ZhcEdgeError
from zhcedge.service.clock import SystemClock
from zhcedge.service.flash_life import flash_lives

SERVICE_USER = "zhc-edge"

_BOARD_NAMES = (Path("/proc/device-tree/model"), Path("/sys/class/dmi/id/product_name"))
_PACKAGES = ("numpy", "onnxruntime", "onnxruntime-gpu", "av", "pycuda", "cuda-bindings", "PyNvVideoCodec", "tensorrt")
_DEVICES = ("/dev/video*", "/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvhost-*", "/dev/nvmap")
_ELEMENTS = ("nvv4l2decoder", "nvvidconv", "nvarguscamerasrc", "nvv4l2h264enc")
_LOW_SHARE, _LOW_BYTES = 0.05, 512 << 20
_COMMAND_S = 20.0


def look_at_board() -> Iterator[Finding]:
    """What this computer is."""
    names = (_text(path).strip("\0 \n") for path in _BOARD_NAMES)
    name = next((name for name in names if name), "unknown board")
    cores, memory = os.cpu_count() or 0, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    yield Finding("board", "note", f"{name}, {platform.machine()}, {cores} cores, {memory:.1f} GiB of memory")
    try:
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        system = platform.system()
    yield Finding("system", "note", f"{system}, kernel {platform.release()}")
    driver = platform_name()
    yield Finding("driver", "note", driver or "no NVIDIA driver: the cpu profile is what runs here")
    if driver and shutil.which("nvidia-smi"):
        yield _gpus()


def _gpus() -> Finding:
    seen = ask(("nvidia-smi", "--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader"), _COMMAND_S)
    said = " ".join((seen.out or seen.err).split())  # its errors go to standard output
    if seen.code != 0:
        fix = "reboot: the driver and its libraries may be of two versions"
        return Finding("gpu", "bad", f"nvidia-smi: {said or seen.why}", fix)
    return Finding("gpu", "note", "; ".join(filter(None, map(str.strip, seen.out.splitlines()))))


def look_at_software(config: Config | None) -> Iterator[Finding]:
    """Versions of packages, as installed; doctor_libraries.py loads them. GStreamer's elements on a Jetson."""
    yield Finding("zhc-edge", "note", f"{__version__}, Python {platform.python_version()} in {sys.prefix}")
    versions = []
    for name in _PACKAGES:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    yield Finding("packages", "note", ", ".join(versions))
    if shutil.which("gst-inspect-1.0") and Path("/etc/nv_tegra_release").exists():
        missing = [name for name in _ELEMENTS if _run("gst-inspect-1.0", "--exists", name) is None]
        yield (
            Finding("elements", "bad", f"GStreamer lacks {', '.join(missing)}", "install nvidia-l4t-gstreamer")
            if missing
            else Finding("elements", "ok", ", ".join(_ELEMENTS))
        )
    if config is not None and config.profile == "rtx" and not platform_name():
        yield Finding("driver", "bad", "profile rtx, and no NVIDIA driver is loaded", "install the driver, then reboot")


def look_at_devices(config: Config | None) -> Iterator[Finding]:
    """Cameras' and GPU's device files, and whether the service's user may use them."""
    user = SERVICE_USER if _has_user(SERVICE_USER) else _own_name()
    groups = _groups_of(user)
    if user == SERVICE_USER:  # tools/install gives the unit groups that its user is not in
        groups |= set((_run("systemctl", "show", "zhc-edge", "-p", "SupplementaryGroups", "--value") or "").split())
    yield Finding("user", "note", f"{user}, in {', '.join(sorted(groups)) or 'no group'}")
    files = sorted(path for pattern in _DEVICES for path in Path("/").glob(pattern[1:]))
    for path in files:
        facts = path.stat()
        group = _group_name(facts.st_gid)
        may = facts.st_mode & 0o006 == 0o006 or (facts.st_mode & 0o060 == 0o060 and group in groups) or user == "root"
        if not may:
            fix = f"usermod -a -G {group} {user}, and start the service again"
            yield Finding("device", "bad", f"{user} may not use {path}", fix)
    if files:
        yield Finding("devices", "note", " ".join(str(path) for path in files))
    wanted = [] if config is None else [one.source.uri for one in config.channels.values()]
    for uri in wanted:
        if uri.startswith("v4l2:") and not Path(uri.removeprefix("v4l2:")).exists():
            yield Finding("device", "bad", f"{uri} is not there", "is it plugged in? see `v4l2-ctl --list-devices`")


def look_at_service() -> Iterator[Finding]:
    """The unit, as systemd has it."""
    if not Path("/run/systemd/system").is_dir():
        yield Finding("service", "skipped", "no systemd runs here")
        return
    said = _run("systemctl", "show", "zhc-edge", "-p", "LoadState,ActiveState,SubState,NRestarts,StatusText") or ""
    facts = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    if facts.get("LoadState") != "loaded":
        yield Finding("service", "bad", "the unit is not installed", "tools/install --start, as root")
        return
    state = f"{facts.get('ActiveState')} ({facts.get('SubState')}), {facts.get('StatusText') or 'no status'}"
    is_well = facts.get("ActiveState") == "active"
    yield Finding("service", "ok" if is_well else "bad", state, "" if is_well else "journalctl -u zhc-edge -e")
    if (restarts := facts.get("NRestarts", "0")) != "0":
        yield Finding("restarts", "note", f"{restarts} since it was started: see `zhc-edge crashes`")


def look_at_folders(config: Config, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Room on the disks that the daemon writes to."""
    folders = {"state": SYSTEM_STATE if SYSTEM_STATE.is_dir() else None}
    try:
        storage = storage_settings(config, environ)
        folders |= {"outbox": outbox_settings(config, environ).dir, "storage": storage.dir if storage else None}
    except ZhcEdgeError as error:
        yield Finding("folders", "note", f"{error.what}: only the service knows its folders")
    for name, folder in folders.items():
        if folder is None:
            continue
        while not os.access(folder, os.F_OK) and folder != folder.parent:  # exists() raises where we may not look
            folder = folder.parent
        usage = shutil.disk_usage(folder)
        text = f"{folder}: {usage.free / 2**30:.1f} of {usage.total / 2**30:.1f} GiB free"
        is_low = usage.free < max(_LOW_BYTES, _LOW_SHARE * usage.total)
        yield Finding(name, "bad" if is_low else "ok", text, "make room, or lower storage's limits" if is_low else "")


def look_at_flash() -> Iterator[Finding]:
    """How worn an eMMC is."""
    for life in flash_lives():
        fix = "replace it before it fails; make a backup now" if life.is_worn else ""
        yield Finding("flash", "bad" if life.is_worn else "ok", life.text, fix)


def look_at_clock() -> Iterator[Finding]:
    """Whether time stamps can be trusted."""
    if SystemClock().is_synced():
        yield Finding("clock", "ok", "set by the network")
    else:
        yield Finding("clock", "bad", "not set by the network", "timedatectl set-ntp true; events say so meanwhile")


def _has_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user has a number only
        return str(os.getuid())


def _groups_of(user: str) -> set[str]:
    try:
        own = pwd.getpwnam(user).pw_gid
    except KeyError:
        return {_group_name(number) for number in (os.getgid(), *os.getgroups())}
    return {_group_name(own), *(group.gr_name for group in grp.getgrall() if user in group.gr_mem)}


def _group_name(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def _run(*command: str) -> str | None:
    """What a command prints; None when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_COMMAND_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""

"""A Debian of its own with a real systemd, in a container of systemd-nspawn: the appliance without the board.

The tree is made once by debootstrap, from the mirror that this computer's own apt uses, and kept in $ZHC_TREE_CACHE
(default ~/.cache/zhcedge). Each box is a copy of it. It has its own network with nothing but a loopback.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0
PACKAGES = ("systemd", "systemd-sysv", "dbus", "python3", "python3-venv", "mosquitto", "mosquitto-clients")


def why_not() -> str:
    """Why no box can be made here; empty when one can."""
    if os.geteuid() != 0:
        return "containers need root"
    if mirror() is None:
        return "apt here takes its packages from no Debian mirror"
    missing = [name for name in ("debootstrap", "systemd-nspawn", "nsenter") if shutil.which(name) is None]
    return f"{', '.join(missing)} not installed" if missing else ""


def mirror() -> tuple[str, str] | None:
    """Address and release that apt here takes its packages from; None where that is no Debian."""
    if shutil.which("apt-get") is None:
        return None
    said = run("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages").stdout
    lines = [line.split() for line in said.splitlines()]
    return next(((uri, release) for uri, release in lines if release.isalpha() and "debian" in uri), None)


def run(*command: str | Path, check: bool = True, **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900, **options)  # type: ignore[call-overload]
    assert done.returncode == 0 or not check, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done  # type: ignore[no-any-return]


def tree() -> Path:
    """The unchanged system; made when it is not there."""
    home = Path(os.environ.get("ZHC_TREE_CACHE", Path.home() / ".cache/zhcedge"))
    found = mirror()
    assert found is not None
    uri, release = found
    kept = home / f"tree-{release}"
    if not (kept / "made").exists():
        new = home / f"new-{os.getpid()}"
        home.mkdir(parents=True, exist_ok=True)
        run("debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", release, new / "root", uri)
        (new / "root/etc/machine-id").write_text("")  # each box finds its own at its first boot
        shutil.rmtree(new / "root/var/cache/apt", ignore_errors=True)
        (new / "made").touch()
        shutil.rmtree(kept, ignore_errors=True)
        new.rename(kept)
    return kept / "root"


class Box:
    """A booted system. Use as a context manager.

    Args:
        folder: gets the copy.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "box"
        run("cp", "-a", "--reflink=auto", tree(), self.root)
        self._outer: subprocess.Popen[bytes] | None = None
        self._init = 0

    def __enter__(self) -> Box:
        self.boot()
        return self

    def __exit__(self, *_: object) -> None:
        self.power_off()
        shutil.rmtree(self.root, ignore_errors=True)

    def boot(self) -> None:
        """Start it and wait until its services run."""
        command = ["systemd-nspawn", "-q", "-b", "-D", str(self.root), f"--machine=zhc-{os.getpid()}"]
        command += ["--register=no", "--keep-unit", "--private-network", "--console=pipe", "--link-journal=no"]
        self._outer = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.wait_for(self._find_init, "the first process")
        self.wait_for(
            lambda: self("systemctl", "is-system-running", check=False).stdout.strip() in ("running", "degraded"),
            "the system to be up",
        )

    def _find_init(self) -> bool:
        assert self._outer is not None
        assert self._outer.poll() is None, "systemd-nspawn has ended"
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text().split()
        for child in children:  # one of them may be nspawn's own helper
            with contextlib.suppress(OSError):
                if (Path(f"/proc/{child}/comm")).read_text().strip() == "systemd":
                    self._init = int(child)
                    return True
        return False

    def power_off(self) -> None:
        """As by the switch at the wall, after a word to systemd."""
        if self._outer is None:
            return
        if self._outer.poll() is None and self._init:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._init, signal.SIGRTMIN + 4)  # systemd(1): power off
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._outer.wait(60)
        self._outer.kill()
        self._outer.wait()
        self._outer = None

    def inside(self, *command: str) -> list[str]:
        """The command line that runs `command` in the box."""
        return ["nsenter", "-t", str(self._init), "-a", "--", *command]

    @property
    def network(self) -> list[str]:
        """What to put before a command line so that a program of this system's runs in the box's network."""
        return ["nsenter", "-t", str(self._init), "-n", "--"]

    def __call__(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command in the box."""
        return run(*self.inside(*command), check=check)

    def path(self, inside: str) -> Path:
        """A file of the box, seen from here."""
        return self.root / inside.lstrip("/")

    @staticmethod
    def wait_for(is_so: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < deadline, f"waited in vain for {what}"
            time.sleep(0.1)


def wheelhouse(folder: Path) -> Path:
    """The product's wheel and its dependencies', for the box's Python, which is this one's version."""
    out = folder / "wheelhouse"
    run("sh", ROOT / "tools/build-wheels", "--out", out, env={**os.environ, "PYTHON": sys.executable})
    return out


def python_of_tree() -> str:
    """Such as python3.11."""
    return (tree() / "usr/bin/python3").resolve().name


@contextlib.contextmanager
def listening(box: Box, topic: str) -> Iterator[Callable[[], Sequence[tuple[str, bytes]]]]:
    """A subscriber in the box; the function gives what it has heard so far: topics and payloads."""
    command = box.inside("mosquitto_sub", "-h", "127.0.0.1", "-q", "1", "-t", topic, "-F", "%t\t%p")
    heard = box.root / f"heard-{time.monotonic_ns()}"
    with heard.open("wb") as stream, subprocess.Popen(command, stdout=stream, stdin=subprocess.DEVNULL) as process:
        try:
            yield lambda: [
                (topic.decode(), payload)
                for topic, _, payload in (line.partition(b"\t") for line in heard.read_bytes().split(b"\n")[:-1])
            ]
        finally:
            process.terminate()


def require_system() -> None:
    """Skip the test where no box can be made, unless it must be possible."""
    reason = why_not()
    if not reason and f"python{sys.version_info[0]}.{sys.version_info[1]}" != python_of_tree():
        reason = f"this is not the tree's {python_of_tree()}"
    if reason:
        cannot_run(reason)


def cannot_run(reason: str) -> NoReturn:
    """Skip the test, or fail it where it must be possible to run it."""
    if os.environ.get("TESTS_REQUIRE_SYSTEM") == "1":
        pytest.fail(f"a system is required (ZHC_REQUIRE_SYSTEM=1): {reason}")
    pytest.skip(f"cannot run here: {reason}")

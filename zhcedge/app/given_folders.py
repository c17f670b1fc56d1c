"""Folders that the environment gives a process, by systemd (systemd.exec(5)) or by a login (XDG)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

SYSTEM_STATE = Path("/var/lib/zhc-edge")
"""What systemd makes of `StateDirectory=zhc-edge`."""


def given_folder(environment: Mapping[str, str], variable: str) -> Path | None:
    """The folder that a variable such as STATE_DIRECTORY names, the first where it lists several; None without."""
    first = environment.get(variable, "").partition(":")[0]
    return Path(first) if first.startswith("/") else None  # a relative one would be no work of systemd's


def state_folder(environment: Mapping[str, str]) -> Path | None:
    """Where the daemon keeps things that no configuration names a folder for; None where there is none.

    For whoever looks at them without having been started by systemd.
    """
    return given_folder(environment, "STATE_DIRECTORY") or (SYSTEM_STATE if SYSTEM_STATE.is_dir() else None)

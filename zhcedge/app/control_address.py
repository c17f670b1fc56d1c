"""Where the control socket is: for the daemon that makes it, and for the commands that look for it.

What reads configurations is imported where one is read: that takes a second or more, and `status` should not.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zhcedge.app.given_folders import given_folder
from zhcedge.core.errors import DaemonAwayError, OutputError
from zhcedge.service.socket_file import SocketFile

if TYPE_CHECKING:
    from zhcedge.config.schema import Config

log = logging.getLogger(__name__)

SERVICE_SOCKET = Path("/run/zhc-edge/control.sock")
"""What $RUNTIME_DIRECTORY gives the unit of this package: a shell does not have that variable."""

_NAME = "control.sock"
_OF_USER = "zhc-edge"


def open_control_socket(config: Config, environment: Mapping[str, str] | None = None) -> SocketFile | None:
    """The daemon's socket, or None where nothing says where it could be, with a line in the log.

    Args:
        environment: of the process; None takes it as it is now.

    Raises what SocketFile raises. A $XDG_RUNTIME_DIR that can't be used, such as one that `su` has left, is no error:
    nobody has asked for a socket there.
    """
    environment = os.environ if environment is None else environment
    wanted = config.control.socket or _of_service(environment)
    if wanted is not None:
        return SocketFile(wanted)
    folder = _of_user(environment)
    if folder is None:
        log.info("no control socket: set control.socket to have one for `zhc-edge status`")
        return None
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        return SocketFile(folder / f"{config.device}.sock")
    except (OSError, OutputError) as error:
        log.warning("no control socket: %s", error)
        return None


def find_control_socket(
    socket: Path | None,
    config: Path | None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Path:
    """Where a command should find the daemon.

    Args:
        socket: the user has named it; nothing else is looked at.
        config: the daemon's configuration; None looks where a daemon without `control.socket` would listen.

    Raises ConfigError, and DaemonAwayError when nothing says where it could be.
    """
    environment = os.environ if environment is None else environment
    if socket is not None:
        return socket
    device = "*"
    if config is not None:
        from zhcedge.config.load import load
        from zhcedge.profiles import PROFILES

        loaded = load(config, overrides, environment, profiles=PROFILES).config
        if loaded.control.socket is not None:
            return loaded.control.socket
        device = loaded.device
    if (of_service := _of_service(environment)) is not None:
        return of_service
    folder = _of_user(environment)
    found = sorted(folder.glob(f"{device}.sock")) if folder is not None else []
    if len(found) > 1:
        names = ", ".join(str(path) for path in found)
        raise DaemonAwayError(f"there are several daemons: {names}", fix="name one with --socket or -c")
    if found:
        return found[0]
    if folder is None or _is_there(SERVICE_SOCKET):
        return SERVICE_SOCKET
    return folder / f"{device}.sock" if config is not None else SERVICE_SOCKET


def _is_there(path: Path) -> bool:
    """Also in a folder that is closed to us: whoever connects is told so."""
    try:
        return path.exists()
    except PermissionError:
        return True


def _of_service(environment: Mapping[str, str]) -> Path | None:
    folder = given_folder(environment, "RUNTIME_DIRECTORY")
    return folder / _NAME if folder is not None else None


def _of_user(environment: Mapping[str, str]) -> Path | None:
    folder = given_folder(environment, "XDG_RUNTIME_DIR")
    return folder / _OF_USER if folder is not None else None

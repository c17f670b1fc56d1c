"""A Unix stream socket in the file system: made with its rights, in a dead daemon's place, never in a living one's."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from zhcedge.core.errors import NotNowError, OutputError

log = logging.getLogger(__name__)

LONGEST_PATH_BYTES = 107
"""unix(7): sun_path has 108 bytes, with a NUL at the end."""

_MODE = 0o660
_BACKLOG = 64
_LOCK_TRIES, _LOCK_PAUSE_S = 40, 0.05


class SocketFile:
    """A listening, non-blocking socket at `path`, mode 0660, of the folder's group. The folder must be there.

    While it is made its folder is locked (flock), so that of two daemons that start at the same time one finds the
    other. Waits for that lock, two seconds at most.

    Raises NotNowError when another process listens there, OutputError when it can't be made; nothing is left then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if len(os.fsencode(path)) > LONGEST_PATH_BYTES:
            what = f"a socket's path may have {LONGEST_PATH_BYTES} bytes"
            raise OutputError(what, where=str(path), fix="name a shorter one with control.socket")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            with _locked(path.parent):
                _remove_dead(path)
                self._identity = _bind(self.socket, path)
        except OSError as error:
            self.socket.close()
            what = f"the control socket can't be made: {error.strerror or error}"
            raise OutputError(what, where=str(path), fix="name another place with control.socket") from error
        except BaseException:
            self.socket.close()
            raise

    def close(self) -> None:
        """Close it and remove its file, unless that is another's by now. A second call does nothing."""
        if self.socket.fileno() < 0:
            return
        self.socket.close()
        with contextlib.suppress(OSError):  # gone, or of a file system that is read-only by now
            if _identity(self.path) == self._identity:
                self.path.unlink()


def _bind(listener: socket.socket, path: Path) -> tuple[int, int]:
    """Bind and listen; returns the file's identity. Raises OSError; then there is no file."""
    # Linux makes the file with the mode that the socket has (unix_bind in af_unix.c): nobody can come in before its
    # group is set, and the process's umask need not be touched.
    os.fchmod(listener.fileno(), 0o600)
    listener.bind(os.fspath(path))
    try:
        with contextlib.suppress(PermissionError):  # not a member of that group: the process's own one has it then
            os.chown(path, -1, path.parent.stat().st_gid)
        path.chmod(_MODE)
        listener.listen(_BACKLOG)
        return _identity(path)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _identity(path: Path) -> tuple[int, int]:
    facts = path.lstat()
    return facts.st_dev, facts.st_ino


def _remove_dead(path: Path) -> None:
    """Take away a socket that nobody listens on. Raises NotNowError for a living one, OutputError for another file."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        fix = "move it away, or name another place with control.socket"
        raise OutputError("the file that is there is no socket", where=str(path), fix=fix)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            log.info("%s is left from a daemon that was killed; it is replaced", path)
            path.unlink()
            return
        except BlockingIOError:
            pass  # it listens, and has much to do
    fix = "stop it, or give this one another place with control.socket"
    raise NotNowError("another daemon listens on this control socket", where=str(path), fix=fix)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raises OSError for a folder that can't be read, NotNowError when others hold the lock for long."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_LOCK_PAUSE_S)
        else:
            raise NotNowError("the folder of the control socket is locked by another process", where=str(folder))
        yield
    finally:
        os.close(fd)

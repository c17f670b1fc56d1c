"""Which files make one appliance different from another: what a backup holds and a factory reset takes away."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from zhcedge.app.given_folders import state_folder
from zhcedge.app.status import daemon_status
from zhcedge.config.files import FOLDER
from zhcedge.core.errors import ConfigError, NotNowError
from zhcedge.store.identity import FILE_NAME as IDENTITY

CONFIG, STATE = "config", "state"
"""Folders of an archive."""

CONFIG_NAME = "config.yaml"
"""The configuration in it, whatever its name on the box."""

_CREDENTIALS = "credentials"
_HISTORY = ".history"
_KEPT_STATE = (IDENTITY, "last-good.json")
_MODELS = "models"


@dataclass(frozen=True)
class ApplianceFiles:
    """The folders of one daemon.

    Attributes:
        config: its configuration file, with drop-ins, former versions and credentials beside it.
        state: what it keeps: identity, models, outbox, history, clips.
    """

    config: Path
    state: Path

    @classmethod
    def find(cls, config: Path, environ: Mapping[str, str], state: Path | None = None) -> ApplianceFiles:
        """Raises ConfigError where nothing says where the state is."""
        folder = state or state_folder(environ)
        if folder is None:
            raise ConfigError("nothing says where the daemon keeps its state", fix="name the folder with --state")
        return cls(config.absolute(), folder.absolute())  # an interrupted restore may be finished from elsewhere

    def members(self, *, with_secrets: bool) -> Iterator[tuple[str, Path]]:
        """(name in an archive, file) of everything that another box needs to take this one's place."""
        if self.config.is_file():
            yield f"{CONFIG}/{CONFIG_NAME}", self.config
        for folder in (FOLDER, _HISTORY, *((_CREDENTIALS,) if with_secrets else ())):
            yield from _below(f"{CONFIG}/{folder}", self.config.parent / folder)
        for name in _KEPT_STATE:
            if (self.state / name).is_file():
                yield f"{STATE}/{name}", self.state / name
        yield from _below(f"{STATE}/{_MODELS}", self.state / _MODELS)

    def place_of(self, member: str) -> Path | None:
        """Where a member of an archive belongs; None for one that has no business there."""
        parts = member.split("/")
        if len(parts) < 2 or "\0" in member or any(part in ("", ".", "..") for part in parts):
            return None
        root, inside, is_deep = parts[0], Path(*parts[1:]), len(parts) > 2
        if root == CONFIG:
            if inside == Path(CONFIG_NAME):
                return self.config
            is_known = is_deep and parts[1] in (FOLDER, _HISTORY, _CREDENTIALS)
            return self.config.parent / inside if is_known else None
        if root == STATE and (str(inside) in _KEPT_STATE or (is_deep and parts[1] == _MODELS)):
            return self.state / inside
        return None

    def holds(self, place: Path) -> bool:
        """Whether it is in one of the two folders."""
        return any(root in place.parents for root in (self.config.parent, self.state)) and ".." not in place.parts

    def needs_silence(self, environ: Mapping[str, str]) -> None:
        """Raises NotNowError while the daemon runs, DaemonAwayError where it can't be asked."""
        if daemon_status(self.config, environ) is not None:
            raise NotNowError("the daemon is running", fix="systemctl stop zhc-edge, and again")


def give_to_owner_of(folder: Path, made: Path) -> None:
    """What root makes in a folder of the service's user is to be that user's. Raises OSError."""
    if os.geteuid() == 0:
        owner = folder.stat()
        os.chown(made, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _below(name: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """Plain files; links are left out, because what they lead to is somebody else's."""
    if not folder.is_dir():
        return
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield f"{name}/{path.relative_to(folder)}", path

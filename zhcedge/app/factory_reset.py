"""Use case `factory-reset`: the box forgets what it was."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from zhcedge.app.appliance_files import ApplianceFiles, give_to_owner_of
from zhcedge.core.errors import OutputError
from zhcedge.core.files import write_whole

SHIPPED = Path("/opt/zhc-edge/config.yaml")
"""The configuration as tools/install found it."""

UNIT_CREDENTIALS = Path("/etc/systemd/system/zhc-edge.service.d/credentials.conf")
"""With which tools/install hands the credentials over. The service does not start when it names files that are gone."""

_BESIDE_THE_CONFIGURATION = ("conf.d", ".history", "credentials")


def what_goes(files: ApplianceFiles, *, keeps_config: bool) -> list[Path]:
    """Files and folders that a reset takes away; the configuration itself is replaced. Raises OutputError."""
    try:
        return sorted(_what_goes(files, keeps_config=keeps_config))
    except OSError as error:
        what = f"can't be looked into: {error.strerror or error}"
        raise OutputError(what, where=str(error.filename), fix="use sudo") from error


def _what_goes(files: ApplianceFiles, *, keeps_config: bool) -> Iterator[Path]:
    if files.state.is_dir():
        yield from files.state.iterdir()
    if keeps_config:
        return
    for name in _BESIDE_THE_CONFIGURATION:
        folder = files.config.parent / name
        if folder.is_dir():
            yield from folder.iterdir()
    if hands_over(UNIT_CREDENTIALS, files.config.parent / "credentials"):
        yield UNIT_CREDENTIALS


def hands_over(unit: Path, folder: Path) -> bool:
    """Whether the unit's file names credentials that lie in that folder."""
    try:
        return f":{folder}/" in unit.read_text()
    except (OSError, ValueError):
        return False


def reset(files: ApplianceFiles, environ: Mapping[str, str], *, keeps_config: bool, shipped: Path = SHIPPED) -> None:
    """Remove identity, messages, history, clips, pictures, models and plans; without `keeps_config` also drop-ins,
    former versions and credentials, and put the shipped configuration back, where there is one.

    Raises NotNowError while the daemon runs; OutputError when something can't be removed: then again, as root.
    """
    files.needs_silence(environ)
    try:
        for path in what_goes(files, keeps_config=keeps_config):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        default = None if keeps_config or not shipped.is_file() else shipped.read_bytes()
    except OSError as error:
        raise OutputError(f"can't be removed: {error.strerror}", where=str(error.filename), fix="use sudo") from error
    if default is not None:
        write_whole(files.config, default, "the configuration", mode=0o640, is_synced=True)
        give_to_owner_of(files.config.parent, files.config)  # else root's alone, and the daemon could not read it

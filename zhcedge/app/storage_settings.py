"""The folder of clips and snapshots and its limits, from the configuration and from what systemd says."""

from __future__ import annotations

import os
from collections.abc import Mapping

from zhcedge.app.given_folders import given_folder
from zhcedge.config.schema import Config
from zhcedge.store.media_files import StorageLimits, StorageSettings

FOLDER_NAME = "media"
"""In the state folder, where the configuration names no other."""

_MB = 1_000_000
_DAY_S = 86_400.0


def storage_settings(config: Config, environment: Mapping[str, str] | None = None) -> StorageSettings | None:
    """None where neither the configuration nor systemd (systemd.exec(5), StateDirectory) names a folder.

    Args:
        environment: of the process; None takes it as it is now.
    """
    environment = os.environ if environment is None else environment
    wanted = config.storage
    folder, state = wanted.dir, given_folder(environment, "STATE_DIRECTORY")
    if folder is None and state is not None:
        folder = state / FOLDER_NAME
    if folder is None:
        return None
    limits = StorageLimits(wanted.max_mb * _MB, wanted.max_age_days * _DAY_S, wanted.min_free_mb * _MB)
    return StorageSettings(folder, limits)

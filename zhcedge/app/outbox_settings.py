"""The outbox's folders and limits, from the configuration and from what systemd says."""

from __future__ import annotations

import os
from collections.abc import Mapping

from zhcedge.app.given_folders import given_folder
from zhcedge.config.schema import Config
from zhcedge.store.settings import OutboxLimits, OutboxSettings


def outbox_settings(config: Config, environment: Mapping[str, str] | None = None) -> OutboxSettings:
    """Folders that the configuration leaves open are systemd's, where it gives some (systemd.exec(5)).

    Args:
        environment: of the process; None takes it as it is now.
    """
    environment = os.environ if environment is None else environment
    wanted = config.outbox
    on_disk = wanted.dir or given_folder(environment, "STATE_DIRECTORY")
    in_memory = wanted.memory_dir or given_folder(environment, "RUNTIME_DIRECTORY") or on_disk
    limits = OutboxLimits(wanted.max_messages, wanted.max_mb * 1024 * 1024, wanted.max_age_h * 3600.0)
    return OutboxSettings(on_disk, in_memory, limits)

"""Where the history is and how much of it is kept, from the configuration and from what systemd says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from zhcedge.app.outbox_settings import outbox_settings
from zhcedge.config.schema import Config
from zhcedge.store.history_file import HistoryLimits


def history_folder(config: Config, environment: Mapping[str, str] | None = None) -> Path | None:
    """The outbox's folder on disk; None where there is none: then no history is written.

    Args:
        environment: of the process; None takes it as it is now.
    """
    return outbox_settings(config, environment).dir


def history_limits(config: Config) -> HistoryLimits:
    """How much of it is kept."""
    return HistoryLimits(config.storage.history_days, config.storage.history_max_mb * 1_000_000)

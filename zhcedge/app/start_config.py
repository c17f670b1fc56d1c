"""The configuration that a daemon starts with: the one that is written, or the last good one."""

from __future__ import annotations

import logging

from zhcedge.analytics.settings import wanted_labels
from zhcedge.app.check import load_configuration
from zhcedge.app.given_folders import given_folder
from zhcedge.app.last_good import LastGood
from zhcedge.app.reload import ConfigSource
from zhcedge.app.restore import PENDING
from zhcedge.app.wiring import label_indices
from zhcedge.config.schema import Config
from zhcedge.core.errors import ConfigError, ZhcEdgeError
from zhcedge.core.message_ids import MessageId, tagged
from zhcedge.models.bundle import Bundle, load_bundle

log = logging.getLogger(__name__)


def find_configuration(source: ConfigSource, *, may_fall_back: bool) -> tuple[Config, str]:
    """The configuration, and why it is not what is written; empty where it is.

    A file that can't be read, has errors, or names no model or labels that it lacks is what is fallen back from. A
    camera or a broker that is not there is no such fault: the daemon waits for those.

    Raises ConfigError with every problem when there is nothing to fall back on, or it is not wanted; what load_bundle
    raises likewise.
    """
    state = given_folder(source.environ, "STATE_DIRECTORY")
    if state is not None and (state / PENDING).exists():
        log.error("a restore was interrupted, and files of two boxes are mixed: run `zhc-edge restore` again, as root")
    try:
        config = load_configuration(source.path, source.overrides, source.environ).config
        if may_fall_back:
            load_model(config)
        return config, ""
    except ZhcEdgeError as error:
        last = LastGood.from_environment(source.environ).load() if may_fall_back else None
        if last is None:
            raise
        kind = "has errors" if isinstance(error, ConfigError) else "can't be used"
        log.error("%s", error)
        log.error("the last good configuration runs instead", extra=tagged(MessageId.FALLBACK))
        return last, f"the configuration {kind}, and the last good one runs instead: {_first_line(error)}"


def load_model(config: Config) -> Bundle:
    """The verified model. Raises what load_bundle raises, and ConfigError when events want labels that it lacks."""
    bundle = load_bundle(config.model.bundle)
    for key, labels in wanted_labels(config):
        label_indices(labels, bundle.facts.labels, ".".join(key))
    return bundle


def _first_line(error: ZhcEdgeError) -> str:
    return str(error).splitlines()[0]

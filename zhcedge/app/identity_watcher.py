"""The device's identity at the start of the daemon: made, kept, and made anew on a copied disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path

from zhcedge.app.device import Device
from zhcedge.app.given_folders import given_folder
from zhcedge.app.loop_watcher import LoopWatcher
from zhcedge.app.outbox_settings import outbox_settings
from zhcedge.config.schema import Config
from zhcedge.core.delivery import Alert
from zhcedge.core.errors import OutputError
from zhcedge.pipeline.segment import Segment
from zhcedge.store.database import set_aside
from zhcedge.store.flash import FILE_NAME as OUTBOX_NAME
from zhcedge.store.identity import machine_mark, settle_identity

log = logging.getLogger(__name__)

COPIED = "device-copied"


class IdentityWatcher(LoopWatcher):
    """Settles who the device is when it is made, before anything is opened; tells of a copy once there is somebody to
    tell.

    The outbox of a copied disk is set aside: its messages are the original's, which sends them itself, and another
    outbox_id is what tells the two apart for whoever removes duplicates.
    """

    def __init__(self, folder: Path | None, outbox: Path | None, machine: str) -> None:
        self._alert: Alert | None = None
        if folder is None:
            return

        def leave_messages() -> None:
            if outbox is not None and (outbox / OUTBOX_NAME).exists():
                set_aside(outbox / OUTBOX_NAME)

        try:
            identity, former = settle_identity(folder, machine, time.time(), leave_messages)
        except (OSError, OutputError) as error:
            log.warning("%s", error)
            return
        if former is None:
            return
        text = (
            f"this disk is a copy of device {former.id[:8]}'s: it is {identity.id[:8]} from now on; if both run, give "
            "each a name of its own: zhc-edge config set device=NAME"
        )
        log.warning("%s", text)
        self._alert = Alert(COPIED, text, "warning")

    @classmethod
    def of(cls, config: Config, environ: Mapping[str, str]) -> IdentityWatcher:
        """In $STATE_DIRECTORY; without that a process has no identity that outlives it."""
        folder = given_folder(environ, "STATE_DIRECTORY")
        return cls(folder, outbox_settings(config, environ).dir, machine_mark())

    def begin(self, device: Device, segment: Segment) -> None:
        """See LoopWatcher."""
        if self._alert is not None:
            device.alert(self._alert)
            self._alert = None

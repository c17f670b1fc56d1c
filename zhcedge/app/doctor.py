"""Use case `doctor`: everything that a daemon on this computer needs, looked at once, with a fix for what is wrong.

Each part is looked at by itself: what goes wrong in one, and be it a bug of ours, is a finding and not the end.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from zhcedge.app.doctor_config import look_at_brokers, look_at_cameras, look_at_configuration, look_at_model
from zhcedge.app.doctor_system import (
    look_at_board,
    look_at_clock,
    look_at_devices,
    look_at_flash,
    look_at_folders,
    look_at_service,
    look_at_software,
)
from zhcedge.app.findings import Finding
from zhcedge.core.errors import ZhcEdgeError

LIMIT_S = 60.0
"""How long one part may take: a network that answers nothing, a disk that hangs."""

Part = tuple[str, Callable[[], Iterable[Finding]]]
"""Its name, and what looks at it."""


def examine(path: Path, environ: Mapping[str, str], *, is_quick: bool = False) -> Iterator[Finding]:
    """Findings part by part, as they come. Blocks: some seconds, or minutes where cameras are away.

    Args:
        path: of the configuration; one that is not there is a finding.
        is_quick: leave cameras and brokers out.
    """
    found, faults = look_at_configuration(path, environ)
    parts: list[Part] = [
        ("board", look_at_board),
        ("software", lambda: look_at_software(found)),
        ("devices", lambda: look_at_devices(found)),
        ("service", look_at_service),
        ("configuration", lambda: faults),
    ]
    if found is not None:
        parts += [
            ("model", lambda: look_at_model(found)),
            ("folders", lambda: look_at_folders(found, environ)),
        ]
        if not is_quick:
            parts += [
                ("cameras", lambda: look_at_cameras(found, path, environ)),
                ("broker", lambda: look_at_brokers(found)),
            ]
    parts += [("flash", look_at_flash), ("clock", look_at_clock)]
    for name, look in parts:
        yield from _in_time(name, look)


def _in_time(name: str, look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """What `look` finds, until LIMIT_S are over."""
    found: queue.SimpleQueue[Finding | None] = queue.SimpleQueue()

    def run() -> None:
        try:
            for finding in look():
                found.put(finding)
        except ZhcEdgeError as error:
            found.put(Finding(name, "bad", f"{error.where}: {error.what}" if error.where else error.what, error.fix))
        except Exception as error:  # noqa: BLE001  the other parts are looked at all the same
            found.put(Finding(name, "bad", f"{type(error).__name__}: {error}", "report this as a bug"))
        finally:
            found.put(None)

    threading.Thread(target=run, name=f"doctor {name}", daemon=True).start()
    try:
        while (finding := found.get(timeout=LIMIT_S)) is not None:
            yield finding
    except queue.Empty:
        yield Finding(name, "bad", f"nothing was found out within {LIMIT_S:.0f} s", "see the log of the kernel")

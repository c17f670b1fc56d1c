"""Use case `doctor`: everything that a daemon on this computer needs, looked at once, with a fix for what is wrong.

Each part is looked at by itself: what goes wrong in one, and be it a bug of ours, is a finding and not the end. What
may take a process along is asked of a child: this one loads no library of a vendor, FFmpeg included.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from zhcedge.app.doctor_certificates import look_at_certificates
from zhcedge.app.doctor_config import (
    CHECK_S,
    cameras_limit_s,
    look_at_brokers,
    look_at_cameras,
    look_at_configuration,
    look_at_model,
    readable_configuration,
)
from zhcedge.app.doctor_libraries import LIBRARIES, LOAD_S, look_at_libraries
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
from zhcedge.app.platform_facts import platform_name
from zhcedge.core.errors import ZhcEdgeError

LIMIT_S = 60.0
"""How long one part may take: a network that answers nothing, a disk that hangs."""

Part = tuple[str, Callable[[], Iterable[Finding]], float]
"""Its name, what looks at it, and its limit in seconds; 0 for LIMIT_S."""

_SLACK_S = 5.0
"""A child is given up before its part is: then its part says more."""


def examine(path: Path, environ: Mapping[str, str], *, is_quick: bool = False) -> Iterator[Finding]:
    """Findings part by part, as they come. Blocks: some seconds, or minutes where cameras are away.

    Args:
        path: of the configuration; one that is not there is a finding.
        is_quick: leave cameras and brokers out.
    """
    found = readable_configuration(path, environ)
    profile, has_driver = found.profile if found is not None else "cpu", bool(platform_name())
    parts: list[Part] = [
        ("board", look_at_board, 0),
        ("software", lambda: look_at_software(found), 0),
        ("libraries", lambda: look_at_libraries(profile, has_driver), LOAD_S * len(LIBRARIES) + _SLACK_S),
        ("devices", lambda: look_at_devices(found), 0),
        ("service", look_at_service, 0),
        ("configuration", lambda: look_at_configuration(path, environ, found), CHECK_S + _SLACK_S),
    ]
    if found is not None:
        parts += [
            ("model", lambda: look_at_model(found), 0),
            ("certificates", lambda: look_at_certificates(found), 0),
            ("folders", lambda: look_at_folders(found, environ), 0),
        ]
        if not is_quick:
            limit_s = cameras_limit_s(found) + _SLACK_S
            parts += [
                ("cameras", lambda: look_at_cameras(found, path, environ), limit_s),
                ("broker", lambda: look_at_brokers(found), 0),
            ]
    parts += [("flash", look_at_flash, 0), ("clock", look_at_clock, 0)]
    for name, look, limit_s in parts:
        yield from _in_time(name, look, limit_s or LIMIT_S)


def _in_time(name: str, look: Callable[[], Iterable[Finding]], limit_s: float) -> Iterator[Finding]:
    """What `look` finds, until `limit_s` are over without anything new."""
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
        while (finding := found.get(timeout=limit_s)) is not None:
            yield finding
    except queue.Empty:
        yield Finding(name, "bad", f"nothing was found out within {limit_s:.0f} s", "see the log of the kernel")

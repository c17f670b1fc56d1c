"""`zhc-edge run`: the daemon in the foreground, and what it writes about itself at the end."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from zhcedge.app.control import ControlLoop
from zhcedge.app.control_address import open_control_socket
from zhcedge.app.crash_reports import CrashReports
from zhcedge.app.disk_watcher import DiskWatcher
from zhcedge.app.identity_watcher import IdentityWatcher
from zhcedge.app.last_good import LastGood
from zhcedge.app.loop_watcher import LoopWatcher
from zhcedge.app.reboot_request import RebootRequest
from zhcedge.app.reload import ConfigSource, Reloader
from zhcedge.app.service_watcher import ServiceWatcher
from zhcedge.app.start_config import load_model
from zhcedge.app.start_delay import StartCount
from zhcedge.config.schema import Config
from zhcedge.core.errors import ZhcEdgeError
from zhcedge.core.events import EventType
from zhcedge.core.files import check_folder, write_whole
from zhcedge.pipeline.recorder import frame_latencies_ms, percentile, write_trace
from zhcedge.service.clock import SystemClock
from zhcedge.service.log import set_up_logging
from zhcedge.service.notify import Notifier

log = logging.getLogger(__name__)


def run(
    config: Config,
    *,
    source: ConfigSource | None = None,
    summary: Path | None = None,
    trace: Path | None = None,
    log_level: str = "INFO",
    config_fault: str = "",
) -> None:
    """Run the daemon until its sources have ended or a signal stops it.

    Args:
        source: where `config` comes from, for loading it again; None where that makes no sense.
        summary: file for the summary as JSON, see README.
        trace: file for a Chrome trace of the last 65536 spans of each process.
        config_fault: why `config` is not what is written; for the device's state.

    Raises what ended the run. Summary and trace are written also then, as far as there is something to write.
    """
    set_up_logging(log_level)
    for path in (summary, trace):
        if path is not None:
            check_folder(path, "the output")
    notifier, starts = Notifier.from_environment(os.environ, os.getpid()), StartCount.from_environment(os.environ)
    starts.wait(notifier)
    reloader = Reloader(source, config, LastGood.from_environment(os.environ), config_fault)
    watchers: list[LoopWatcher] = [
        IdentityWatcher.of(config, os.environ),  # before the outbox is opened
        ServiceWatcher(notifier),
        starts,
        CrashReports.from_environment(os.environ, SystemClock()),
        DiskWatcher.of(config, os.environ),
        RebootRequest.from_environment(os.environ, is_wanted=config.control.reboot_on_gpu_loss),
    ]
    with contextlib.ExitStack() as opened:
        opened.callback(notifier.close)
        while True:
            try:
                if _run_loop(reloader, log_level, watchers, summary, trace):
                    return
            except ZhcEdgeError as error:  # of a loop that could not be made
                if not reloader.revert(str(error)):
                    raise
                log.error("%s", error)


def _run_loop(
    reloader: Reloader,
    log_level: str,
    watchers: Sequence[LoopWatcher],
    summary: Path | None,
    trace: Path | None,
) -> bool:
    """One control loop; False when another one is to follow, with another configuration. Raises what ended it."""
    config = reloader.config
    bundle = load_model(config)
    with contextlib.ExitStack() as opened:
        socket = open_control_socket(config)
        if socket is not None:
            opened.callback(socket.close)
        loop = opened.enter_context(
            ControlLoop(config, bundle, SystemClock(), log_level, None, socket, watchers, reloader)
        )
        try:
            loop.run()
        finally:
            segment = loop.segment
            if loop.report:
                result = _summary(loop)
                _log_result(result)
            # The trace first: it may be there when a run that failed has no summary.
            if trace is not None:
                write_trace(trace, [("frame", segment.frame_recorder), ("control", segment.control_recorder)])
            if summary is not None and loop.report:
                write_whole(summary, json.dumps(result, indent=2).encode() + b"\n", "the summary")
    return not loop.is_rebuilding


def _summary(loop: ControlLoop) -> dict[str, object]:
    report, segment, counts = loop.report, loop.segment, loop.device.events.counts
    latencies = frame_latencies_ms(segment.frame_recorder, segment.control_recorder, end="events")
    return {
        "frames": report["frames"],
        "seconds": report["seconds"],
        "fps": report["fps"],
        "latency_ms": {"p50": percentile(latencies, 50), "p99": percentile(latencies, 99)},
        "events": {kind.value: counts[kind] for kind in EventType},
        "dropped": {
            "frames": report["dropped"],
            "sink_frames": report["sink_dropped"],
            "detections": segment.ring.dropped,
            "messages": loop.device.messages_dropped,
            "by_channel": report["dropped_by_channel"],
        },
        "pools": report["pools"],
        "warnings": report["warnings"],
        "ledger": report["ledger"],
        "written": report["written"],
    }


def _log_result(summary: dict[str, object]) -> None:
    log.info("%s frames, %.1f a second; events %s", summary["frames"], summary["fps"], summary["events"])
    ledger = summary["ledger"]
    log.info("ledger: %s", ledger["text"] if isinstance(ledger, dict) else "none")
    for warning in summary["warnings"] if isinstance(summary["warnings"], list) else ():
        log.warning("%s", warning)
    for path in summary["written"] if isinstance(summary["written"], list) else ():
        log.info("wrote %s", path)

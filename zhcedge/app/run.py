"""`zhc-edge run`: the daemon in the foreground, and what it writes about itself at the end."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from zhcedge.app.control import ControlLoop
from zhcedge.app.wiring import label_indices
from zhcedge.config.schema import Config
from zhcedge.core.events import EventType
from zhcedge.core.files import check_folder, write_whole
from zhcedge.models.bundle import load_bundle
from zhcedge.pipeline.recorder import frame_latencies_ms, percentile, write_trace
from zhcedge.service.clock import SystemClock
from zhcedge.service.log import set_up_logging

log = logging.getLogger(__name__)


def run(config: Config, *, summary: Path | None = None, trace: Path | None = None, log_level: str = "INFO") -> None:
    """Run the daemon until its sources have ended or a signal stops it.

    Args:
        summary: file for the summary as JSON, see README.
        trace: file for a Chrome trace of the last 65536 spans of each process.

    Raises what ended the run. Summary and trace are written also then, as far as there is something to write.
    """
    set_up_logging(log_level)
    for path in (summary, trace):
        if path is not None:
            check_folder(path, "the output")
    bundle = load_bundle(config.model.bundle)
    label_indices(config.events.labels or (), bundle.facts.labels, "events.labels")
    with ControlLoop(config, bundle, SystemClock(), log_level) as loop:
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


def _summary(loop: ControlLoop) -> dict[str, object]:
    report, segment, counts = loop.report, loop.segment, loop.events.counts
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
            "messages": loop.messages_dropped,
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

"""`zhc-edge run`: the daemon in the foreground, and what it writes about itself at the end."""

from __future__ import annotations

import json
from pathlib import Path

from zhcedge.app.control import ControlLoop
from zhcedge.config.schema import Config
from zhcedge.core.errors import OutputError
from zhcedge.core.events import EventType
from zhcedge.models.bundle import load_bundle
from zhcedge.pipeline.recorder import frame_latencies_ms, percentile, write_trace
from zhcedge.service.clock import SystemClock
from zhcedge.service.log import set_up_logging


def run(config: Config, *, summary: Path | None = None, trace: Path | None = None, log_level: str = "INFO") -> None:
    """Run the daemon until its sources have ended or a signal stops it.

    Args:
        summary: file for the summary as JSON, see README.
        trace: file for a Chrome trace of the last 65536 spans of each process.

    Raises what ended the run. Summary and trace are written also then, as far as there is something to write.
    """
    set_up_logging(log_level)
    bundle = load_bundle(config.model.bundle)
    with ControlLoop(config, bundle, SystemClock(), log_level) as loop:
        try:
            loop.run()
        finally:
            segment = loop.segment
            if summary is not None and loop.report:
                _write_json(summary, _summary(loop))
            if trace is not None:
                write_trace(trace, [("frame", segment.frame_recorder), ("control", segment.control_recorder)])


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
        },
        "pools": report["pools"],
        "ledger": report["ledger"],
        "written": report["written"],
    }


def _write_json(path: Path, value: dict[str, object]) -> None:
    try:
        path.write_text(json.dumps(value, indent=2) + "\n")
    except OSError as error:
        raise OutputError(
            f"the summary can't be written: {error.strerror}", where=str(path), fix="choose a writable folder"
        ) from error

"""The frame process: takes a configuration over its control pipe, runs the frame path, reports.

Started by the control process with the numbers of three descriptors: control pipe, shared memory, wake-up.
Messages are JSON lines. In: {"config": text, "log_level": word}, then {"stop": true}. Out: {"phase": word}, and at the
end {"report": ...} or {"error": ...}. When the pipe closes, the control process is gone and this one ends too.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import os
import signal
import socket
import sys
import threading
import time

from zhcedge.app.wiring import RunContext, build_plan, output_paths
from zhcedge.config.load import parse_dump
from zhcedge.config.schema import Config
from zhcedge.core.errors import PipelineError, ZhcEdgeError
from zhcedge.core.lifecycle import Lifecycle, Phase
from zhcedge.pipeline.plan import Plan, RunReport
from zhcedge.pipeline.segment import Segment
from zhcedge.service.clock import SystemClock
from zhcedge.service.frame_process import CONTROL_SIGNALS
from zhcedge.service.log import set_up_logging

log = logging.getLogger(__name__)

_ORPHAN_EXIT_S = 5.0  # how long an orphaned frame process may drain


class _ControlPipe:
    """The frame process's end of the control pipe. `send` from any thread; one thread listens."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._lines = self._socket.makefile("r", encoding="utf-8")
        self._lock = threading.Lock()

    def send(self, message: dict[str, object]) -> None:
        data = json.dumps(message).encode() + b"\n"
        try:
            with self._lock:
                self._socket.sendall(data)
        except OSError:
            pass  # the control process is gone; the listener sees that too and ends this process

    def first(self) -> dict[str, object]:
        line = self._lines.readline()
        if not line:
            os._exit(0)
        message: dict[str, object] = json.loads(line)
        return message

    def listen(self, stop: threading.Event) -> None:
        """Set `stop` on a stop message, or when the pipe closes; then the process ends within seconds."""

        def body() -> None:
            for line in self._lines:
                if json.loads(line).get("stop"):
                    stop.set()
            stop.set()
            time.sleep(_ORPHAN_EXIT_S)
            os._exit(0)

        threading.Thread(target=body, name="control pipe", daemon=True).start()


def main(argv: list[str]) -> int:
    """Run one frame process. Returns the exit code of the error that ended it, or 0."""
    control_fd, memory_fd, wake_fd = (int(text) for text in argv)
    # A terminal's Ctrl-C and a service manager's SIGTERM reach this process too: the control process decides.
    for number in CONTROL_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    pipe = _ControlPipe(control_fd)
    first = pipe.first()
    set_up_logging(str(first.get("log_level", "INFO")))
    config = parse_dump(str(first["config"]))
    stop = threading.Event()
    pipe.listen(stop)
    segment = Segment(memory_fd, wake_fd)

    def tell(phase: Phase) -> None:
        segment.counters["phase"] = phase.number
        pipe.send({"phase": phase.value})

    lifecycle = Lifecycle(tell)
    try:
        report = _run(config, RunContext(segment, SystemClock(), lifecycle), stop)
    # The process's last resort: the control process must hear why it ends.
    except Exception as caught:  # noqa: BLE001
        error = _as_ours(caught)
        if lifecycle.phase is not Phase.FAILED:
            lifecycle.to(Phase.FAILED)
        pipe.send({"error": {"what": error.what, "where": error.where, "fix": error.fix, "code": error.exit_code}})
        return error.exit_code
    lifecycle.to(Phase.STOPPED)
    pipe.send({"report": _as_dict(report, config)})
    return 0


def _as_ours(error: Exception) -> ZhcEdgeError:
    if isinstance(error, ZhcEdgeError):
        return error
    log.error("the frame process failed", exc_info=error)
    return PipelineError(f"{type(error).__name__}: {error}", where="frame process", fix="report this as a bug")


def _run(config: Config, context: RunContext, stop: threading.Event) -> RunReport:
    with build_plan(config, context) as plan:
        _stop_when_asked(plan, stop)
        runtime = plan.warm_up()
        counters, proof = context.segment.counters, plan.ledger(0).proof
        counters["canaries_planted"], counters["canaries_seen"] = proof.planted, proof.seen
        # No collector pause in the frame path: it makes no garbage cycles worth collecting.
        gc.collect()
        gc.freeze()
        gc.disable()
        report = runtime.process()
        for kind, count in report.ledger.violations.items():
            counters[f"violations: {kind.value}"] = count
        counters["frames_dropped"] = report.dropped
    return report


def _stop_when_asked(plan: Plan[object], stop: threading.Event) -> None:
    def body() -> None:
        stop.wait()
        plan.stop()

    threading.Thread(target=body, name="stopper", daemon=True).start()


def _as_dict(report: RunReport, config: Config) -> dict[str, object]:
    return {
        "frames": report.frames,
        "seconds": report.seconds,
        "fps": report.fps,
        "dropped": report.dropped,
        "sink_dropped": report.sink_dropped,
        "ledger": report.ledger.as_dict(),
        "pools": report.pools,
        "warnings": list(report.warnings),
        "written": [str(path) for path in output_paths(config)],
    }


if __name__ == "__main__":
    logging.raiseExceptions = False
    sys.exit(main(sys.argv[1:]))

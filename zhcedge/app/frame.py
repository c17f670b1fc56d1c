"""The frame process: takes a configuration over its control pipe, runs the frame path, reports.

Started by the control process with the numbers of three descriptors: control pipe, shared memory, wake-up.
Messages are JSON lines. In: {"config": text, "log_level": word}, then {"stop": true}. Out: {"phase": word}, and at the
end {"report": ...} or {"error": ...}. When the pipe closes, the control process is gone and this one ends too.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import itertools
import json
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence

from zhcedge.app.frame_clips import FrameClips
from zhcedge.app.frame_commands import ChannelCommands, error_facts
from zhcedge.app.interpreter import leave
from zhcedge.app.outputs import OutputWatch
from zhcedge.app.picture_events import as_facts
from zhcedge.app.plan_start import EngineStart
from zhcedge.app.wiring import RunContext, build_plan
from zhcedge.config.load import parse_dump
from zhcedge.config.schema import Config
from zhcedge.core.errors import PipelineError, ZhcEdgeError
from zhcedge.core.lifecycle import Lifecycle, Phase
from zhcedge.core.types import ViolationKind
from zhcedge.pipeline.channel import ChannelNews
from zhcedge.pipeline.plan import Plan, RunReport, Runtime
from zhcedge.pipeline.segment import Counters, Segment
from zhcedge.service.clock import SystemClock
from zhcedge.service.frame_process import CONTROL_SIGNALS, TRACE_SIGNAL
from zhcedge.service.log import set_up_logging

log = logging.getLogger(__name__)

_ORPHAN_EXIT_S = 5.0  # how long an orphaned frame process may drain
_UNFINISHED_EXIT_S = 5.0  # how long initialising may go on after a stop: cameras may be waited for for minutes
_BEAT_S = 1.0
_NEWS_S = 1.0
_FLOW_TURNS = 2


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

    def listen(self, stop: threading.Event, commands: ChannelCommands) -> None:
        """Set `stop` on a stop message, or when the pipe closes; then the process ends within seconds."""

        def body() -> None:
            # Killed, the control process may leave half a line, or something of ours unread: then this is a reset.
            with contextlib.suppress(OSError, ValueError):
                for line in self._lines:
                    message: dict[str, object] = json.loads(line)
                    if message.get("stop"):
                        stop.set()
                    elif "command" in message:
                        commands.submit(message)
            stop.set()
            time.sleep(_ORPHAN_EXIT_S)
            os._exit(0)

        threading.Thread(target=body, name="control pipe", daemon=True).start()


def main(argv: list[str]) -> int:
    """Run one frame process. Returns the exit code of the error that ended it, or 0."""
    control_fd, memory_fd, wake_fd, trace_fd = (int(text) for text in argv)
    # A terminal's Ctrl-C and a service manager's SIGTERM reach this process too: the control process decides.
    for number in CONTROL_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable(trace_fd)
    faulthandler.register(TRACE_SIGNAL, trace_fd)
    pipe = _ControlPipe(control_fd)
    first = pipe.first()
    set_up_logging(str(first.get("log_level", "INFO")), "frame")
    config = parse_dump(str(first["config"]))
    outputs = OutputWatch(config)
    stop = threading.Event()
    clips = FrameClips(config, pipe.send)
    commands = ChannelCommands(pipe.send, clips)
    pipe.listen(stop, commands)
    segment = Segment(memory_fd, wake_fd)

    def tell(phase: Phase) -> None:
        segment.counters["phase"] = phase.number
        caught = sys.exc_info()[1]
        if phase is Phase.FAILED and caught is not None:
            pipe.send({"error": error_facts(_as_ours(caught))})  # now: closing may crash, or never end
        pipe.send({"phase": phase.value})

    _start_beating(segment)
    lifecycle = Lifecycle(tell)
    starts: list[EngineStart] = []
    context = RunContext(
        segment,
        SystemClock(),
        lifecycle,
        on_channels=commands.use_factory,
        on_engine=starts.append,
        stop=stop,
        listener=lambda news: pipe.send(_news(news)),
        keep_packets=clips.keeper,
    )
    try:
        with contextlib.closing(clips):
            report = _run(config, context, stop, commands, lambda: _tell_degraded(starts, pipe), pipe.send)
    # The process's last resort: the control process must hear why it ends.
    except Exception as caught:
        error = _as_ours(caught)
        if error is not caught:
            log.error("the frame process failed", exc_info=caught)
        if lifecycle.phase is not Phase.FAILED:
            lifecycle.to(Phase.FAILED)
        pipe.send({"error": error_facts(error)})
        return error.exit_code
    lifecycle.to(Phase.STOPPED)
    pipe.send({"report": _as_dict(report, outputs)})
    return 0


def _news(news: ChannelNews) -> dict[str, object]:
    return {"channel": news.name, "index": news.index, "state": news.state.value, "reason": news.reason}


def _start_beating(segment: Segment) -> None:
    """Count seconds for the control process: it kills a frame process whose count stands still (service/liveness)."""

    def body() -> None:
        while True:
            segment.counters["alive"] += 1
            time.sleep(_BEAT_S)

    threading.Thread(target=body, name="beat", daemon=True).start()


def _start_reporting_flow(
    runtime: Runtime[object], counters: Counters, send: Callable[[dict[str, object]], None]
) -> None:
    """Tell the frames that came and those that were dropped so far, by channel, every other time; violations, the
    frames that are worked on, and the figures of pictures that are watched, every time."""

    def body() -> None:
        for turn in itertools.count():
            for kind in ViolationKind:
                counters[f"violations: {kind.value}"] = runtime.violations.get(kind, 0)
            counters["in_hand"] = runtime.in_hand
            if pictures := _pictures(runtime):
                send({"pictures": pictures})
            if turn % _FLOW_TURNS == 0:
                send({"flow": {one.name: (one.frames, one.dropped) for one in tuple(runtime.roster.channels)}})
            time.sleep(_NEWS_S)

    threading.Thread(target=body, name="flow", daemon=True).start()


def _pictures(runtime: Runtime[object]) -> dict[str, object]:
    """What there is to tell of the channels' pictures, by channel."""
    found: dict[str, object] = {}
    for channel in tuple(runtime.roster.channels):
        figures = channel.picture.take() if channel.picture is not None else None
        if figures is not None:
            found[channel.name] = as_facts(figures, channel.facts.format.width_px, channel.facts.format.height_px)
    return found


def _as_ours(error: BaseException) -> ZhcEdgeError:
    if isinstance(error, ZhcEdgeError):
        return error
    return PipelineError(f"{type(error).__name__}: {error}", where="frame process", fix="report this as a bug")


def _tell_degraded(starts: Sequence[EngineStart], pipe: _ControlPipe) -> None:
    """Say that another engine runs than the configuration wants: a plan is then built, which must not disturb the
    warm-up's measurements."""
    for start in starts:
        if start.degraded:
            pipe.send(start.as_message())


def _run(
    config: Config,
    context: RunContext,
    stop: threading.Event,
    commands: ChannelCommands,
    on_active: Callable[[], None],
    tell_flow: Callable[[dict[str, object]], None],
) -> RunReport:
    plans: queue.SimpleQueue[Plan[object]] = queue.SimpleQueue()
    _stop_when_asked(plans, stop)
    with build_plan(config, context) as plan:
        plans.put(plan)
        runtime = plan.warm_up()
        counters, proof = context.segment.counters, plan.ledger(0).proof
        counters["canaries_planted"], counters["canaries_seen"] = proof.planted, proof.seen
        counters["kinds_not_visible"] = len(proof.blind)
        # No collector pause in the frame path: it makes no garbage cycles worth collecting.
        gc.collect()
        gc.freeze()
        gc.disable()
        commands.start(runtime)
        on_active()
        _start_reporting_flow(runtime, counters, tell_flow)
        report = runtime.process()
        for kind, count in report.ledger.violations.items():
            counters[f"violations: {kind.value}"] = count
        counters["frames_dropped"] = report.dropped
    return report


def _stop_when_asked(plans: queue.SimpleQueue[Plan[object]], stop: threading.Event) -> None:
    """Stop the plan, which comes once it is initialised. When it does not, end the process: no frame is in flight."""

    def body() -> None:
        stop.wait()
        try:
            plan = plans.get(timeout=_UNFINISHED_EXIT_S)
        except queue.Empty:
            log.info("stopped while initialising")
            leave(0)
        plan.stop()

    threading.Thread(target=body, name="stopper", daemon=True).start()


def _as_dict(report: RunReport, outputs: OutputWatch) -> dict[str, object]:
    return {
        "frames": report.frames,
        "seconds": report.seconds,
        "fps": report.fps,
        "dropped": report.dropped,
        "sink_dropped": report.sink_dropped,
        "dropped_by_channel": {
            name: {"frames": frames, "sink_frames": of_sinks}
            for name, (frames, of_sinks) in report.dropped_by_channel.items()
        },
        "ledger": report.ledger.as_dict(),
        "pools": report.pools,
        "snapshots": {"taken": report.snapshots, "refused": report.snapshots_refused},
        "warnings": list(report.warnings),
        "failures": {name: error_facts(error) for name, error in report.failures.items()},
        "written": [str(path) for path in outputs.written()],
    }


if __name__ == "__main__":
    logging.raiseExceptions = False
    leave(main(sys.argv[1:]))

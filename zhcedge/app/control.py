"""The control process's loop: one selector over the ring, the frame process, signals and the broker.

It stays up whatever the frame process does: a frame process that ends without being asked is started again with
growing pauses, unless it says that starting it again can't help (a wrong model, a missing file).
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import time
import uuid
from collections.abc import Mapping, Sequence
from types import FrameType

from zhcedge.app.control_requests import ControlRequests
from zhcedge.app.device import Device
from zhcedge.app.interpreter import command_for
from zhcedge.app.loop_watcher import LoopWatcher
from zhcedge.app.plan_start import build_request
from zhcedge.app.plan_swap import PlanSwap, may_swap
from zhcedge.app.reload import Reloader
from zhcedge.app.remote_errors import remote_error
from zhcedge.app.status_facts import status_facts
from zhcedge.config.load import dump
from zhcedge.config.schema import Config
from zhcedge.core.errors import BackendUnavailableError, PipelineError, ZhcEdgeError
from zhcedge.core.events import EndReason
from zhcedge.core.lifecycle import Phase
from zhcedge.core.message_ids import MessageId, tagged
from zhcedge.core.ports import Clock
from zhcedge.models.bundle import Bundle
from zhcedge.pipeline.segment import Segment
from zhcedge.service.frame_process import CONTROL_SIGNALS, FrameProcess, eventfd, exit_error, restart_delay_s
from zhcedge.service.liveness import Liveness
from zhcedge.service.socket_file import SocketFile

log = logging.getLogger(__name__)

_TICK_S = 0.5
_DRAIN_S = 20.0  # how long a frame process may take to drain before it is killed
_HEALTHY_S = 60.0  # an active phase of this length makes the next restart a quick one


class ControlLoop:
    """One run of the daemon. Use as a context manager; `run` blocks until everything has ended.

    Args:
        bundle: the verified model, for labels and state messages; the frame process verifies it again.
        swap: builds a plan where the frame process runs without the wanted one; None makes one.
        socket: for `zhc-edge status` and others; stays the caller's to close.
        watchers: told what happens.
        reloader: keeps the configuration; None where it is not loaded again.

    Attributes:
        is_rebuilding: another loop is to follow, with what the reloader holds then.

    Raises what Device raises; then nothing stays open.
    """

    def __init__(
        self,
        config: Config,
        bundle: Bundle,
        clock: Clock,
        log_level: str,
        swap: PlanSwap | None = None,
        socket: SocketFile | None = None,
        watchers: Sequence[LoopWatcher] = (),
        reloader: Reloader | None = None,
    ) -> None:
        self._config, self._bundle, self._clock = config, bundle, clock
        boot_id, started_s = uuid.uuid4().hex, time.monotonic()
        self._phase, self._reason = Phase.INITIALISING, ""
        self._memory_fd, self._ring_fd, self._wake_fd = Segment.create_fd(), eventfd(), eventfd()
        self.segment = Segment(self._memory_fd)
        recorder = self.segment.control_recorder
        self._publish_span, self._publish_track = recorder.name("publish"), recorder.track("publish")
        self._frame: FrameProcess | None = None
        self._swap = swap or PlanSwap(self._wake)
        self._engine_fault, self._is_swapping = "", False
        self._liveness = Liveness(started_s)
        self._was_active = False  # ever, in this run of the daemon
        self._attempt, self._active_since_s, self._restart_at_s = 0, 0.0, 0.0
        self._stop_requested = self._stop_sent = self._is_stop_told = self._is_signalled = False
        self._stop_deadline_s = 0.0
        self._frame_error: ZhcEdgeError | None = None  # what the current frame process said of its end
        self._final_error: ZhcEdgeError | None = None
        self.report: dict[str, object] = {}
        try:
            self.device = Device(config, bundle, self.segment, boot_id, clock, self._wake)
        except ZhcEdgeError:
            self._close_fds()
            raise
        self.device.log_level = log_level
        self._reloader, self.is_rebuilding = reloader, False
        self._watchers = (*watchers, *([reloader] if reloader is not None else []))
        for watcher in self._watchers:
            watcher.begin(self.device, self.segment)
        self._requests = ControlRequests(
            socket, lambda: status_facts(self._config, self.device, self.segment), self.device.submit, reloader
        )
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._ring_fd, selectors.EVENT_READ)
        self._selector.register(self._wake_fd, selectors.EVENT_READ)
        if socket is not None:
            self._selector.register(self._requests.fileno(), selectors.EVENT_READ)

    def __enter__(self) -> ControlLoop:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_rebuilding:
            signal.pthread_sigmask(signal.SIG_BLOCK, CONTROL_SIGNALS)  # the next loop takes what comes meanwhile
        else:
            for number in CONTROL_SIGNALS:
                signal.signal(number, signal.SIG_IGN)  # it is over: a late one must not find closed descriptors
        if self._reloader is not None:
            self._reloader.loop_ended()
        if self._frame is not None:
            self._frame.close()
        self._swap.close()
        self._requests.close()
        self.device.close()
        self._selector.close()
        self._close_fds()

    def _close_fds(self) -> None:
        for fd in (self._memory_fd, self._ring_fd, self._wake_fd):
            os.close(fd)

    # -- the loop ----------------------------------------------------------------------------------------------
    def run(self) -> None:
        """Run until the sources have ended, a signal came, or nothing can help. Raises the error that ended it."""
        for number in CONTROL_SIGNALS:
            signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, CONTROL_SIGNALS)
        if self._reloader is not None:
            self._reloader.loop, self._reloader.wake = self, self._wake
        self.device.start()
        self._start_frame_process()
        while self._frame is not None or self._restart_at_s:
            self._turn()
        self._finish()
        if self._final_error is not None:
            raise self._final_error

    def _turn(self) -> None:
        ready = {key.fd for key, _ in self._selector.select(self._timeout_s())}
        for fd in (self._ring_fd, self._wake_fd):
            if fd in ready:
                os.eventfd_read(fd)
        self._drain_ring()
        if self._frame is not None and self._frame.fileno() in ready:
            self._listen(self._frame)
        self._requests.turn()
        self.device.turn(self.segment.counters)
        self._keep_deadlines()
        for watcher in self._watchers:
            watcher.turn(time.monotonic())

    def _timeout_s(self) -> float:
        if self._requests.is_busy:
            return 0.0
        until = [at - time.monotonic() for at in (self._restart_at_s, self._stop_deadline_s) if at]
        return max(0.0, min([_TICK_S, *until]))

    def _drain_ring(self) -> None:
        for record in self.segment.ring.drain():
            if not self.device.events.knows(record) and self._frame is not None:
                self._listen(self._frame)  # the news of its channel were sent before it
            if self.device.events.knows(record) and self.device.events.handle(record):
                started_ns = self._clock.monotonic_ns()
                self.device.pump()  # per record: a frame's events must not wait for those of the next one
                channel, sequence = record.info.channel, record.info.sequence
                span = (self._publish_span, self._publish_track, channel, sequence)
                self.segment.control_recorder.span(*span, started_ns, self._clock.monotonic_ns())

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop_requested = self._is_signalled = True
        self.is_rebuilding = False
        self._wake()

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def _keep_deadlines(self) -> None:
        now_s = time.monotonic()
        if self._stop_requested and not self._stop_sent:
            self._stop_sent, self._restart_at_s = True, 0.0
            self.device.events.end_reason = self._end_reason
            self._tell_stopping()
            if self._frame is not None:
                self._frame.request_stop()
                self._stop_deadline_s = now_s + _DRAIN_S
        if self._swap.is_ready and self._phase is Phase.ACTIVE and not self._stop_requested:
            self._begin_swap(now_s)
        if self._engine_fault and self._swap.failure not in self._engine_fault:
            self._engine_fault += f"; {self._swap.failure}"
            self._set_state()
        if self._stop_deadline_s and now_s > self._stop_deadline_s and self._frame is not None:
            error = PipelineError(f"the frame process did not drain within {_DRAIN_S:.0f} s")
            if self._stop_requested:
                self._final_error = error
            else:  # it was to start again anyway
                self._frame_error, self._stop_deadline_s = error, 0.0
            self._frame_ended(self._frame, killed=True)
        if self._frame is not None and not self._stop_deadline_s:
            counters = self.segment.counters
            alive, frames, in_hand = counters["alive"], counters["heartbeat"], counters["in_hand"]
            fault = self._liveness.fault(alive, self._phase, now_s, frames, in_hand)
            if fault is not None:
                self._frame_error = self._frame_error or fault
                log.error("%s: it is killed", fault, extra=tagged(MessageId.FRAME_PROCESS_ENDED))
                self._frame_ended(self._frame, killed=True)
        if self._restart_at_s and now_s >= self._restart_at_s:
            self._restart_at_s = 0.0
            self._start_frame_process()

    def _begin_swap(self, now_s: float) -> None:
        """Drain the frame process, to start it again with the plan that has been built."""
        self._swap.take()
        if self._frame is None or not may_swap(self._config):
            log.info("the plan is taken at the next start: this run writes files, or plays one that would begin again")
            return
        self._is_swapping = True
        self._frame.request_stop()
        self._stop_deadline_s = now_s + _DRAIN_S

    # -- the frame process -------------------------------------------------------------------------------------
    def _start_frame_process(self) -> None:
        command = command_for("zhcedge.app.frame")
        first: dict[str, object] = {"config": dump(self._config), "log_level": self.device.log_level}
        self._engine_fault = ""
        self._set_phase(Phase.INITIALISING)
        self._frame_error = None
        self.segment.control_recorder.clear()  # its spans are of frames whose numbers begin again
        try:
            self._frame = FrameProcess(command, self._memory_fd, self._ring_fd, first)
        except PipelineError as error:
            if not self._attempt:
                raise
            self._plan_restart(error)  # no memory or no process to be had: that may pass
            return
        self.device.frame = self._frame
        for watcher in self._watchers:
            watcher.frame_process_started(self._frame.pid)
        self._liveness = Liveness(time.monotonic())
        self._selector.register(self._frame.fileno(), selectors.EVENT_READ)

    def _listen(self, frame: FrameProcess) -> None:
        messages, is_closed = frame.messages()
        for message in messages:
            if "phase" in message:
                phase = Phase(message["phase"])
                if phase is Phase.FAILED:
                    self._liveness.note_failed(time.monotonic())
                is_between = self._is_swapping and phase is Phase.STOPPED
                if phase not in (self._phase, Phase.FAILED) and not is_between:  # `failed` comes when the process ended
                    self._set_phase(phase)
            elif "channel" in message:
                self.device.channel_changed(message)
            elif "degraded" in message:
                self._degrade(message)
            elif "done" in message or "refused" in message:
                self.device.answered(message)
            elif "clip" in message:
                self.device.take_clip(message["clip"])
            elif "pictures" in message:
                self.device.note_pictures(message["pictures"])
            elif "flow" in message:
                self.device.note_flow(message["flow"])
            elif "report" in message:
                report = message["report"]
                self.report = report if isinstance(report, dict) else {}
                failures = self.report.get("failures")
                for fault in failures.values() if isinstance(failures, dict) else ():  # the others came through
                    self._final_error = self._final_error or remote_error(fault)
            elif "error" in message:
                self._frame_error = remote_error(message["error"])
        if is_closed:
            self._frame_ended(frame)

    def _frame_ended(self, frame: FrameProcess, *, killed: bool = False) -> None:
        self._selector.unregister(frame.fileno())
        status = frame.wait(0.0 if killed else 5.0)
        trace = frame.trace()
        frame.close()
        self._frame = None
        self._drain_ring()
        self.device.frame_process_ended()
        was_swapping, self._is_swapping = self._is_swapping, False
        if status == 0 and was_swapping and not self._stop_requested:
            self._stop_deadline_s = 0.0
            self.device.events.end_all(EndReason.CHANNEL_ENDED)
            self._start_frame_process()
            return
        if status == 0:
            return
        error = self._final_error or self._frame_error or exit_error(status)
        if trace:
            log.error("where the frame process was:\n%s", trace)
        self.device.events.end_all(EndReason.CHANNEL_ENDED)
        self._set_phase(Phase.FAILED, str(error))
        is_over = self._stop_requested or not self._can_restart(error)
        if is_over:
            self._final_error = error
        else:
            self._plan_restart(error)
        for watcher in self._watchers:
            restart_in_s = None if is_over else self._restart_at_s - time.monotonic()
            watcher.frame_process_failed(error, status, restart_in_s, trace)

    def _degrade(self, message: Mapping[str, object]) -> None:
        """The frame process runs another engine than the wanted one: say so, and build what it lacks."""
        self._engine_fault = str(message["degraded"])
        log.warning("%s", self._engine_fault)
        if message["builds"]:
            self._swap.start(build_request(self._config, self._bundle, int(str(message["batch"]))))
        self._set_state()

    def _can_restart(self, error: ZhcEdgeError) -> bool:
        """A crash or a failed stage may pass, and so may the loss of a GPU that was there before; input, model, output
        and configuration faults stay, and so does what was missing from the beginning."""
        if self._was_active and error.exit_code == BackendUnavailableError.exit_code:
            return True
        return isinstance(error, PipelineError) and error.exit_code == PipelineError.exit_code

    def _plan_restart(self, error: ZhcEdgeError) -> None:
        was_healthy = self._active_since_s and time.monotonic() - self._active_since_s >= _HEALTHY_S
        self._attempt = 0 if was_healthy else self._attempt
        delay_s = restart_delay_s(self._attempt)
        self._attempt += 1
        self._active_since_s = 0.0
        self._restart_at_s = time.monotonic() + delay_s
        log.error("%s; next start in %.0f s", error, delay_s, extra=tagged(MessageId.FRAME_PROCESS_ENDED))

    # -- state ------------------------------------------------------------------------------------------------
    def _set_phase(self, phase: Phase, reason: str = "") -> None:
        self._phase, self._reason = phase, reason
        if phase is Phase.ACTIVE:
            self._active_since_s = time.monotonic()
            self._was_active = True
        log.info("phase %s", phase, extra=tagged(MessageId.PHASE, phase=str(phase)))
        self._set_state()

    def _set_state(self) -> None:
        config_fault = self._reloader.fault if self._reloader is not None else ""
        degraded = [reason for reason in (self._reason, self._engine_fault, config_fault) if reason]
        self.device.set_phase(self._phase, degraded)
        for watcher in self._watchers:
            watcher.phase_changed(self._phase, degraded)

    # -- another configuration ---------------------------------------------------------------------------------
    def reconfigure(self, config: Config, reopened: frozenset[str]) -> None:
        """See Reconfigured."""
        self._config = config
        self.device.reconfigure(config, reopened)
        self._set_state()

    def rebuild(self) -> None:
        """See Reconfigured. Whoever has asked the daemon to stop comes first."""
        if not self._stop_requested:
            self.is_rebuilding = self._stop_requested = True
            self._wake()

    def _end_trial(self) -> None:
        """A configuration on trial with which the loop has failed makes way for the former one, in another loop."""
        error = self._final_error
        if error is None or self._is_signalled or self._reloader is None or not self._reloader.revert(str(error)):
            return
        log.error("%s", error)
        self._final_error, self.is_rebuilding = None, True

    @property
    def _end_reason(self) -> EndReason:
        return EndReason.RELOAD if self.is_rebuilding else EndReason.SHUTDOWN

    def _tell_stopping(self) -> None:
        if self.is_rebuilding or self._is_stop_told:
            return
        self._is_stop_told = True
        for watcher in self._watchers:
            watcher.stopping()

    def _finish(self) -> None:
        """End open events, deliver what is left, say goodbye."""
        self._end_trial()
        self._tell_stopping()
        if self._requests.fileno() >= 0:
            self._selector.unregister(self._requests.fileno())
        self._requests.close()  # from here on the loop does not turn, and nobody would answer
        if self._stop_requested and self._final_error is None and self._phase is not Phase.STOPPED:
            self._set_phase(Phase.STOPPED)  # asked to stop between two starts of the frame process
        undelivered = self.device.finish(self._end_reason)
        if self.is_rebuilding and undelivered is not None:
            log.warning("%s", undelivered)  # no reason not to go on
        else:
            self._final_error = self._final_error or undelivered

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
from types import FrameType

from zhcedge import __version__
from zhcedge.app.event_path import EventPath
from zhcedge.app.interpreter import command_for
from zhcedge.config.load import dump
from zhcedge.config.schema import Config, MqttConfig
from zhcedge.core.errors import BrokerError, ConfigError, PipelineError, ZhcEdgeError
from zhcedge.core.events import EndReason
from zhcedge.core.lifecycle import Phase
from zhcedge.core.ports import Clock, Message
from zhcedge.models.bundle import Bundle
from zhcedge.pipeline.segment import Segment
from zhcedge.publish import payloads
from zhcedge.publish.courier import Courier
from zhcedge.publish.mqtt import MqttBroker
from zhcedge.publish.session import BrokerSettings
from zhcedge.publish.topics import Topics
from zhcedge.service.frame_process import CONTROL_SIGNALS, FrameProcess, eventfd, exit_error, restart_delay_s
from zhcedge.store.memory import MemoryOutbox

log = logging.getLogger(__name__)

_TICK_S = 0.5
_DRAIN_S = 20.0  # how long a frame process may take to drain before it is killed
_DELIVER_S = 10.0  # how long the last events may take to be acknowledged
_MAX_PASSWORD_BYTES = 65535  # MQTT 3.1.1, section 1.5.3
_HEALTHY_S = 60.0  # an active phase of this length makes the next restart a quick one


class ControlLoop:
    """One run of the daemon. Use as a context manager; `run` blocks until everything has ended.

    Args:
        bundle: the verified model, for labels and state messages; the frame process verifies it again.
    """

    def __init__(self, config: Config, bundle: Bundle, clock: Clock, log_level: str) -> None:
        self._config, self._bundle, self._clock, self._log_level = config, bundle, clock, log_level
        self._boot_id, self._started_s = uuid.uuid4().hex, time.monotonic()
        self._phase, self._reason = Phase.INITIALISING, ""
        self._memory_fd, self._ring_fd, self._wake_fd = Segment.create_fd(), eventfd(), eventfd()
        self.segment = Segment(self._memory_fd)
        recorder = self.segment.control_recorder
        self._publish_span, self._publish_track = recorder.name("publish"), recorder.track("publish")
        self._frame: FrameProcess | None = None
        self._attempt, self._active_since_s, self._restart_at_s = 0, 0.0, 0.0
        self._stop_requested = self._stop_sent = False
        self._stop_deadline_s = 0.0
        self._was_connected = self._is_state_stale = False
        self._frame_error: ZhcEdgeError | None = None  # what the current frame process said of its end
        self._final_error: ZhcEdgeError | None = None
        self.report: dict[str, object] = {}
        self._topics = Topics(config.device, config.mqtt.topic_prefix)
        self._outbox = MemoryOutbox(config.mqtt.outbox_limit)
        self._courier = Courier(self._outbox)
        encoder = payloads.EventEncoder(self._topics, self._boot_id, self._outbox.outbox_id, bundle.facts.sha256)
        outbox = self._outbox if config.mqtt.enabled else None
        self.events = EventPath(config, bundle.facts.labels, encoder, outbox, self.segment.control_recorder, clock)
        self._state = self._state_message()
        self._broker = self._make_broker() if config.mqtt.enabled else None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._ring_fd, selectors.EVENT_READ)
        self._selector.register(self._wake_fd, selectors.EVENT_READ)

    def __enter__(self) -> ControlLoop:
        return self

    def __exit__(self, *_: object) -> None:
        for number in CONTROL_SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # it is over: a late one must not find closed descriptors
        if self._frame is not None:
            self._frame.close()
        self._selector.close()
        for fd in (self._memory_fd, self._ring_fd, self._wake_fd):
            os.close(fd)

    @property
    def messages_dropped(self) -> int:
        """Messages that the full outbox gave up, updates included."""
        return self._outbox.dropped

    # -- the loop ----------------------------------------------------------------------------------------------
    def run(self) -> None:
        """Run until the sources have ended, a signal came, or nothing can help. Raises the error that ended it."""
        for number in CONTROL_SIGNALS:
            signal.signal(number, self._on_signal)
        if self._broker is not None:
            self._broker.start()
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
        if self._is_state_stale and self._broker is not None:
            self._is_state_stale = not self._broker.publish(self._state)
        if self._frame is not None and self._frame.fileno() in ready:
            self._listen(self._frame)
        self._pump()
        self._keep_deadlines()

    def _timeout_s(self) -> float:
        until = [at - time.monotonic() for at in (self._restart_at_s, self._stop_deadline_s) if at]
        return max(0.0, min([_TICK_S, *until]))

    def _drain_ring(self) -> None:
        for record in self.segment.ring.drain():
            if self.events.handle(record):
                started_ns = self._clock.monotonic_ns()
                self._pump()  # per record: a frame's events must not wait for those of the next one
                channel, sequence = record.info.channel, record.info.sequence
                span = (self._publish_span, self._publish_track, channel, sequence)
                self.segment.control_recorder.span(*span, started_ns, self._clock.monotonic_ns())

    def _pump(self) -> None:
        if self._broker is not None:
            self._courier.pump(self._broker)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop_requested = True
        self._wake()

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def _keep_deadlines(self) -> None:
        now_s = time.monotonic()
        if self._stop_requested and not self._stop_sent:
            self._stop_sent, self._restart_at_s = True, 0.0
            if self._frame is not None:
                self._frame.request_stop()
                self._stop_deadline_s = now_s + _DRAIN_S
        if self._stop_deadline_s and now_s > self._stop_deadline_s and self._frame is not None:
            self._final_error = PipelineError(f"the frame process did not drain within {_DRAIN_S:.0f} s")
            self._frame_ended(self._frame, killed=True)
        if self._restart_at_s and now_s >= self._restart_at_s:
            self._restart_at_s = 0.0
            self._start_frame_process()

    # -- the frame process -------------------------------------------------------------------------------------
    def _start_frame_process(self) -> None:
        command = command_for("zhcedge.app.frame")
        first: dict[str, object] = {"config": dump(self._config), "log_level": self._log_level}
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
        self._selector.register(self._frame.fileno(), selectors.EVENT_READ)

    def _listen(self, frame: FrameProcess) -> None:
        messages, is_closed = frame.messages()
        for message in messages:
            if "phase" in message:
                phase = Phase(message["phase"])
                if phase not in (self._phase, Phase.FAILED):  # `failed` comes with its reason once the process is gone
                    self._set_phase(phase)
            elif "report" in message:
                report = message["report"]
                self.report = report if isinstance(report, dict) else {}
            elif "error" in message:
                self._frame_error = _remote_error(message["error"])
        if is_closed:
            self._frame_ended(frame)

    def _frame_ended(self, frame: FrameProcess, *, killed: bool = False) -> None:
        self._selector.unregister(frame.fileno())
        status = frame.wait(0.0 if killed else 5.0)
        frame.close()
        self._frame = None
        self._drain_ring()
        if status == 0:
            return
        error = self._final_error or self._frame_error or exit_error(status)
        self.events.end_all(EndReason.CHANNEL_ENDED)
        self._set_phase(Phase.FAILED, str(error))
        if self._stop_requested or not self._can_restart(error):
            self._final_error = error
            return
        self._plan_restart(error)

    def _can_restart(self, error: ZhcEdgeError) -> bool:
        """A crash or a failed stage may pass; input, model, output and configuration faults stay."""
        return isinstance(error, PipelineError) and error.exit_code == PipelineError.exit_code

    def _plan_restart(self, error: ZhcEdgeError) -> None:
        was_healthy = self._active_since_s and time.monotonic() - self._active_since_s >= _HEALTHY_S
        self._attempt = 0 if was_healthy else self._attempt
        delay_s = restart_delay_s(self._attempt)
        self._attempt += 1
        self._active_since_s = 0.0
        self._restart_at_s = time.monotonic() + delay_s
        log.error("%s; next start in %.0f s", error, delay_s)

    # -- state and broker --------------------------------------------------------------------------------------
    def _set_phase(self, phase: Phase, reason: str = "") -> None:
        self._phase, self._reason = phase, reason
        if phase is Phase.ACTIVE:
            self._active_since_s = time.monotonic()
        log.info("phase %s", phase)
        self._state = self._state_message()
        if self._broker is not None:
            self._broker.publish(self._state)

    def _state_message(self) -> Message:
        facts = payloads.DeviceState(
            phase=self._phase,
            version=__version__,
            profile=self._config.profile,
            model=self._bundle.facts.name,
            model_sha256=self._bundle.facts.sha256,
            boot_id=self._boot_id,
            uptime_s=time.monotonic() - self._started_s,
            cameras=tuple(self._config.channels),
            degraded=(self._reason,) if self._reason else (),
        )
        return payloads.state(self._topics, facts)

    def _make_broker(self) -> MqttBroker:
        online = payloads.available(self._topics, payloads.ONLINE)
        return MqttBroker(
            broker_settings(self._config),
            payloads.available(self._topics, payloads.OFFLINE),
            lambda: (self._state, online),
            on_connect=self._on_connect,
            on_ack=self._on_ack,
            on_problem=lambda text: log.warning("%s; events are kept and it is tried again", text),
        )

    def _on_connect(self) -> None:
        # The state may have changed since the session's first messages were made.
        self._was_connected = self._is_state_stale = True
        self._wake()

    def _on_ack(self, token: int) -> None:
        self._courier.on_ack(token)
        self._wake()

    def _finish(self) -> None:
        """End open events, deliver what is left, say goodbye."""
        self.events.end_all(EndReason.SHUTDOWN)
        if self._stop_requested and self._final_error is None and self._phase is not Phase.STOPPED:
            self._set_phase(Phase.STOPPED)  # asked to stop between two starts of the frame process
        if self._broker is None:
            return
        self._broker.hurry()
        is_delivered = self._courier.drain(self._broker, _DELIVER_S if self._was_connected else 1.0)
        self._broker.stop((payloads.available(self._topics, payloads.STOPPED),), timeout_s=3.0)
        if not is_delivered and self._final_error is None:
            mqtt = self._config.mqtt
            self._final_error = BrokerError(
                f"{self._outbox.depth} events were not delivered",
                where=f"{mqtt.host}:{mqtt.port}",
                fix="start a broker there, name another with --set mqtt.host=..., or use --set mqtt.enabled=false",
            )
        if self._outbox.lost and self._final_error is None:
            self._final_error = BrokerError(
                f"{self._outbox.lost} beginnings or ends of events were given up, because the outbox was full",
                where="mqtt.outbox_limit",
                fix="raise it, or keep the broker in reach",
            )


def broker_settings(config: Config) -> BrokerSettings:
    """The broker that the configuration names. Raises ConfigError when the password file can't be read."""
    mqtt = config.mqtt
    return BrokerSettings(
        host=mqtt.host,
        port=mqtt.port,
        client_id=f"zhc-edge-{config.device}",
        username=mqtt.username or "",
        password=_password(mqtt),
        keepalive_s=mqtt.keepalive_s,
        connect_timeout_s=mqtt.connect_timeout_s,
    )


def _password(mqtt: MqttConfig) -> str:
    if mqtt.password_file is None:
        return ""
    try:
        password = mqtt.password_file.read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the password can't be read: {error}", where=str(mqtt.password_file), fix="correct mqtt.password_file"
        ) from error
    if len(password.encode()) > _MAX_PASSWORD_BYTES:
        raise ConfigError(
            f"the password is longer than {_MAX_PASSWORD_BYTES} bytes",
            where=str(mqtt.password_file),
            fix="correct mqtt.password_file",
        )
    return password


class _RemoteError(ZhcEdgeError):
    """An error that the frame process reported; it carries the exit code of the original."""


class _RemotePipelineError(PipelineError):
    """A failed stage in the frame process: starting it again may help."""


def _remote_error(facts: object) -> ZhcEdgeError:
    fields = facts if isinstance(facts, dict) else {}
    code = int(fields.get("code", PipelineError.exit_code))
    kind = _RemotePipelineError if code == PipelineError.exit_code else _RemoteError
    error = kind(str(fields.get("what")), where=str(fields.get("where", "")), fix=str(fields.get("fix", "")))
    error.exit_code = code
    return error

"""The demo: a broker, the daemon on the bundled clip, and a subscriber that prints what any client would see.

One thread: the MQTT client is driven from the loop that watches the daemon, and both children are started before
anything could start a thread.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from zhcedge.app import demo_view
from zhcedge.app.children import last_lines, running
from zhcedge.app.demo_broker import HOST, DemoBroker, open_broker
from zhcedge.app.interpreter import command_for
from zhcedge.core.errors import BrokerError, OutputError, PipelineError
from zhcedge.media.picture import write_middle_frame

DATA = Path(__file__).resolve().parent.parent / "data"
CONFIG = DATA / "demo.yaml"
VIDEO = "annotated.mp4"  # what demo.yaml's sink writes
CLIP_SIZE_PX = (768.0, 576.0)
"""Width and height of walkers.mp4; events carry boxes, not the picture's size."""

_DRAIN_S = 15.0  # how long the daemon may take to finish its file and its deliveries after a Ctrl-C
_LAST_WORDS_S = 3.0  # how long to listen for the daemon's goodbye once its process has ended


@dataclass(frozen=True)
class DemoSettings:
    """What the demo is asked for.

    Attributes:
        out: folder for what it writes; made if missing.
        profile: of the daemon.
        broker: one of demo_broker.KINDS.
        picture: file for a JPEG of the annotated video's middle frame, or None.
        is_coloured: whether the lines carry ANSI colours.
    """

    out: Path
    profile: str
    broker: str
    picture: Path | None
    is_coloured: bool


def run(settings: DemoSettings, emit: Callable[[str], None]) -> int:
    """Run the demo to its end and hand every line to `emit`. Returns the exit code.

    Leaves no process and no temporary file behind, whatever ends it, KeyboardInterrupt included.

    Returns:
        0, or 1 when the ledger's verdict is "fail", or the daemon's own code when it failed.

    Raises:
        OutputError: the output folder can't be made.
        BackendUnavailableError, BrokerError: no broker, or it died on the way.
        PipelineError: the daemon ended well and left no summary.
    """
    _make_folder(settings.out)
    with (
        tempfile.TemporaryDirectory(prefix="zhc-edge-demo-") as name,
        open_broker(settings.broker, Path(name)) as broker,
    ):
        folder = Path(name)
        paint = demo_view.Paint(settings.is_coloured)
        emit(f"broker   {broker.name} on {HOST}:{broker.port}, until the demo ends")
        log, summary = folder / "daemon.log", folder / "summary.json"
        listener = _Listener(broker, emit, paint)
        try:
            with running(
                _daemon_command(settings, broker, summary), log, orphan_signal=signal.SIGTERM, grace_s=_DRAIN_S
            ) as daemon:
                listener.follow(daemon)
        except KeyboardInterrupt:
            emit("stopped by Ctrl-C; nothing is left running")
            raise
        finally:
            listener.close()
        if daemon.returncode != 0:
            return _failure(daemon.returncode, log, emit)
        if settings.picture is not None:
            write_middle_frame(settings.out / VIDEO, settings.picture)
        return _report(summary, listener.received, paint, emit)


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"can't make the folder: {error.strerror}", where=str(out), fix="name another one with --out"
        ) from error


def _daemon_command(settings: DemoSettings, broker: DemoBroker, summary: Path) -> list[str]:
    # JSON strings are YAML strings: a path with a colon or a hash in it stays one value.
    values = {
        "profile": settings.profile,
        "output_dir": json.dumps(str(settings.out.resolve())),
        "mqtt.host": HOST,
        "mqtt.port": str(broker.port),
        "mqtt.protocol": "3.1.1" if broker.name == "amqtt" else "auto",  # it has no other, and is slow to say so
    }
    command = [*command_for("zhcedge"), "run", "-c", str(CONFIG), "--summary", str(summary)]
    for key, value in values.items():
        command += ["--set", f"{key}={value}"]
    return command


_TOPICS = ("zhcedge/+/available", "zhcedge/+/state", "zhcedge/+/events")


class _Listener:
    """A plain MQTT client that prints phases and events as they come. Driven by `follow`; no thread of its own."""

    def __init__(self, broker: DemoBroker, emit: Callable[[str], None], paint: demo_view.Paint) -> None:
        """Connect and subscribe. Raises BrokerError."""
        self.received: Counter[str] = Counter()
        self._emit = emit
        self._paint = paint
        self._phase = ""
        self._is_subscribed = False
        self._has_ended = False
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=f"viewer-{os.getpid()}")
        self._client.on_message = self._on_message
        self._client.on_connect = lambda client, *_: client.subscribe([(topic, 1) for topic in _TOPICS])
        self._client.on_subscribe = self._on_subscribe
        try:
            self._client.connect(HOST, broker.port, keepalive=60)
        except OSError as error:
            raise BrokerError(f"the demo's broker refuses a connection: {error}") from error
        deadline = time.monotonic() + 10.0
        while not self._is_subscribed:
            self._step()
            if time.monotonic() > deadline:
                raise BrokerError("the demo's broker does not confirm a subscription")

    def follow(self, daemon: subprocess.Popen[bytes]) -> None:
        """Print until the daemon has ended and its goodbye has arrived. Raises BrokerError when the broker dies."""
        while daemon.poll() is None:
            self._step()
        deadline = time.monotonic() + _LAST_WORDS_S
        while not self._has_ended and self._phase and time.monotonic() < deadline:
            self._step()

    def close(self) -> None:
        self._client.disconnect()

    def _step(self) -> None:
        code = self._client.loop(timeout=0.1)
        if code != mqtt.MQTT_ERR_SUCCESS:
            raise BrokerError(f"the demo's broker went away: {mqtt.error_string(code)}")

    def _on_subscribe(self, *_: object) -> None:
        self._is_subscribed = True

    def _on_message(self, client: mqtt.Client, userdata: object, message: mqtt.MQTTMessage) -> None:
        topic = message.topic.rpartition("/")[2]
        if topic == "available":
            self._has_ended = message.payload in (b"stopped", b"offline")
        elif topic == "state":
            self._show_phase(json.loads(message.payload))
        elif topic == "events":
            event = json.loads(message.payload)
            self.received[event["type"]] += 1
            self._emit(demo_view.event_line(event, CLIP_SIZE_PX, self._paint))

    def _show_phase(self, state: dict[str, object]) -> None:
        phase = str(state.get("phase"))
        if phase == self._phase:
            return
        self._phase = phase
        reason = state.get("reason")
        self._emit(f"phase    {phase}" + (f": {reason}" if reason else ""))
        if phase == "active":
            self._emit("\n" + self._paint("bold", demo_view.HEADING))
        elif phase == "draining":
            self._emit("")


def _failure(code: int, log: Path, emit: Callable[[str], None]) -> int:
    """Say why the daemon failed: its own one line, or the end of its log where the fault is inside it."""
    is_inside = code < 0 or code == PipelineError.exit_code
    said = last_lines(log, 20 if is_inside else 1) or ["it said nothing"]
    if code < 0:
        emit(f"failed   the daemon was ended by signal {-code} ({signal.Signals(-code).name})")
    else:
        emit(f"failed   the daemon ended with exit code {code}")
    for line in said:
        emit(f"         {line}")
    return PipelineError.exit_code if code < 0 else code


def _report(summary_path: Path, received: Counter[str], paint: demo_view.Paint, emit: Callable[[str], None]) -> int:
    try:
        summary = json.loads(summary_path.read_text())
    except (OSError, ValueError) as error:
        raise PipelineError(f"the daemon left no summary: {error}", where=str(summary_path)) from error
    emit("")
    for line in demo_view.summary_lines(summary, received, paint):
        emit(line)
    emit("\nYour own video (it needs an MQTT broker; --set mqtt.host=... says where):")
    emit(f"  {_program()} run -c {shlex.quote(str(CONFIG))} --set channels.walkers.source.uri=YOUR-VIDEO.mp4")
    return 1 if summary["ledger"]["verdict"] == "fail" else 0


def _program() -> str:
    """How to call zhc-edge again: the script beside this interpreter, else the module."""
    script = Path(sys.executable).parent / "zhc-edge"
    return shlex.quote(str(script)) if script.exists() else f"{shlex.quote(sys.executable)} -m zhcedge"

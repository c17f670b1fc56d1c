"""What a device says beside its events, as JSON in UTF-8. config/asyncapi.yaml is the contract of what it means."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from zhcedge.core.delivery import Alert, Message
from zhcedge.core.events import Direction
from zhcedge.core.lifecycle import Phase
from zhcedge.publish.topics import Topics

CONTRACT_VERSION = "1.0.0"
"""`info.version` of config/asyncapi.yaml: what is only added raises the second number, all else the first."""

ONLINE = b"online"
STOPPED = b"stopped"
OFFLINE = b"offline"

SNAPSHOT_EXPIRY_S = 60
ANSWER_EXPIRY_S = 60


def available(topics: Topics, payload: bytes) -> Message:
    """ONLINE after the full state on every connect, STOPPED before a wanted end, OFFLINE as the will."""
    return Message(topics.available, payload, qos=1, retain=True)


@dataclass(frozen=True)
class DeviceState:
    """What the `state` topic says.

    Attributes:
        phase: of the frame process.
        version: of this software.
        profile: name of the set of backends.
        model, model_sha256: bundle name and hash of its model file.
        boot_id: random for every start of the daemon.
        uptime_s: since that start.
        cameras: names of the channels.
        degraded: reasons why it works worse than configured; empty when it does not.
    """

    phase: Phase
    version: str
    profile: str
    model: str
    model_sha256: str
    boot_id: str
    uptime_s: float
    cameras: tuple[str, ...]
    degraded: tuple[str, ...] = ()


def state(topics: Topics, facts: DeviceState) -> Message:
    """The retained `state` message."""
    payload = {
        "phase": facts.phase.value,
        "version": facts.version,
        "contract": CONTRACT_VERSION,
        "profile": facts.profile,
        "model": facts.model,
        "model_sha256": facts.model_sha256,
        "boot_id": facts.boot_id,
        "uptime_s": round(facts.uptime_s, 1),
        "cameras": facts.cameras,
        "degraded": facts.degraded,
    }
    return Message(topics.state, _json(payload), qos=1, retain=True)


@dataclass(frozen=True)
class CameraStatus:
    """What a camera's `status` topic says.

    Attributes:
        camera: name of the channel.
        state: opening, up, down, paused, ended, failed or removed.
        reason: why; empty when there is nothing to say.
        since_ns: wall clock at which this state began.
        fps: frames a second that it is asked for; 0 takes them as they come.
        is_detecting: the detector is on.
        picture: what is wrong with its picture, or ok; ok as well when nobody looks.
    """

    camera: str
    state: str
    reason: str
    since_ns: int
    fps: float = 0.0
    is_detecting: bool = True
    picture: str = "ok"


def camera_status(topics: Topics, status: CameraStatus) -> Message:
    """The retained `status` of a camera."""
    payload = {
        "state": status.state,
        "reason": status.reason,
        "since": _seconds(status.since_ns),
        "fps": status.fps,
        "detect": status.is_detecting,
        "picture": status.picture,
    }
    return Message(topics.camera(status.camera, "status"), _json(payload), qos=1, retain=True)


def counts(topic: str, by_label: Mapping[str, int]) -> Message:
    """How many objects a camera sees or a zone holds, retained: `all`, and each label. A label named so stays out."""
    rest = {label: number for label, number in by_label.items() if label != "all"}
    payload = {"all": sum(by_label.values()), **rest}
    return Message(topic, _json(payload), qos=1, retain=True)


def line_counts(topic: str, by_direction: Mapping[str, int]) -> Message:
    """How often a line was crossed since the start, retained: `in` and `out`."""
    payload = {direction.value: by_direction.get(direction.value, 0) for direction in Direction}
    return Message(topic, _json(payload), qos=1, retain=True)


def forget_camera(topics: Topics, camera: str) -> list[Message]:
    """Take back what the broker keeps of a camera that has gone: MQTT removes a topic by an empty retained message."""
    own = [topics.camera(camera, word) for word in ("status", "count")]
    own += [topics.effect(word, camera) for word in ("detect", "threshold", "fps")]
    return [Message(topic, b"", qos=1, retain=True) for topic in own]


def alert(topics: Topics, what: Alert, time_ns: int, boot_id: str) -> Message:
    """An alert of this moment; `time_ns` is the wall clock."""
    payload = {
        "code": what.code,
        "text": what.text,
        "severity": what.severity,
        "over": what.is_over,
        "time": _seconds(time_ns),
        "boot_id": boot_id,
    }
    return Message(topics.alerts, _json(payload), qos=1)


@dataclass(frozen=True)
class CameraFlow:
    """Frames of one camera: those that came and those that went through in the last interval, and those given up."""

    fps_in: float
    fps_out: float
    dropped: int


@dataclass(frozen=True)
class Stats:
    """What the `stats` topic says. Counters run since the start of the daemon.

    Attributes:
        time_ns: wall clock.
        boot_id: random for every start of the daemon.
        uptime_s: since that start.
        cameras: by name of the channel.
        outbox_depth: messages that wait for the broker.
        outbox_dropped: those given up because of a limit; `outbox_lost` of them were beginnings or ends of events.
        outbox_refused: those set aside because the broker will not take them.
        reconnects: connections to the broker after the first one.
        commands_refused: commands that were not carried out.
        ledger_violations: allocations, copies and waits in the frame path that must not be there.
    """

    time_ns: int
    boot_id: str
    uptime_s: float
    cameras: Mapping[str, CameraFlow] = field(default_factory=dict)
    outbox_depth: int = 0
    outbox_dropped: int = 0
    outbox_lost: int = 0
    outbox_refused: int = 0
    reconnects: int = 0
    commands_refused: int = 0
    ledger_violations: int = 0


def stats(topics: Topics, facts: Stats) -> Message:
    """Figures of this moment: a lost one is made up for by the next, so QoS 0."""
    flows = facts.cameras.values()
    payload = {
        "time": _seconds(facts.time_ns),
        "boot_id": facts.boot_id,
        "uptime_s": round(facts.uptime_s, 1),
        "fps": round(sum(flow.fps_out for flow in flows), 2),
        "cameras": {
            name: {"fps_in": round(flow.fps_in, 2), "fps_out": round(flow.fps_out, 2), "dropped": flow.dropped}
            for name, flow in facts.cameras.items()
        },
        "outbox": {
            "depth": facts.outbox_depth,
            "dropped": facts.outbox_dropped,
            "lost": facts.outbox_lost,
            "refused": facts.outbox_refused,
        },
        "reconnects": facts.reconnects,
        "commands_refused": facts.commands_refused,
        "ledger_violations": facts.ledger_violations,
    }
    return Message(topics.stats, _json(payload), qos=0)


def snapshot(topics: Topics, camera: str, jpeg: bytes) -> Message:
    """A picture as the bytes of a JPEG file. Never retained: the broker must not keep pictures of people."""
    return Message(topics.camera(camera, "snapshot"), jpeg, qos=0, expiry_s=SNAPSHOT_EXPIRY_S)


def effect(topics: Topics, word: str, value: bool | float | str, camera: str = "") -> Message:
    """What a command has set, retained: ON or OFF for a switch, the number as text, or a word as it is."""
    return Message(topics.effect(word, camera), _text(value).encode(), qos=1, retain=True)


@dataclass(frozen=True)
class Answer:
    """What became of a command.

    Attributes:
        ok: it was carried out.
        word: of the command, as in its topic.
        camera: slug as in its topic; empty for a command to the device.
        reason: why not, as "word-for-programs: text for people"; empty when it was carried out.
        value: in force now; None for a command that sets nothing.
        id: that its sender gave it; empty for none.
        correlation: of the command (MQTT 5); goes back as it came.
    """

    ok: bool
    word: str
    camera: str = ""
    reason: str = ""
    value: bool | float | str | None = None
    id: str = ""
    correlation: bytes = b""


def answer(topic: str, what: Answer) -> Message:
    """The answer to a command, on the topic that its sender has named."""
    payload = {
        "ok": what.ok,
        "word": what.word,
        "camera": what.camera,
        "reason": what.reason,
        "value": None if what.value is None else _text(what.value),
        "id": what.id,
    }
    return Message(topic, _json(payload), qos=1, expiry_s=ANSWER_EXPIRY_S, correlation=what.correlation)


def _text(value: bool | float | str) -> str:
    if isinstance(value, bool):
        return "ON" if value else "OFF"
    return value if isinstance(value, str) else f"{value:g}"


def _seconds(time_ns: int) -> float:
    """Seconds since the epoch, to the microsecond: a double holds no more today."""
    return round(time_ns / 1e9, 6)


def _json(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode()

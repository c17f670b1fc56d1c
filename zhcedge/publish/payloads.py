"""Message payloads: compact JSON in UTF-8.

Numbers are written with Python's `repr`, the shortest text that reads back as the same double. A float32 is a double
exactly, so a detector's box arrives bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from zhcedge.core.events import Event, EventSnapshot
from zhcedge.core.lifecycle import Phase
from zhcedge.core.ports import Message
from zhcedge.publish.topics import Topics

ONLINE = b"online"
STOPPED = b"stopped"
OFFLINE = b"offline"


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
        "profile": facts.profile,
        "model": facts.model,
        "model_sha256": facts.model_sha256,
        "boot_id": facts.boot_id,
        "uptime_s": round(facts.uptime_s, 1),
        "cameras": facts.cameras,
        "degraded": facts.degraded,
    }
    return Message(topics.state, _json(payload), qos=1, retain=True)


class EventEncoder:
    """Turns events into messages of the `events` topic and numbers them. Belongs to the control loop's thread.

    A receiver drops a message whose (outbox_id, seq) it has seen before; the messages of one id come in the order of
    seq.

    Args:
        topics: of the device.
        boot_id: random for every start of the daemon; event ids are unique together with it.
        outbox_id: of the outbox that keeps the messages.
        model_sha256: of the model file that made the detections.
        first_seq: number of the first message; above all that this outbox has seen.
    """

    def __init__(self, topics: Topics, boot_id: str, outbox_id: str, model_sha256: str, first_seq: int = 1) -> None:
        self._topic = topics.events
        self._boot_id, self._outbox_id, self._model_sha256 = boot_id, outbox_id, model_sha256
        self._seq = first_seq

    def encode(self, event: Event) -> Message:
        """The message of one event. Raises ValueError for a number that JSON can't hold (infinity, NaN)."""
        payload = {
            "type": event.type.value,
            "before": _snapshot(event.before) if event.before else None,
            "after": _snapshot(event.after),
            "end_reason": event.end_reason.value if event.end_reason else None,
            "outbox_id": self._outbox_id,
            "seq": self._seq,
            "boot_id": self._boot_id,
            "model_sha256": self._model_sha256,
            "clock_synced": event.after.frame.clock_synced,
            "historical": False,
        }
        message = Message(self._topic, _json(payload))
        self._seq += 1
        return message


def _snapshot(snapshot: EventSnapshot) -> dict[str, object]:
    x1, y1, x2, y2 = snapshot.box
    media_time_s = snapshot.frame.media_time_s
    return {
        "id": snapshot.id,
        "camera": snapshot.camera,
        "label": snapshot.label,
        "score": snapshot.score,
        "top_score": snapshot.top_score,
        "box": snapshot.box,
        "area": round((x2 - x1) * (y2 - y1)),
        "frame_time": _seconds(snapshot.frame.capture_time_ns),
        "frame_sequence": snapshot.frame.sequence,
        "media_time": media_time_s if media_time_s >= 0 else None,
        "start_time": _seconds(snapshot.start_time_ns),
        "end_time": None if snapshot.end_time_ns is None else _seconds(snapshot.end_time_ns),
        "current_zones": snapshot.current_zones,
        "entered_zones": snapshot.entered_zones,
        "stationary": snapshot.is_stationary,
        "has_snapshot": snapshot.has_snapshot,
        "has_clip": snapshot.has_clip,
    }


def _seconds(time_ns: int) -> float:
    """Seconds since the epoch, to the microsecond: a double holds no more today."""
    return round(time_ns / 1e9, 6)


def _json(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode()

"""The `events` topic: events as compact JSON in UTF-8. config/asyncapi.yaml is the contract of what it says.

Numbers are written as the shortest text that reads back as the same double. A float32 is a double exactly, so a
detector's box arrives bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import orjson

from zhcedge.core.delivery import Message, OpenEvent
from zhcedge.core.events import EndReason, Event, EventKind, EventSnapshot, EventType
from zhcedge.publish.topics import Topics

_NOT_HISTORICAL = b'"historical":false}'
_HISTORICAL = b'"historical":true}'
_MOST = 2**53 - 1  # the largest whole number that every reader of JSON takes exactly


class EventEncoder:
    """Turns events into messages of the `events` topic. Belongs to the control loop's thread.

    A receiver drops a message whose (outbox_id, seq) it has seen before; the messages of one id come in the order of
    seq.

    Args:
        topics: of the device.
        boot_id: random for every start of the daemon; event ids are unique together with it.
        outbox_id: of the outbox that keeps the messages.
        model_sha256: of the model file that made the detections.
    """

    def __init__(self, topics: Topics, boot_id: str, outbox_id: str, model_sha256: str) -> None:
        self._topic = topics.events
        self._boot_id, self._outbox_id, self._model_sha256 = boot_id, outbox_id, model_sha256

    def encode(self, event: Event, seq: int) -> Message:
        """The message of one event; `seq` is the id of its row in the outbox.

        Raises ValueError for a number that JSON can't hold (infinity, NaN).
        """
        payload = {
            "type": event.type.value,
            "before": _snapshot(event.before) if event.before else None,
            "after": _snapshot(event.after),
            "end_reason": event.end_reason.value if event.end_reason else None,
            "outbox_id": self._outbox_id,
            "seq": seq,
            "boot_id": self._boot_id,
            "model_sha256": self._model_sha256,
            "clock_synced": event.after.frame.clock_synced,
            "historical": False,  # the last key: see as_historical
        }
        return Message(self._topic, _json(payload))

    def ends_by_crash(self, left: OpenEvent, seq: int) -> Message:
        """The end of an event that an earlier run of the daemon has left open: where it was last told to be.

        Raises ValueError for a payload that is not one of ours.
        """
        told = _object(left.payload)
        after = told.get("after")
        if not isinstance(after, dict) or not {"id", "frame_time", "end_time"} <= after.keys():
            raise ValueError(f"not the payload of an event: {left.id}")
        if not {"boot_id", "model_sha256", "clock_synced"} <= told.keys():
            raise ValueError(f"not the payload of an event message: {left.id}")
        payload = {
            "type": EventType.END.value,
            "before": {"kind": EventKind.OBJECT.value, **after},
            "after": {"kind": EventKind.OBJECT.value, **after, "end_time": after["frame_time"]},  # older ones lack it
            "end_reason": EndReason.CRASH.value,
            "outbox_id": self._outbox_id,
            "seq": seq,
            "boot_id": told["boot_id"],
            "model_sha256": told["model_sha256"],
            "clock_synced": told["clock_synced"],
            "historical": True,
        }
        return Message(self._topic, _json(payload))

    def open_event_of(self, message: Message, event: Event) -> OpenEvent:
        """What the outbox notes of an event that goes on after this message."""
        return OpenEvent(self.open_id_of(event), message.payload)

    def open_id_of(self, event: Event) -> str:
        """Name of an event among all runs of the daemon: what `opens` and `closes` of the outbox agree on."""
        return f"{self._boot_id}/{event.after.id}"


def as_historical(message: Message) -> Message:
    """The same event, said to be one of the past. Costs a copy of the payload; it is not parsed.

    A message that says so already, or that is no event of ours, comes back as it is.
    """
    if not message.payload.endswith(_NOT_HISTORICAL):
        return message
    return replace(message, payload=message.payload[: -len(_NOT_HISTORICAL)] + _HISTORICAL)


def _object(payload: bytes) -> dict[str, object]:
    try:
        value = orjson.loads(payload)
    except orjson.JSONDecodeError:  # a ValueError too, but it holds the payload
        raise ValueError("not JSON in UTF-8") from None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _snapshot(snapshot: EventSnapshot) -> dict[str, object]:
    x1, y1, x2, y2 = snapshot.box
    media_time_s = snapshot.frame.media_time_s
    if not math.isfinite(snapshot.score + snapshot.top_score + x1 + y1 + x2 + y2 + media_time_s):
        raise ValueError(f"event {snapshot.id} has a number that JSON does not have")
    return {
        "id": snapshot.id,
        "camera": snapshot.camera,
        "label": snapshot.label,
        "score": snapshot.score,
        "top_score": snapshot.top_score,
        "box": snapshot.box,
        "area": max(0, min(round((x2 - x1) * (y2 - y1)), _MOST)),
        "frame_time": _seconds(snapshot.frame.capture_time_ns),
        "frame_sequence": snapshot.frame.sequence,
        "media_time": media_time_s if media_time_s >= 0 else None,
        "start_time": _seconds(snapshot.start_time_ns),
        "end_time": None if snapshot.end_time_ns is None else _seconds(snapshot.end_time_ns),
        "current_zones": snapshot.current_zones,
        "entered_zones": snapshot.entered_zones,
        "loitering": snapshot.loitering,
        "line_crossings": snapshot.line_crossings,
        "path": snapshot.path,
        "stationary": snapshot.is_stationary,
        "has_snapshot": snapshot.has_snapshot,
        "has_clip": snapshot.has_clip,
        "kind": snapshot.kind.value,
    }


def _seconds(time_ns: int) -> float:
    """Seconds since the epoch, to the microsecond: a double holds no more today."""
    return round(time_ns / 1e9, 6)


def _json(value: Mapping[str, object]) -> bytes:
    try:
        return orjson.dumps(value)  # a tenth of the time of the standard library's, in the path of every event
    except TypeError as error:
        raise ValueError(f"not to be written as JSON: {error}") from error

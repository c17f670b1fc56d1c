"""Topics and events: fixed words, readable JSON, every bit of a box."""

from __future__ import annotations

import json
import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.core.delivery import Message, OpenEvent
from zhcedge.core.errors import ConfigError
from zhcedge.core.events import EndReason, Event, EventSnapshot, EventType
from zhcedge.core.types import FrameInfo
from zhcedge.publish import payloads
from zhcedge.publish.topics import Topics, slug

TOPICS = Topics("Box 7")
INFO = FrameInfo(0, 41, 1_700_000_000_123_456_789, 5, 1.64, clock_synced=True)


def snapshot(box: tuple[float, float, float, float] = (1.0, 2.0, 11.5, 22.0), score: float = 0.5) -> EventSnapshot:
    return EventSnapshot("gate-1", "gate", "person", score, score, box, INFO, 1_700_000_000_000_000_000)


def encoder() -> payloads.EventEncoder:
    return payloads.EventEncoder(TOPICS, "boot", "outbox", "ab" * 32)


def test_an_event_message_has_every_field() -> None:
    message = encoder().encode(Event(EventType.NEW, None, snapshot()), 1)
    assert (message.topic, message.qos, message.retain) == ("zhcedge/box-7/events", 1, False)
    assert json.loads(message.payload) == {
        "type": "new",
        "before": None,
        "after": {
            "id": "gate-1",
            "camera": "gate",
            "label": "person",
            "score": 0.5,
            "top_score": 0.5,
            "box": [1.0, 2.0, 11.5, 22.0],
            "area": 210,
            "frame_time": 1_700_000_000.123457,
            "frame_sequence": 41,
            "media_time": 1.64,
            "start_time": 1_700_000_000.0,
            "end_time": None,
            "current_zones": [],
            "entered_zones": [],
            "loitering": [],
            "line_crossings": {},
            "path": [],
            "stationary": False,
            "has_snapshot": False,
            "has_clip": False,
            "kind": "object",
        },
        "end_reason": None,
        "outbox_id": "outbox",
        "seq": 1,
        "boot_id": "boot",
        "model_sha256": "ab" * 32,
        "clock_synced": True,
        "historical": False,
    }
    assert b" " not in message.payload


def test_an_end_says_why_and_what_was_told_before() -> None:
    event = Event(EventType.END, snapshot(), snapshot(score=0.25), EndReason.SHUTDOWN)
    payload = json.loads(encoder().encode(event, 1).payload)
    assert (payload["type"], payload["end_reason"]) == ("end", "shutdown")
    assert (payload["before"]["score"], payload["after"]["score"]) == (0.5, 0.25)


float32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.tuples(float32, float32, float32, float32), float32)
def test_any_float32_box_and_score_arrive_bit_for_bit(box: tuple[float, float, float, float], score: float) -> None:
    after = json.loads(encoder().encode(Event(EventType.NEW, None, snapshot(box, score)), 1).payload)["after"]
    assert struct.pack("<5f", *after["box"], after["score"]) == struct.pack("<5f", *box, score)


def test_a_number_that_json_has_no_word_for_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encoder().encode(Event(EventType.NEW, None, snapshot(score=float("nan"))), 1)


def test_an_unknown_presentation_time_is_null() -> None:
    unknown = EventSnapshot("a-1", "a", "car", 0.5, 0.5, (0.0, 0.0, 1.0, 1.0), FrameInfo(0, 0, 0, 0), 0)
    assert json.loads(encoder().encode(Event(EventType.NEW, None, unknown), 1).payload)["after"]["media_time"] is None


def test_an_event_of_the_past_differs_in_one_word() -> None:
    message = encoder().encode(Event(EventType.NEW, None, snapshot()), 7)
    past = payloads.as_historical(message)
    assert json.loads(past.payload) == {**json.loads(message.payload), "historical": True}
    assert (past.topic, past.qos, past.retain) == (message.topic, message.qos, message.retain)


def test_what_is_of_the_past_already_or_no_event_stays_as_it_is() -> None:
    past = payloads.as_historical(encoder().encode(Event(EventType.NEW, None, snapshot()), 7))
    assert payloads.as_historical(past) is past
    other = Message(TOPICS.alerts, b'{"text":"a"}')
    assert payloads.as_historical(other) is other


float_s = st.floats(width=32, min_value=0, max_value=1)


@given(st.tuples(float32, float32, float32, float32), float_s, st.sampled_from([EventType.NEW, EventType.UPDATE]))
def test_an_event_that_a_crash_has_interrupted_ends_where_it_was_last_told(
    box: tuple[float, float, float, float], score: float, kind: EventType
) -> None:
    before = None if kind is EventType.NEW else snapshot()
    event = Event(kind, before, snapshot(box, score))
    told = encoder().encode(event, 3)
    left = encoder().open_event_of(told, event)
    assert left.id == "boot/gate-1"
    later = payloads.EventEncoder(TOPICS, "next-boot", "outbox", "cd" * 32)
    end, last = json.loads(later.ends_by_crash(left, 9).payload), json.loads(told.payload)
    assert end == {
        **last,
        "type": "end",
        "before": last["after"],
        "after": {**last["after"], "end_time": last["after"]["frame_time"]},
        "end_reason": "crash",
        "seq": 9,
        "historical": True,
    }


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xff", b"[]", b"null", b"{", b"{}", b'{"after":null}', b'{"after":{"id":"a"}}', b'{"after":[]}',
     b'{"after":{"id":"a","frame_time":1,"end_time":null}}'],
)  # fmt: skip
def test_what_is_no_event_of_ours_has_no_end(payload: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        encoder().ends_by_crash(OpenEvent("boot/a", payload), 1)


def test_the_next_message_of_an_event_has_the_same_name_for_the_outbox() -> None:
    one = encoder()
    first = Event(EventType.NEW, None, snapshot())
    last = Event(EventType.END, snapshot(), snapshot(), EndReason.LOST)
    assert one.open_event_of(one.encode(first, 1), first).id == one.open_id_of(last)


@pytest.mark.parametrize(("name", "expected"), [("Gate 1", "gate-1"), ("Zufahrt Süd", "zufahrt-sud"), ("a/+/#", "a")])
def test_a_name_becomes_one_topic_level(name: str, expected: str) -> None:
    assert slug(name) == expected


@given(st.text().filter(lambda text: any(character.isascii() and character.isalnum() for character in text)))
def test_any_name_with_a_plain_letter_gives_one_safe_level(name: str) -> None:
    result = slug(name)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", result)
    assert slug(result) == result


@pytest.mark.parametrize("name", ["", "---", "门", "/"])
def test_a_name_without_a_plain_letter_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="letter"):
        slug(name)


def test_a_camera_can_be_called_like_one_of_our_words() -> None:
    assert TOPICS.camera("events", "status") == "zhcedge/box-7/camera/events/status"


@pytest.mark.parametrize("prefix", ["", "/", "a//b", "a/+", "#", "$SYS", "a\n", "x" * 40_000])
def test_a_prefix_that_is_no_topic_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError):
        Topics("box", prefix)


@pytest.mark.parametrize("device", ["", "???"])
def test_a_device_without_a_usable_name_is_refused(device: str) -> None:
    with pytest.raises(ConfigError, match="letter"):
        Topics(device)

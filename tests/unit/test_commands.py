"""Commands over MQTT are read exactly, and whatever is wrong with one is a refusal that says why."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.core.delivery import Incoming
from zhcedge.publish.commands import (
    CAMERA_WORDS,
    DEVICE_WORDS,
    REMEMBERED,
    AddCamera,
    Command,
    CommandPolicy,
    CommandReader,
    Refusal,
    RemoveCamera,
)
from zhcedge.publish.topics import Topics

TOPICS = Topics("box")
ALL = frozenset((*CAMERA_WORDS, *DEVICE_WORDS))
NOW_S = 1_800_000_000.0


def reader(allow: frozenset[str] = ALL, max_bytes: int = 16_384, prefix: str = "zhcedge") -> CommandReader:
    return CommandReader(Topics("box", prefix), CommandPolicy(allow, max_bytes), lambda: ("gate", "back-yard", "--"))


def sent(word: str, payload: bytes | str | object = b"", camera: str = "gate") -> Incoming:
    if not isinstance(payload, (bytes, str)):
        payload = json.dumps(payload)
    data = payload.encode() if isinstance(payload, str) else payload
    return Incoming(TOPICS.command(word, camera if word in CAMERA_WORDS else ""), data)


def read(incoming: Incoming, *, synced: bool = True, by: CommandReader | None = None) -> Command | Refusal:
    return (by or reader()).read(incoming, NOW_S, synced)


def value(incoming: Incoming) -> object:
    command = read(incoming)
    assert isinstance(command, Command), command
    return command.value


def reason(incoming: Incoming, by: CommandReader | None = None, *, synced: bool = True) -> str:
    refusal = read(incoming, by=by, synced=synced)
    assert isinstance(refusal, Refusal), refusal
    return refusal.reason


@pytest.mark.parametrize(
    ("payload", "expected"),
    [(b"ON", True), (b"on", True), (b" Off\n", False), (b'{"value": "off"}', False), (b'{"value": true}', True)],
)
def test_a_switch_takes_on_and_off_in_any_case(payload: bytes, expected: bool) -> None:
    assert value(sent("detect", payload)) is expected


@pytest.mark.parametrize(
    ("word", "payload", "expected"),
    [
        ("threshold", b"0.35", 0.35),
        ("threshold", b"1", 1.0),
        ("threshold", b".5", 0.5),
        ("threshold", b"5e-1", 0.5),
        ("threshold", b'{"value": 0.5}', 0.5),
        ("threshold", b'{"value": "0.5"}', 0.5),
        ("fps", b"0", 0.0),
        ("fps", b"12.5", 12.5),
        ("fps", b"-0", 0.0),
    ],
)
def test_numbers_come_as_home_assistant_writes_them_and_as_json(word: str, payload: bytes, expected: float) -> None:
    found = value(sent(word, payload))
    assert isinstance(found, float)
    assert found == expected
    assert str(found)[0] != "-"


@pytest.mark.parametrize("payload", [b"", b"PRESS", b"press", b"{}", b'{"id": "a"}', b'{"value": null}'])
def test_a_button_takes_nothing_or_press(payload: bytes) -> None:
    command = read(sent("snapshot", payload))
    assert isinstance(command, Command)
    assert (command.word, command.camera, command.value) == ("snapshot", "gate", None)


def test_rebirth_takes_anything_that_is_text() -> None:
    assert value(sent("rebirth", b"please")) is None
    assert reason(sent("rebirth", b"\xff")) == "malformed"


def test_a_camera_is_known_by_its_topic_level() -> None:
    command = read(sent("detect", b"ON", "back-yard"))
    assert isinstance(command, Command)
    assert (command.word, command.camera, command.target) == ("detect", "back-yard", ("detect", "back-yard"))


def test_cameras_are_added_and_removed_with_and_without_an_envelope() -> None:
    channel = {"source": {"uri": "rtsp://viewer:secret@camera/"}}
    for payload in ({"add": {"new": channel}}, {"value": {"add": {"new": channel}}, "id": 7}):
        added = value(sent("cameras", payload))
        assert added == AddCamera("new", channel)
        assert "secret" not in repr(added)
    assert value(sent("cameras", {"remove": "gate"})) == RemoveCamera("gate")


@pytest.mark.parametrize(
    ("word", "payload"),
    [
        ("detect", b""),
        ("detect", b"maybe"),
        ("detect", b"\xff\xfe"),
        ("detect", b'"ON"'),
        ("detect", b"{"),
        ("detect", b'{"value": "ON", "more": 1}'),
        ("detect", b'{"valu": "ON"}'),
        ("detect", b'{"a":' * 2500 + b"1" + b"}" * 2500),
        ("detect", b'{"value":' + b"[" * 8000),
        ("threshold", b"1.01"),
        ("threshold", b"-0.1"),
        ("threshold", b"nan"),
        ("threshold", b"inf"),
        ("threshold", b"1_0"),
        ("threshold", "٣".encode()),
        ("threshold", b'{"value": NaN}'),
        ("threshold", b'{"value": -Infinity}'),
        ("threshold", b'{"value": 1e999}'),
        ("threshold", b'{"value": true}'),
        ("fps", b'{"value": 1' + b"0" * 400 + b"}"),
        ("fps", b'{"value": 1' + b"0" * 5000 + b"}"),
        ("fps", b"9" * 300),
        ("fps", b"1001"),
        ("snapshot", b"now"),
        ("snapshot", b'{"id": ""x}'),
        ("snapshot", b'{"id": null}'),
        ("snapshot", b'{"id": "' + b"a" * 200 + b'"}'),
        ("snapshot", b'{"id": "\\ud800"}'),
        ("snapshot", b'{"time": "now"}'),
        ("snapshot", b'{"time": NaN}'),
        ("snapshot", b'{"time": 1e999}'),
        ("snapshot", b'{"expires_s": 5}'),
        ("snapshot", b'{"time": 1, "expires_s": 0}'),
        ("snapshot", b'{"time": 1, "expires_s": 1e9}'),
        ("cameras", b"gate"),
        ("cameras", b"[]"),
        ("cameras", b"{}"),
        ("cameras", b'{"remove": 1}'),
        ("cameras", b'{"remove": "a", "add": {}}'),
        ("cameras", b'{"add": {}}'),
        ("cameras", b'{"add": {"a": {"priority": NaN}}}'),
        ("cameras", b'{"add": {"a": {}, "b": {}}}'),
        ("cameras", b'{"add": {"a": "rtsp://host"}}'),
    ],
)
def test_what_is_malformed_is_refused(word: str, payload: bytes) -> None:
    assert reason(sent(word, payload)) == "malformed"


def test_a_retained_command_is_refused() -> None:
    assert reason(replace(sent("detect", b"ON"), is_retained=True)) == "retained"


def test_a_command_at_the_limit_is_taken_and_a_larger_one_is_not() -> None:
    by = reader(max_bytes=100)
    assert isinstance(read(sent("rebirth", b"x" * 100), by=by), Command)
    assert reason(sent("rebirth", b"x" * 101), by) == "oversized"


def test_what_is_not_allowed_is_refused_and_says_what_would_allow_it() -> None:
    refusal = read(sent("cameras", {"remove": "gate"}), by=reader(frozenset({"detect"})))
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "not-allowed"
    assert "mqtt.commands.allow" in refusal.text


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("zhcedge/box/update/set", "unknown-command"),
        ("zhcedge/box/detect/set", "unknown-command"),  # belongs to a camera
        ("zhcedge/box/camera/gate/rebirth/set", "unknown-command"),
        ("zhcedge/box/camera/gate/detect", "unknown-command"),
        ("zhcedge/other/rebirth/set", "unknown-command"),
        ("", "unknown-command"),
        ("zhcedge/box/camera/porch/detect/set", "unknown-camera"),
        ("zhcedge/box/camera/--/detect/set", "unknown-camera"),  # no topic can be made of this name
    ],
)
def test_unknown_words_and_cameras_are_refused(topic: str, expected: str) -> None:
    assert reason(Incoming(topic, b"ON")) == expected


def test_an_id_is_taken_once_until_a_thousand_others_came() -> None:
    by = reader()
    assert isinstance(read(sent("detect", {"value": "ON", "id": "a"}), by=by), Command)
    assert reason(sent("detect", {"value": "ON", "id": "a"}), by) == "replayed"
    assert reason(sent("fps", {"value": 1, "id": "a"}), by) == "replayed"
    for number in range(REMEMBERED - 1):
        assert isinstance(read(sent("snapshot", {"id": number}), by=by), Command)
    assert reason(sent("detect", {"value": "ON", "id": "a"}), by) == "replayed"
    assert isinstance(read(sent("snapshot", {"id": REMEMBERED}), by=by), Command)
    assert isinstance(read(sent("detect", {"value": "ON", "id": "a"}), by=by), Command)


def test_a_refused_command_may_come_again_under_its_id() -> None:
    by = reader()
    assert reason(sent("detect", {"value": "maybe", "id": "a"}), by) == "malformed"
    assert isinstance(read(sent("detect", {"value": "ON", "id": "a"}), by=by), Command)


def test_an_old_command_is_expired_where_the_clock_can_be_believed() -> None:
    fresh, old = {"time": NOW_S - 60}, {"time": NOW_S - 61}
    assert isinstance(read(sent("snapshot", fresh)), Command)
    assert reason(sent("snapshot", old)) == "expired"
    assert isinstance(read(sent("snapshot", old), synced=False), Command)
    assert isinstance(read(sent("snapshot", {**old, "expires_s": 61})), Command)
    assert reason(sent("snapshot", {"time": NOW_S - 3, "expires_s": 2})) == "expired"
    assert reason(sent("snapshot", {"time": NOW_S + 61})) == "expired"  # or it could be replayed for a long time


@pytest.mark.parametrize(
    "topic",
    [
        "elsewhere/answers",
        "zhcedge",
        "zhcedge/",
        "zhcedge//a",
        "zhcedge/+/answers",
        "zhcedge/clients/#",
        "zhcedge/a\x00b",
        "zhcedge/box/rebirth/set",
        "zhcedge/other/camera/gate/snapshot/set",
        "zhcedge/box/available",
        "zhcedge/box/camera/gate/status",
        "zhcedge/box/detect/state",
        "zhcedge/state",
        "zhcedge/site/box/events",  # of a device whose prefix is zhcedge/site
        "zhcedge/" + "a" * 2000,
        "$SYS/zhcedge/a",
    ],
)
def test_a_response_topic_where_answers_would_do_harm_refuses_the_command_without_an_answer(topic: str) -> None:
    refusal = read(replace(sent("detect", b"ON"), response_topic=topic, correlation=b"1"))
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.sender.topic) == ("response-topic", "")


def test_sender_and_id_are_known_of_commands_and_of_refusals() -> None:
    asked = replace(
        sent("detect", {"value": "ON", "id": 5}), response_topic="zhcedge/client/a", correlation=b"\x00\xff"
    )
    by = reader()
    for found in (read(asked, by=by), read(asked, by=by)):
        assert (found.sender.topic, found.sender.correlation, found.sender.id) == ("zhcedge/client/a", b"\x00\xff", "5")
        assert (found.word, found.camera) == ("detect", "gate")


def test_refusals_are_counted_by_reason() -> None:
    by = reader()
    for payload in (b"", b"?"):
        read(sent("detect", payload), by=by)
    read(replace(sent("detect", b"ON"), is_retained=True), by=by)
    assert by.refused == {"malformed": 2, "retained": 1}


topics = st.one_of(
    st.text(max_size=60),
    st.builds(
        lambda word, camera: TOPICS.command(word, camera),
        st.sampled_from(sorted(ALL)),
        st.sampled_from(["", "gate", "porch"]),
    ),
)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=10)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8,
)
envelopes = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("value", "id", "time", "expires_s", "add", "remove"), json_values),
).map(lambda data: json.dumps(data).encode())


@given(
    topic=topics,
    payload=st.one_of(st.binary(max_size=300), envelopes),
    retained=st.booleans(),
    response=st.one_of(st.just(""), st.text(max_size=40), st.just("zhcedge/client/a")),
    correlation=st.binary(max_size=20),
    now_s=st.floats(allow_nan=False, allow_infinity=False),
    synced=st.booleans(),
)
def test_whatever_comes_is_a_command_within_its_limits_or_a_refusal_that_shows_nothing_of_it(
    topic: str, payload: bytes, retained: bool, response: str, correlation: bytes, now_s: float, synced: bool
) -> None:
    by = reader()
    incoming = Incoming(topic, payload, retained, response_topic=response, correlation=correlation)
    found = by.read(incoming, now_s, synced)
    assert by.read(by.shortened(incoming), now_s, synced).word == found.word
    assert found.sender.topic in ("", response)
    if isinstance(found, Refusal):
        assert found.text.isascii()
        assert found.text.isprintable()
        assert by.refused[found.reason] >= 1
        return
    assert not retained
    assert found.word in ALL
    limits = {"threshold": 1.0, "fps": 1000.0}
    if found.word in limits:
        assert isinstance(found.value, float)
        assert 0 <= found.value <= limits[found.word]


@given(st.text(alphabet="0123456789.eE+-_ nafi", max_size=12))
def test_a_number_that_is_taken_is_the_one_that_was_written(text: str) -> None:
    found = read(sent("fps", text))
    if isinstance(found, Command):
        assert found.value == abs(float(text))


def test_what_waits_is_never_much_larger_than_a_good_command() -> None:
    by = reader(max_bytes=100)
    large = Incoming("t" * 60_000, b"x" * 10_000_000, response_topic="r" * 60_000, correlation=b"c" * 60_000)
    small = by.shortened(large)
    assert len(small.topic) + len(small.payload) + len(small.response_topic) + len(small.correlation) < 3000
    assert reason(small, by) == "response-topic"
    too_large = by.shortened(sent("detect", b"x" * 10_000))
    assert reason(too_large, by) == "oversized"
    fine = replace(sent("detect", b"ON"), response_topic="zhcedge/a", correlation=b"1")
    assert by.shortened(fine) == fine

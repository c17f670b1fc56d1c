"""Commands that come over MQTT: what a message asks for, or why it is refused. Pure; nothing is carried out here.

A payload is plain ("ON", "0.4", empty), or a JSON object:
{"value": ..., "id": ..., "time": seconds since the epoch, "expires_s": ...}
All but `value` are optional, and whoever sends a command that must not come twice or late gives both `id` and `time`:
an id is known among the last REMEMBERED ones of this run of the daemon, a time holds beyond that.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NoReturn, TypeAlias

from zhcedge.core.delivery import Incoming
from zhcedge.core.errors import ConfigError, UsageError, ZhcEdgeError
from zhcedge.publish.topics import Topics, slug

REMEMBERED = 1000
"""So many ids are remembered to recognise a replay."""

FRESH_S = 60.0
"""Age from which a command with a time is expired, unless it says another one; also how far it may be ahead."""

MAX_FPS = 1000.0
_MAX_ID = 128
_MAX_EXPIRES_S = 86_400.0
_MAX_TOPIC = 1024  # characters; also of a correlation, in bytes

CAMERA_WORDS = ("detect", "threshold", "fps", "snapshot")
DEVICE_WORDS = ("rebirth", "reload", "cameras")

Reason = Literal[
    "retained",
    "expired",
    "replayed",
    "oversized",
    "malformed",
    "unknown-command",
    "unknown-camera",
    "not-allowed",
    "response-topic",
]

_NUMBER = re.compile(r"[+-]?[0-9]{1,15}(\.[0-9]{0,30})?([eE][+-]?[0-9]{1,3})?|[+-]?\.[0-9]{1,30}")
_NO_TOPIC = re.compile(r"[+#\x00-\x1f\x7f-\x9f\ud800-\udfff]")
# Topics with such a level behind <prefix>/<device>/ are those that devices speak on.
_DEVICE_SPEAKS = frozenset({"available", "state", "events", "alerts", "stats", "camera"})
_ENVELOPE = ("id", "time", "expires_s")


@dataclass(frozen=True)
class AddCamera:
    """`channel` is a channel's section of the configuration, not checked yet. It may hold a password: in no repr."""

    name: str
    channel: Mapping[str, object] = field(repr=False)


@dataclass(frozen=True)
class RemoveCamera:
    name: str


@dataclass(frozen=True)
class LogLevel:
    """DEBUG, INFO, WARNING or ERROR."""

    level: str


Value: TypeAlias = "bool | float | AddCamera | RemoveCamera | LogLevel | None"
"""Of detect, of threshold (0..1) and fps (0..MAX_FPS; 0 is as it comes), of cameras; None for what has none. Not over
MQTT: of paused, and of log-level."""


@dataclass(frozen=True)
class Sender:
    """Where the answer goes: `topic` is empty for nowhere. `id` is what the sender calls the command.

    `tell` is for one that is not on MQTT: it takes why the command was not carried out, or None when it was. Called
    once, in the control loop's thread.
    """

    topic: str = ""
    correlation: bytes = b""
    id: str = ""
    tell: Callable[[ZhcEdgeError | None], None] | None = field(default=None, compare=False, repr=False)


NOBODY = Sender()


@dataclass(frozen=True)
class Command:
    """What may be carried out. `camera` is the channel's name, not its slug; empty for the device."""

    word: str
    camera: str = ""
    value: Value = None
    sender: Sender = NOBODY

    @property
    def target(self) -> tuple[str, str]:
        """What it changes: two commands of one target must come in their order."""
        if isinstance(self.value, (AddCamera, RemoveCamera)):
            return self.word, self.value.name
        return self.word, self.camera


@dataclass(frozen=True)
class Refusal:
    """What is not carried out, and why.

    Attributes:
        reason: one word, for programs.
        text: for people; holds nothing of the payload, which might be a secret.
        word, camera: of the topic, where they are known ones; else empty.
    """

    reason: Reason
    text: str
    word: str = ""
    camera: str = ""
    sender: Sender = NOBODY


@dataclass(frozen=True)
class CommandPolicy:
    """What is taken at all: words, and bytes of a payload."""

    allow: frozenset[str]
    max_bytes: int


class CommandReader:
    """Turns messages into commands. Owned by one thread.

    Args:
        topics: of this device.
        cameras: names of the channels that there are now; called for every command to a camera.

    Attributes:
        refused: how many, by reason.
    """

    def __init__(self, topics: Topics, policy: CommandPolicy, cameras: Callable[[], Sequence[str]]) -> None:
        self._topics, self._policy, self._cameras = topics, policy, cameras
        self._seen: dict[str, None] = {}  # ids, the oldest first
        self._names: tuple[str, ...] = ()
        self._by_slug: dict[str, str] = {}
        self.refused: Counter[str] = Counter()

    def shortened(self, incoming: Incoming) -> Incoming:
        """The same to `read`, but not much larger than a good command: for whoever lets messages wait. Any thread."""
        is_large = len(incoming.response_topic) > _MAX_TOPIC or len(incoming.correlation) > _MAX_TOPIC
        return replace(
            incoming,
            topic=incoming.topic[:_MAX_TOPIC],
            payload=incoming.payload[: self._policy.max_bytes + 1],
            response_topic="#" if is_large else incoming.response_topic,
            correlation=b"" if is_large else incoming.correlation,
        )

    def read(self, incoming: Incoming, now_s: float, clock_synced: bool) -> Command | Refusal:
        """Judge one message. Never raises, whatever is in it.

        Args:
            now_s: wall clock, seconds since the epoch.
            clock_synced: whether that can be believed; times are not judged without.
        """
        place = _Place()
        try:
            return self._read(incoming, now_s if clock_synced else None, place)
        except _RefusedError as refused:
            self.refused[refused.reason] += 1
            return Refusal(refused.reason, refused.what, place.word, place.camera, place.sender)

    def _read(self, incoming: Incoming, now_s: float | None, place: _Place) -> Command:
        place.sender = self._sender(incoming)
        self._locate(incoming.topic, place)
        if incoming.is_retained:
            _refuse("retained", "the broker has kept it, so it may be old; send it without the retain flag")
        if place.word not in self._policy.allow:
            _refuse("not-allowed", f"the configuration does not allow it; add {place.word} to mqtt.commands.allow")
        if len(incoming.payload) > self._policy.max_bytes:
            _refuse("oversized", f"larger than {self._policy.max_bytes} bytes")
        value, facts = _parse(incoming.payload, place.word)
        name = _id(facts)
        place.sender = replace(place.sender, id=name)
        _judge_time(facts, now_s)
        if name in self._seen:
            _refuse("replayed", "a command with this id has been taken before; give each its own")
        command = Command(place.word, place.camera, _READERS[place.word](value), place.sender)
        if name:
            self._remember(name)
        return command

    def _sender(self, incoming: Incoming) -> Sender:
        topic = incoming.response_topic
        if not topic:
            return NOBODY
        beneath = topic.removeprefix(f"{self._topics.prefix}/")
        levels = beneath.split("/")
        if beneath == topic or not all(levels) or len(topic) > _MAX_TOPIC or _NO_TOPIC.search(topic):
            _refuse("response-topic", f"answers go to topics below {self._topics.prefix}/ only, without wildcards")
        if levels[-1] in ("set", "state") or _DEVICE_SPEAKS.intersection(levels[1:]):
            _refuse("response-topic", "an answer there would be taken for a command or for what a device says")
        if len(incoming.correlation) > _MAX_TOPIC:
            _refuse("response-topic", f"a correlation of more than {_MAX_TOPIC} bytes")
        return Sender(topic, incoming.correlation)

    def _locate(self, topic: str, place: _Place) -> None:
        found = self._topics.parse_command(topic)
        word, camera = found or ("", "")
        if word not in (CAMERA_WORDS if camera else DEVICE_WORDS):
            known = ", ".join(CAMERA_WORDS if camera else DEVICE_WORDS)
            _refuse("unknown-command", f"there is no such command; known here: {known}")
        place.word = word
        if not camera:
            return
        names = tuple(self._cameras())
        if names != self._names:
            self._names, self._by_slug = names, slugs(names)
        if camera not in self._by_slug:
            _refuse("unknown-camera", "there is no such camera")
        place.camera = self._by_slug[camera]

    def _remember(self, name: str) -> None:
        self._seen[name] = None
        if len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]


def slugs(names: Sequence[str]) -> dict[str, str]:
    """Channels' names by their topic level; a name that none can be made of is left out."""
    found: dict[str, str] = {}
    for name in names:
        try:
            found.setdefault(slug(name), name)
        except ConfigError:  # a name of hyphens alone
            continue
    return found


@dataclass
class _Place:
    """What is known of a command so far, for its refusal."""

    word: str = ""
    camera: str = ""
    sender: Sender = NOBODY


class _RefusedError(UsageError):
    """Ends the reading of a message; never leaves this module."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def _refuse(reason: Reason, text: str) -> NoReturn:
    raise _RefusedError(reason, text)


# -- payloads --------------------------------------------------------------------------------------------------
def _parse(payload: bytes, word: str) -> tuple[object, Mapping[str, object]]:
    """The command's value, and what its sender says about the command."""
    try:
        text = payload.decode().strip()
    except UnicodeDecodeError:
        _refuse("malformed", "not UTF-8")
    if not text.startswith("{"):
        if word == "cameras":
            _refuse("malformed", "takes a JSON object")
        return text, {}
    data = _object(text)
    facts = {key: data.pop(key) for key in _ENVELOPE if key in data}
    if "value" not in data:
        return data or "", facts
    value = data.pop("value")
    if data:
        _refuse("malformed", f"beside value there may be {', '.join(_ENVELOPE)} and nothing else")
    return "" if value is None else value, facts


def _object(text: str) -> dict[str, object]:
    try:
        data = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):  # ValueError also for an integer of thousands of digits
        _refuse("malformed", "not JSON that can be used")
    if not isinstance(data, dict):  # can't be: it begins with a brace
        _refuse("malformed", "not a JSON object")
    return data


def _no_number(text: str) -> NoReturn:
    raise ValueError(text)  # NaN and Infinity, which JSON does not have


def _id(facts: Mapping[str, object]) -> str:
    name = facts.get("id", "")
    if isinstance(name, int) and not isinstance(name, bool):
        name = str(name) if abs(name) < 1 << 63 else None
    if not isinstance(name, str) or len(name) > _MAX_ID or not (name.isprintable() or not name):
        _refuse("malformed", f"id is a text of 1 to {_MAX_ID} printable characters, or a whole number")
    return name


def _judge_time(facts: Mapping[str, object], now_s: float | None) -> None:
    if "time" not in facts:
        if "expires_s" in facts:
            _refuse("malformed", "expires_s needs a time beside it")
        return
    sent_s = _finite(facts["time"], "time")
    lives_s = _finite(facts.get("expires_s", FRESH_S), "expires_s")
    if not 0 < lives_s <= _MAX_EXPIRES_S:
        _refuse("malformed", f"expires_s is above 0 and at most {_MAX_EXPIRES_S:.0f}")
    if now_s is None:
        return
    if now_s - sent_s > lives_s:
        _refuse("expired", "it is too old")
    if sent_s - now_s > FRESH_S:
        _refuse("expired", f"its time is more than {FRESH_S:.0f} s ahead of this device's clock")


def _finite(value: object, key: str) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:  # an integer beyond every double
            number = math.inf
        if math.isfinite(number):
            return number
    _refuse("malformed", f"{key} is a number")


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = value.upper() if isinstance(value, str) else ""
    if word not in ("ON", "OFF"):
        _refuse("malformed", "takes ON or OFF")
    return word == "ON"


def _number(value: object, most: float) -> float:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    number = _finite(value, "its value")
    if not 0 <= number <= most:
        _refuse("malformed", f"takes a number from 0 to {most:g}")
    return abs(number)  # -0.0 is 0


def _press(value: object) -> None:
    if not (isinstance(value, str) and value.upper() in ("", "PRESS")):
        _refuse("malformed", "takes PRESS or nothing")


def _cameras(value: object) -> AddCamera | RemoveCamera:
    if isinstance(value, dict) and len(value) == 1:
        removed, added = value.get("remove"), value.get("add")
        if isinstance(removed, str):
            return RemoveCamera(removed)
        if isinstance(added, dict) and len(added) == 1:
            ((name, channel),) = added.items()
            if isinstance(channel, dict):
                return AddCamera(name, channel)
    _refuse("malformed", 'takes {"add": {NAME: {"source": ...}}} or {"remove": NAME}')


_READERS: dict[str, Callable[[object], Value]] = {
    "detect": _switch,
    "threshold": lambda value: _number(value, 1.0),
    "fps": lambda value: _number(value, MAX_FPS),
    "snapshot": _press,
    "rebirth": lambda value: None,  # asks for nothing that anything could be wrong with
    "reload": lambda value: None,  # likewise
    "cameras": _cameras,
}

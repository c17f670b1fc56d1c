"""Carries out commands that come over MQTT, at the pace of the control loop and never faster than is good for it.

Network thread -> `take` -> a bounded queue -> `work` in the loop: read, replace what a later command of the same target
makes pointless, carry out. What the frame process does is answered later, by `answered`. Commands of the control
socket join them at `submit`.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from zhcedge.app.live_settings import LIVE_WORDS, PAUSED, LiveSettings
from zhcedge.config.load import check_channel_name, parse_channel
from zhcedge.config.schema import Config
from zhcedge.core.addresses import without_password
from zhcedge.core.delivery import Incoming, Message
from zhcedge.core.errors import ConfigError, NotNowError, PipelineError, ZhcEdgeError
from zhcedge.core.ports import Clock
from zhcedge.core.printing import printable
from zhcedge.publish import device_messages
from zhcedge.publish.commands import (
    AddCamera,
    Command,
    CommandPolicy,
    CommandReader,
    LogLevel,
    Refusal,
    RemoveCamera,
    Sender,
    slugs,
)
from zhcedge.publish.topics import Topics, slug

log = logging.getLogger(__name__)

QUEUE_LIMIT = 1000
"""Messages that wait to be read; the oldest of more are given up and counted."""

READ_PER_TURN = 20
"""Messages read in one turn of the loop: about 1 ms of work at most, between two looks at the ring."""

ANSWER_S = 30.0
"""How long the frame process may take."""

_WAITING_LIMIT = 500  # four words a camera and 64 cameras, and cameras that come and go
_ASKED_LIMIT = 1000
# Least time between two commands of one target. The frame process refuses a picture within 1 s of the last one, which
# was taken a little later than it was asked for.
_PAUSE_S = {"snapshot": 1.5, "rebirth": 1.0, "reload": 1.0}
_SHORT_PAUSE_S = 0.1
_MAX_TEXT = 1000  # characters of an answer's reason
_LOG_S = 10.0  # least time between two lines about the same reason


class DeviceControl(Protocol):
    """What commands may do to the device. Called in the control loop's thread; nothing in it waits.

    Each raises ZhcEdgeError for what can't be done; its text is answered and logged, so it holds no secret.
    """

    def set_threshold(self, camera: str, value: float) -> None:
        """Raises for a value below the detector's own threshold: there is nothing to be had there."""
        ...

    def frame_command(self, word: str, camera: str, value: object) -> int:
        """Ask the frame process; returns the number that `answered` is called with. Raises when there is none."""
        ...

    def rebirth(self) -> None:
        """Tell everything again that a new session begins with."""
        ...

    def reload(self) -> int:
        """Load the configuration again; returns the number that `answered` is called with once it has been checked."""
        ...

    def add_camera(self, name: str, channel: dict[str, object]) -> int:
        """As `frame_command`; `channel` is a valid section of the configuration and may hold a password."""
        ...

    def remove_camera(self, name: str) -> int:
        """As `frame_command`."""
        ...

    def set_log_level(self, level: str) -> int | None:
        """Of both processes. As `frame_command`, but None when there is no frame process: the next one begins so."""
        ...

    def publish(self, message: Message) -> None:
        """Retained ones are told at the beginning of every session too."""
        ...


@dataclass
class _Asked:
    """A command that the frame process has been given."""

    command: Command
    deadline_s: float
    is_told: bool = False  # its sender has been told that it takes too long


class CommandDispatcher:
    """Everything belongs to the control loop's thread, `take` excepted.

    Args:
        config: of the device: the policy, and what is in force before any command.
        control: carries out.
        score_threshold: of the detector, 0 to 1.
        wake: makes the loop take a turn soon; any thread.

    Attributes:
        done: commands carried out.
        dropped: messages that came faster than they could be read.
    """

    def __init__(
        self,
        config: Config,
        control: DeviceControl,
        clock: Clock,
        score_threshold: float,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._control, self._clock, self._wake = control, clock, wake
        self._topics = Topics(config.device, config.mqtt.topic_prefix)
        self._live = LiveSettings(config, self._topics, score_threshold)
        rules = config.mqtt.commands
        policy = CommandPolicy(frozenset[str](rules.allow if rules.enabled else ()), rules.max_bytes)
        self._reader = CommandReader(self._topics, policy, lambda: self._live.cameras)
        self._arrived: deque[Incoming] = deque(maxlen=QUEUE_LIMIT)
        self._waiting: dict[tuple[object, ...], Command] = {}
        self._began_s: dict[tuple[str, str], float] = {}  # when a target was last changed
        self._busy: dict[tuple[str, str], int] = {}  # target -> number of what the frame process was asked
        self._asked: dict[int, _Asked] = {}
        self._log_lines: dict[str, tuple[float, int]] = {}  # reason -> time of its last line, lines left out since
        self._read = 0
        self._knows_all = False  # the frame process, of what commands have changed
        self.done = self.dropped = self._failed = 0

    @property
    def refused(self) -> int:
        """Commands that were not carried out: refused, failed, or given up unread."""
        return self._reader.refused.total() + self._failed + self.dropped

    @property
    def refused_by_reason(self) -> Mapping[str, int]:
        return {**self._reader.refused, "failed": self._failed, "dropped": self.dropped}

    @property
    def cameras(self) -> tuple[str, ...]:
        """Those that there are now, by what commands have added and removed."""
        return self._live.cameras

    def value(self, word: str, camera: str) -> bool | float:
        """What is in force of `detect`, `threshold` or `fps`, for one of `cameras`."""
        return self._live.value(word, camera)

    def effects(self) -> list[Message]:
        """What is in force of every camera, retained: part of what a session begins with."""
        return [message for name in self.cameras for message in self._live.effects(name)]

    def reconfigure(self, config: Config, reopened: frozenset[str]) -> None:
        """Another configuration is in force (LiveSettings.reconfigure)."""
        before = self.cameras
        gone = [message for name in before if name not in config.channels for message in self._live.no_effects(name)]
        self._live.reconfigure(config, reopened)
        self._publish_all(gone)
        for name in self.cameras:
            if name in reopened or name not in before:
                self._publish_all(self._live.effects(name))

    # -- in ----------------------------------------------------------------------------------------------------
    def take(self, incoming: Incoming) -> None:
        """Let a message wait for the loop. Network thread; quick, never raises."""
        if len(self._arrived) == QUEUE_LIMIT:
            self.dropped += 1  # the oldest one: what came last says what is wanted
        self._arrived.append(self._reader.shortened(incoming))
        if len(self._arrived) == 1:  # else the loop has been woken, or is at it
            self._wake()

    def work(self) -> None:
        """Do what is due. Every turn of the loop, at least twice a second; never waits."""
        now_s = self._now_s()
        for _ in range(READ_PER_TURN):
            if not self._arrived:
                break
            self._sort(self._arrived.popleft())
        if self._arrived:
            self._wake()
        for key, command in list(self._waiting.items()):
            if self._is_due(command, now_s):
                del self._waiting[key]
                self._carry_out(command, now_s)
        self._give_up(now_s)

    def _sort(self, incoming: Incoming) -> None:
        read = self._reader.read(incoming, self._clock.wall_ns() / 1e9, self._clock.is_synced())
        if isinstance(read, Refusal):
            self._tell_failure(read.word, read.camera, read.sender, read.reason, read.text)
            return
        self.submit(read)

    def submit(self, command: Command) -> None:
        """Let a command wait for its turn; it is answered, if only with why it is not carried out."""
        self._read += 1
        # Adding and removing are no values, so none replaces another.
        key = (*command.target, self._read if command.word == "cameras" else 0)
        replaced = self._waiting.pop(key, None)
        if replaced is not None:
            self._fail(replaced, "replaced", NotNowError("a later command came before this one was begun"))
        if len(self._waiting) >= _WAITING_LIMIT:
            self._fail(command, "busy", NotNowError("too many commands wait", fix="try again"))
            return
        self._waiting[key] = command

    def _is_due(self, command: Command, now_s: float) -> bool:
        pause_s = _PAUSE_S.get(command.word, _SHORT_PAUSE_S)
        return command.target not in self._busy and now_s - self._began_s.get(command.target, -pause_s) >= pause_s

    # -- out ---------------------------------------------------------------------------------------------------
    def _carry_out(self, command: Command, now_s: float, *, is_repeated: bool = False) -> None:
        self._note_begin(command.target, now_s)
        try:
            if not is_repeated:
                self._check(command)
            number = self._begin(command)
        except ZhcEdgeError as error:
            self._fail(command, "failed", error)
            return
        if number is None:
            self._succeed(command)
            return
        self._busy[command.target] = number
        self._asked[number] = _Asked(command, now_s + ANSWER_S)

    def _begin(self, command: Command) -> int | None:
        """The number of what the frame process was asked, or None when it is done. Raises ZhcEdgeError."""
        value = command.value
        if isinstance(value, AddCamera):
            return self._control.add_camera(value.name, dict(value.channel))
        if isinstance(value, RemoveCamera):
            return self._control.remove_camera(value.name)
        if isinstance(value, LogLevel):
            return self._control.set_log_level(value.level)
        if command.word == PAUSED:
            return self._control.frame_command("pause" if value else "resume", command.camera, None)
        if command.word == "reload":
            return self._control.reload()
        if command.word == "rebirth":
            self._control.rebirth()
            return None
        if command.word == "threshold" and value is not None:
            self._control.set_threshold(command.camera, float(value))
            return None
        return self._control.frame_command(command.word, command.camera, value)

    def _check(self, command: Command) -> None:
        """What the reader can't know. Raises ConfigError."""
        value = command.value
        if isinstance(value, AddCamera):
            _check_channel(value)
            there = slugs(self.cameras)
            if slug(value.name) in there:
                raise ConfigError(f"there is a camera {there[slug(value.name)]} already", where=value.name)
        elif isinstance(value, RemoveCamera):
            if value.name not in self.cameras:
                raise ConfigError("there is no such camera")
        elif command.camera and command.camera not in self.cameras:
            raise ConfigError("there is no such camera", where=command.camera)

    def answered(self, number: int, error: ZhcEdgeError | None, value: object = None) -> None:
        """The frame process has done a command, or refused it. An unknown number is somebody else's: ignored."""
        asked = self._asked.pop(number, None)
        if asked is None:
            return
        if self._busy.get(asked.command.target) == number:
            del self._busy[asked.command.target]
        if error is not None:
            if not asked.is_told:
                self._fail(asked.command, "failed", error)
            return
        if asked.command.word == "snapshot" and not self._show(asked.command, value):
            return
        self._succeed(asked.command, is_told=asked.is_told)

    def _show(self, command: Command, value: object) -> bool:
        """Publish the picture that came with the answer: {"jpeg": base64, ...}."""
        jpeg = value.get("jpeg") if isinstance(value, Mapping) else None
        try:
            picture = base64.b64decode(jpeg, validate=True) if isinstance(jpeg, str) else b""
        except binascii.Error:
            picture = b""
        if not picture:
            self._fail(command, "failed", PipelineError("the frame process gave no picture"))
            return False
        self._control.publish(device_messages.snapshot(self._topics, command.camera, picture))
        return True

    def _succeed(self, command: Command, *, is_told: bool = False) -> None:
        self.done += 1
        self._live.keep(command)
        value = command.value
        if isinstance(value, AddCamera):
            self._publish_all(self._live.effects(value.name))
            self.reapply(value.name)
        elif isinstance(value, RemoveCamera):
            self._publish_all(self._live.no_effects(value.name))
        elif command.word in LIVE_WORDS and command.camera in self.cameras:
            self._control.publish(self._live.effect(command.word, command.camera))
        if not is_told:
            in_force = value if isinstance(value, (bool, float)) else None
            self._answer(command.word, command.camera, command.sender, "", in_force)
            if command.sender.tell is not None:
                command.sender.tell(None)

    def _fail(self, command: Command, reason: str, error: ZhcEdgeError) -> None:
        self._failed += 1
        self._tell_failure(command.word, command.camera, command.sender, reason, str(error))
        if command.sender.tell is not None:
            command.sender.tell(error)

    def _tell_failure(self, word: str, camera: str, sender: Sender, reason: str, text: str) -> None:
        # Some errors come from other libraries, with an address in them, or a camera's own words.
        text = printable(without_password(text))[:_MAX_TEXT]
        target = f"command {word or '?'}{f' of camera {camera}' if camera else ''}"
        self._log_rarely(reason, f"{target} is not carried out ({reason}): {text}")
        self._answer(word, camera, sender, f"{reason}: {text}")

    def _answer(self, word: str, camera: str, sender: Sender, reason: str, value: bool | float | None = None) -> None:
        if not sender.topic:
            return
        level = slug(camera) if camera else ""
        what = device_messages.Answer(not reason, word, level, reason, value, sender.id, sender.correlation)
        self._control.publish(device_messages.answer(sender.topic, what))

    def _log_rarely(self, reason: str, line: str) -> None:
        now_s = self._now_s()
        last_s, left_out = self._log_lines.get(reason, (-_LOG_S, 0))
        if now_s - last_s < _LOG_S:
            self._log_lines[reason] = last_s, left_out + 1
            return
        self._log_lines[reason] = now_s, 0
        log.warning("%s%s", line, f" (and {left_out} more like it before)" if left_out else "")

    # -- deadlines, restarts -----------------------------------------------------------------------------------
    def _give_up(self, now_s: float) -> None:
        """Tell senders that have waited too long; what is still done later takes effect all the same."""
        for number, asked in list(self._asked.items()):
            if asked.is_told or now_s < asked.deadline_s:
                continue
            asked.is_told = True
            if self._busy.get(asked.command.target) == number:
                del self._busy[asked.command.target]
            late = PipelineError(f"the frame process has not answered within {ANSWER_S:.0f} s")
            self._fail(asked.command, "failed", late)
        while len(self._asked) > _ASKED_LIMIT:
            del self._asked[next(iter(self._asked))]

    def frame_process_ended(self) -> None:
        """Nothing that it was asked will be answered any more, and the next one knows nothing of any command."""
        self._knows_all = False
        for number in list(self._asked):
            self.answered(number, PipelineError("the frame process has ended", fix="try again"))

    def reapply(self, camera: str = "") -> None:
        """The frame process is active: give it what commands have changed, once for each frame process.

        Args:
            camera: only what belongs to this one, because it has begun; before that it takes no value. Empty for all.
        """
        if camera and self._knows_all:
            commands = list(self._live.for_camera(camera))
        elif camera or self._knows_all:
            return
        else:
            commands, self._knows_all = list(self._live.for_new_frame_process()), True
        later = {*self._busy, *(command.target for command in self._waiting.values())}  # what is newer wins
        for command in commands:
            if command.target not in later:
                self._carry_out(command, self._now_s(), is_repeated=True)

    def _publish_all(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._control.publish(message)

    def _note_begin(self, target: tuple[str, str], now_s: float) -> None:
        if len(self._began_s) > _WAITING_LIMIT:  # cameras' names may be any
            self._began_s = {key: at for key, at in self._began_s.items() if now_s - at < max(_PAUSE_S.values())}
        self._began_s[target] = now_s

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9


def _check_channel(wanted: AddCamera) -> None:
    """Raises ConfigError for a name or a section that is not valid, or that names a file."""
    check_channel_name(wanted.name)
    channel = parse_channel(wanted.name, wanted.channel)
    source = channel.source
    # Who may write to a topic is not who may read and write this computer's files; a "password file" would also
    # carry any file's first line to the server that the address names.
    files = (source.password_file, source.ca_file, *(sink.path for sink in channel.sinks))
    if source.is_path or any(file is not None for file in files):
        raise ConfigError(
            "a camera that is added while the daemon runs may name no file of this computer",
            where=wanted.name,
            fix="use an address, clip: or pattern:, or write the camera into the configuration",
        )

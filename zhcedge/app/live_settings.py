"""What commands have changed since the start: it wins over the configuration until the daemon ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zhcedge.config.schema import Config
from zhcedge.core.delivery import Message
from zhcedge.publish import device_messages
from zhcedge.publish.commands import AddCamera, Command, RemoveCamera
from zhcedge.publish.topics import Topics

LIVE_WORDS = ("detect", "threshold", "fps")
"""Commands that set a value of a camera, which has a topic of its own."""

PAUSED = "paused"
"""The word of pause and resume, which come over the control socket alone: its value is whether it is paused."""

_IN_FRAME_PROCESS = ("detect", "fps", PAUSED)


class LiveSettings:
    """Values of cameras, and cameras added or removed. Belongs to the control loop's thread.

    Args:
        config: what is in force before any command.
        score_threshold: of the detector, 0 to 1; what `threshold` is before anybody sets it.
    """

    def __init__(self, config: Config, topics: Topics, score_threshold: float) -> None:
        self._config, self._topics, self._score_threshold = config, topics, score_threshold
        self._values: dict[tuple[str, str], bool | float] = {}  # by camera and word
        self._added: dict[str, Mapping[str, object]] = {}
        self._removed: set[str] = set()  # of the configuration's cameras

    def reconfigure(self, config: Config, reopened: frozenset[str]) -> None:
        """The configuration is what counts again: cameras are those that it has, and of those that are opened anew
        nothing is kept that a command has set."""
        self._config = config
        self._added.clear()
        self._removed.clear()
        kept = config.channels.keys() - reopened
        self._values = {key: value for key, value in self._values.items() if key[0] in kept}

    def keep(self, command: Command) -> None:
        """A command was carried out."""
        value = command.value
        if isinstance(value, AddCamera):
            self._added[value.name] = value.channel
        elif isinstance(value, RemoveCamera):
            if value.name in self._config.channels:
                self._removed.add(value.name)
            self._added.pop(value.name, None)
            for word in (*LIVE_WORDS, PAUSED):
                self._values.pop((value.name, word), None)
        elif isinstance(value, (bool, int, float)) and command.camera in self.cameras:
            self._values[command.camera, command.word] = value

    @property
    def cameras(self) -> tuple[str, ...]:
        """Those of the configuration without the removed ones, then the added ones."""
        return (*(name for name in self._config.channels if name not in self._removed), *self._added)

    def value(self, word: str, camera: str) -> bool | float:
        """What is in force of LIVE_WORDS."""
        known = self._values.get((camera, word))
        if known is not None:
            return known
        if word == "detect":
            return True
        return self._score_threshold if word == "threshold" else self._configured_fps(camera)

    def _configured_fps(self, camera: str) -> float:
        if camera in self._added:
            source = self._added[camera].get("source")
            fps = source.get("fps") if isinstance(source, Mapping) else None
        else:
            fps = self._config.channels[camera].source.fps
        return float(fps) if isinstance(fps, (int, float)) else 0.0

    def effects(self, camera: str) -> list[Message]:
        """The retained effects of one camera."""
        return [self.effect(word, camera) for word in LIVE_WORDS]

    def effect(self, word: str, camera: str) -> Message:
        return device_messages.effect(self._topics, word, self.value(word, camera), camera)

    def no_effects(self, camera: str) -> list[Message]:
        """What takes the effects of a removed camera back."""
        return [Message(self._topics.effect(word, camera), b"", retain=True) for word in LIVE_WORDS]

    def for_new_frame_process(self) -> Iterator[Command]:
        """What one that has just read the configuration does not know.

        The values of added cameras are not among it: they come when the camera has begun, by `for_camera`.
        """
        for name in self._removed:
            yield Command("cameras", value=RemoveCamera(name))
        for name, channel in self._added.items():
            yield Command("cameras", value=AddCamera(name, channel))
        for camera in dict.fromkeys(name for name, _ in self._values):
            if camera not in self._added:
                yield from self.for_camera(camera)

    def for_camera(self, camera: str) -> Iterator[Command]:
        """What the frame process must know of a camera that has begun."""
        for (name, word), value in self._values.items():
            if name == camera and word in _IN_FRAME_PROCESS:
                yield Command(word, camera, value)

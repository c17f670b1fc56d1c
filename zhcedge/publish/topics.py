"""MQTT topic names: `<prefix>/<device>/...`, with fixed words before every name that people choose.

<prefix>/<device>/available                 online | stopped | offline, retained, QoS 1; offline is the will
<prefix>/<device>/state                     what the device is and how it is, retained
<prefix>/<device>/events                    new, update and end of every event, QoS 1
<prefix>/<device>/<word>                    what else belongs to the device: alerts, stats
<prefix>/<device>/<word>/set                a command to the device; its effect is on <word>/state
<prefix>/<device>/camera/<camera>/<word>    what belongs to one camera: status, count, snapshot
<prefix>/<device>/camera/<camera>/zone/<zone>/count, line/<line>/count    objects in it, crossings of it
<prefix>/<device>/camera/<camera>/<word>/set    a command to a camera; its effect is on <word>/state
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from zhcedge.core.errors import ConfigError

DEFAULT_PREFIX = "zhcedge"

_MAX_TOPIC_BYTES = 65535  # MQTT 3.1.1, section 1.5.3
_SLUG = re.compile("[a-z0-9]+(-[a-z0-9]+)*")


def slug(name: str) -> str:
    """A name as one topic level: ASCII letters and digits in lower case, all else a single hyphen.

    Different names can have the same slug ("Gate 1", "gate-1"): whoever accepts names checks that. Raises
    ConfigError when nothing is left of the name.
    """
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    result = re.sub(r"[^a-z0-9]+", "-", ascii_name.lower()).strip("-")
    if not result:
        raise ConfigError(
            "no topic can be made of this name", where=repr(name), fix="use at least one letter a-z or digit"
        )
    return result


@dataclass(frozen=True)
class Topics:
    """The topics of one device. Raises ConfigError for a prefix or a device that can't be part of a topic.

    Args:
        device: the device's name; its slug becomes a topic level.
        prefix: one or more topic levels, used as they are.
    """

    device: str
    prefix: str = DEFAULT_PREFIX

    def __post_init__(self) -> None:
        levels = self.prefix.split("/")
        if any(not level for level in levels) or re.search(r"[+#\x00-\x1f]", self.prefix) or levels[0][:1] == "$":
            raise ConfigError(
                "not usable as the beginning of a topic",
                where=repr(self.prefix),
                fix='use words with "/" between them, without +, # or a leading $',
            )
        if len(self.prefix.encode()) > _MAX_TOPIC_BYTES // 2:
            raise ConfigError("longer than a topic may be", where="topic prefix", fix="use a short prefix")
        slug(self.device)

    @property
    def root(self) -> str:
        return f"{self.prefix}/{slug(self.device)}"

    @property
    def available(self) -> str:
        return f"{self.root}/available"

    @property
    def state(self) -> str:
        return f"{self.root}/state"

    @property
    def events(self) -> str:
        return f"{self.root}/events"

    @property
    def alerts(self) -> str:
        return f"{self.root}/alerts"

    @property
    def stats(self) -> str:
        return f"{self.root}/stats"

    def camera_root(self, name: str) -> str:
        """What all topics of a camera begin with."""
        return self._part(name)

    def camera(self, name: str, word: str) -> str:
        """A topic of one camera; `word` is one of ours, such as "status"."""
        return f"{self._part(name)}/{word}"

    def zone_count(self, camera: str, zone: str) -> str:
        """How many objects are in a zone of a camera."""
        return f"{self._part(camera)}/zone/{slug(zone)}/count"

    def line_count(self, camera: str, line: str) -> str:
        """How often a line of a camera was crossed."""
        return f"{self._part(camera)}/line/{slug(line)}/count"

    def command(self, word: str, camera: str = "") -> str:
        """Where a command is sent to: to the device, or to a camera."""
        return f"{self._part(camera)}/{word}/set"

    def effect(self, word: str, camera: str = "") -> str:
        """Where the effect of a command is told, retained."""
        return f"{self._part(camera)}/{word}/state"

    @property
    def command_filters(self) -> tuple[str, ...]:
        """Subscriptions that hold every command to this device and to its cameras."""
        return (f"{self.root}/+/set", f"{self.root}/camera/+/+/set")

    @property
    def kept_filters(self) -> tuple[str, ...]:
        """Subscriptions to what the broker keeps of every camera, its zones and its lines."""
        return tuple(f"{self.root}/camera/{rest}" for rest in ("+/status", "+/zone/+/count", "+/line/+/count"))

    def camera_of(self, topic: str) -> str:
        """The slug of the camera that a topic belongs to; empty for none, also where no camera can have such a one:
        others may write there, too."""
        beneath = topic.removeprefix(f"{self.root}/camera/")
        level = "" if beneath == topic else beneath.partition("/")[0]
        return level if _SLUG.fullmatch(level) else ""

    def parse_command(self, topic: str) -> tuple[str, str] | None:
        """Word and camera slug ("" for the device) of a command's topic; None for any other topic."""
        levels = topic.removeprefix(f"{self.root}/").split("/")
        if not topic.startswith(f"{self.root}/") or levels[-1] != "set":
            return None
        if len(levels) == 2:
            return levels[0], ""
        if len(levels) == 4 and levels[0] == "camera":
            return levels[2], levels[1]
        return None

    def _part(self, camera: str) -> str:
        return f"{self.root}/camera/{slug(camera)}" if camera else self.root

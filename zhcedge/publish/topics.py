"""MQTT topic names: `<prefix>/<device>/...`, with fixed words before every name that people choose.

<prefix>/<device>/available                 online | stopped | offline, retained, QoS 1; offline is the will
<prefix>/<device>/state                     what the device is and how it is, retained
<prefix>/<device>/events                    new, update and end of every event, QoS 1
<prefix>/<device>/camera/<camera>/<word>    what belongs to one camera
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from zhcedge.core.errors import ConfigError

DEFAULT_PREFIX = "zhcedge"

_MAX_TOPIC_BYTES = 65535  # MQTT 3.1.1, section 1.5.3


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

    def camera(self, name: str, word: str) -> str:
        """A topic of one camera; `word` is one of ours, such as "status"."""
        return f"{self.root}/camera/{slug(name)}/{word}"

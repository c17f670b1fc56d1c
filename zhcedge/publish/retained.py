"""The retained messages of a device: what a new session begins with, and what changes in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from zhcedge.core.delivery import Broker, Message


class Retained:
    """The latest message of every retained topic. Belongs to the control loop's thread, `birth` excepted.

    Every session begins with all of them, so that nothing which changed while the broker was away is told wrongly.
    """

    def __init__(self) -> None:
        self._latest: dict[str, Message] = {}
        self._stale: dict[str, Message] = {}  # not handed to the broker yet
        self._all: tuple[Message, ...] = ()
        self._born: tuple[Message, ...] = ()  # what the newest session has begun with

    def put(self, message: Message) -> None:
        """Take the place of the topic's last message; the same one again is not told again.

        A message without a payload removes its topic: it is told once and then forgotten.
        """
        if self._latest.get(message.topic) == message:
            return
        self._stale[message.topic] = message
        if message.payload:
            self._latest[message.topic] = message
        else:
            self._latest.pop(message.topic, None)
        self._all = tuple(self._latest.values())

    def birth(self) -> Sequence[Message]:
        """What a session begins with, in order of first appearance; not told once more by `flush`. Any thread."""
        self._born = self._all
        return self._born

    def below(self, topic: str) -> list[str]:
        """The topics that there are below this one."""
        return [one for one in self._latest if one.startswith(f"{topic}/")]

    def repeat(self) -> None:
        """Tell everything again, although nothing has changed: somebody has asked."""
        self._stale.update((topic, replace(message)) for topic, message in self._latest.items())

    def flush(self, broker: Broker) -> None:
        """Hand over what has changed, as far as the connection takes it. Never waits."""
        if not self._stale:
            return
        born, self._born = self._born, ()
        told = []
        for topic, message in self._stale.items():
            if not any(message is one for one in born) and not broker.publish(message):
                break
            told.append(topic)
        for topic in told:
            del self._stale[topic]

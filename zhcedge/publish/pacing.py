"""Retained topics whose value changes often: told when it changes, and not too often."""

from __future__ import annotations

from zhcedge.core.delivery import Message

INTERVAL_S = 0.5
"""Least time between two messages of one topic: objects at a threshold come and go several times a second."""


class Pacing:
    """Holds back messages that follow each other too closely; the last one of a topic always gets through. One thread.

    What is the same as told before is no news.
    """

    def __init__(self) -> None:
        self._told: dict[str, tuple[Message, float]] = {}  # by topic: and when
        self._waiting: dict[str, Message] = {}

    def note(self, message: Message) -> None:
        """What the topic should say now."""
        told = self._told.get(message.topic)
        if told is not None and told[0] == message:
            self._waiting.pop(message.topic, None)
        else:
            self._waiting[message.topic] = message

    def due(self, now_s: float) -> list[Message]:
        """What is to be told now; `now_s` is monotonic."""
        ready = [
            message
            for topic, message in self._waiting.items()
            if topic not in self._told or now_s - self._told[topic][1] >= INTERVAL_S
        ]
        for message in ready:
            del self._waiting[message.topic]
            self._told[message.topic] = (message, now_s)
        return ready

    def forget(self, topic: str) -> None:
        """It is gone."""
        self._told.pop(topic, None)
        self._waiting.pop(topic, None)

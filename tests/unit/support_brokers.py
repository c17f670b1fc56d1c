"""A broker connection that keeps what it is given."""

from __future__ import annotations

from collections.abc import Sequence

from zhcedge.core.delivery import Message


class ListBroker:
    """Implements core.delivery.Broker; `is_connected` is the test's to set."""

    def __init__(self) -> None:
        self.is_connected = True
        self.published: list[Message] = []

    def start(self) -> None:
        pass

    @property
    def session(self) -> int:
        return int(self.is_connected)

    @property
    def protocol(self) -> int:
        return 5 if self.is_connected else 0

    def publish(self, message: Message, token: int = 0, session: int = 0) -> bool:
        if self.is_connected:
            self.published.append(message)
        return self.is_connected

    def hurry(self) -> None:
        pass

    def stop(self, last: Sequence[Message], timeout_s: float) -> None:
        self.published += last

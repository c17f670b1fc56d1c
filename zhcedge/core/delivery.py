"""The control process's ports: messages, where they wait, and the connection that takes them away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True)
class Message:
    """One MQTT publication. Payload is UTF-8 JSON unless the topic says otherwise.

    Attributes:
        expiry_s: the broker forgets it after this time when nobody has taken it (MQTT 5); None keeps it.
        correlation: of the command that it answers (MQTT 5); empty for none.
    """

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False
    expiry_s: int | None = None
    correlation: bytes = b""


@dataclass(frozen=True)
class Incoming:
    """A message that the broker has sent us.

    Attributes:
        is_retained: it was kept by the broker, so it is of any age.
        protocol: of the session, 5 or 3 (for 3.1.1).
        response_topic: where its sender wants the answer (MQTT 5); empty for nowhere.
        correlation: what its sender wants to see in the answer (MQTT 5).
    """

    topic: str
    payload: bytes
    is_retained: bool = False
    protocol: int = 5
    response_topic: str = ""
    correlation: bytes = b""


@dataclass(frozen=True)
class Alert:
    """Something an operator should know. Published on the topic `alerts` and logged.

    Attributes:
        code: lower-case words with hyphens, the same for every alert of the kind: what a program looks for.
        text: one line for people: what, where, and what to do.
        severity: of it.
        is_over: it was true and is no more.
    """

    code: str
    text: str
    severity: Literal["info", "warning", "error"] = "warning"
    is_over: bool = False


OnAlert = Callable[[Alert], None]
"""Takes an alert from any thread, at once and without raising."""


@dataclass(frozen=True)
class Row:
    """A message that waits in an outbox.

    Attributes:
        id: above 0, grows, never used twice under one outbox_id: it is the message's `seq`.
        created_ns: wall clock when it was appended.
    """

    id: int
    message: Message
    created_ns: int


@dataclass(frozen=True)
class OpenEvent:
    """An event that has begun and whose end is not in the outbox yet.

    Attributes:
        id: of the event.
        payload: of its latest message.
    """

    id: str
    payload: bytes


class Outbox(Protocol):
    """Messages on their way out, in order. A row leaves by `ack`, by `refuse`, or by the stated policy, counted.

    Owned by the thread of the control process's loop; none of its calls waits for a disk that syncs.
    """

    @property
    def outbox_id(self) -> str:
        """Random name of this store: receivers tell repeated messages by it and the message's `seq`."""
        ...

    @property
    def is_durable(self) -> bool:
        """What waits here at `close` is there again at the next start."""
        ...

    @property
    def next_id(self) -> int:
        """The id that the next row gets: a message says its own `seq`."""
        ...

    def batch(self) -> AbstractContextManager[None]:
        """What is appended in the block is kept as a whole or not at all: a frame's events. Not nested."""
        ...

    def append(
        self, message: Message, is_expendable: bool = False, *, opens: OpenEvent | None = None, closes: str = ""
    ) -> int:
        """Keep a message; returns its id. A full outbox gives up expendable rows first, then the oldest ones.

        Never raises for a full or broken disk: it goes on in memory, within its limits, and tells by an alert.

        Args:
            is_expendable: an event's `update`.
            opens: the event goes on after this message; replaces what was noted of it.
            closes: id of the event that this message ends.
        """
        ...

    def open_events(self) -> list[OpenEvent]:
        """Events without an end, in order of their beginning: at the start, those that a crash has interrupted."""
        ...

    def pending(self, after_id: int, limit: int) -> list[Row]:
        """The oldest unacknowledged rows with an id above `after_id`."""
        ...

    def ack(self, row_id: int) -> None:
        """Forget a delivered row; nothing happens for one that is gone already."""
        ...

    def refuse(self, row_id: int, reason: str) -> None:
        """Set aside a row that the broker will never take; kept for inspection within limits, counted."""
        ...

    def tick(self) -> None:
        """Called by the loop at least twice a second: what has a deadline is done now. Never waits."""
        ...

    def close(self) -> None:
        """Keep what is there for the next start and close. Waits for the disk, a few seconds at most."""
        ...

    @property
    def depth(self) -> int:
        """Rows that wait."""
        ...

    @property
    def dropped(self) -> int:
        """Rows given up by this object because of a limit."""
        ...

    @property
    def lost(self) -> int:
        """Of `dropped`, those that were not expendable: somebody's events now miss a beginning or an end."""
        ...

    @property
    def refused(self) -> int:
        """Rows set aside by this object."""
        ...

    @property
    def flash_bytes(self) -> int:
        """Bytes written to flash by this object, at most; the file system's own come on top."""
        ...


class Broker(Protocol):
    """A connection to an MQTT broker that reconnects by itself.

    `start`, `publish` and `stop` belong to the control loop's thread; the callbacks given to the constructor may
    come from another one.
    """

    def start(self) -> None: ...
    @property
    def is_connected(self) -> bool: ...
    @property
    def session(self) -> int:
        """Number of the current connection, growing from 1; 0 while there is none."""
        ...

    @property
    def protocol(self) -> int:
        """5, or 3 for MQTT 3.1.1: of the current connection; 0 while there is none."""
        ...

    def publish(self, message: Message, token: int = 0, session: int = 0) -> bool:
        """Hand a message to the connection; False when there is none, or another one than `session` (0: any).

        A non-zero token comes back as an ack or as a refusal. What a lost connection has not acknowledged is
        forgotten: the owner sees the new session number and hands it over again.
        """
        ...

    def hurry(self) -> None:
        """Try at once, and from now on often, when there is no connection: the daemon is about to end."""
        ...

    def stop(self, last: Sequence[Message], timeout_s: float) -> None:
        """Publish `last`, wait for what is in flight, disconnect."""
        ...

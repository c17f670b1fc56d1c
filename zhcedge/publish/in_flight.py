"""What one connection holds: messages that are not acknowledged, and those that wait for room before all others."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from paho.mqtt.reasoncodes import ReasonCode

from zhcedge.core.delivery import Message
from zhcedge.publish.limits import MAX_UNACKNOWLEDGED, BrokerLimits

MAX_BYTES = 512 * 1024
"""Most bytes on their way, unless a single message is larger: on a slow line, what lies behind them waits for them,
the sign of life included."""


@dataclass
class Outgoing:
    """One message on its way.

    Attributes:
        token: of its owner; 0 for nobody.
        size: bytes of its packet.
        tries: how often the broker has refused it for the moment.
    """

    message: Message
    token: int
    size: int
    tries: int = 0


class InFlight:
    """Counts and bounds them. Any thread.

    paho calls back with its own lock held, and takes it in `publish`. So nothing here is held while paho is called:
    room is reserved first (`enter`, `next_waiting`), then the message is sent, then its packet's number is noted.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._limits = BrokerLimits()
        self._sent: dict[int, Outgoing] = {}  # by packet identifier
        self._early: dict[int, ReasonCode] = {}  # answered before `note` was called
        self._waiting: deque[Outgoing] = deque()
        self._is_feeding = False  # a message is between `next_waiting` and `fed`
        self._count = self._acknowledged_count = self._bytes = self._answers = 0
        self._is_closed = False

    def set_limits(self, limits: BrokerLimits) -> None:
        """Before the first message."""
        self._limits = limits

    def enter(self, entry: Outgoing) -> bool:
        """Reserve room; False when there is none, or when others wait for it."""
        with self._changed:
            if self._is_closed or self._waiting or self._is_feeding or not self._has_room(entry):
                return False
            self._reserve(entry)
            return True

    def queue(self, entries: Sequence[Outgoing]) -> None:
        """Send these before all others, as soon as there is room for each: see `next_waiting`."""
        with self._changed:
            if not self._is_closed:
                self._waiting.extend(entries)

    def next_waiting(self) -> Outgoing | None:
        """Take the first queued message that has room; whoever gets one sends it and calls `fed`."""
        with self._changed:
            if self._is_feeding or not self._waiting or not self._has_room(self._waiting[0]):
                return None
            self._is_feeding = True
            self._reserve(self._waiting[0])
            return self._waiting.popleft()

    def fed(self) -> None:
        """What `next_waiting` gave is sent."""
        with self._changed:
            self._is_feeding = False

    def note(self, packet: int, entry: Outgoing) -> ReasonCode | None:
        """The message has this packet identifier; returns the broker's answer if that was faster."""
        with self._changed:
            reason = self._early.pop(packet, None)
            if reason is None:
                self._sent[packet] = entry
                return None
            self._release(entry)
            return reason

    def answered(self, packet: int, reason: ReasonCode) -> Outgoing | None:
        """The broker's answer, or that a QoS 0 message is written; None when nobody has noted the packet yet."""
        with self._changed:
            self._answers += 1
            entry = self._sent.pop(packet, None)
            if entry is None:
                self._early[packet] = reason
            else:
                self._release(entry)
            return entry

    def release(self, entry: Outgoing) -> None:
        """It was not sent after all."""
        with self._changed:
            self._release(entry)

    def close(self) -> None:
        """The connection is gone."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def wait_empty(self, timeout_s: float) -> None:
        """Until everything is acknowledged, the connection is gone, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or not (self._count or self._waiting), timeout_s)

    @property
    def progress(self) -> tuple[int, int]:
        """Messages that are on their way, and answers that have come so far."""
        return self._count, self._answers

    @property
    def is_waiting(self) -> bool:
        """Whether queued messages are not sent yet."""
        return bool(self._waiting) or self._is_feeding

    def _has_room(self, entry: Outgoing) -> bool:
        if self._count >= MAX_UNACKNOWLEDGED or (self._count and self._bytes + entry.size > MAX_BYTES):
            return False
        return entry.message.qos == 0 or self._acknowledged_count < self._limits.receive_maximum

    def _reserve(self, entry: Outgoing) -> None:
        self._count += 1
        self._bytes += entry.size
        self._acknowledged_count += entry.message.qos > 0

    def _release(self, entry: Outgoing) -> None:
        self._count -= 1
        self._bytes -= entry.size
        self._acknowledged_count -= entry.message.qos > 0
        if not self._count:
            self._changed.notify_all()

"""The thread of a live feed: connects, reads packets into a bounded queue, connects again when that ends.

FFmpeg's calls block, for as long as a name server, a firewall or a camera likes; here nobody waits for them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from zhcedge.core.backoff import Backoff
from zhcedge.core.errors import MediaError, SourceMissingError, SourceRefusedError, ZhcEdgeError
from zhcedge.core.ports import Clock, SourceStatus
from zhcedge.media.connection import Connection

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.stream import VideoStream

MAX_PACKETS = 600
MAX_BYTES = 32 * 1024 * 1024
"""What may wait for the decoder: 20 s of a camera."""

STEADY_S = 10.0
"""A connection that lasted this long counts as working: the next wait starts at the shortest one again."""

STOP_S = 1.5
MAX_PACKETS_WITHOUT_KEY = 1000
"""A stream that refreshes its picture bit by bit has no key frames; after so many packets it is taken as it is."""


class Arrival(NamedTuple):
    """A packet and when it came.

    Attributes:
        connection: whose packet.
        packet: None stands for the end of the connection, which from then on belongs to the receiver.
        monotonic_ns: when it came.
        captured_ns: wall clock, when the picture was taken, or came where nobody says when it was taken.
        reason: of the end.
    """

    connection: Connection
    packet: Packet[VideoStream] | None
    monotonic_ns: int = 0
    captured_ns: int = 0
    reason: str = ""


class Intake:
    """Keeps one stream connected. All methods but the thread's own belong to the reader thread; `status` to any.

    A camera's packets that nobody takes are dropped up to the next key frame; a file behind an address waits instead,
    and ends. The first connection is tried once: `first` tells how that went.

    Args:
        connect: makes a connection; may take long. Raises SourceMissingError or MediaError.
        where: names the stream in messages.
        is_looped: a file behind an address starts again at its end.
    """

    def __init__(
        self, connect: Callable[[], Connection], clock: Clock, where: str, backoff: Backoff, is_looped: bool
    ) -> None:
        self._connect, self._clock, self._where = connect, clock, where
        self._backoff, self._is_looped = backoff, is_looped
        self._arrivals: deque[Arrival] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()  # guards the two above, `_failure` and `_has_ended`
        self._failure: ZhcEdgeError | None = None
        self._has_ended = False
        self._stopping = threading.Event()
        self._dismissal = ""
        self._lost_packets = 0
        self._status = SourceStatus(is_up=False, reason="not connected yet")
        self._has_been_up = False
        self._thread = threading.Thread(target=self._run, name=f"stream {where}", daemon=True)

    @property
    def status(self) -> SourceStatus:
        return self._status

    @property
    def lost_packets(self) -> int:
        """Dropped because nobody took them in time."""
        return self._lost_packets

    # -- the reader thread's side -----------------------------------------------------------------------------
    def start(self) -> None:
        self._thread.start()

    def first(self, timeout_s: float) -> Connection | None:
        """The first connection once its first packet is there; None after `timeout_s`.

        Raises what the connection attempt raised.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._arrivals or self._failure, timeout_s)
            if self._failure is not None:
                raise self._failure
            return self._arrivals[0].connection if self._arrivals else None

    def take(self, timeout_s: float) -> Arrival | None:
        """The next arrival; None after `timeout_s`, or when there will be no more."""
        with self._changed:
            if not self._arrivals and not self._has_ended:
                self._changed.wait_for(lambda: self._arrivals or self._has_ended, timeout_s)
            if not self._arrivals:
                return None
            arrival = self._arrivals.popleft()
            if arrival.packet is not None:
                self._waiting_bytes -= arrival.packet.size
            self._changed.notify_all()
            return arrival

    @property
    def has_ended(self) -> bool:
        """There will be no more arrivals."""
        return self._has_ended and not self._arrivals

    @property
    def is_running(self) -> bool:
        """Whether the thread still lives, and with it a connection of its own."""
        return self._thread.is_alive()

    def dismiss(self, reason: str) -> None:
        """Give the present connection up and make a new one."""
        self._dismissal = reason

    def stop(self) -> None:
        """End the thread; within STOP_S, whatever the network does.

        A thread that hangs in FFmpeg then is left behind. It ends with that call, within the connection's timeouts,
        and closes what it holds.
        """
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(STOP_S)
        with self._changed:
            for arrival in self._arrivals:
                if arrival.packet is None:
                    arrival.connection.close()
            self._arrivals.clear()
            self._waiting_bytes = 0

    # -- the thread -------------------------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                wait_s = self._run_connection()
                if wait_s is None or self._stopping.wait(wait_s):
                    return
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()

    def _run_connection(self) -> float | None:
        """One connection from its making to its end; the wait before the next one, None for no next one."""
        try:
            connection = self._connect()
        except (SourceMissingError, MediaError) as error:
            return self._after_failure(error)
        began_s = time.monotonic()
        self._dismissal = ""
        reason = self._pump(connection)
        if self._stopping.is_set():
            connection.close()
            return None
        if not self._has_been_up:
            connection.close()
            what = f"{reason}, before a picture came"
            return self._after_failure(MediaError(what, where=self._where, fix="check the camera"))
        self._down(reason)
        self._put(Arrival(connection, None, reason=reason))
        if connection.is_finite:
            return 0.0 if self._is_looped else None
        if time.monotonic() - began_s >= STEADY_S:
            self._backoff.reset()
        return self._backoff.next_s()

    def _after_failure(self, error: ZhcEdgeError) -> float | None:
        self._down(error.what)
        if not self._has_been_up:
            with self._changed:
                self._failure = error
                self._changed.notify_all()
            return None
        return self._backoff.refused_s() if isinstance(error, SourceRefusedError) else self._backoff.next_s()

    def _pump(self, connection: Connection) -> str:
        """Packets into the queue until the connection ends; why it did."""
        waits_for_key = True
        skipped = 0
        try:
            while not self._stopping.is_set():
                if self._dismissal:
                    return self._dismissal
                packet = connection.read()
                if packet is None:
                    return "the stream ended"
                if waits_for_key and not packet.is_keyframe and skipped < MAX_PACKETS_WITHOUT_KEY:
                    skipped += 1
                    continue
                if waits_for_key:
                    waits_for_key = False
                    self._up()
                captured_ns = connection.captured_ns(packet)
                arrival = Arrival(connection, packet, self._clock.monotonic_ns(), captured_ns)
                waits_for_key = not (self._put_waiting(arrival) if connection.is_finite else self._put_live(arrival))
        except (SourceMissingError, MediaError) as error:
            return error.what
        return ""

    def _put(self, arrival: Arrival) -> None:
        with self._changed:
            self._arrivals.append(arrival)
            if arrival.packet is not None:
                self._waiting_bytes += arrival.packet.size
            self._changed.notify_all()

    def _is_full(self) -> bool:
        return len(self._arrivals) >= MAX_PACKETS or self._waiting_bytes >= MAX_BYTES

    def _put_live(self, arrival: Arrival) -> bool:
        """Queue a packet; False when it and all that wait were dropped, because nobody takes them."""
        with self._changed:
            if self._is_full():
                ends = [waiting for waiting in self._arrivals if waiting.packet is None]
                self._lost_packets += len(self._arrivals) - len(ends) + 1
                self._arrivals = deque(ends)
                self._waiting_bytes = 0
                return False
        self._put(arrival)
        return True

    def _put_waiting(self, arrival: Arrival) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping.is_set() or not self._is_full())
        self._put(arrival)
        return True

    def _up(self) -> None:
        reconnects = self._status.reconnects + self._has_been_up
        if self._status.is_up:
            return
        self._has_been_up = True
        self._status = SourceStatus(is_up=True, reconnects=reconnects)

    def _down(self, reason: str) -> None:
        self._status = SourceStatus(is_up=False, reason=reason, reconnects=self._status.reconnects)

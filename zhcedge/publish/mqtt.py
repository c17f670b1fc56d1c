"""The MQTT client: keeps one session after the other going, each begun with the device's full state."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

from zhcedge.core.errors import BrokerError
from zhcedge.core.ports import Message
from zhcedge.publish.session import BrokerSettings, Session

HURRIED_S = 0.3
"""Longest wait between two tries once `hurry` was called."""

STEADY_S = 10.0
"""A session that lasted this long counts as working: the next wait starts at the shortest one again."""


def backoff_bound_s(settings: BrokerSettings, attempt: int) -> float:
    """Longest wait before try number `attempt` + 1 after a working session: doubles, up to reconnect_max_s."""
    return min(settings.reconnect_min_s * 2.0 ** min(attempt, 30), settings.reconnect_max_s)


class MqttBroker:
    """Implements core.ports.Broker over paho-mqtt, MQTT 3.1.1.

    A thread of its own connects, waits for the end of the session and connects again, for ever; nothing that the
    control loop calls waits for the network, `stop` excepted. Nothing is connected before `start`.

    Args:
        settings: of the broker.
        will: what the broker publishes when we vanish: `offline` on the topic `available`.
        birth: the device's full state and last `online`; published first in every session. Network thread, must be
            quick and must not raise: return messages that the control loop has prepared.
        on_connect: a session has begun, birth messages sent. Network thread.
        on_ack: a message with this token was acknowledged. Network thread or that of `publish`.
        on_problem: one line for people; each different problem is told once until a session has begun. Our thread.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        will: Message,
        birth: Callable[[], Sequence[Message]],
        *,
        on_connect: Callable[[], None] = lambda: None,
        on_ack: Callable[[int], None] = lambda token: None,
        on_problem: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._settings, self._will, self._birth = settings, will, birth
        self._on_connect, self._on_ack, self._on_problem = on_connect, on_ack, on_problem
        self._thread = threading.Thread(target=self._keep_connected, name="mqtt", daemon=True)
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # guards the start of a session against `stop`
        self._running: Session | None = None  # from before CONNECT to its end
        self._accepted: Session | None = None  # while it may be published to
        self._told: set[str] = set()
        self._random = random.Random()
        self._waking = threading.Event()
        self._is_hurried = False

    def start(self) -> None:
        """Begin to connect; called once. Returns at once, whether or not there is a broker."""
        self._thread.start()

    @property
    def is_connected(self) -> bool:
        return self._accepted is not None

    @property
    def session(self) -> int:
        accepted = self._accepted
        return accepted.number if accepted else 0

    def publish(self, message: Message, token: int = 0, session: int = 0) -> bool:
        """See the port. Also False when the session holds too many unacknowledged messages.

        Raises BrokerError for a topic or payload that MQTT can't carry.
        """
        accepted = self._accepted
        if accepted is None or session not in (0, accepted.number):
            return False
        return accepted.publish(message, token)

    def hurry(self) -> None:
        """See the port. Any thread."""
        self._is_hurried = True
        self._waking.set()

    def stop(self, last: Sequence[Message], timeout_s: float) -> None:
        """Publish `last`, wait for what is in flight, disconnect; at most about `timeout_s` seconds in all.

        A thread that still hangs in a connection attempt then is left behind; it ends with the attempt. A second call
        does nothing.
        """
        deadline = time.monotonic() + timeout_s
        with self._lock:
            self._stopping.set()
            self._waking.set()
            running, accepted = self._running, self._accepted
        if accepted is not None:
            accepted.finish(last, timeout_s)
        elif running is not None:
            running.end()
        if self._thread.is_alive():
            self._thread.join(max(deadline - time.monotonic(), 0.2))

    # -- our thread --------------------------------------------------------------------------------------------
    def _keep_connected(self) -> None:
        attempt = 0
        number = 0
        while True:
            number += 1
            began_s = time.monotonic()
            was_accepted = self._run_session(number)
            if self._stopping.is_set():
                return
            attempt = 0 if was_accepted and time.monotonic() - began_s >= STEADY_S else attempt + 1
            bound_s = HURRIED_S if self._is_hurried else backoff_bound_s(self._settings, attempt)
            self._waking.wait(self._random.uniform(0.0, bound_s))
            self._waking.clear()

    def _run_session(self, number: int) -> bool:
        """One session from CONNECT to its end; whether the broker had accepted it."""
        session: Session | None = None
        try:
            session = Session(number, self._settings, self._will, self._accept, self._on_ack)
            with self._lock:
                if self._stopping.is_set():
                    return False
                self._running = session
            session.run()
        except BrokerError as error:
            self._tell(str(error))
        # Whatever paho makes of a setting or a network: this thread is the only one that connects again.
        except Exception as error:  # noqa: BLE001
            self._tell(f"{self._settings.address}: {type(error).__name__}: {error}")
        finally:
            self._running = self._accepted = None
        return session is not None and session.was_accepted

    def _tell(self, problem: str) -> None:
        if problem not in self._told and not self._stopping.is_set():
            self._told.add(problem)
            self._on_problem(problem)

    # -- network thread ----------------------------------------------------------------------------------------
    def _accept(self, session: Session) -> None:
        with self._lock:
            if self._stopping.is_set():
                return  # nobody would say `stopped` after this `online`
            for message in self._birth():
                session.publish(message, 0)
            self._accepted = session
        self._told.clear()
        self._on_connect()

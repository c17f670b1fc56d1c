"""The MQTT client: keeps one session after the other going, each begun with the device's full state."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from zhcedge.core.backoff import Backoff
from zhcedge.core.delivery import Alert, Incoming, Message
from zhcedge.core.errors import ZhcEdgeError
from zhcedge.publish.alerts import StandingAlerts
from zhcedge.publish.clones import OVER_S, CloneWatch
from zhcedge.publish.session import Session, SessionHandlers
from zhcedge.publish.settings import BrokerSettings

HURRIED_S = 0.3
"""Longest wait between two tries once `hurry` was called."""

STEADY_S = 10.0
"""A session that lasted this long counts as working: the next wait starts at the shortest one again."""

CLONED = "client-id-cloned"
LIMITED = "broker-limits"

_RELEARN_S = 3600.0
"""What a broker was found to refuse is tried again after this time: it may have been renewed."""


@dataclass
class _Habits:
    """What we have learnt about one broker."""

    protocol: Literal[3, 5]
    until_s: float = math.inf
    is_will_plain: bool = False  # it takes no retained or acknowledged one


class MqttBroker:
    """Implements core.delivery.Broker over paho-mqtt: MQTT 5, or 3.1.1 where the broker knows no other.

    A thread of its own connects, waits for the end of the session and connects again, for ever; nothing that the
    control loop calls waits for the network, `stop` excepted. Nothing is connected before `start`. Each round begins
    with the first broker; the others are tried only while it does not accept us.

    Args:
        settings: of the broker, and of those that stand in for it.
        will: what the broker publishes when we vanish: `offline` on the topic `available`.
        birth: the device's full state and last `online`; published first in every session. Network thread, must be
            quick and must not raise: return messages that the control loop has prepared.
        subscriptions: topic filters, subscribed to in every session with QoS 1.
        on_connect: a session has begun, birth messages sent. Network thread.
        on_ack: a message with this token was acknowledged. Network thread or that of `publish`.
        on_refused: the broker will never take the message with this token, and why. Network thread or that of
            `publish`. What it refuses for the moment is tried again first, 5 times in half a minute.
        on_message: what has come in on the subscriptions. Network thread.
        on_alert: `client-id-cloned`, `publish-denied`, `subscribe-denied`, `certificate-expires`, `broker-limits`.
            Any of these threads.
        on_problem: why there is no session, in one line for people; each different problem is told once until a
            session has begun. Our thread.
        on_note: what is left out in a session that goes on, in the same way; None takes `on_problem`. Our thread or the
            network thread.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        will: Message,
        birth: Callable[[], Sequence[Message]],
        *,
        subscriptions: Sequence[str] = (),
        on_connect: Callable[[], None] = lambda: None,
        on_ack: Callable[[int], None] = lambda token: None,
        on_refused: Callable[[int, str], None] = lambda token, reason: None,
        on_message: Callable[[Incoming], None] = lambda message: None,
        on_alert: Callable[[Alert], None] = lambda alert: None,
        on_problem: Callable[[str], None] = lambda text: None,
        on_note: Callable[[str], None] | None = None,
    ) -> None:
        self._settings, self._will, self._birth = settings, will, birth
        self._subscriptions = tuple(subscriptions)
        self._on_connect, self._on_problem = on_connect, on_problem
        self._on_note = on_problem if on_note is None else on_note
        self._handlers = SessionHandlers(
            on_accept=self._accept,
            on_begun=self._begun,
            on_ack=on_ack,
            on_refused=on_refused,
            on_message=on_message,
            on_note=self._note,
        )
        self._alerts = StandingAlerts(on_alert)
        self._clones = CloneWatch()
        self._is_cloned = False
        self._habits: dict[str, _Habits] = {}  # by address
        self._thread = threading.Thread(target=self._keep_connected, name="mqtt", daemon=True)
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # guards the start of a session against `stop`
        self._running: Session | None = None  # from before CONNECT to its end
        self._is_born = False  # the running session has sent its birth messages, or is about to
        self._begun_session: Session | None = None  # while it may be published to
        self._number = 0
        self._told: set[str] = set()
        self._backoff = Backoff(settings.reconnect_min_s, settings.reconnect_max_s)
        self._waking = threading.Event()
        self._is_hurried = False

    def start(self) -> None:
        """Begin to connect; called once. Returns at once, whether or not there is a broker."""
        self._thread.start()

    @property
    def is_connected(self) -> bool:
        return self._begun_session is not None

    @property
    def session(self) -> int:
        begun = self._begun_session
        return begun.number if begun else 0

    @property
    def protocol(self) -> int:
        """See the port."""
        begun = self._begun_session
        return begun.protocol if begun else 0

    @property
    def server(self) -> str:
        """host:port of the current connection; empty while there is none. Any thread."""
        begun = self._begun_session
        return begun.server if begun else ""

    def publish(self, message: Message, token: int = 0, session: int = 0) -> bool:
        """See the port. Also False when the session holds as much as the broker takes unacknowledged, and for a
        message with a token while an earlier one is being proved or held back.

        Raises BrokerError for a topic or payload that MQTT can't carry.
        """
        begun = self._begun_session
        if begun is None or session not in (0, begun.number):
            return False
        return begun.publish(message, token)

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
            running, is_born = self._running, self._is_born
        if running is not None and is_born:
            running.finish(last, timeout_s)
        elif running is not None:
            running.end()
        if self._thread.is_alive():
            self._thread.join(max(deadline - time.monotonic(), 0.2))

    # -- our thread --------------------------------------------------------------------------------------------
    def _keep_connected(self) -> None:
        while True:
            for settings in self._settings.brokers:
                was_accepted = self._visit(settings)
                if self._stopping.is_set():
                    return
                if was_accepted:
                    break
            if self._is_cloned:
                wait_s = self._backoff.refused_s()
            else:
                wait_s = self._backoff.next_s(HURRIED_S if self._is_hurried else math.inf)
            self._waking.wait(wait_s)
            self._waking.clear()

    def _visit(self, settings: BrokerSettings) -> bool:
        """Sessions with one broker: a second one when the first shows that it wants another version or will.

        Returns whether it has accepted us.
        """
        habits = self._habits_of(settings)
        problem = ""
        for _ in range(3):
            session, problem = self._run_session(settings, habits)
            if session is None or session.was_accepted or self._stopping.is_set():
                break
            if settings.protocol == "auto" and habits.protocol == 5 and session.refuses_version:
                habits.protocol, habits.until_s = 3, time.monotonic() + _RELEARN_S
            elif session.refuses_will and not habits.is_will_plain:
                habits.is_will_plain, habits.until_s = True, time.monotonic() + _RELEARN_S
            else:
                break
        if problem:
            self._tell(problem)
        was_accepted = session is not None and session.was_accepted
        if not was_accepted:
            self._habits.pop(settings.address, None)  # a broker that was only down may know more than it showed
        return was_accepted

    def _habits_of(self, settings: BrokerSettings) -> _Habits:
        habits = self._habits.get(settings.address)
        if habits is None or time.monotonic() > habits.until_s:
            habits = self._habits[settings.address] = _Habits(3 if settings.protocol == "3.1.1" else 5)
        return habits

    def _run_session(self, settings: BrokerSettings, habits: _Habits) -> tuple[Session | None, str]:
        """One session from CONNECT to its end, and what was wrong with it."""
        self._number += 1
        will = replace(self._will, qos=0, retain=False) if habits.is_will_plain else self._will
        session: Session | None = None
        problem, began_s = "", time.monotonic()
        try:
            session = Session(
                self._number,
                settings,
                habits.protocol,
                will,
                self._subscriptions,
                self._handlers,
                self._alerts,
                may_fall_back=settings.protocol == "auto" and habits.protocol == 5,
            )
            session.agenda.after(OVER_S, self._no_clone)
            with self._lock:
                if self._stopping.is_set():
                    return None, ""
                self._running, self._is_born = session, False
            session.run()
        except ZhcEdgeError as error:  # BrokerError, or ConfigError for a file of TLS
            problem = str(error)
        # Whatever paho makes of a setting or a network: this thread is the only one that connects again.
        except Exception as error:  # noqa: BLE001
            problem = f"{settings.address}: {type(error).__name__}: {error}"
        finally:
            with self._lock:
                self._running = self._begun_session = None
                self._is_born = False
        if session is not None and session.was_accepted:
            self._judge_end(session, time.monotonic() - began_s)
        return session, problem

    def _judge_end(self, session: Session, lasted_s: float) -> None:
        """Of a session that was accepted."""
        if lasted_s >= STEADY_S:
            self._backoff.reset()
        is_cloned = self._clones.note_end(
            time.monotonic(),
            lasted_s,
            was_taken_over=session.was_taken_over,
            was_closed=session.was_closed,
        )
        # On MQTT 5 a line that is cut again and again looks like that, too: worth an alert, but no long waits.
        self._is_cloned = is_cloned and (session.was_taken_over or session.protocol == 3)
        if is_cloned:
            client_id = self._settings.client_id
            said = "another client has this id" if session.was_taken_over else "probably another client has this id"
            text = (
                f"the MQTT broker ends every session of client {client_id!r}: {said}; give each device a name of its "
                "own (the key device), and see that no second daemon runs with it"
            )
            self._alerts.begin(CLONED, client_id, text, "error")

    def _no_clone(self) -> None:
        client_id = self._settings.client_id
        self._alerts.over(CLONED, client_id, f"client {client_id!r} is left in peace by the MQTT broker")

    def _tell(self, problem: str) -> None:
        if self._is_new(problem):
            self._on_problem(problem)

    def _note(self, text: str) -> None:
        if self._is_new(text):
            self._on_note(text)

    def _is_new(self, text: str) -> bool:
        if text in self._told or self._stopping.is_set():
            return False
        self._told.add(text)
        return True

    # -- network thread ----------------------------------------------------------------------------------------
    def _accept(self, session: Session) -> None:
        with self._lock:
            if self._stopping.is_set():
                return  # nobody would say `stopped` after this `online`
            session.queue_first(self._birth())
            self._is_born = True
        self._told.clear()
        session.begin()
        if lack := session.limits.lacks():
            self._alerts.begin(LIMITED, self._settings.address, f"the MQTT broker {lack}; change its settings")
        else:
            self._alerts.over(LIMITED, self._settings.address, "the MQTT broker takes all that we need")

    def _begun(self, session: Session) -> None:
        with self._lock:
            if self._stopping.is_set() or self._running is not session:
                return
            self._begun_session = session
        self._on_connect()

"""What the daemon tells the world and hears from it: outbox, broker, retained state, counts, alerts."""

from __future__ import annotations

import logging
import queue
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from zhcedge.app.broker_settings import broker_settings
from zhcedge.app.outbox_settings import outbox_settings
from zhcedge.app.rates import FlowMeter
from zhcedge.config.schema import Config
from zhcedge.core.delivery import Alert, Incoming, Message
from zhcedge.core.errors import BrokerError, ZhcEdgeError
from zhcedge.core.events import Event, EventType
from zhcedge.core.message_ids import MessageId, tagged
from zhcedge.core.ports import Clock
from zhcedge.publish import device_messages as messages
from zhcedge.publish.courier import Courier
from zhcedge.publish.discovery import HOME_ASSISTANT_STATUS, DiscoveryFacts, discovery, discovery_topic
from zhcedge.publish.mqtt import MqttBroker
from zhcedge.publish.pacing import Pacing
from zhcedge.publish.payloads import EventEncoder
from zhcedge.publish.retained import Retained
from zhcedge.publish.topics import Topics
from zhcedge.store.outbox import open_outbox

log = logging.getLogger(__name__)

RECENT_ALERTS = 20

_DELIVER_S = 10.0  # how long the last events may take to be acknowledged
_KEPT_PER_TURN = 10  # retained messages of the broker's that are looked at between two looks at the ring
_KEPT_LIMIT = 1000  # of them that wait; what more there is comes again with the next session
_REPEAT_S = 1.0  # least time between two repetitions of all retained topics
_ALERT_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class Publisher:
    """The daemon's side of MQTT. Belongs to the control loop's thread, except for what a broker or an outbox calls.

    Nothing here waits for the network or a disk, `finish` and `close` excepted. Retained topics are always those of
    now: each session begins with all of them, and `online` last.

    Args:
        model_sha256: of the model file, for events.
        boot_id: random for every start of the daemon.
        wake: wakes the control loop; any thread.

    Attributes:
        problem: why there is no connection, as far as that is known; empty while there is one.
        on_command: takes commands; network thread, must be quick. To be set before `start`.
        recent_alerts: the last RECENT_ALERTS, oldest first, each with the wall clock in ns.

    Raises ConfigError when a file that the configuration names can't be read, StoreError when the outbox can't be
    opened; then nothing stays open.
    """

    def __init__(
        self,
        config: Config,
        model_sha256: str,
        boot_id: str,
        clock: Clock,
        wake: Callable[[], None],
    ) -> None:
        self._config, self._boot_id, self._clock, self._wake = config, boot_id, clock, wake
        self.on_command: Callable[[Incoming], None] = _ignore
        self.topics = Topics(config.device, config.mqtt.topic_prefix)
        self._alerts: queue.SimpleQueue[Alert] = queue.SimpleQueue()
        self.recent_alerts: deque[tuple[int, Alert]] = deque(maxlen=RECENT_ALERTS)
        self._retained, self._pacing, self._flows = Retained(), Pacing(), FlowMeter()
        self.problem = ""
        self._sessions = 0
        self._kept: queue.SimpleQueue[Incoming] = queue.SimpleQueue()
        self._asked_again = False  # Home Assistant has started; network thread sets it
        self._repeat_at_s = 0.0
        self._stats_at_s = 0.0
        settings = broker_settings(config)
        self.outbox = open_outbox(outbox_settings(config), clock, self.alert)
        self._courier = Courier(self.outbox, clock)
        self._encoder = EventEncoder(self.topics, boot_id, self.outbox.outbox_id, model_sha256)
        self._end_what_a_crash_left()
        self._broker = MqttBroker(
            settings,
            messages.available(self.topics, messages.OFFLINE),
            lambda: (*self._retained.birth(), messages.available(self.topics, messages.ONLINE)),
            subscriptions=self._subscriptions(),
            on_connect=self._on_connect,
            on_ack=self._on_ack,
            on_refused=self._on_refused,
            on_message=self._on_message,
            on_alert=self.alert,
            on_problem=self._on_problem,
            on_note=lambda text: log.warning("%s", text),
        )

    def start(self) -> None:
        """Begin to connect. The retained messages of now should have been put before."""
        self._stats_at_s = self._clock.monotonic_ns() / 1e9 + self._config.mqtt.stats_interval_s
        self._broker.start()

    def close(self) -> None:
        """Keep what was not delivered for the next start."""
        self.outbox.close()

    @property
    def reconnects(self) -> int:
        """Connections to the broker after the first one."""
        return max(self._sessions - 1, 0)

    @property
    def connection(self) -> tuple[str, int]:
        """host:port of the broker that we are connected to and the protocol, 5 or 3; ("", 0) without a connection."""
        return self._broker.server, self._broker.protocol

    # -- what the daemon tells ---------------------------------------------------------------------------------
    def tell(self, events: Sequence[Event]) -> None:
        """Put one frame's events into the outbox, all or none of them."""
        with self.outbox.batch():
            for event in events:
                message = self._encoder.encode(event, self.outbox.next_id)
                if event.type is EventType.END:
                    self.outbox.append(message, closes=self._encoder.open_id_of(event))
                else:
                    is_update = event.type is EventType.UPDATE
                    self.outbox.append(message, is_update, opens=self._encoder.open_event_of(message, event))

    def put(self, message: Message) -> None:
        """Tell a retained topic's new value: now when there is a connection, and at the beginning of each session."""
        self._retained.put(message)
        self._retained.flush(self._broker)

    def put_soon(self, message: Message) -> None:
        """The same for a value that changes often: told by `turn`, at most twice a second."""
        self._pacing.note(message)

    def publish(self, message: Message) -> None:
        """Tell something of this moment, such as an answer or a picture: lost when there is no connection."""
        self._broker.publish(message)

    def alert(self, what: Alert) -> None:
        """Log it and put it into the outbox. Any thread."""
        self._alerts.put(what)
        self._wake()

    def forget_camera(self, name: str) -> None:
        """The broker shall keep nothing of a camera that has gone."""
        known = self._retained.below(self.topics.camera_root(name))
        usual = [message.topic for message in messages.forget_camera(self.topics, name)]
        for topic in dict.fromkeys((*usual, *known)):
            self.forget(topic)

    def forget(self, topic: str) -> None:
        """The broker shall keep nothing under this topic. It is told by `turn`: there may be many of them."""
        self._pacing.forget(topic)
        self._retained.put(Message(topic, b"", qos=1, retain=True))

    def discover(self, facts: DiscoveryFacts) -> None:
        """Tell Home Assistant what there is."""
        for message in discovery(self.topics, facts):
            self.put(message)

    def kept(self) -> list[Incoming]:
        """Retained messages of ours that the broker has from earlier runs: some may be of cameras that have gone."""
        found: list[Incoming] = []
        while not self._kept.empty() and len(found) < _KEPT_PER_TURN:  # only this thread takes from it
            found.append(self._kept.get())
        if not self._kept.empty():
            self._wake()
        return found

    def repeat_all(self) -> None:
        """Tell every retained topic again: somebody has asked for it."""
        self._retained.repeat()

    # -- the loop ----------------------------------------------------------------------------------------------
    def pump(self) -> None:
        """Hand over what waits. Called after every frame's events."""
        self._courier.pump(self._broker)

    def turn(self, now_s: float) -> None:
        """What each turn of the loop does; `now_s` is monotonic."""
        self._take_alerts()
        for message in self._pacing.due(now_s):
            self._retained.put(message)
        if self._asked_again and now_s >= self._repeat_at_s:
            self._asked_again, self._repeat_at_s = False, now_s + _REPEAT_S
            self._retained.repeat()
        self._retained.flush(self._broker)
        self.outbox.tick()
        self.pump()

    def note_flow(self, flow: Mapping[str, tuple[int, int]]) -> None:
        """Frames that came and frames that were dropped so far, by camera."""
        self._flows.note(flow, self._clock.monotonic_ns())

    def stats_due(self, now_s: float) -> bool:
        """Whether it is time for `tell_stats`."""
        return now_s >= self._stats_at_s and self._config.mqtt.stats_interval_s > 0

    def tell_stats(self, now_s: float, uptime_s: float, commands_refused: int, violations: int) -> None:
        """Publish the figures of now."""
        self._stats_at_s = now_s + self._config.mqtt.stats_interval_s
        facts = messages.Stats(
            time_ns=self._clock.wall_ns(),
            boot_id=self._boot_id,
            uptime_s=uptime_s,
            cameras=self._flows.rates(),
            outbox_depth=self.outbox.depth,
            outbox_dropped=self.outbox.dropped,
            outbox_lost=self.outbox.lost,
            outbox_refused=self.outbox.refused,
            reconnects=self.reconnects,
            commands_refused=commands_refused,
            ledger_violations=violations,
        )
        self._broker.publish(messages.stats(self.topics, facts))

    def finish(self) -> ZhcEdgeError | None:
        """Deliver what is left, say `stopped`; what was not delivered as an error. Waits, some seconds at most.

        A durable outbox delivers what is left after the next start, so then that is no error.
        """
        self._take_alerts()
        self._retained.flush(self._broker)
        self._broker.hurry()
        is_delivered = self._courier.drain(self._broker, _DELIVER_S if self._sessions else 1.0)
        self._broker.stop((messages.available(self.topics, messages.STOPPED),), timeout_s=3.0)
        mqtt = self._config.mqtt
        if not is_delivered and not self.outbox.is_durable:
            return BrokerError(
                f"{self.outbox.depth} messages were not delivered",
                where=f"{mqtt.host}:{mqtt.port}",
                fix="start a broker there, name another with --set mqtt.host=..., keep them with --set outbox.dir=..., "
                "or use --set mqtt.enabled=false",
            )
        if not is_delivered:
            log.info("%d messages wait in the outbox for the next start", self.outbox.depth)
        if self.outbox.lost:
            return BrokerError(
                f"{self.outbox.lost} beginnings or ends of events were given up, because the outbox was full",
                where="outbox.max_messages",
                fix="raise the outbox's limits, or keep the broker in reach",
            )
        return None

    # -- inside ------------------------------------------------------------------------------------------------
    def _end_what_a_crash_left(self) -> None:
        for left in self.outbox.open_events():
            try:
                message = self._encoder.ends_by_crash(left, self.outbox.next_id)
            except ValueError as error:  # of an older version, or damaged: nothing can be said of it
                log.warning("an event of the last run can't be ended: %s", error)
                continue
            self.outbox.append(message, closes=left.id)

    def _take_alerts(self) -> None:
        while not self._alerts.empty():  # only this thread takes from it
            what = self._alerts.get()
            log.log(_ALERT_LEVELS["info" if what.is_over else what.severity], "%s", what.text)
            now_ns = self._clock.wall_ns()
            self.recent_alerts.append((now_ns, what))
            self.outbox.append(messages.alert(self.topics, what, now_ns, self._boot_id))

    def _subscriptions(self) -> tuple[str, ...]:
        mqtt = self._config.mqtt
        commands = self.topics.command_filters if mqtt.commands.enabled else ()
        others = (HOME_ASSISTANT_STATUS, discovery_topic(self.topics, mqtt.discovery.prefix))
        return (*self.topics.kept_filters, *commands, *(others if mqtt.discovery.enabled else ()))

    # -- the broker's threads ----------------------------------------------------------------------------------------
    def _on_problem(self, text: str) -> None:
        self.problem = text
        kept = "kept" if self.outbox.is_durable else "kept in memory"
        log.warning("%s; events are %s and it is tried again", text, kept, extra=tagged(MessageId.BROKER_LOST))

    def _on_connect(self) -> None:
        self.problem = ""
        self._sessions += 1
        log.info("connected to the MQTT broker", extra=tagged(MessageId.BROKER_BACK))
        self._wake()

    def _on_ack(self, token: int) -> None:
        if self._courier.on_ack(token):
            self._wake()

    def _on_refused(self, token: int, reason: str) -> None:
        if self._courier.on_refused(token, reason):
            self._wake()

    def _on_message(self, incoming: Incoming) -> None:
        if incoming.topic == HOME_ASSISTANT_STATUS:
            if incoming.payload == b"online" and not self._asked_again:
                self._asked_again = True
                self._wake()
        elif self.topics.parse_command(incoming.topic) is not None:
            if incoming.payload or not incoming.is_retained:  # else somebody takes a retained one back
                self.on_command(incoming)
        elif incoming.is_retained and incoming.payload and self._kept.qsize() < _KEPT_LIMIT:
            self._kept.put(incoming)
            self._wake()


def _ignore(incoming: Incoming) -> None:
    """Nobody takes commands yet."""

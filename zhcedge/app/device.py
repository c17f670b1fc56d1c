"""The device as others see it: its state, cameras and events over MQTT, and what a command may change on it."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from zhcedge import __version__
from zhcedge.app.channel_log import ChannelLog
from zhcedge.app.event_path import EventPath, detector_threshold
from zhcedge.app.event_snapshots import PictureNews
from zhcedge.app.mqtt_commands import CommandDispatcher
from zhcedge.app.picture_events import PictureEvents
from zhcedge.app.publisher import Publisher
from zhcedge.app.rates import FlowMeter
from zhcedge.app.records import EventRecords
from zhcedge.app.remote_errors import remote_error
from zhcedge.config.load import parse_channel
from zhcedge.config.schema import Config
from zhcedge.core.delivery import Alert, Incoming, Message
from zhcedge.core.errors import ConfigError, PipelineError, UsageError, ZhcEdgeError
from zhcedge.core.events import EndReason, Event
from zhcedge.core.lifecycle import Phase
from zhcedge.core.ports import Clock
from zhcedge.core.types import ViolationKind
from zhcedge.models.bundle import Bundle
from zhcedge.pipeline.channel import ChannelState
from zhcedge.pipeline.segment import Counters, Segment
from zhcedge.publish.commands import Command
from zhcedge.publish.device_messages import (
    CameraFlow,
    CameraStatus,
    DeviceState,
    camera_status,
    counts,
    line_counts,
    snapshot,
    state,
)
from zhcedge.publish.discovery import DiscoveryFacts, components_of, discovery
from zhcedge.publish.topics import Topics, slug
from zhcedge.service.frame_process import FrameProcess
from zhcedge.service.log import set_log_level

log = logging.getLogger(__name__)

_COUNT_S = 0.25  # how often objects are counted: each turn would be hundreds of times a second
_ENDS = {ChannelState.PAUSED: EndReason.PAUSED, ChannelState.DOWN: EndReason.CHANNEL_DOWN}
"""Nobody knows what its objects do until it comes back, so their events end."""
_OPENING = (ChannelState.OPENING, "", 0)


class Device:
    """Events, their delivery and live settings. Belongs to the control loop's thread; implements DeviceControl.

    Args:
        segment: shared with the frame process.
        boot_id: random for every start of the daemon.
        wake: wakes the control loop; any thread.

    Attributes:
        events: what the ring's records become.
        records: what stays of events on this device.
        frame: the frame process, while there is one.
        log_level: of both processes.
        on_reload: begins to load the configuration again; what it is given is told, once that has been checked, what is
            wrong with it, or None. Raises ConfigError.
        flow: frames of each camera between the frame process's last two reports.

    Raises what EventRecords and Publisher raise; then nothing stays open.
    """

    def __init__(
        self, config: Config, bundle: Bundle, segment: Segment, boot_id: str, clock: Clock, wake: Callable[[], None]
    ) -> None:
        self._score_threshold = detector_threshold(config, bundle.facts)
        self._config, self._bundle, self._boot_id, self._clock = config, bundle, boot_id, clock
        self._started_s = time.monotonic()
        self._topics = Topics(config.device, config.mqtt.topic_prefix)
        self._phase = Phase.INITIALISING
        self._degraded: tuple[str, ...] = ()
        self._numbers = itertools.count(1)  # of commands to the frame process
        self._news: dict[str, tuple[ChannelState, str, int]] = {}  # by channel: its state, why, since (wall clock)
        self._cameras: tuple[str, ...] = tuple(config.channels)
        self._commands_done = 0
        self._count_at_s = 0.0
        self._gone: dict[str, str] = {}  # components that Home Assistant knows and that may be there no more
        self._channel_log = ChannelLog()
        self.frame: FrameProcess | None = None
        self.log_level = "INFO"
        self.on_reload: Callable[[Callable[[ZhcEdgeError | None], None]], object] = _nothing_to_load
        self._meter = FlowMeter()
        self.flow: Mapping[str, CameraFlow] = {}
        self.records = EventRecords(config, boot_id, clock, self._ask_frame, wake, self.alert)
        self._publisher: Publisher | None = None
        self._commands = CommandDispatcher(config, self, clock, self._score_threshold, wake)
        if config.mqtt.enabled:
            try:
                self._publisher = Publisher(config, bundle.facts.sha256, boot_id, clock, wake)
            except ZhcEdgeError:
                self.records.close()
                raise
            self._publisher.on_command = self._commands.take
        self.events = EventPath(config, bundle.facts, segment.control_recorder, clock, self._take_events)
        self._pictures = PictureEvents(config, self._take_events)
        self.records.watch(self.events, tuple(config.channels))
        self._set_state()

    def start(self) -> None:
        """Begin to connect to the broker, and to keep the limits of what is stored."""
        self.records.start()
        if self._publisher is None:
            return
        self._discover()
        self._tell_counts(self._publisher.put)
        for message in self._commands.effects():
            self._publisher.put(message)
        self._publisher.start()

    def close(self) -> None:
        """What was not delivered is kept where the configuration says. After the frame process has ended."""
        self.records.close()
        if self._publisher is not None:
            self._publisher.close()

    @property
    def messages_dropped(self) -> int:
        """Messages that the full outbox gave up, updates included."""
        return self._publisher.outbox.dropped if self._publisher is not None else 0

    # -- what the control socket asks --------------------------------------------------------------------------
    @property
    def publisher(self) -> Publisher | None:
        """None when nothing is published."""
        return self._publisher

    @property
    def commands_refused(self) -> int:
        """Commands that were not carried out."""
        return self._commands.refused

    def submit(self, command: Command) -> None:
        """Let a command wait for its turn; its sender is told what became of it."""
        self._commands.submit(command)

    def live_value(self, word: str, camera: str) -> bool | float:
        """What is in force of `detect`, `threshold` or `fps`, for one of the cameras of `facts`."""
        return self._commands.value(word, camera)

    def channel_state(self, camera: str) -> tuple[ChannelState, str, int]:
        """Its state, why, and since when (wall clock; 0 where that is not known yet)."""
        return self._news.get(camera, _OPENING)

    @property
    def facts(self) -> DeviceState:
        """What the state message says."""
        return DeviceState(
            phase=self._phase,
            version=__version__,
            profile=self._config.profile,
            model=self._bundle.facts.name,
            model_sha256=self._bundle.facts.sha256,
            boot_id=self._boot_id,
            uptime_s=time.monotonic() - self._started_s,
            cameras=self._cameras,
            degraded=(*self._degraded, *self._channel_faults()),
        )

    # -- what the control loop tells ---------------------------------------------------------------------------
    def pump(self) -> None:
        """Hand over what waits for the broker; after every frame's events."""
        if self._publisher is not None:
            self._publisher.pump()

    def turn(self, counters: Counters) -> None:
        """What every turn of the loop does. Never waits."""
        now_s = time.monotonic()
        self._channel_log.tick(now_s)
        self._commands.work()
        if self._commands.done != self._commands_done:
            self._commands_done = self._commands.done
            self._note_cameras(self._commands.cameras)
        self._show(self.records.turn())
        if self._publisher is None:
            return
        for incoming in self._publisher.kept():
            self._take_back(incoming)
        if now_s >= self._count_at_s:
            self._count_at_s = now_s + _COUNT_S
            self._tell_counts(self._publisher.put_soon)
        self._publisher.turn(now_s)
        if self._publisher.stats_due(now_s):
            violations = sum(counters[f"violations: {kind.value}"] for kind in ViolationKind)
            self._publisher.tell_stats(now_s, now_s - self._started_s, self._commands.refused, violations)

    def set_phase(self, phase: Phase, degraded: Sequence[str]) -> None:
        """The frame path's phase, and why it works worse than configured, channels aside."""
        is_begin = phase is Phase.INITIALISING or (phase is Phase.ACTIVE and self._phase is not phase)
        self._phase, self._degraded = phase, tuple(degraded)
        self._set_state()
        if is_begin:  # what is not said to be away has been opened by then
            state = ChannelState.UP if phase is Phase.ACTIVE else ChannelState.OPENING
            for name in self._cameras:
                if self._news.get(name, _OPENING)[0] is ChannelState.OPENING:
                    self._news[name] = (state, "", self._clock.wall_ns())
                    self._tell_camera(name)
        if phase is Phase.ACTIVE:
            self._commands.reapply()

    def reconfigure(self, config: Config, reopened: frozenset[str]) -> None:
        """Take another configuration: rules at once, cameras one by one. The frame path is active.

        What commands have changed of cameras is forgotten where a camera comes, goes or is opened anew.

        Args:
            reopened: cameras that differ in more than their rules, those that come or go included.
        """
        before, topics = self._cameras, {name: self._rule_topics(slug(name)) for name in self._cameras}
        gone = [name for name in before if name in reopened or name not in config.channels]
        self._config = config
        self._commands.reconfigure(config, reopened)
        self.events.reconfigure(config, frozenset(gone))
        self._pictures.reconfigure(config)
        for name in gone:
            self.events.end_channel(name, EndReason.RELOAD)
            self._pictures.end(name, EndReason.RELOAD)
            self._ask_frame("remove", name, None)
            self._news.pop(name, None)
            self.records.set_camera(name, None)
        for name, channel in config.channels.items():
            if name in gone or name not in before:
                self._ask_frame("add", name, channel.model_dump(mode="json"))
                self._news[name] = (ChannelState.OPENING, "", self._clock.wall_ns())
                self.records.set_camera(name, channel)
        if self._publisher is not None:
            for name in before:
                for topic in topics[name] - self._rule_topics(slug(name)):
                    self._publisher.forget(topic)
            self._discover()
        self._note_cameras(self._commands.cameras)

    def frame_process_ended(self) -> None:
        """Its channels are gone with it, and what it was asked is not answered any more."""
        self.frame = None
        self._pictures.end_all(EndReason.CHANNEL_ENDED)
        self._news.clear()
        self._channel_log = ChannelLog()  # of the next one's channels only faults are news
        self._meter, self.flow = FlowMeter(), {}
        self._commands.frame_process_ended()
        self.records.frame_process_ended()

    def channel_changed(self, message: Mapping[str, object]) -> None:
        """News of a channel (app/frame.py)."""
        name, index = str(message["channel"]), int(str(message["index"]))
        state, reason = ChannelState(message["state"]), str(message["reason"])
        if state is ChannelState.UP:
            self.records.look_at(name)
            self.events.add_channel(index, name)
            self._commands.reapply(name)  # it may have been away when the frame process began
        elif state in _ENDS:
            self.events.end_channel(name, _ENDS[state])
            self._pictures.end(name, _ENDS[state])
        self._channel_log.note(name, state, reason, time.monotonic())
        faults = self._channel_faults()
        self._news[name] = (state, reason, self._clock.wall_ns())
        self._tell_camera(name)
        if self._channel_faults() != faults:
            self._set_state()

    def answered(self, message: Mapping[str, object]) -> None:
        """The frame process has carried out a command, or refuses it (app/frame_commands.py)."""
        error = remote_error(message["error"]) if "refused" in message else None
        number = int(str(message["refused" if error is not None else "done"]))
        value = message.get("value")
        if not self.records.answered(number, error, value):
            self._commands.answered(number, error, value)

    def take_clip(self, facts: object) -> None:
        """A clip is complete, as the frame process says (app/frame_clips.py)."""
        if isinstance(facts, dict):
            self.records.clips.take(facts)

    def note_flow(self, flow: object) -> None:
        """Frames that came and were dropped so far, by channel, as the frame process says."""
        if not isinstance(flow, dict):
            return
        frames = {name: (int(came), int(dropped)) for name, (came, dropped) in flow.items()}
        self._meter.note(frames, self._clock.monotonic_ns())
        self.flow = self._meter.rates()
        if self._publisher is not None:
            self._publisher.note_flow(frames)

    def note_pictures(self, pictures: object) -> None:
        """Figures of the cameras' pictures, as the frame process measures them."""
        for name, facts in pictures.items() if isinstance(pictures, dict) else ():
            if self._pictures.take(name, facts):
                self._tell_camera(name)

    def finish(self, reason: EndReason) -> ZhcEdgeError | None:
        """End open events, deliver what is left, say goodbye. Waits; what was not delivered comes as an error."""
        self.events.end_all(reason)
        self._pictures.end_all(reason)
        self.records.snapshots.close()
        self._show(self.records.last_pictures())
        if self._publisher is None:
            return None
        self._tell_counts(self._publisher.put)  # nothing is there any more
        for name in self._cameras:
            self._news[name] = (ChannelState.ENDED, "the daemon has stopped", self._clock.wall_ns())
            self._tell_camera(name)
        return self._publisher.finish()

    # -- DeviceControl: what commands do -----------------------------------------------------------------------
    def set_threshold(self, camera: str, value: float) -> None:
        """See DeviceControl."""
        if value < self._score_threshold:
            raise UsageError(
                f"{value:g} is below the detector's own threshold, {self._score_threshold:g}",
                where=f"camera {camera}",
                fix="set model.score_threshold in the configuration",
            )
        self.events.set_threshold(camera, value)

    def frame_command(self, word: str, camera: str, value: object = None) -> int:
        """See DeviceControl. Raises PipelineError while the frame path is not active."""
        if word == "snapshot" and not self._config.mqtt.snapshots:
            raise UsageError("pictures are not published", where="mqtt.snapshots", fix="set it to true")
        return self._ask_frame(word, camera, value)

    def _ask_frame(self, word: str, camera: str, value: object) -> int:
        if self.frame is None or self._phase is not Phase.ACTIVE:
            raise PipelineError(f"the frame path is {self._phase}", where=f"camera {camera}", fix="try again later")
        number = next(self._numbers)
        self.frame.command(number, word, camera, value)
        return number

    def add_camera(self, name: str, channel: dict[str, object]) -> int:
        """See DeviceControl."""
        number = self.frame_command("add", name, channel)
        self.records.set_camera(name, parse_channel(name, channel))
        return number

    def remove_camera(self, name: str) -> int:
        """See DeviceControl."""
        return self.frame_command("remove", name)

    def set_log_level(self, level: str) -> int | None:
        """See DeviceControl. In every phase."""
        set_log_level(level)
        self.log_level = level
        if self.frame is None:
            return None
        number = next(self._numbers)
        self.frame.command(number, "log-level", "", level)
        return number

    def rebirth(self) -> None:
        """See DeviceControl."""
        self._set_state()  # it says how long the daemon has been up
        if self._publisher is not None:
            self._publisher.repeat_all()

    def reload(self) -> int:
        """See DeviceControl. Raises ConfigError where there is nothing to load."""
        number = next(self._numbers)
        self.on_reload(lambda error: self._commands.answered(number, error))
        return number

    def publish(self, message: Message) -> None:
        """See DeviceControl."""
        if self._publisher is not None and message.retain:
            self._publisher.put(message)
        elif self._publisher is not None:
            self._publisher.publish(message)

    # -- inside ------------------------------------------------------------------------------------------------
    def _take_events(self, events: Sequence[Event]) -> None:
        """One frame's events: into the outbox first."""
        if self._publisher is not None:
            self._publisher.tell(events)
        self.records.take(events)

    def alert(self, what: Alert) -> None:
        """Tell an operator. Any thread."""
        if self._publisher is not None:
            self._publisher.alert(what)
        else:
            log.log(logging.INFO if what.is_over else logging.WARNING, "%s", what.text)

    def _show(self, pictures: Sequence[PictureNews]) -> None:
        """The best pictures of events that have ended."""
        for news in pictures if self._config.mqtt.snapshots else ():
            self.publish(snapshot(self._topics, news.camera, news.jpeg))

    def _channel_faults(self) -> list[str]:
        return [
            f"channel {name} is {state}: {reason}"
            for name, (state, reason, _) in self._news.items()
            if state in (ChannelState.DOWN, ChannelState.FAILED)
        ]

    def _note_cameras(self, cameras: tuple[str, ...]) -> None:
        """A command was carried out: it may have set a value of a camera, added or removed one."""
        before, self._cameras = self._cameras, cameras
        for name in cameras:
            self._tell_camera(name)
        if cameras == before or self._publisher is None:
            return
        for name in set(before) - set(cameras):
            self._publisher.forget_camera(name)
        self._set_state()
        self._discover()

    def _tell_counts(self, tell: Callable[[Message], None]) -> None:
        topics = self._topics
        for camera, seen in self.events.present().items():
            tell(counts(topics.camera(camera, "count"), seen.labels))
            for zone, by_label in seen.zones.items():
                tell(counts(topics.zone_count(camera, zone), by_label))
            for line, by_direction in seen.lines.items():
                tell(line_counts(topics.line_count(camera, line), by_direction))

    def _take_back(self, incoming: Incoming) -> None:
        """What the broker has kept of an earlier run: cameras that are there no more leave."""
        if self._publisher is None:
            return
        camera = self._publisher.topics.camera_of(incoming.topic)
        if camera and camera not in {slug(name) for name in self._cameras}:
            self._publisher.forget_camera(camera)
        if camera and not incoming.topic.endswith("/status") and incoming.topic not in self._rule_topics(camera):
            self._publisher.forget(incoming.topic)
        known = {} if camera else components_of(incoming.payload)
        if known.keys() - self._gone.keys():
            self._gone.update(known)
            self._discover()

    def _rule_topics(self, camera: str) -> set[str]:
        """The counts of a camera's zones and lines, by its slug."""
        channel = self._config.channels.get({slug(name): name for name in self._config.channels}.get(camera, ""))
        topics = self._publisher.topics if self._publisher is not None else None
        if channel is None or topics is None:
            return set()
        zones = {topics.zone_count(camera, name) for name in channel.zones}
        return zones | {topics.line_count(camera, name) for name in channel.lines}

    def _tell_camera(self, name: str) -> None:
        if self._publisher is None or name not in self._news or name not in self._cameras:
            return
        state, reason, since_ns = self._news[name]
        fps, is_detecting = float(self._commands.value("fps", name)), bool(self._commands.value("detect", name))
        fault = self._pictures.fault(name)
        status = CameraStatus(name, state.value, reason, since_ns, fps, is_detecting, fault or "ok")
        self._publisher.put(camera_status(self._publisher.topics, status))

    def _set_state(self) -> None:
        if self._publisher is not None:
            self._publisher.put(state(self._publisher.topics, self.facts))

    def _discover(self) -> None:
        mqtt = self._config.mqtt
        if self._publisher is None or not mqtt.discovery.enabled:
            return
        channels = {name: self._config.channels[name] for name in self._cameras if name in self._config.channels}
        facts = DiscoveryFacts(
            name=self._config.device,
            version=__version__,
            profile=self._config.profile,
            cameras=self._cameras,
            commands=frozenset[str](mqtt.commands.allow if mqtt.commands.enabled else ()),
            has_snapshots=mqtt.snapshots,
            stats_interval_s=mqtt.stats_interval_s,
            zones={name: tuple(channel.zones) for name, channel in channels.items()},
            lines={name: tuple(channel.lines) for name, channel in channels.items()},
            prefix=mqtt.discovery.prefix,
            gone=self._gone,
        )
        self._publisher.discover(facts)
        self._gone.update(components_of(discovery(self._topics, facts)[0].payload))  # for what leaves next


def _nothing_to_load(told: Callable[[ZhcEdgeError | None], None]) -> None:
    raise ConfigError("this daemon has no configuration file to load again")

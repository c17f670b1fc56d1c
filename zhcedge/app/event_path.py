"""The event path of the control process: ring records -> tracks -> events."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from zhcedge.analytics.events import EventMachine, EventSettings
from zhcedge.analytics.rules import Rules
from zhcedge.analytics.settings import event_settings, rules_settings, tracker_settings
from zhcedge.analytics.tracker import Tracker, TrackUpdate
from zhcedge.config.schema import Config
from zhcedge.core.events import EndReason, Event, EventType
from zhcedge.core.ports import Clock
from zhcedge.core.types import ModelFacts
from zhcedge.pipeline.recorder import Recorder
from zhcedge.pipeline.ring import RingRecord


@dataclass(frozen=True)
class Present:
    """What a channel's objects are doing.

    Attributes:
        labels: objects that are there now, by label.
        zones: those in each zone, by label.
        lines: crossings of each line since the start of the daemon, by direction.
    """

    labels: Counter[str]
    zones: Mapping[str, Counter[str]]
    lines: Mapping[str, Mapping[str, int]]


class EventPath:
    """Tracks and events of every channel. Belongs to the control loop's thread.

    Args:
        config: channels, tracker and event settings.
        facts: of the model.
        tell: takes the events of one frame, in order.
    """

    def __init__(
        self,
        config: Config,
        facts: ModelFacts,
        recorder: Recorder,
        clock: Clock,
        tell: Callable[[Sequence[Event]], None],
    ) -> None:
        self._config, self._labels = config, facts.labels
        self._score_threshold = detector_threshold(config, facts)
        self._recorder, self._clock, self._tell = recorder, clock, tell
        self._names = dict(enumerate(config.channels))
        # They go on over a restart of the frame process, and over a channel that is removed and comes back.
        self._ids = defaultdict[str, Iterator[int]](lambda: itertools.count(1))
        self._span, self._span_track = recorder.name("events"), recorder.track("events")
        self.counts: Counter[EventType] = Counter()
        self.on_tracks: Callable[[TrackUpdate], None] = _ignore
        """Told what the tracker says of every frame, for whoever draws tracks."""
        self.on_seen: Callable[[str, RingRecord, TrackUpdate], None] = _see_nothing
        """Told the same with the channel's name and the record that it is of, before the frame's events."""
        self.end_reason = EndReason.CHANNEL_ENDED
        """Why channels end from now on."""
        self._thresholds: dict[str, float] = {}  # by channel
        self._with_clips: set[str] = set()  # channels
        self._silent: set[str] = set()  # channels that are paused or away
        self._leaving: set[int] = set()  # indices whose end is final although they were there at first
        self._first_count = len(config.channels)  # those that the frame process began with
        self._rules: dict[str, Rules] = {}  # by channel: what they have counted goes on as well
        self._start_channels()

    def _start_channels(self) -> None:
        self._trackers: dict[int, Tracker] = {}
        self._machines: dict[int, EventMachine] = {}
        for index, name in self._names.items():
            self.add_channel(index, name)

    def add_channel(self, index: int, name: str) -> None:
        """A channel has begun, has begun again, or goes on, under this index of its records."""
        self._silent.discard(name)
        if index in self._machines:
            return
        config, labels = self._config, self._labels
        if name not in self._rules:
            self._rules[name] = Rules(rules_settings(config, name), labels)
        self._names[index] = name
        self._trackers[index] = self._new_tracker(name)
        self._machines[index] = EventMachine(self._event_settings(name), self._rules[name])

    def _event_settings(self, name: str) -> EventSettings:
        return replace(event_settings(self._config, name, self._labels), has_clip=name in self._with_clips)

    def set_has_clip(self, name: str, has_clip: bool) -> None:
        """From the next message on, events of the channel say that they have a clip, or that they have none."""
        (self._with_clips.add if has_clip else self._with_clips.discard)(name)
        for index, machine in self._machines.items():
            if self._names[index] == name:
                machine.replace(self._event_settings(name))

    def note_snapshot(self, name: str, event_id: str) -> None:
        """A picture of an event of the channel is kept: from its next message on it says so."""
        for index, machine in self._machines.items():
            if self._names[index] == name:
                machine.note_snapshot(event_id)

    def _new_tracker(self, name: str) -> Tracker:
        return Tracker(tracker_settings(self._config, self._threshold(name)), self._ids[name])

    def _threshold(self, name: str) -> float:
        return self._thresholds.get(name, self._score_threshold)

    def knows(self, record: RingRecord) -> bool:
        """Whether the record is of a channel that was added."""
        return record.info.channel in self._machines

    def handle(self, record: RingRecord) -> bool:
        """Take in one record; True when it made events."""
        channel, started_ns = record.info.channel, self._clock.monotonic_ns()
        machine = self._machines[channel]
        if record.is_end:
            events = machine.close(self.end_reason)
            if channel >= self._first_count or channel in self._leaving:  # it comes back under another index
                del self._names[channel], self._trackers[channel], self._machines[channel]
        elif self._names[channel] in self._silent:
            events = []
        elif record.is_unseen:  # every such record says it, so that one that was overwritten is not missed
            events = machine.close(EndReason.DETECTION_OFF)
            self._trackers[channel] = self._new_tracker(self._names[channel])
        else:
            update = self._track(record)
            self.on_tracks(update)
            self.on_seen(self._names[channel], record, update)
            events = machine.step(update, (record.width_px, record.height_px))
        self._take(events)
        sequence, ended_ns = record.info.sequence, self._clock.monotonic_ns()
        self._recorder.span(self._span, self._span_track, channel, sequence, started_ns, ended_ns)
        return bool(events)

    def _track(self, record: RingRecord) -> TrackUpdate:
        tracker = self._trackers[record.info.channel]
        if record.is_still:
            return tracker.coast(record.info)
        found, threshold = record.detections, self._thresholds.get(self._names[record.info.channel])
        return tracker.update(found if threshold is None else found[found["score"] >= threshold], record.info)

    def end_channel(self, name: str, reason: EndReason) -> None:
        """End every open event of a channel until `add_channel` says that it goes on; its tracker starts afresh.

        Frames of it that are still on their way make no events: nobody would end them.
        """
        self._silent.add(name)
        for index, machine in self._machines.items():
            if self._names[index] == name:
                self._take(machine.close(reason))
                self._trackers[index] = self._new_tracker(name)

    def end_all(self, reason: EndReason) -> None:
        """End every open event: the frame process has gone, or the daemon is about to. Trackers start afresh."""
        for machine in self._machines.values():
            self._take(machine.close(reason))
        self._names = dict(enumerate(self._config.channels))
        self._first_count = len(self._names)
        self._leaving.clear()
        self._start_channels()

    def reconfigure(self, config: Config, gone: frozenset[str]) -> None:
        """Other rules, tracker and event settings from the next frame on; open events and counts go on.

        Args:
            gone: channels that the frame process will end, and may begin again under another index.
        """
        self._config = config
        for name in gone:
            self._thresholds.pop(name, None)
        self._leaving |= {index for index, name in self._names.items() if name in gone}
        for name, rules in self._rules.items():
            rules.replace(rules_settings(config, name))
        for index, machine in self._machines.items():
            name = self._names[index]
            machine.replace(self._event_settings(name))
            self._trackers[index].replace(tracker_settings(config, self._threshold(name)))

    def set_threshold(self, name: str, score: float) -> None:
        """From now on, detections of the channel below this score are no objects."""
        self._thresholds[name] = score
        for index, tracker in self._trackers.items():
            if self._names[index] == name:
                tracker.replace(tracker_settings(self._config, score))

    def present(self) -> dict[str, Present]:
        """What is there now, by channel."""
        found = {}
        for index, machine in self._machines.items():
            zones = {zone: self._wanted(counts) for zone, counts in machine.zone_counts().items()}
            lines = {
                line: {way.value: sum(counts.values()) for way, counts in ways.items()}
                for line, ways in machine.line_counts().items()
            }
            found[self._names[index]] = Present(self._wanted(machine.open_labels()), zones, lines)
        return found

    def _wanted(self, counts: Counter[str]) -> Counter[str]:
        wanted = self._config.events.labels
        return counts if wanted is None else Counter({label: counts[label] for label in wanted})

    def _take(self, events: Sequence[Event]) -> None:
        wanted = self._config.events.labels
        told = [event for event in events if wanted is None or event.after.label in wanted]
        if told:
            self.counts.update(event.type for event in told)
            self._tell(told)


def detector_threshold(config: Config, facts: ModelFacts) -> float:
    """The score below which the detector shows nothing, 0 to 1."""
    return facts.score_threshold if config.model.score_threshold is None else config.model.score_threshold


def _ignore(update: TrackUpdate) -> None:
    """Nobody draws tracks."""


def _see_nothing(name: str, record: RingRecord, update: TrackUpdate) -> None:
    """Nobody keeps pictures."""

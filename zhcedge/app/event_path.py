"""The event path of the control process: ring records -> tracks -> events -> messages in the outbox."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from zhcedge.analytics.events import EventMachine, EventSettings
from zhcedge.analytics.tracker import IouTracker, TrackerSettings
from zhcedge.config.schema import Config
from zhcedge.core.events import EndReason, Event, EventType
from zhcedge.core.ports import Clock, Outbox
from zhcedge.pipeline.recorder import Recorder
from zhcedge.pipeline.ring import RingRecord
from zhcedge.publish.payloads import EventEncoder


class EventPath:
    """Tracks and events of every channel. Belongs to the control loop's thread.

    Args:
        config: channels, tracker and event settings.
        labels: of the model, by index.
        encoder: numbers the messages.
        outbox: takes them; None when nothing is published.
    """

    def __init__(
        self,
        config: Config,
        labels: tuple[str, ...],
        encoder: EventEncoder,
        outbox: Outbox | None,
        recorder: Recorder,
        clock: Clock,
    ) -> None:
        self._config, self._labels = config, labels
        self._encoder, self._outbox, self._recorder, self._clock = encoder, outbox, recorder, clock
        self._names = list(config.channels)
        self._ids = {name: itertools.count(1) for name in self._names}  # go on over a restart of the frame process
        self._span, self._track = recorder.name("events"), recorder.track("events")
        self.counts: Counter[EventType] = Counter()
        self._start_channels()

    def _start_channels(self) -> None:
        config = self._config
        tracker = TrackerSettings(
            match_iou=config.tracker.min_iou,
            confirm_frames=config.tracker.confirm_frames,
            max_lost_ms=config.tracker.max_lost_ms,
            max_lost_frames=config.tracker.max_lost_frames,
        )
        self._trackers = [IouTracker(tracker, self._ids[name]) for name in self._names]
        self._machines = [
            EventMachine(EventSettings(name, self._labels, config.events.update_interval_ms)) for name in self._names
        ]

    def handle(self, record: RingRecord) -> bool:
        """Take in one record; True when it made events."""
        channel, started_ns = record.info.channel, self._clock.monotonic_ns()
        machine = self._machines[channel]
        if record.is_end:
            events = machine.close(EndReason.CHANNEL_ENDED)
        else:
            events = machine.step(self._trackers[channel].update(record.detections, record.info))
        self._append(events)
        sequence, ended_ns = record.info.sequence, self._clock.monotonic_ns()
        self._recorder.span(self._span, self._track, channel, sequence, started_ns, ended_ns)
        return bool(events)

    def end_all(self, reason: EndReason) -> None:
        """End every open event: the frame process has gone, or the daemon is about to. Trackers start afresh."""
        for machine in self._machines:
            self._append(machine.close(reason))
        self._start_channels()

    def _append(self, events: Sequence[Event]) -> None:
        wanted = self._config.events.labels
        for event in events:
            if wanted is not None and event.after.label not in wanted:
                continue
            self.counts[event.type] += 1
            if self._outbox is not None:
                self._outbox.append(self._encoder.encode(event), is_expendable=event.type is EventType.UPDATE)

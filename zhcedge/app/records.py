"""What stays of events on this device: clips, pictures and the history."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from zhcedge.app.clips import ClipKeeper
from zhcedge.app.event_path import EventPath
from zhcedge.app.event_snapshots import PictureNews, SnapshotKeeper
from zhcedge.app.history_settings import history_folder, history_limits
from zhcedge.config.channel import ChannelConfig
from zhcedge.config.schema import Config
from zhcedge.core.delivery import OnAlert
from zhcedge.core.errors import ZhcEdgeError
from zhcedge.core.events import Event, EventKind
from zhcedge.core.ports import Clock
from zhcedge.store.history import History

log = logging.getLogger(__name__)

Send = Callable[[str, str, object], int]
"""Asks something of the frame process: word, camera, value. Returns the command's number. Raises ZhcEdgeError."""


class EventRecords:
    """Belongs to the control loop's thread; nothing in it waits, `close` excepted.

    Args:
        boot_id: random for every start of the daemon.
        wake: wakes the control loop; any thread.
        on_alert: takes alerts; any thread.

    Attributes:
        clips: recordings of events.
        snapshots: pictures of events.

    Raises ConfigError where there is no folder, StoreError where it can't be used; then there is no thread.
    """

    def __init__(
        self, config: Config, boot_id: str, clock: Clock, send: Send, wake: Callable[[], None], on_alert: OnAlert
    ) -> None:
        self.clips = ClipKeeper(config, boot_id, clock, send, wake)
        self.snapshots = SnapshotKeeper(config, boot_id, clock, send, wake, on_alert)
        folder = history_folder(config)
        self._history = History(folder, clock, on_alert, boot_id, history_limits(config)) if folder else None

    def watch(self, events: EventPath, cameras: Sequence[str]) -> None:
        """What the tracker sees is what pictures are chosen by; events say whether there is a clip."""
        self._events = events
        events.on_seen = self.snapshots.seen
        for name in cameras:
            self.look_at(name)

    def start(self) -> None:
        """Begin to keep the limits of what is stored."""
        self.clips.start()
        self.snapshots.start()

    def look_at(self, camera: str) -> None:
        """The camera's source may have changed: whether its events have clips."""
        self._events.set_has_clip(camera, not self.clips.obstacle(camera))

    def set_camera(self, name: str, channel: ChannelConfig | None) -> None:
        """A camera was added, or with None removed."""
        self.clips.set_camera(name, channel)
        self.snapshots.set_camera(name, channel)
        self.look_at(name)

    def take(self, events: Sequence[Event]) -> None:
        """One frame's events."""
        if self._history is not None:
            self._history.take(events)
        for event in events:
            self.clips.event(event)
            if event.after.kind is EventKind.OBJECT:  # pictures are chosen by the object's box
                self.snapshots.event(event)

    def answered(self, number: int, error: ZhcEdgeError | None, value: object) -> bool:
        """What the frame process says of a command; False when it was none of ours."""
        return self.clips.answered(number, error) or self.snapshots.answered(number, error, value)

    def frame_process_ended(self) -> None:
        """What it was asked is not answered any more."""
        self.clips.frame_process_ended()
        self.snapshots.frame_process_ended()

    def turn(self) -> list[PictureNews]:
        """Every turn of the loop. The pictures of events that have ended are for others to see."""
        for news in self.clips.turn():
            self.look_at(news.camera)
            for note in news.notes:
                log.debug("clip of event %s: %s", news.event_id, note)
        if self._history is not None:
            self._history.tick()
        return self.last_pictures()

    def last_pictures(self) -> list[PictureNews]:
        """Pictures that have been kept since the last call, those of ended events with their JPEG."""
        pictures = self.snapshots.turn()
        for news in pictures:
            self._events.note_snapshot(news.camera, news.event_id)
        return [news for news in pictures if news.jpeg]

    def close(self) -> None:
        """Write what is left. After the frame process has ended."""
        self.snapshots.close()
        self.clips.close()
        if self._history is not None:
            self._history.close()

"""The best picture of every event: asked of the frame process, matched with what was seen in it, and kept.

A picture is asked for when an event begins, and when its object is seen clearly better than in the picture that is
kept. The frame process takes the next frame, so which one it was is known by its number only: the tracker's word about
the last frames is remembered, and the picture counts for every open event whose object was seen in it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from zhcedge.analytics.tracker import Track, TrackUpdate
from zhcedge.app.picture_thread import PictureThread
from zhcedge.app.storage_settings import storage_settings
from zhcedge.config.channel import ChannelConfig
from zhcedge.config.schema import Config
from zhcedge.core.delivery import OnAlert
from zhcedge.core.errors import ConfigError, ZhcEdgeError
from zhcedge.core.events import Box, Event, EventType
from zhcedge.core.ports import Clock
from zhcedge.pipeline.ring import RingRecord
from zhcedge.pipeline.snapshots import MAX_CROPS
from zhcedge.store.pictures import Pictured, PictureStore

CLEARLY = 1.15
"""A picture is asked for when it would be better by this factor..."""

BETTER = 1.05
"""...and replaces the one that is kept when it is better by this: it bounds how often an event's files are written."""

_REMEMBERED = 128  # frames of a channel: more than pass while a picture is made
_NEAR_NS = 250_000_000  # a frame without detection shows what was seen so long before it
_INSIDE = 0.8  # share of the object's box that its crop must show
_PATIENCE_S = 15.0  # the frame process answers in half of it, or is stuck

Send = Callable[[str, str, object], int]
"""Asks something of the frame process: word, camera, value. Returns the command's number. Raises ZhcEdgeError."""

_Area = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class PictureNews:
    """An event's picture is kept. With `jpeg` the event has ended, and this is its best one, to be shown to others."""

    camera: str
    event_id: str
    jpeg: bytes = b""


class _Seen(NamedTuple):
    """What the tracker said of a frame."""

    sequence: int
    capture_time_ns: int
    size_px: tuple[int, int]
    tracks: tuple[Track, ...]


@dataclass
class _Open:
    """An event, until nothing more is to be done about it.

    Attributes:
        worth: of the best picture so far; 0 without one, or when it could not be written.
        is_kept: there is one on the disk.
        pending: pictures that were asked for and not judged.
    """

    of: Pictured
    worth: float = 0.0
    is_kept: bool = False
    pending: int = 0
    is_over: bool = False


@dataclass
class _Channel:
    """A camera that keeps pictures. `next_ns` is when, by the monotonic clock, it may be asked again."""

    config: ChannelConfig
    next_ns: int = 0
    seen: deque[_Seen] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))


class _Asked(NamedTuple):
    """A picture that was asked for, and the events whose crops were asked for with it."""

    number: int
    camera: str
    wanted: tuple[_Open, ...]
    deadline_ns: int


class _Answer(NamedTuple):
    asked: _Asked
    value: Mapping[object, object]


class SnapshotKeeper:
    """Everything belongs to the control loop's thread, and never waits: a thread of its own writes.

    The frame process is asked for one picture at a time.

    Args:
        boot_id: of this run of the daemon: with it an event's id is unique for ever.
        send: see Send.
        wake: called when `turn` has something to say; any thread.
        on_alert: told when pictures can't be written.

    Attributes:
        asked: pictures that were asked for.
        dropped: those of them that the frame process refused or that nobody could write any more in time.

    Raises ConfigError when pictures are wanted and there is no folder for them.
    """

    def __init__(
        self, config: Config, boot_id: str, clock: Clock, send: Send, wake: Callable[[], None], on_alert: OnAlert
    ) -> None:
        self._boot_id, self._clock, self._send, self._wake = boot_id, clock, send, wake
        self._is_shown = config.mqtt.enabled and config.mqtt.snapshots
        self._channels: dict[str, _Channel] = {}
        self._open: dict[str, _Open] = {}  # by event id
        self._asked: _Asked | None = None
        self._fresh: list[_Answer] = []
        self._ripe: list[_Answer] = []
        self.asked = self.dropped = 0
        storage = storage_settings(config)
        if storage is None and any(channel.snapshots.enabled for channel in config.channels.values()):
            raise ConfigError(
                "snapshots need a folder", where="storage.dir", fix="set it, or start with $STATE_DIRECTORY"
            )
        self._thread = None if storage is None else PictureThread(PictureStore(storage), on_alert, wake)
        for name, channel in config.channels.items():
            self.set_camera(name, channel)

    @property
    def written(self) -> int:
        """Pictures that were kept."""
        return 0 if self._thread is None else self._thread.written

    @property
    def lost(self) -> int:
        """Pictures that could not be written."""
        return 0 if self._thread is None else self._thread.lost

    def start(self) -> None:
        """Begin to write."""
        if self._thread is not None:
            self._thread.start()

    def close(self) -> None:
        """Write what waits; `turn` then tells of it. Waits, some seconds at most. Twice is fine."""
        if self._thread is not None:
            self._thread.close()

    def set_camera(self, camera: str, channel: ChannelConfig | None) -> None:
        """A camera was added, or with None removed."""
        self._channels.pop(camera, None)
        if channel is not None and channel.snapshots.enabled and self._thread is not None:
            self._channels[camera] = _Channel(channel)

    # -- what happens ------------------------------------------------------------------------------------------
    def seen(self, camera: str, record: RingRecord, update: TrackUpdate) -> None:
        """What the tracker says of a frame, before the frame's events."""
        channel = self._channels.get(camera)
        if channel is None:
            return
        info = record.info
        if channel.seen and info.sequence <= channel.seen[-1].sequence:  # the camera has begun again
            channel.seen.clear()
        size_px = record.width_px, record.height_px
        channel.seen.append(_Seen(info.sequence, info.capture_time_ns, size_px, update.seen))
        self._consider(camera, channel)

    def event(self, event: Event) -> None:
        """An event begins or ends."""
        after = event.after
        channel = self._channels.get(after.camera)
        if event.type is EventType.NEW and channel is not None:
            key = f"{self._boot_id}/{after.id}"
            self._open[after.id] = _Open(Pictured(key, after.id, after.camera, after.start_time_ns))
            self._consider(after.camera, channel)
        elif event.type is EventType.END and after.id in self._open:
            ended = self._open[after.id]
            ended.is_over = True
            self._conclude(ended)

    def answered(self, number: int, error: ZhcEdgeError | None, value: object = None) -> bool:
        """The frame process has a picture, or refuses it. False when it was none of ours."""
        asked = self._asked
        if asked is None or asked.number != number:
            return False
        self._asked = None
        self._pause(asked.camera)
        if error is None and isinstance(value, Mapping):
            # The record of this frame may still lie in the ring: judged in the next turn, when that was read again.
            self._fresh.append(_Answer(asked, value))
        else:
            self._drop(asked)
        return True

    def frame_process_ended(self) -> None:
        """It answers no more, and its frames' numbers begin again. The ring has been read to its end."""
        for answer in (*self._ripe, *self._fresh):
            self._judge(answer)
        self._ripe, self._fresh = [], []
        asked, self._asked = self._asked, None
        if asked is not None:
            self._drop(asked)
        for channel in self._channels.values():
            channel.seen.clear()

    def turn(self) -> list[PictureNews]:
        """Once for every turn of the loop, after the ring was read. What is kept now, and what others shall see."""
        ripe, self._ripe, self._fresh = self._ripe, self._fresh, []
        for answer in ripe:
            self._judge(answer)
        asked = self._asked
        if asked is not None and self._clock.monotonic_ns() > asked.deadline_ns:
            self._asked = None
            self._pause(asked.camera)
            self._drop(asked)
        if self._ripe:
            self._wake()
        return list(self._hear())

    # -- asking ------------------------------------------------------------------------------------------------
    def _consider(self, camera: str, channel: _Channel) -> None:
        """Ask for a picture when one of the objects in the last frame is worth it."""
        if self._asked is not None or not self._open or not channel.seen:
            return
        now_ns = self._clock.monotonic_ns()
        if now_ns < channel.next_ns:
            return
        seen = channel.seen[-1]
        there = [(self._open[id], track) for track in seen.tracks if (id := f"{camera}-{track.id}") in self._open]
        gains = [(_worth(track, seen.size_px) / max(event.worth, 1e-9), event, track) for event, track in there]
        if not gains or max(gain for gain, _, _ in gains) < CLEARLY:
            return
        gains.sort(key=lambda found: found[0], reverse=True)
        chosen = [(event, track) for _, event, track in gains[:MAX_CROPS]]
        crops = [_crop(track.box, seen.size_px, channel.config.snapshots.crop_margin) for _, track in chosen]
        try:
            number = self._send("snapshot", camera, {"crops": crops})
        except ZhcEdgeError:  # the frame path is not active
            self._pause(camera)
            return
        self.asked += 1
        wanted = tuple(event for event, _ in chosen)
        for event in wanted:
            event.pending += 1
        self._asked = _Asked(number, camera, wanted, now_ns + round(_PATIENCE_S * 1e9))

    def _pause(self, camera: str) -> None:
        channel = self._channels.get(camera)
        if channel is not None:
            channel.next_ns = self._clock.monotonic_ns() + round(channel.config.snapshots.min_interval_s * 1e9)

    def _drop(self, asked: _Asked) -> None:
        self.dropped += 1
        for event in asked.wanted:
            event.pending -= 1
            self._conclude(event)

    # -- judging -----------------------------------------------------------------------------------------------
    def _judge(self, answer: _Answer) -> None:
        """Keep the picture for the events that it shows better than the one they have."""
        asked, value = answer
        seen = self._seen_in(asked.camera, value)
        crops = value.get("crops")
        for event, crop in zip(asked.wanted, crops if isinstance(crops, list) else (), strict=False):
            track = None if seen is None else _track_of(event, asked.camera, seen)
            if seen is None or track is None or not isinstance(crop, Mapping):
                continue
            worth = _worth(track, seen.size_px)
            if worth >= event.worth * BETTER and _is_inside(track.box, seen.size_px, crop.get("rectangle")):
                self._keep(event, worth, str(value.get("jpeg")), str(crop.get("jpeg")))
        for event in asked.wanted:
            event.pending -= 1
            self._conclude(event)

    def _seen_in(self, camera: str, value: Mapping[object, object]) -> _Seen | None:
        """What was seen in the picture, or just before it where nobody looked at that frame."""
        channel, sequence, time_ns = self._channels.get(camera), value.get("sequence"), value.get("capture_time_ns")
        if channel is None or not isinstance(sequence, int) or not isinstance(time_ns, int):
            return None
        latest = next((seen for seen in reversed(channel.seen) if seen.sequence <= sequence), None)
        is_near = latest is not None and abs(time_ns - latest.capture_time_ns) <= _NEAR_NS
        return latest if is_near else None

    def _keep(self, event: _Open, worth: float, whole: str, crop: str) -> None:
        if self._thread is not None and self._thread.keep(event.of, whole, crop):
            event.worth = worth
        else:
            self.dropped += 1

    def _conclude(self, event: _Open) -> None:
        """Forget an event that has ended and of which no picture is to come; show its best one."""
        if not event.is_over or event.pending or self._open.pop(event.of.event_id, None) is None:
            return
        has_picture = event.worth > 0 or event.is_kept
        if has_picture and self._is_shown and self._thread is not None and not self._thread.show(event.of):
            self.dropped += 1

    def _hear(self) -> Iterator[PictureNews]:
        for kept in self._thread.news() if self._thread is not None else ():
            event = self._open.get(kept.of.event_id)
            if kept.is_kept:
                if event is not None:
                    event.is_kept = True
                yield PictureNews(kept.of.camera, kept.of.event_id, kept.jpeg)
            elif event is not None:
                event.worth = 0.0  # the next one is as good as any


def _track_of(event: _Open, camera: str, seen: _Seen) -> Track | None:
    return next((track for track in seen.tracks if f"{camera}-{track.id}" == event.of.event_id), None)


def _worth(track: Track, size_px: tuple[int, int]) -> float:
    """How good a picture shows an object: its score times its size, as a length."""
    left, top, right, bottom = _shares(track.box, size_px)
    return track.score * math.sqrt((right - left) * (bottom - top))


def _shares(box: Box, size_px: tuple[int, int]) -> _Area:
    """A box as shares of the picture, what lies outside left out."""
    width, height = size_px
    left, right = (min(max(x / width, 0.0), 1.0) for x in (box[0], box[2]))
    top, bottom = (min(max(y / height, 0.0), 1.0) for y in (box[1], box[3]))
    return left, top, max(left, right), max(top, bottom)


def _crop(box: Box, size_px: tuple[int, int], margin: float) -> _Area:
    """What shall be seen of an object: its box and a margin around it, as shares of the picture; never empty."""
    left, top, right, bottom = _shares(box, size_px)
    beside, above = (right - left) * margin, (bottom - top) * margin
    left, top = min(max(left - beside, 0.0), 0.99), min(max(top - above, 0.0), 0.99)
    return left, top, min(max(right + beside, left + 0.01), 1.0), min(max(bottom + above, top + 0.01), 1.0)


def _is_inside(box: Box, size_px: tuple[int, int], rectangle: object) -> bool:
    """Whether a crop (left, top, width, height in pixels) shows most of a box."""
    if not isinstance(rectangle, list) or len(rectangle) != 4:
        return False
    left, top, width, height = (float(edge) for edge in rectangle)
    area = _shares(box, size_px)
    crop = _shares((left, top, left + width, top + height), size_px)
    across = min(area[2], crop[2]) - max(area[0], crop[0])
    down = min(area[3], crop[3]) - max(area[1], crop[1])
    return across > 0 and down > 0 and across * down >= _INSIDE * (area[2] - area[0]) * (area[3] - area[1])

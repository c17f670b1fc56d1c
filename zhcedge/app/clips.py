"""Clips on the control side: asks the frame process for them, indexes what comes, and keeps the disk in bounds."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from zhcedge.app.storage_settings import storage_settings
from zhcedge.config.channel import ChannelConfig
from zhcedge.config.schema import Config
from zhcedge.core.errors import ConfigError, MediaError, StoreError, ZhcEdgeError
from zhcedge.core.events import Event, EventType
from zhcedge.core.ports import Clock
from zhcedge.media.fragments import cut_to_whole
from zhcedge.store.clips import IndexedFile, MediaIndex, Use, Wanted
from zhcedge.store.media_files import CLIP, StorageSettings
from zhcedge.store.media_scan import MediaScan
from zhcedge.store.retention import Retention

log = logging.getLogger(__name__)

_TURN_S = 30.0  # so often files are looked for that somebody else has left or deleted, and limits are kept
_RETRY_S = 5.0
_STOP_S = 10.0

_MOST_WAITING = 1000  # of what can't be noted, because the disk is full or away

_Job = Callable[[MediaIndex], None]

Send = Callable[[str, str, object], int]
"""Asks something of the frame process: word, camera, value. Returns the command's number. Raises ZhcEdgeError."""


@dataclass(frozen=True)
class ClipRange:
    """A file, and the range of it that belongs to one event, in seconds from its beginning."""

    path: Path
    size_bytes: int
    start_ns: int
    from_s: float
    to_s: float


@dataclass(frozen=True)
class ClipNews:
    """What has become of the clip of an event.

    Attributes:
        event_id: of this run's event, or as it was noted in an earlier run: BOOT_ID/ID.
        ranges: in order; empty when there is no clip.
        notes: why there is none, or how it differs from what was asked.
    """

    camera: str
    event_id: str
    ranges: tuple[ClipRange, ...]
    notes: tuple[str, ...]


class _Asked(NamedTuple):
    """A command that has not been answered."""

    camera: str
    key: str
    is_begin: bool


class ClipKeeper:
    """`event`, `answered`, `take`, `turn` and the camera calls belong to the control loop's thread and never wait for
    the disk: a thread of its own does that.

    Args:
        boot_id: of this run of the daemon: with it an event's id is unique for ever.
        send: see Send.
        wake: called when `turn` has something to say; any thread.

    Raises ConfigError when clips are wanted and there is no folder for them.
    """

    def __init__(self, config: Config, boot_id: str, clock: Clock, send: Send, wake: Callable[[], None]) -> None:
        self._boot_id, self._clock, self._send, self._wake = boot_id, clock, send, wake
        self._channels = dict(config.channels)
        self._refusals: dict[str, str] = {}  # by camera, until the frame process starts again
        self._asked: dict[int, _Asked] = {}  # by command number
        self._open: dict[str, Event] = {}  # events that have begun, by key, and whose clip was asked for
        self._news: deque[ClipNews] = deque()
        storage = storage_settings(config)
        if storage is None and any(channel.clips.enabled for channel in config.channels.values()):
            raise ConfigError("clips need a folder", where="storage.dir", fix="set it, or start with $STATE_DIRECTORY")
        self._store = None if storage is None else _Store(storage, clock, self._tell)

    def start(self) -> None:
        """Look for what earlier runs have left, and begin to keep the limits."""
        if self._store is not None:
            self._store.start()

    def close(self) -> None:
        """Index what has come. After the frame process has ended."""
        if self._store is not None:
            self._store.close()

    def obstacle(self, camera: str) -> str:
        """Why events of a camera get no clip, for people; empty when they do."""
        channel = self._channels.get(camera)
        if channel is None or not channel.clips.enabled:
            return "clips are off"
        if self._store is None:
            return "there is no folder for clips"
        if channel.source.kind in ("image", "pattern"):
            return f"a source of kind {channel.source.kind} has no compressed packets"
        return self._refusals.get(camera, "")

    def set_camera(self, camera: str, channel: ChannelConfig | None) -> None:
        """A camera was added, or with None removed."""
        self._refusals.pop(camera, None)
        self._channels.pop(camera, None)
        if channel is not None:
            self._channels[camera] = channel

    # -- events ------------------------------------------------------------------------------------------------
    def event(self, event: Event) -> None:
        """Ask for a clip when an event begins, and say when it ends. Any other event is none of ours."""
        after = event.after
        key = f"{self._boot_id}/{after.id}"
        if event.type is EventType.NEW and not self.obstacle(after.camera):
            self._open[key] = event
            self._ask(event, key, None)
        elif event.type is EventType.END and self._open.pop(key, None) is not None:
            self._ask(event, key, after.end_time_ns)

    def _ask(self, event: Event, key: str, end_ns: int | None) -> None:
        after = event.after
        clips = self._channels[after.camera].clips if after.camera in self._channels else None
        if self._store is not None and clips is not None:
            from_ns = after.start_time_ns - round(clips.before_s * 1e9)
            to_ns = None if end_ns is None else end_ns + round(clips.after_s * 1e9)
            self._store.want(Wanted(key, after.camera, from_ns, to_ns))
        value = {"key": key, "start_ns": after.start_time_ns, "end_ns": end_ns}
        asked = _Asked(after.camera, key, is_begin=end_ns is None)
        try:
            self._asked[self._send("clip", after.camera, value)] = asked
        except ZhcEdgeError as error:
            self._note_refusal(asked, error)

    # -- what the frame process says ---------------------------------------------------------------------------
    def answered(self, number: int, error: ZhcEdgeError | None) -> bool:
        """The frame process accepts a command, or refuses it. False when it was none of ours."""
        asked = self._asked.pop(number, None)
        if asked is None:
            return False
        if error is not None:
            self._note_refusal(asked, error)
        return True

    def take(self, message: Mapping[str, object]) -> None:
        """A clip is complete: the message's content under "clip" (app/frame_clips.py)."""
        if self._store is not None:
            self._store.take(message)

    def frame_process_ended(self) -> None:
        """What it was writing is finished from here, and given to the events that wanted it."""
        self._asked.clear()
        self._refusals.clear()
        self._open.clear()
        if self._store is not None:
            self._store.look()

    def turn(self) -> list[ClipNews]:
        """What has become of clips since the last call."""
        news = []
        while self._news:
            news.append(self._news.popleft())
        return news

    def _note_refusal(self, asked: _Asked, error: ZhcEdgeError) -> None:
        if error.exit_code == MediaError.exit_code:
            self._refusals[asked.camera] = error.what  # of the source: the next event would hear the same
        if asked.is_begin:  # what has begun is told of, or found on the disk, when the frame process has gone
            self._open.pop(asked.key, None)
            if self._store is not None:
                self._store.unwant(asked.key)
            self._tell(ClipNews(asked.camera, asked.key, (), (error.what,)))

    def _tell(self, news: ClipNews) -> None:
        """Any thread."""
        own = f"{self._boot_id}/"
        event_id = news.event_id.removeprefix(own)
        self._news.append(ClipNews(news.camera, event_id, news.ranges, news.notes))
        self._wake()


class _Store:
    """The index and the files, in a thread of its own. All methods but `_run` and what it calls: any thread."""

    def __init__(self, storage: StorageSettings, clock: Clock, tell: Callable[[ClipNews], None]) -> None:
        self._storage, self._clock, self._tell = storage, clock, tell
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="media", daemon=True)
        self._told = ""  # the last trouble, so that it is told once
        self._is_short = False

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._jobs.put(None)
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)

    def want(self, wanted: Wanted) -> None:
        self._jobs.put(lambda index: index.want(wanted))

    def unwant(self, key: str) -> None:
        self._jobs.put(lambda index: index.unwant(key))

    def take(self, message: Mapping[str, object]) -> None:
        self._jobs.put(lambda index: self._keep(index, message))

    def look(self) -> None:
        self._jobs.put(self._recover)

    # -- the thread --------------------------------------------------------------------------------------------
    def _run(self) -> None:
        index: MediaIndex | None = None
        # What the disk does not take now it takes later, in the same order; but not without end.
        waiting: deque[_Job] = deque([self._recover], maxlen=_MOST_WAITING)
        next_s, is_closing = 0.0, False
        while True:
            try:
                if index is not None and not index.is_in_place():
                    log.warning("clips and snapshots: the index was deleted while it was used; it is made again")
                    index.close()
                    index = None
                index = index or MediaIndex(self._storage.dir)
                while waiting:
                    waiting[0](index)
                    waiting.popleft()
                if time.monotonic() >= next_s:
                    self._tidy(index)
                    next_s = time.monotonic() + _TURN_S
                self._told = ""
            except StoreError as error:
                next_s = time.monotonic() + _RETRY_S
                if str(error) != self._told:
                    self._told = str(error)
                    log.error("clips and snapshots: %s", error)
            if is_closing:
                break
            try:
                job = self._jobs.get(timeout=max(next_s - time.monotonic(), 0.1))
            except queue.Empty:
                continue
            if job is None:
                is_closing = True
            else:
                waiting.append(job)
        if index is not None:
            index.close()

    def _recover(self, index: MediaIndex) -> None:
        """No process writes for us: what was wanted is there now, or will never be."""
        self._scan(index)
        for wanted in index.wanted():
            parts = index.clip_of(wanted.event)
            index.unwant(wanted.event)
            notes = ("the recording broke off",) if parts else ("the recording was lost",)
            self._tell(ClipNews(wanted.camera, wanted.event, tuple(_range(*part) for part in parts), notes))

    def _scan(self, index: MediaIndex) -> None:
        report = MediaScan(self._storage.dir, index, _repair).run()
        if report.recovered or report.removed or report.forgotten:
            log.info(
                "clips: %d finished that were left unfinished, %d that held nothing removed, %d files are gone",
                report.recovered,
                report.removed,
                report.forgotten,
            )

    def _tidy(self, index: MediaIndex) -> None:
        self._scan(index)
        freed = Retention(self._storage, index).run(self._clock.wall_ns(), self._clock.is_synced())
        if freed.files:
            log.info("storage: the %d oldest files deleted, %.1f MB", freed.files, freed.size_bytes / 1e6)
        if freed.is_short and not self._is_short:
            log.warning("storage: less than min_free_mb is free, and nothing of ours is left to delete")
        self._is_short = freed.is_short

    def _keep(self, index: MediaIndex, message: Mapping[str, object]) -> None:
        camera, key = str(message["camera"]), str(message["key"])
        notes = [str(note) for note in _items(message["notes"])]
        ranges = []
        for part in _items(message["parts"]):
            if not isinstance(part, Mapping):
                continue
            path, seconds = Path(str(part["path"])), float(part["seconds"])
            start_ns, from_s, to_s = int(part["start_ns"]), float(part["from_s"]), float(part["to_s"])
            try:
                size = path.stat().st_size
            except OSError:
                notes.append("it was deleted")
                continue
            file = IndexedFile(path, CLIP, camera, start_ns, start_ns + round(seconds * 1e9), size)
            use = Use(key, path, from_s, to_s)
            index.add(file, [use])
            ranges.append(_range(file, use))
        index.unwant(key)
        self._tell(ClipNews(camera, key, tuple(ranges), tuple(notes)))


def _range(file: IndexedFile, use: Use) -> ClipRange:
    return ClipRange(file.path, file.size_bytes, file.start_ns, use.from_s, use.to_s)


def _items(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []


def _repair(path: Path) -> float | None:
    whole = cut_to_whole(path)
    return None if whole is None else whole.seconds

"""The clips of one channel: which packets belong to which event's recording."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from zhcedge.core.errors import OutputError
from zhcedge.core.file_times import file_stamp
from zhcedge.core.message_ids import tagged
from zhcedge.media._vendor import av
from zhcedge.media.clip_file import PART_SUFFIX, ClipFile
from zhcedge.media.packets import KeptPacket, PacketRing
from zhcedge.media.stream_form import StreamForm

if TYPE_CHECKING:
    from av.packet import Packet
    from av.stream import Stream

log = logging.getLogger(__name__)

_STALL_S = 10.0  # a recording to which nothing comes for so long ends
_LATE_NS = 50_000_000  # a clip that begins later than asked by less than this does not say so
_REMEMBERED = 256  # clips that are over: what is said of their events later comes too late
_OVERTAKEN = "some packets were lost, because the disk was too slow"


@dataclass(frozen=True)
class ClipSettings:
    """How a channel's clips are made.

    Attributes:
        folder: of this channel's clips.
        before_s, after_s: what is recorded before an event and after it.
        max_s: longest clip, and length from which a recording goes on in another file.
        keep_free_bytes: a recording ends before the disk has less than this left.
    """

    folder: Path
    before_s: float = 5.0
    after_s: float = 5.0
    max_s: float = 60.0
    keep_free_bytes: int = 0


@dataclass(frozen=True)
class ClipPart:
    """A file of a recording, and the range of it that belongs to one event.

    Attributes:
        path: of the finished file.
        size_bytes, seconds: of the whole file.
        start_ns: wall clock of its first picture.
        from_s, to_s: the event's range, from the file's beginning.
    """

    path: Path
    size_bytes: int
    seconds: float
    start_ns: int
    from_s: float
    to_s: float


@dataclass(frozen=True)
class Clip:
    """The recording of one event.

    Attributes:
        channel, key: whose.
        parts: in order; empty when there is none.
        notes: why there is none, or how it differs from what was asked, for people; empty when it is as asked.
    """

    channel: str
    key: str
    parts: tuple[ClipPart, ...]
    notes: tuple[str, ...]


@dataclass
class _Window:
    """The time of one event's clip, on the ring's clock."""

    key: str
    start_ns: int
    limit_ns: int
    end_ns: int | None = None
    is_over: bool = False
    has_begun: bool = False
    parts: list[ClipPart] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def until_ns(self) -> int:
        return self.limit_ns if self.end_ns is None else min(self.end_ns, self.limit_ns)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


@dataclass
class _Recording:
    """The file that is being written.

    Attributes:
        start_ns, wall_ns: of its first picture, on the ring's clock and on the wall clock.
        windows: all whose time it holds; founders are those that it was begun for.
        last_show_ns, shown_until_ns: when the last picture is shown, and until when.
        held: packets after the end of all windows so far, in decoding order.
        is_whole: every packet could be written.
    """

    file: ClipFile
    form: StreamForm
    start_ns: int
    wall_ns: int
    founders: frozenset[str]
    last_show_ns: int
    shown_until_ns: int
    windows: list[_Window] = field(default_factory=list)
    held: list[tuple[KeptPacket, Packet[Stream]]] = field(default_factory=list)
    is_whole: bool = True


class _Finished(NamedTuple):
    """A recording whose file has its name, and the file's size in bytes."""

    recording: _Recording
    size_bytes: int


class ChannelClips:
    """Owned by the recorder's thread.

    Args:
        tell: takes every clip that is complete, or of which there is nothing.
    """

    def __init__(self, name: str, ring: PacketRing, settings: ClipSettings, tell: Callable[[Clip], None]) -> None:
        self.ring = ring
        self._name, self._settings, self._tell = name, settings, tell
        self._windows: dict[str, _Window] = {}  # those that are not over
        self._recording: _Recording | None = None
        self._earlier: _Finished | None = None  # the one before
        self._cursor: int | None = None  # number of the packet to read next; None looks for a beginning
        self._cursor_floor = 0  # no beginning before this packet: it has been passed
        self._came_number, self._came_s = 0, 0.0  # the newest packet that was seen, and when
        self._over = deque[str](maxlen=_REMEMBERED)
        self._trouble = ""  # with the disk, that was told last

    def ask(self, key: str, start_ns: int, end_ns: int | None) -> None:
        """See ClipRecorder.ask. A clip that is over already stays as it is."""
        settings = self._settings
        window = self._windows.get(key)
        if key in self._over:
            return
        if window is None:
            place_ns = self.ring.place_of(start_ns)
            if place_ns is None:
                self._tell(Clip(self._name, key, (), ("no picture has been seen yet",)))
                return
            begin_ns = place_ns - round(settings.before_s * 1e9)
            window = _Window(key, begin_ns, begin_ns + round(settings.max_s * 1e9))
            if not self._windows:
                self._came_s = time.monotonic()
                if self._recording is None:
                    self._cursor, self._cursor_floor = None, 0
            self._windows[key] = window
            if self._recording is not None:
                self._join(window, self._recording)
        if end_ns is not None:
            place_ns = self.ring.place_of(end_ns)
            window.end_ns = (window.limit_ns if place_ns is None else place_ns) + round(settings.after_s * 1e9)

    def turn(self, now_s: float) -> bool:
        """Write what has come. True while something is being recorded."""
        while self._windows:
            number = self._next_number()
            if number is None:
                break
            try:
                found = self.ring.read(number, _copied)
            except LookupError:
                self._lose_thread(_OVERTAKEN)
                continue
            if found is None:
                break
            self._cursor = number + 1
            self._take(*found)
        if self.ring.next_number != self._came_number:
            self._came_number, self._came_s = self.ring.next_number, now_s
        if self._windows and now_s - self._came_s > _STALL_S:
            self.end("no more pictures came")
        return bool(self._windows)

    def end(self, reason: str) -> None:
        """End what is being recorded, as far as it has come."""
        for window in tuple(self._windows.values()):
            window.note(reason)
            self._close_window(window)
        self._finish_recording()

    # -- packets -----------------------------------------------------------------------------------------------
    def _next_number(self) -> int | None:
        """Of the packet to read; a key frame where a recording is to begin, None while there is none."""
        if self._cursor is None:
            start_ns = min(window.start_ns for window in self._windows.values())
            key = self.ring.start_at(start_ns, self._cursor_floor)
            self._cursor = None if key is None else key.number
        return self._cursor

    def _take(self, kept: KeptPacket, packet: Packet[Stream]) -> None:
        recording = self._recording
        for window in tuple(self._windows.values()):
            # The last one also waits for what is shown before the last picture that had to be written.
            is_last = recording is not None and len(self._windows) == 1
            if kept.place_ns > (self._until_ns(recording) if is_last else window.until_ns):
                if window.end_ns is None or window.end_ns > window.limit_ns:
                    window.note(f"it was cut at {self._settings.max_s:g} s")
                self._close_window(window)
        if not self._windows:
            self._finish_recording()
            return
        if recording is not None and self._is_full(recording, kept):
            self._finish_recording()
            recording = None
        if recording is None:
            if not kept.is_keyframe:
                return
            recording = self._begin(kept)
            if recording is None:
                return
        if kept.show_ns < recording.start_ns:
            return  # it is shown before the key frame and may need pictures from before it (an open group of pictures)
        if kept.show_ns > self._until_ns(recording):
            recording.held.append((kept, packet))  # only wanted if a picture follows that is shown before it
            return
        self._write(recording, [*recording.held, (kept, packet)])

    def _is_full(self, recording: _Recording, kept: KeptPacket) -> bool:
        """Whether the packet belongs into another file. One for whose events alone it was begun ends with them."""
        if kept.form is not recording.form:
            return True
        length_ns, max_ns = kept.show_ns - recording.start_ns, self._settings.max_s * 1e9
        has_grown = any(key not in recording.founders for key in self._windows)
        return has_grown and (length_ns >= max_ns if kept.is_keyframe else length_ns >= 2 * max_ns)

    def _until_ns(self, recording: _Recording | None) -> int:
        """Time of the last picture that is wanted: of the events, or to close up to one that had to be written."""
        until_ns = max(window.until_ns for window in self._windows.values())
        return until_ns if recording is None else max(until_ns, recording.last_show_ns)

    def _write(self, recording: _Recording, packets: list[tuple[KeptPacket, Packet[Stream]]]) -> None:
        recording.held = []
        try:
            for kept, packet in packets:
                recording.file.write(kept, packet)
                shown_until_ns = kept.show_ns + round(kept.duration * kept.time_base * 1_000_000_000)
                recording.last_show_ns = max(recording.last_show_ns, kept.show_ns)
                recording.shown_until_ns = max(recording.shown_until_ns, shown_until_ns)
        except OutputError as error:
            recording.is_whole = False
            self._complain(error)
            self.end(error.what)

    def _lose_thread(self, reason: str) -> None:
        """The packet that is needed next is gone: go on at the next key frame, in another file."""
        for window in self._windows.values():
            if window.has_begun:
                window.note(reason)
        self._finish_recording()
        self._cursor_floor, self._cursor = self._cursor or 0, None

    # -- files -------------------------------------------------------------------------------------------------
    def _begin(self, kept: KeptPacket) -> _Recording | None:
        wall_ns = self.ring.wall_of(kept.show_ns) or time.time_ns()
        path = _free_path(self._settings.folder, wall_ns)
        form = kept.form
        try:
            if not isinstance(form, StreamForm):
                raise OutputError("the source gives no compressed packets", where=self._name)
            file = ClipFile(path, form, self._settings.keep_free_bytes)
        except OutputError as error:
            self._complain(error)
            self.end(error.what)
            return None
        start_ns, founders = kept.show_ns, frozenset(self._windows)
        recording = self._recording = _Recording(file, form, start_ns, wall_ns, founders, start_ns, start_ns)
        for window in self._windows.values():
            self._join(window, recording)
        return recording

    def _join(self, window: _Window, recording: _Recording) -> None:
        late_ns, earlier = recording.start_ns - window.start_ns, self._earlier
        if (
            not window.has_begun
            and earlier is not None
            and window.start_ns < earlier.recording.shown_until_ns <= (recording.start_ns + _LATE_NS)
        ):
            # The recording went on in another file after the first picture that is wanted.
            self._add_part(window, earlier.recording, earlier.size_bytes)
            late_ns = earlier.recording.start_ns - window.start_ns
        if not window.has_begun and late_ns > _LATE_NS:
            window.note(f"it begins {late_ns / 1e9:.1f} s later than asked: no key frame from before is held")
        window.has_begun = True
        recording.windows.append(window)

    def _finish_recording(self) -> None:
        recording, self._recording = self._recording, None
        if recording is None:
            return
        fault, whole = "", None
        try:
            whole = recording.file.finish()
        except OutputError as error:
            fault = error.what
            self._complain(error)
        self._earlier = None
        if whole is not None:
            self._earlier = _Finished(recording, whole.end)
            if recording.is_whole:
                self._trouble = ""
            else:  # the last fragment was cut off
                there_ns = recording.start_ns + round(whole.seconds * 1e9)
                recording.shown_until_ns = min(recording.shown_until_ns, there_ns)
        for window in recording.windows:
            if whole is not None:
                self._add_part(window, recording, whole.end)
            elif fault:
                window.note(fault)
            if window.is_over:
                self._tell_window(window)
        recording.windows, recording.held = [], []

    def _add_part(self, window: _Window, recording: _Recording, size_bytes: int) -> None:
        part = _part(recording, window, size_bytes)
        if part.from_s < part.to_s or not window.parts:  # it may end where the file begins
            window.parts.append(part)

    def _complain(self, error: OutputError) -> None:
        """Once for every trouble, which may last for days, with an event every second."""
        if error.what != self._trouble:
            self._trouble = error.what
            log.warning("channel %s: clip %s", self._name, error, extra=tagged(camera=self._name))

    def _close_window(self, window: _Window) -> None:
        window.is_over = True
        self._over.append(window.key)
        del self._windows[window.key]
        if self._recording is None or window not in self._recording.windows:
            self._tell_window(window)

    def _tell_window(self, window: _Window) -> None:
        if not window.parts and not window.notes:
            window.note("no key frame came")
        self._tell(Clip(self._name, window.key, tuple(window.parts), tuple(window.notes)))


def _free_path(folder: Path, wall_ns: int) -> Path:
    """The name for a recording that begins then. Another one may have begun with the same key frame, where these are
    far apart, or at the same time, where the clock was set back: then a microsecond later, or two."""
    while True:
        path = folder / f"{file_stamp(wall_ns)}.mp4"
        if not (os.path.lexists(path) or os.path.lexists(f"{path}{PART_SUFFIX}")):
            return path
        wall_ns += 1000


def _part(recording: _Recording, window: _Window, size: int) -> ClipPart:
    seconds = (recording.shown_until_ns - recording.start_ns) / 1e9
    from_s = max(window.start_ns - recording.start_ns, 0) / 1e9
    to_s = max(min(window.until_ns - recording.start_ns, recording.shown_until_ns - recording.start_ns), 0) / 1e9
    return ClipPart(recording.file.path, size, seconds, recording.wall_ns, min(from_s, to_s), to_s)


def _copied(payload: memoryview) -> Packet[Stream]:
    return av.Packet(payload)  # type: ignore[arg-type]  # takes any buffer; bytes would copy once more

"""Recordings of events, cut from the packets of their channels: no picture is decoded or encoded.

A channel has one recording at a time, and all events of that time share it: a crowd costs no more than one person. It
is a file (media.clip_file), or several when it grows longer than `max_s` or the stream changes. An event's clip is a
range of one file or more, and is told when the last of these is finished.

A clip begins at the last key frame at or before `before_s` before its event, and ends `after_s` after it, `max_s` after
its beginning at the latest; a picture after that is in it only where one before it is predicted from it. Where that
can't be had, the clip says so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from zhcedge.core.errors import MediaError, UsageError
from zhcedge.media._vendor import require_av
from zhcedge.media.clip_channel import ChannelClips, Clip, ClipSettings
from zhcedge.media.packets import PacketRing
from zhcedge.media.stream_form import StreamForm

log = logging.getLogger(__name__)

_TURN_S = 0.25  # so often the packets that have come since are written
_STOP_S = 10.0  # longest wait for a disk at the end


class _Request(NamedTuple):
    channel: ChannelClips
    key: str
    start_ns: int
    end_ns: int | None


class ClipRecorder:
    """Writes the clips of all channels, in one thread: a slow disk is as slow for all of them.

    The thread starts with the first channel and sleeps while nothing is recorded. All methods: any thread.

    Args:
        tell: takes every clip that is complete, or of which there is nothing; in the recorder's thread.
    """

    def __init__(self, tell: Callable[[Clip], None]) -> None:
        self._tell = tell
        self._channels: dict[str, ChannelClips] = {}
        self._requests: deque[_Request] = deque()
        self._leaving: list[ChannelClips] = []
        self._changed = threading.Condition()  # guards the three above and `_is_closing`
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def add(self, name: str, ring: PacketRing, settings: ClipSettings) -> None:
        """Begin to take requests for a channel, whose source fills the ring. Raises BackendUnavailableError."""
        require_av()
        with self._changed:
            earlier = self._channels.get(name)
            if earlier is not None:
                self._leaving.append(earlier)
            self._channels[name] = ChannelClips(name, ring, settings, self._tell)
            if self._thread is None and not self._is_closing:
                self._thread = threading.Thread(target=self._run, name="clips", daemon=True)
                self._thread.start()

    def forget(self, name: str) -> None:
        """A channel is removed: what is being recorded of it ends now."""
        with self._changed:
            channel = self._channels.pop(name, None)
            if channel is not None:
                self._leaving.append(channel)
            self._changed.notify_all()

    def ask(self, name: str, key: str, start_ns: int, end_ns: int | None) -> None:
        """Begin the clip of an event, or say when the event has ended. The same twice is fine.

        Args:
            key: of the event.
            start_ns, end_ns: capture times of the event's first and last picture; end None while it goes on.

        Raises UsageError for a channel that records none, MediaError, saying why, for a source that can't be recorded.
        """
        with self._changed:
            channel = self._channels.get(name)
            if channel is None:
                raise UsageError("it records no clips", where=name, fix="set clips.enabled of the channel to true")
            form = channel.ring.form
            if not isinstance(form, StreamForm):
                raise MediaError("its source gives no compressed packets", where=name)
            if form.obstacle:
                raise MediaError(form.obstacle, where=name)
            self._requests.append(_Request(channel, key, start_ns, end_ns))
            self._changed.notify_all()

    def close(self) -> None:
        """Finish every recording and tell the clips; waits for the disk, but not for ever."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_STOP_S)
            if self._thread.is_alive():
                log.warning("the disk does not take the last clips within %.0f s", _STOP_S)

    def _run(self) -> None:
        is_busy = False
        while True:
            with self._changed:
                if not self._requests and not self._leaving and not self._is_closing:
                    self._changed.wait(_TURN_S if is_busy else None)
                requests, self._requests = self._requests, deque()
                leaving, self._leaving = self._leaving, []
                channels, is_closing = dict(self._channels), self._is_closing
            for request in requests:
                request.channel.ask(request.key, request.start_ns, request.end_ns)
            now_s = time.monotonic()
            is_busy = False
            for channel in channels.values():
                is_busy |= channel.turn(now_s)
            for channel in leaving:
                channel.turn(now_s)
                channel.end("the channel was removed")
            if is_closing:
                for channel in channels.values():
                    channel.end("the run ended")
                return

"""The channels of a run: opened at the start, opened later, added, paused, removed."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic

from zhcedge.core.backoff import Backoff
from zhcedge.core.errors import (
    MediaError,
    NotNowError,
    PipelineError,
    SourceMissingError,
    SourceRefusedError,
    UsageError,
    ZhcEdgeError,
)
from zhcedge.core.message_ids import tagged
from zhcedge.core.ports import Arena, SourceFacts
from zhcedge.core.types import B
from zhcedge.pipeline.channel import Channel, ChannelListener, ChannelNews, ChannelParts, ChannelState, about
from zhcedge.pipeline.drawing import Drawer
from zhcedge.pipeline.guard import Guard
from zhcedge.pipeline.opening import ChannelOpener, close_parts
from zhcedge.pipeline.runner import FramePass

log = logging.getLogger(__name__)

_ATTACH_S = 5.0  # from the active phase's announcement to its first frame there are milliseconds
_POLL_S = 0.1
_GIVE_UP_S = 2.0  # longest wait at the end of a run for a camera that is just being opened
_END_S = 30.0  # longest wait for a channel's last frames when it is removed

_SOURCE_ERRORS = (SourceMissingError, MediaError)


@dataclass
class _Pending(Generic[B]):
    """A channel on its way: being opened now, or tried again until it can be."""

    index: int
    part: ChannelParts[B]
    is_given_up: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    told: str = ""  # why it could not be opened, as others know it


class Roster(Generic[B]):
    """Owns channels from their parts to their closing.

    `open_all` and `close` belong to the thread that owns the run. `add` and `remove` may come from any thread while
    the run is active, one at a time; what they allocate is booked to a re-warm lease.

    Args:
        waiting: so many channels -> frames that a file may read ahead.
        make_drawer: called before a channel's first frame when it needs the drawer.
        stop: set when the run is to end, in `open_all` already.
        let_go: called before a closed channel's memory is given away: waits for whoever still reads it.

    Attributes:
        failures: what broke which channel, by name.
    """

    def __init__(
        self,
        opener: ChannelOpener[B],
        arena: Arena[B],
        guard: Guard,
        waiting: Callable[[int], int],
        make_drawer: Callable[[], Drawer[B]],
        listener: ChannelListener,
        stop: threading.Event,
        let_go: Callable[[Channel[B]], None] = lambda channel: None,
    ) -> None:
        self._stop, self._let_go = stop, let_go
        self._opener, self._arena, self._guard, self._listener = opener, arena, guard, listener
        self._waiting, self._make_drawer = waiting, make_drawer
        self._indices = itertools.count()
        self._channels: list[Channel[B]] = []
        self._parts: dict[int, ChannelParts[B]] = {}
        self._pending: dict[str, _Pending[B]] = {}  # channels that are being opened, by name
        self._pass: FramePass[B] | None = None
        self._changing = threading.RLock()  # one change at a time
        self._removing = threading.RLock()  # nobody closes a channel that another thread is closing
        self._is_held_open = False  # the run goes on without any channel
        self._is_attached = threading.Event()
        self._removed_dropped: dict[str, tuple[int, int]] = {}  # by name: frames, and of the sinks
        self.failures: dict[str, ZhcEdgeError] = {}

    @property
    def channels(self) -> Sequence[Channel[B]]:
        """Those that are open, in order of their index."""
        return self._channels

    @property
    def dropped(self) -> int:
        """Frames that live channels dropped, removed channels' too."""
        return sum(frames for frames, _ in self.dropped_by_channel.values())

    @property
    def sink_dropped(self) -> int:
        return sum(frames for _, frames in self.dropped_by_channel.values())

    @property
    def dropped_by_channel(self) -> dict[str, tuple[int, int]]:
        """By name: frames that were dropped, and times that a sink did not get one. Names that came again are added
        up; those that lost nothing and are gone are left out."""
        counts = dict(self._removed_dropped)
        for channel in self._channels:
            frames, of_sinks = counts.get(channel.name, (0, 0))
            counts[channel.name] = (frames + channel.dropped, of_sinks + channel.sink_dropped)
        return counts

    # -- at the start ------------------------------------------------------------------------------------------
    def open_all(self, parts: Sequence[ChannelParts[B]]) -> None:
        """Open all channels; patient ones, which may take long, at the same time.

        A patient channel whose source is away is tried again once the run is active. Any other broken source is one
        failed channel, unless no channel is left: then its error is raised. Raises what sinks and the arena raise.
        """
        numbered = [(next(self._indices), part) for part in parts]
        outcomes = self._open_patient([part for _, part in numbered if part.is_patient])
        waiting = self._waiting(len(parts))
        broken: list[tuple[int, ChannelParts[B], ZhcEdgeError]] = []
        for index, part in numbered:
            try:
                outcome = outcomes[part.name] if part.is_patient else part.source.open()
                if isinstance(outcome, ZhcEdgeError):
                    raise outcome
                self._keep(self._opener.build(index, part, waiting, outcome), part)
            except _SOURCE_ERRORS as error:
                if part.is_patient:
                    self._pending[part.name] = _Pending(index, part)
                    self._note_unopened(index, part, error)
                else:
                    broken.append((index, part, error))
        if not self._channels and not self._pending:
            raise broken[0][2]
        for index, part, fault in broken:
            self._note_unopened(index, part, fault)

    def _open_patient(self, parts: Sequence[ChannelParts[B]]) -> dict[str, SourceFacts | ZhcEdgeError]:
        """What came of each, by name. When the run is to stop, those that take too long are left to themselves."""
        outcomes: dict[str, SourceFacts | ZhcEdgeError] = {}
        is_left = threading.Event()

        def attempt(part: ChannelParts[B]) -> None:
            try:
                outcomes[part.name] = part.source.open()
            except ZhcEdgeError as error:
                outcomes[part.name] = error
            if is_left.is_set():
                close_parts(part, is_complete=False)

        threads = [
            threading.Thread(target=attempt, args=(part,), name=f"opener {part.name}", daemon=True) for part in parts
        ]
        for thread in threads:
            thread.start()
        while not self._stop.is_set() and any(thread.is_alive() for thread in threads):
            next(thread for thread in threads if thread.is_alive()).join(_POLL_S)
        is_left.set()
        late = SourceMissingError("the run was stopped before it was open")
        return {part.name: outcomes.get(part.name, late) for part in parts}

    def _note_unopened(self, index: int, part: ChannelParts[B], error: ZhcEdgeError) -> None:
        if part.is_patient:
            log.warning(
                "channel %s: %s; it is tried again", part.name, about(part.name, error), extra=tagged(camera=part.name)
            )
            self._tell(index, part, ChannelState.DOWN, error)
            return
        log.error("channel %s: %s", part.name, about(part.name, error), extra=tagged(camera=part.name))
        close_parts(part, is_complete=False)
        self.failures[part.name] = error
        self._tell(index, part, ChannelState.FAILED, error)

    def _tell(self, index: int, part: ChannelParts[B], state: ChannelState, error: ZhcEdgeError | None = None) -> None:
        self._listener(ChannelNews(index, part.name, state, about(part.name, error) if error is not None else ""))

    def _keep(self, channel: Channel[B], part: ChannelParts[B]) -> None:
        if channel.draws_after:
            self._make_drawer()
        self._parts[channel.index] = part
        self._channels = sorted([*self._channels, channel], key=lambda one: one.index)

    def start_over(self) -> None:
        """A warm-up pass is over: sources and counts begin again; channels that broke in it are closed.

        Raises the first one's error when no other channel is left.
        """
        for channel in tuple(self._channels):
            try:
                if channel.error is not None:
                    raise channel.error
                channel.source.rewind()
            except _SOURCE_ERRORS as error:
                self.failures[channel.name] = error
                self._forget(channel, is_complete=False)
            channel.start_over()
        if not self._channels and not self._pending and self.failures:
            raise next(iter(self.failures.values()))

    # -- while the run is active -------------------------------------------------------------------------------
    @contextlib.contextmanager
    def attached_to(self, work: FramePass[B]) -> Iterator[None]:
        """Changes of channels go to this pass; channels that could not be opened yet are tried again meanwhile."""
        with self._changing:
            self._pass = work
            for pending in self._pending.values():
                self._open_later(pending, work)
        self._is_attached.set()
        try:
            yield
        finally:
            with self._changing:
                self._pass = None
            self.stop()
            until_s = time.monotonic() + _GIVE_UP_S
            for pending in tuple(self._pending.values()):
                if pending.thread is not None:
                    pending.thread.join(max(until_s - time.monotonic(), 0.0))
            for channel in self._channels:
                if channel.error is not None:
                    self.failures[channel.name] = channel.error

    def add(self, name: str, make: Callable[[int], ChannelParts[B]]) -> int:
        """Begin a channel. Returns its index, which `make` is given to make its parts.

        Raises UsageError for a name that is taken, what `make` raises, what the source raises unless it is patient,
        and what sinks and the arena raise; then nothing of it stays.
        """
        work = self._active_pass()
        with self._changing:
            if name in self._pending or any(channel.name == name for channel in self._channels):
                raise UsageError(f"there is a channel {name!r} already", fix="remove it first")
            index = next(self._indices)
            pending = self._pending[name] = _Pending(index, make(index))
        self.failures.pop(name, None)
        try:
            self._attach(pending, work)
        except _SOURCE_ERRORS as error:
            if not pending.part.is_patient:
                close_parts(pending.part, is_complete=False)
                self._pending.pop(name, None)
                raise
            self._note_unopened(index, pending.part, error)
            self._open_later(pending, work)
        except BaseException:
            self._pending.pop(name, None)
            raise
        return index

    def remove(self, name: str) -> None:
        """End a channel: its frames in flight are finished, its outputs completed, its memory given back to the arena.
        One that is still being opened is given up. From then on the run ends only when it is stopped: whoever takes
        cameras away by hand brings others, or will.

        Raises UsageError for an unknown name, PipelineError when its frames don't end, OutputError of a sink.
        """
        work = self._active_pass()
        with self._changing:
            if not self._is_held_open:
                self._is_held_open = True
                work.expect(1)
            pending = self._pending.pop(name, None)
        if pending is not None:
            pending.is_given_up.set()
            self._tell(pending.index, pending.part, ChannelState.ENDED)
            return
        with self._removing:
            channel = self._named(name)
            channel.stopping.set()
            channel.is_paused = False
            if not channel.finished.wait(_END_S):
                raise PipelineError(f"it does not end; its slots are held by {channel.pool.holders()}", where=name)
            error = self._forget(channel, is_complete=True)
        if error is not None:
            raise error

    def pause(self, name: str) -> None:
        """Read on from a live source and throw its frames away; a file waits. Raises UsageError."""
        self._named(name).is_paused = True

    def resume(self, name: str) -> None:
        """Raises UsageError."""
        self._named(name).is_paused = False

    def running(self, name: str) -> Channel[B]:
        """The channel of this name, paused or away for the moment perhaps.

        Raises UsageError for an unknown name, NotNowError for one that was never there yet or has ended.
        """
        self._active_pass()
        if name in self._pending:
            raise NotNowError("it is not there yet; it is tried again", where=name, fix="try again when it is up")
        channel = self._named(name)
        if channel.is_over:
            raise NotNowError("it has ended", where=name, fix="remove it and add it again")
        return channel

    def make_drawable(self, channel: Channel[B]) -> None:
        """See to it that frames can be drawn into which the lanes' programs don't draw."""
        with self._changing, self._guard.rewarm(f"drawing in {channel.name}"), self._arena.lease():
            self._make_drawer()

    @property
    def is_active(self) -> bool:
        """Frames are read: there is a pass, and nobody has stopped it. Any thread."""
        work = self._pass
        return work is not None and not work.is_stopping

    def stop(self) -> None:
        """Channels that are still being opened are given up. Any thread."""
        for pending in tuple(self._pending.values()):
            pending.is_given_up.set()

    def _named(self, name: str) -> Channel[B]:
        for channel in self._channels:
            if channel.name == name:
                return channel
        known = ", ".join(channel.name for channel in self._channels)
        raise UsageError(f"there is no open channel {name!r}", fix=f"name one of {known}" if known else "")

    def _active_pass(self) -> FramePass[B]:
        self._is_attached.wait(_ATTACH_S)
        if self._pass is None or self._pass.is_stopping:
            raise UsageError("the run is not active", fix="try again when it is")
        return self._pass

    def _attach(self, pending: _Pending[B], work: FramePass[B]) -> None:
        index, part = pending.index, pending.part
        with self._guard.rewarm(f"channel {part.name}"), self._arena.lease():
            facts = part.source.open()
            with self._changing:
                if pending.is_given_up.is_set():
                    close_parts(part, is_complete=False)
                    return
                channel = self._opener.build(index, part, self._waiting(len(self._channels) + 1), facts)
                self._keep(channel, part)
                self._pending.pop(part.name, None)
        self._tell(index, part, ChannelState.UP)  # before its first record is in the ring
        work.attach(channel)

    def _open_later(self, pending: _Pending[B], work: FramePass[B]) -> None:
        """Try again and again, in a thread of its own, until the channel is open or given up."""
        part = pending.part

        def body() -> None:
            backoff = Backoff()
            wait_s = backoff.next_s()
            try:
                while not pending.is_given_up.wait(wait_s):
                    try:
                        self._attach(pending, work)
                        return
                    except _SOURCE_ERRORS as error:
                        if str(error) != pending.told:  # else it is no news
                            pending.told = str(error)
                            self._tell(pending.index, part, ChannelState.DOWN, error)
                        is_refused = isinstance(error, SourceRefusedError)
                        wait_s = backoff.refused_s() if is_refused else backoff.next_s()
                close_parts(part, is_complete=False)
            except ZhcEdgeError as error:  # its sinks or the memory: that does not pass
                log.error("channel %s: %s", part.name, about(part.name, error), extra=tagged(camera=part.name))
                self._pending.pop(part.name, None)
                self.failures[part.name] = error
                self._tell(pending.index, part, ChannelState.FAILED, error)
            finally:
                work.expect(-1)

        work.expect(1)
        pending.thread = threading.Thread(target=body, name=f"opener {part.name}", daemon=True)
        pending.thread.start()

    # -- closing -----------------------------------------------------------------------------------------------
    def _forget(self, channel: Channel[B], *, is_complete: bool) -> ZhcEdgeError | None:
        with self._changing:
            part = self._parts.pop(channel.index, None)
            if part is None:
                raise UsageError(f"channel {channel.name!r} is being removed already")
            if channel.dropped or channel.sink_dropped:
                frames, of_sinks = self._removed_dropped.get(channel.name, (0, 0))
                counts = (frames + channel.dropped, of_sinks + channel.sink_dropped)
                self._removed_dropped[channel.name] = counts
            self._channels = [one for one in self._channels if one is not channel]
        with self._guard.rewarm(f"channel {channel.name}"):
            error = close_parts(part, is_complete)
        self._let_go(channel)
        self._opener.give_back(channel)
        return error

    def raise_if_all_failed(self) -> None:
        """The run is over: raise the first failure when no channel came through."""
        if self.failures and all(channel.error is not None for channel in self._channels):
            raise next(iter(self.failures.values()))

    def close(self, is_complete: bool) -> ZhcEdgeError | None:
        """Close every sink and source. Returns the first error."""
        first: ZhcEdgeError | None = None
        with self._removing:  # one that is just being removed ends first
            channels, self._channels = self._channels, []
        for channel in channels:
            first = close_parts(self._parts[channel.index], is_complete) or first
        for pending in self._pending.values():
            if pending.thread is None:  # else it closes them itself
                close_parts(pending.part, is_complete=False)
        self._pending = {}
        return first

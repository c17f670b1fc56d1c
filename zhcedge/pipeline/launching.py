"""The lane runner: takes waiting frames from the channels, fairly, and launches batches of them on free lanes."""

from __future__ import annotations

import collections
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

from zhcedge.core.ports import Clock, Fence, FrameSlot, Program, Ranges
from zhcedge.core.types import B
from zhcedge.pipeline.channel import Channel, Launcher
from zhcedge.pipeline.reader import POLL_S


@dataclass(frozen=True)
class Launch(Generic[B]):
    """A batch on its way through a lane."""

    launcher: Launcher[B]
    program: Program[B]
    fence: Fence
    slots: Sequence[FrameSlot[B]]
    started_ns: int


@dataclass(frozen=True)
class Skipped(Generic[B]):
    """A frame that is not detected in.

    Attributes:
        is_unseen: because the channel's detection is switched off.
    """

    channel: Channel[B]
    slot: FrameSlot[B]
    is_unseen: bool = False


@dataclass(frozen=True)
class ChannelEnd(Generic[B]):
    """All frames of a channel are before this."""

    channel: Channel[B]


Outcome = Launch[B] | Skipped[B] | ChannelEnd[B]


class Stopped(Exception):
    """Unwinds a thread because another one failed."""


class LaneRunner(Generic[B]):
    """Launches until every channel has ended. `run` belongs to one thread; the rest says who calls it.

    While every lane has work a launch would only queue up behind it: then this waits for a full batch, until a launch
    ends. Lanes take turns, so as many launches in flight as there are lanes means one on each. With an idle lane a
    batch goes at once, or once its oldest frame has waited `max_wait_ms`.

    Under overload the channel goes first that has had least of the detector for its priority (stride scheduling,
    Waldspurger and Weihl 1995); a channel that had nothing to do for a while does not save up.

    Args:
        launchers: in the order of their turns.
        emit: takes what the collector shall see, in order.
        is_over: whether no channel is left, and none will come.
        stopping: set when the run is to end: frames that still wait are given back, not detected in.
        sizes: batch sizes to launch, growing.
    """

    def __init__(
        self,
        launchers: Sequence[Launcher[B]],
        emit: Callable[[Outcome[B]], None],
        is_over: Callable[[], bool],
        stopping: threading.Event,
        broken: threading.Event,
        clock: Clock,
        ranges: Ranges,
        sizes: Sequence[int],
        max_wait_ms: int,
    ) -> None:
        self._emit, self._is_over, self._stopping, self._broken = emit, is_over, stopping, broken
        self._clock, self._ranges = clock, ranges
        self._max_wait_ns = max_wait_ms * 1_000_000
        self._largest = sizes[-1]
        # Waiting frames -> how many of them to launch: the largest program that they fill.
        self._batch_for = [max(size for size in (0, *sizes) if size <= count) for count in range(self._largest + 1)]
        self._lanes = len({launcher.lane.index for launcher in launchers})
        self._free: queue.SimpleQueue[Launcher[B]] = queue.SimpleQueue()
        for launcher in launchers:
            self._free.put(launcher)
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._channels: tuple[Channel[B], ...] = ()
        self._carried: collections.deque[FrameSlot[B]] = collections.deque()
        # What must not overtake a carried frame of its own channel.
        self._followers: collections.deque[Skipped[B] | ChannelEnd[B]] = collections.deque()
        self._owed: list[queue.SimpleQueue[None]] = []  # what readers of files get back for frames that were taken
        self._share = 0.0  # of the channel that was chosen last
        self._launched = self._ended = 0  # by this thread, by the collector

    # -- other threads -----------------------------------------------------------------------------------------
    def wake(self, _: None = None) -> None:
        """Something may have changed: a frame is ready, a channel has ended or come. Any thread."""
        self._wakeups.put(None)

    def launch_ended(self, launcher: Launcher[B]) -> None:
        """The collector is done waiting for a launch."""
        self._free.put(launcher)
        self._ended += 1
        self._wakeups.put(None)

    def watch(self, channels: Sequence[Channel[B]]) -> None:
        """These are the channels now. Any thread, one at a time."""
        self._channels = tuple(channels)
        self._wakeups.put(None)

    # -- the runner's own thread -------------------------------------------------------------------------------
    def run(self) -> None:
        """Raises Stopped when another thread failed, and what a launch raises."""
        try:
            while not self._is_over() or self._carried or self._followers:
                # A free lane comes first: until then a live reader can still replace what is waiting by newer frames.
                launcher = self._free_launcher()
                self._gather()
                if self._carried:
                    self._launch(launcher)
                else:
                    self._free.put(launcher)
                self._emit_followers()
        finally:
            self._give_back()

    def _give_back(self) -> None:
        pools = {channel.index: channel.pool for channel in self._channels}
        for channel, index in {(slot.channel, slot.index) for slot in self._carried}:
            pools[channel].release(pools[channel].slots[index])
        for follower in self._followers:
            if isinstance(follower, Skipped):
                follower.channel.pool.release(follower.slot)

    def _gather(self) -> None:
        """Add waiting frames to what is carried; blocks while there is nothing to do."""
        while len(self._carried) < self._largest:
            channel = self._choose()
            if channel is not None:
                self._take(channel)
                continue
            wait_s = self._wait_s()
            self._return_credits()
            if wait_s <= 0 or self._followers or (not self._carried and self._is_over()):
                return
            try:
                self._wakeups.get(timeout=wait_s)
            except queue.Empty:
                if self._broken.is_set():
                    raise Stopped from None

    def _wait_s(self) -> float:
        """How long to wait for more frames before what is carried is launched; 0 for not at all."""
        if not self._carried or self._launched - self._ended >= self._lanes:
            return POLL_S
        if not self._max_wait_ns:
            return 0.0
        waited_ns = self._clock.monotonic_ns() - self._carried[0].info.read_time_ns
        return min((self._max_wait_ns - waited_ns) / 1e9, POLL_S)

    def _choose(self) -> Channel[B] | None:
        """The channel whose turn it is among those with something ready."""
        chosen: Channel[B] | None = None
        for channel in self._channels:
            if channel.ready and (chosen is None or channel.share < chosen.share):
                chosen = channel
        return chosen

    def _take(self, channel: Channel[B]) -> None:
        if not self._wakeups.empty():
            self._wakeups.get()  # the one that came with this frame, most often; nobody else takes any
        try:
            slot = channel.ready.popleft()
        except IndexError:  # a live reader took it back
            return
        if slot is None:
            self._followers.append(ChannelEnd(channel))
            self._emit_followers()
            return
        if self._stopping.is_set() or channel.stopping.is_set():
            channel.pool.release(slot)
            return
        self._share = max(channel.share, self._share)
        channel.share = self._share + 1 / channel.settings.priority
        if channel.credits is not None:
            self._owed.append(channel.credits)
        if not channel.is_detecting:
            if channel.gate is not None:
                channel.gate.forget()
            self._followers.append(Skipped(channel, slot, is_unseen=True))
            self._emit_followers()
        elif channel.gate is None and not channel.tiled:
            self._carried.append(slot)
        elif self._is_wanted(channel, slot):
            self._carried.extend(channel.parts_of(slot))
        else:
            self._followers.append(Skipped(channel, slot))
            self._emit_followers()

    def _is_wanted(self, channel: Channel[B], slot: FrameSlot[B]) -> bool:
        if channel.gate is None:
            return True
        changed = channel.meter.changed(slot) if channel.meter is not None else None
        return channel.gate.wants(slot.info, changed)

    def _emit_followers(self) -> None:
        held = {slot.channel for slot in self._carried} if self._followers else ()
        kept: collections.deque[Skipped[B] | ChannelEnd[B]] = collections.deque()
        while self._followers:
            follower = self._followers.popleft()
            if follower.channel.index in held or any(other.channel is follower.channel for other in kept):
                kept.append(follower)
            else:
                self._emit(follower)
        self._followers = kept

    def _launch(self, launcher: Launcher[B]) -> None:
        """Launch as many of the carried frames as fill a program."""
        batch = self._batch_for[min(len(self._carried), self._largest)]
        slots = tuple(self._carried.popleft() for _ in range(batch))
        for slot in slots:
            slot.holder = "lane"
        program = launcher.programs[batch]
        started_ns = self._clock.monotonic_ns()
        self._ranges.push("launch")
        fence = program.launch(slots)
        self._ranges.pop()
        self._emit(Launch(launcher, program, fence, slots, started_ns))
        self._launched += 1
        self._return_credits()

    def _return_credits(self) -> None:
        """Many at once: a reader that waits for the next one then wakes up once a batch and not once a frame."""
        for credits in self._owed:
            credits.put(None)
        self._owed.clear()

    def _free_launcher(self) -> Launcher[B]:
        while True:
            try:
                return self._free.get(timeout=POLL_S)
            except queue.Empty:
                if self._broken.is_set():
                    raise Stopped from None

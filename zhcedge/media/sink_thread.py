"""The thread of a sink: takes slots from the collector, hands them to a writer, keeps the writer's first failure.

And what every sink with such a thread has in common.
"""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic

from zhcedge.core.errors import OutputError, PhaseError, ZhcEdgeError
from zhcedge.core.ports import NO_RANGES, FrameSlot, Ranges
from zhcedge.core.requests import SinkRequest
from zhcedge.core.types import B, FrameInfo

GiveBack = Callable[[FrameSlot[B]], None]

QUEUE_DEPTH = 2
"""Slots that may wait for the encoder: one to work on next, one to ride out a slow picture."""


class SinkThread(Generic[B]):
    """Runs `write(slot, give_back)` for every submitted slot; `write` gives the slot back in any case.

    Every run of `write` is a range of `ranges` called "sink encode".

    After a failure slots are given back unwritten, and `submit` and `stop` raise the failure, a new object each
    time. `start` and `stop` belong to one thread, `submit` to the collector.
    """

    def __init__(
        self,
        name: str,
        where: str,
        write: Callable[[FrameSlot[B], GiveBack[B]], None],
        ranges: Ranges = NO_RANGES,
    ) -> None:
        self._name, self._where, self._write, self._ranges = name, where, write, ranges
        self._queue: queue.Queue[tuple[FrameSlot[B], GiveBack[B]] | None] = queue.Queue(QUEUE_DEPTH)
        self._thread: threading.Thread | None = None
        self._failure: ZhcEdgeError | None = None
        self._is_discarding = False
        self._on_start: Callable[[], None] = lambda: None

    def watch(self, hook: Callable[[], None]) -> None:
        """`hook` is the first thing that the thread does. Before `start`."""
        self._on_start = hook

    @property
    def is_running(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def submit(self, slot: FrameSlot[B], give_back: GiveBack[B]) -> bool:
        """Queue a slot; False when the queue is full. Raises the failure of an earlier one."""
        self.raise_failure()
        try:
            self._queue.put_nowait((slot, give_back))
        except queue.Full:
            return False
        return True

    def stop(self, complete: bool) -> None:
        """Write what waits, or give it back unwritten, and end the thread. Does nothing twice."""
        if self._thread is None:
            return
        self._is_discarding = not complete
        self._queue.put(None)
        self._thread.join()
        self._thread = None

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    def raise_failure(self) -> None:
        """Raise what went wrong, if anything did."""
        if self._failure is not None:
            # A new object each time: raising one again and again would grow its traceback.
            raise type(self._failure)(self._failure.what, where=self._failure.where, fix=self._failure.fix)

    def _run(self) -> None:
        self._on_start()
        while (item := self._queue.get()) is not None:
            slot, give_back = item
            if self._is_discarding or self._failure is not None:
                give_back(slot)
                continue
            self._ranges.push("sink encode")
            try:
                self._write(slot, give_back)
            except ZhcEdgeError as error:
                self._failure = error
            except Exception as error:  # noqa: BLE001  a thread that dies in silence would starve the pool of slots
                self._failure = OutputError(f"the sink failed: {type(error).__name__}: {error}", where=self._where)
            finally:
                self._ranges.pop()


class ThreadedSink(ABC, Generic[B]):
    """Half of a core.ports.Sink: the thread that it writes on. `open` starts `_thread`, `close` stops it.

    Args:
        target: what is written to, for messages, without credentials.
    """

    def __init__(self, request: SinkRequest, target: str) -> None:
        self._where = f"{request.channel_name}: {target}"
        self._thread: SinkThread[B] = SinkThread(
            f"sink {request.channel_name}", self._where, self._write, request.ranges
        )

    def watch_threads(self, hook: Callable[[], None]) -> None:
        """`hook` is the first thing that the sink's thread does. Before `open`."""
        self._thread.watch(hook)

    def submit(self, slot: FrameSlot[B], give_back: GiveBack[B]) -> bool:
        """Queue a slot; False when the queue is full. Raises OutputError once writing has failed."""
        if not self._thread.is_running:
            raise PhaseError("the sink is not open", where=self._where)
        return self._thread.submit(slot, give_back)

    @abstractmethod
    def _write(self, slot: FrameSlot[B], give_back: GiveBack[B]) -> None:
        """Take what is needed of a slot, give it back in any case, write. The sink's thread."""


def shown_at_s(info: FrameInfo, fps: float) -> float:
    """When a frame is shown: its media time, or by its number where that is unknown."""
    return info.media_time_s if info.media_time_s >= 0 else info.sequence / fps

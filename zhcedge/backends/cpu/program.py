"""Lanes and programs of the CPU: a lane owns one worker thread that runs its stages in order.

Two lanes overlap: while one is inside the engine (which releases the interpreter lock), the other does its numpy
stages.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from zhcedge.backends.cpu.arena import CpuArena, CpuBuffer
from zhcedge.core.errors import PhaseError, PipelineError, ZhcEdgeError
from zhcedge.core.ports import FrameSlot, Stage, StageTime
from zhcedge.core.types import ImageFormat, ModelFacts, Tensor

_JOIN_TIMEOUT_S = 10.0


@runtime_checkable
class FormatAware(Protocol):
    """A stage that needs tables or scratch for each picture format."""

    def prepare(self, image: ImageFormat) -> None:
        """Make what frames of this format need; again for a known format does nothing. Before the seal."""
        ...


@runtime_checkable
class SlotAware(Protocol):
    """A stage that needs something for what a slot brings besides its picture."""

    def admit(self, slot: FrameSlot[CpuBuffer]) -> None:
        """Make what frames in such slots need; again for a known one does nothing. Before the seal or under a lease."""
        ...


class DoneFence:
    """Fence of work that was finished before it was handed out. Implements core.ports.Fence."""

    def is_done(self) -> bool:
        return True

    def wait(self, timeout_s: float) -> bool:
        return True


class LaunchFence:
    """Completion of one launch. `finish` is called once by the worker; the rest by any thread."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: PipelineError | None = None

    def finish(self, error: PipelineError | None) -> None:
        self._error = error
        self._done.set()

    def is_done(self) -> bool:
        return self._done.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Block until the launch is done; False on timeout. Raises the PipelineError of the stage that failed."""
        if not self._done.wait(timeout_s):
            return False
        if self._error is not None:
            raise self._error
        return True


class ThreadHooks:
    """Callbacks that every thread of a device runs once. Append-only; reading needs no lock."""

    def __init__(self) -> None:
        self._hooks: list[Callable[[], None]] = []

    def add(self, hook: Callable[[], None]) -> None:
        self._hooks.append(hook)

    def run_from(self, position: int) -> int:
        """Call the hooks that were added since `position`; returns the new position."""
        while position < len(self._hooks):
            self._hooks[position]()
            position += 1
        return position


class Company:
    """How many lanes of a device are running a launch. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0

    def __enter__(self) -> None:
        with self._lock:
            self._running += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._running -= 1

    @property
    def is_shared(self) -> bool:
        """More than one: a core that a second thread would take is wanted by another lane."""
        return self._running > 1


class LaneWorker:
    """One thread that runs work in order until `close`, and finishes the fence that came with it."""

    def __init__(self, name: str, hooks: ThreadHooks) -> None:
        self._name = name
        self._hooks = hooks
        self._jobs: queue.SimpleQueue[tuple[Callable[[], None], LaunchFence] | None] = queue.SimpleQueue()
        self._hooked = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], None], fence: LaunchFence) -> None:
        """Queue work and return at once. Raises PhaseError once closed."""
        if self._is_closed:
            raise PhaseError("the lane is closed", where=self._name)
        self._jobs.put((work, fence))

    def close(self) -> None:
        """Finish the queued work and end the thread. Raises PipelineError when a stage does not come back."""
        self._is_closed = True
        self._jobs.put(None)
        self._thread.join(_JOIN_TIMEOUT_S)
        if self._thread.is_alive():
            raise PipelineError(f"work is still running {_JOIN_TIMEOUT_S:.0f} s after closing", where=self._name)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, fence = job
            fence.finish(self._attempt(work))

    def _attempt(self, work: Callable[[], None]) -> PipelineError | None:
        try:
            self._hooked = self._hooks.run_from(self._hooked)
            work()
        except PipelineError as error:
            return error
        # A hook may raise anything; it belongs to whoever waits for the launch, and the thread must live on.
        except Exception as error:  # noqa: BLE001
            return _translate(error, self._name)
        return None


class CpuLane:
    """Implements core.ports.Lane. `slots` are those of the launch in flight, for the stages on the worker thread.

    `worker` runs the stages; `assistant` takes a share of a stage that can be split, when `company` leaves a core.
    """

    def __init__(self, index: int, model: ModelFacts, arena: CpuArena, hooks: ThreadHooks, company: Company) -> None:
        self.company = company
        owner = f"lane {index}"
        self.slots: tuple[FrameSlot[CpuBuffer], ...] = ()
        self._index = index
        self._input = arena.tensor(model.input_name, model.input_shape, model.input_dtype, owner)
        self._output = arena.tensor(model.output_name, model.output_shape, model.output_dtype, owner)
        # Last, so that a failed allocation leaves no thread behind.
        self.worker = LaneWorker(f"lane-{index}", hooks)
        self.assistant = LaneWorker(f"lane-{index}-assistant", hooks)

    @property
    def index(self) -> int:
        return self._index

    @property
    def input(self) -> Tensor[CpuBuffer]:
        return self._input

    @property
    def output(self) -> Tensor[CpuBuffer]:
        return self._output

    @property
    def stream_handle(self) -> int:
        """0: there are no streams on the CPU."""
        return 0


class CpuProgram:
    """Implements core.ports.Program: the tuple of stages, run in order by the lane's worker."""

    def __init__(self, stages: Sequence[Stage], lane: CpuLane, batch: int, formats: Sequence[ImageFormat]) -> None:
        if not 1 <= batch <= lane.input.shape[0]:
            raise PipelineError(f"batch {batch} is outside 1..{lane.input.shape[0]}", where=f"lane {lane.index}")
        self._stages = tuple(stages)
        self._lane = lane
        self._batch = batch
        self._times: tuple[StageTime, ...] = ()
        self._in_flight: LaunchFence | None = None
        for image in formats:
            self._prepare(image)

    def _prepare(self, image: ImageFormat) -> None:
        for stage in self._stages:
            if isinstance(stage, FormatAware):
                stage.prepare(image)

    def admit(self, slot: FrameSlot[CpuBuffer]) -> None:
        """Make what frames in such slots need. Before the seal, or under the arena's lease."""
        self._prepare(slot.surface.format)
        for stage in self._stages:
            if isinstance(stage, SlotAware):
                stage.admit(slot)

    @property
    def batch(self) -> int:
        return self._batch

    def launch(self, slots: Sequence[FrameSlot[CpuBuffer]]) -> LaunchFence:
        """Hand the slots to the lane's worker and return at once. Runner thread.

        Raises PipelineError when the last launch is still in flight or the number of slots is not `batch`, and
        PhaseError after the device was closed.
        """
        where = f"lane {self._lane.index}"
        if len(slots) != self._batch:
            raise PipelineError(f"{len(slots)} slots were launched on a program for {self._batch}", where=where)
        if self._in_flight is not None and not self._in_flight.is_done():
            raise PipelineError("launched again before the last launch was done", where=where)
        fence = LaunchFence()
        taken = tuple(slots)
        self._lane.worker.submit(lambda: self._run(taken), fence)
        self._in_flight = fence
        return fence

    def stage_times(self) -> Sequence[StageTime]:
        """Times of the last finished launch. Collector thread, after the fence."""
        return self._times

    def _run(self, slots: tuple[FrameSlot[CpuBuffer], ...]) -> None:
        times: list[StageTime] = []
        self._lane.slots = slots
        try:
            with self._lane.company:
                for stage in self._stages:
                    start_ns = time.monotonic_ns()
                    self._enqueue(stage)
                    times.append(StageTime(stage.name, start_ns, time.monotonic_ns()))
        finally:
            self._lane.slots = ()
            self._times = tuple(times)

    def _enqueue(self, stage: Stage) -> None:
        try:
            stage.enqueue(self._batch)
        # A stage may raise anything; the message must say which one it was.
        except Exception as error:
            raise _translate(error, f"lane {self._lane.index}, stage {stage.name}") from error


def _translate(error: Exception, where: str) -> PipelineError:
    if isinstance(error, ZhcEdgeError):
        return PipelineError(error.what, where=f"{where}, {error.where}" if error.where else where, fix=error.fix)
    return PipelineError(f"{type(error).__name__}: {error}", where=where)

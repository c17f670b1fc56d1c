"""The CUPTI instrument: counts what the whole process asks of the CUDA driver, whoever asks."""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from zhcedge.backends.cuda.cupti import _vendor, arguments
from zhcedge.backends.cuda.cupti.table import Reader, Rule, classify, unclassified
from zhcedge.backends.cuda.cupti.tally import Call, CallRow, Tally
from zhcedge.core.errors import PipelineError
from zhcedge.core.leases import ThreadLeases
from zhcedge.core.ports import Canary
from zhcedge.core.types import GUARDED_BYTES, ViolationKind

log = logging.getLogger(__name__)


class Mode(str, enum.Enum):
    """How much to watch.

    Callbacks need the interpreter lock, on the threads of libraries too, so a busy function costs time and a library
    that holds a lock of its own while it calls the driver could block. Hence two modes.
    """

    AUDIT = "audit"  # every function that can break a promise, and copies to the device
    LIVE = "live"  # only functions that a healthy frame path never calls: free of cost until something is wrong


class HasContext(Protocol):
    """What the instrument needs of the CUDA context: to make it current for a while."""

    def push(self) -> AbstractContextManager[object]: ...


KINDS: tuple[ViolationKind, ...] = (
    ViolationKind.DEVICE_ALLOCATION,
    ViolationKind.ASYNC_ALLOCATION,
    ViolationKind.DEVICE_FREE,
    ViolationKind.PINNED_ALLOCATION,
    ViolationKind.HOST_COPY_2D,
    ViolationKind.HOST_COPY,
    ViolationKind.DEVICE_SYNCHRONISE,
)
"""What CUPTI can see."""

_ROW_BYTES, _ROWS = 1024, 2 * GUARDED_BYTES // 1024


class CuptiInstrument:
    """Implements core.ports.Instrument for everything that goes through the CUDA driver API.

    It counts calls of every thread of the process: those of libraries as well as ours, and those of threads that
    never called `watch_thread`, which here only gives the thread a name in `rows`. A refused call counts as well: it
    is the asking that stalls. Work inside a launched graph makes no driver calls; the graph's nodes are walked when
    it is compiled.

    Where libcupti is missing, another profiler is attached, or the table does not know a function of this driver,
    `problem` says so and `counts` is empty: the guard then finds its canaries unseen and the verdict is `unproved`.

    Args:
        context: made current while canary memory is made and canaries are planted.
        mode: how much to watch.

    `start` and `stop` belong to one thread; `counts` and `rows` may be called from any.
    """

    name = "CUPTI driver callbacks"

    def __init__(self, context: HasContext, mode: Mode = Mode.AUDIT) -> None:
        self._context, self._mode = context, mode
        self._driver: _vendor.Driver | None = None
        self._cupti: _vendor.Cupti | None = None
        self._rules: dict[int, Rule] = {}
        self._visible: tuple[ViolationKind, ...] = ()
        self._tally = Tally({}, {}, self._thread_name)
        self._threads: dict[int, str] = {}
        self._leases = ThreadLeases()
        self._phase = ""
        self._final: dict[ViolationKind, int] | None = None
        self._final_rewarm: dict[ViolationKind, int] = {}
        self._memory: _CanaryMemory | None = None
        self.problem = "not started"

    # -- life ------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Make the canaries' memory, then subscribe. Never raises: what stands in the way goes into `problem`."""
        self._final = None
        try:
            self._driver = _vendor.Driver()
            with self._context.push():
                self._memory = _CanaryMemory(self._driver)
                self._subscribe(self._driver)
            self.problem = ""
        except (_vendor.CuptiError, _vendor.DriverError) as error:
            self._detach()
            self.problem = str(error)
            log.warning("the CUDA driver can't be watched, so the ledger stays unproved: %s", error)

    def _subscribe(self, driver: _vendor.Driver) -> None:
        cupti = _vendor.Cupti(driver.version_major())
        names = cupti.functions()
        unknown = unclassified(list(names.values()))
        if unknown:
            listed = ", ".join(unknown)
            raise _vendor.CuptiError(f"CUPTI {cupti.version()} knows functions that the table does not: {listed}")
        rules = {number: rule for number, name in names.items() if (rule := classify(name)) is not None}
        self._visible = visible_kinds(tuple(rules.values()), self._mode)
        self._rules = {number: rule for number, rule in rules.items() if self._is_watched(rule)}
        self._tally = Tally(self._rules, names, self._thread_name)
        self._cupti = cupti
        cupti.subscribe(self._on_call)
        for number in self._rules:
            cupti.enable(number)

    def _is_watched(self, rule: Rule) -> bool:
        if rule.kind is None:
            return rule.reader is not Reader.NONE and self._mode is Mode.AUDIT
        return rule.kind in self._visible

    def stop(self) -> None:
        """Freeze the counts, unsubscribe, free the canaries' memory. May be called twice."""
        if self._final is None:
            self._final_rewarm = self.rewarm_counts()
            self._final = self.counts()
        self._detach()

    def _detach(self) -> None:
        cupti, self._cupti = self._cupti, None
        memory, self._memory = self._memory, None
        try:
            if cupti is not None:
                cupti.unsubscribe()
            if memory is not None:
                with self._context.push():
                    memory.close()
        except (_vendor.CuptiError, _vendor.DriverError) as error:
            log.warning("the CUPTI instrument did not detach cleanly: %s", error)

    # -- watching --------------------------------------------------------------------------------------------
    def watch_thread(self) -> None:
        """Remember the calling thread's name for `rows`."""
        self._threads[threading.get_ident()] = threading.current_thread().name

    def _thread_name(self, ident: int) -> str:
        return self._threads.get(ident, f"unnamed {ident}")

    def enter_phase(self, phase: str) -> None:
        """From now on calls are booked under this phase. Any thread."""
        self._phase = phase

    def _on_call(self, number: int, params: int) -> None:
        """Inside the driver call, on the caller's thread: note and return."""
        if self._driver is None:
            return
        host, size = arguments.read(self._rules[number].reader, params, self._driver.is_host_pointer)
        thread = threading.get_ident()
        self._tally.note(Call(number, thread, self._phase, host, size, self._leases.holds(thread)))

    def counts(self) -> dict[ViolationKind, int]:
        """Totals since `start` of every kind that this mode sees; empty when it sees nothing."""
        if self._final is not None:
            return dict(self._final)
        if self.problem:
            return {}
        totals = self._tally.totals()
        return {kind: totals.get(kind, 0) for kind in self._visible}

    def rewarm(self) -> AbstractContextManager[None]:
        """The calling thread's calls are counted apart, exactly; a call's thread is the one that makes it."""
        return self._leases.hold()

    def rewarm_counts(self) -> dict[ViolationKind, int]:
        """Totals since `start` of calls under re-warm leases; empty when it sees nothing."""
        if self._final is not None:
            return dict(self._final_rewarm)
        return {} if self.problem else self._tally.rewarm_totals()

    def rows(self) -> tuple[CallRow, ...]:
        """Every watched call since `start`, allowed ones too, by thread, phase and function."""
        return self._tally.rows()

    # -- canaries --------------------------------------------------------------------------------------------
    def canaries(self) -> tuple[Canary, ...]:
        """One real driver call for each kind that CUPTI can see, whether or not it is seen here.

        In live mode only the kinds that this mode watches: it does not claim the others.
        """
        kinds = KINDS if self._mode is Mode.AUDIT else (self._visible or KINDS)
        return tuple(Canary(kind, self._planter(kind)) for kind in kinds)

    def _planter(self, kind: ViolationKind) -> Callable[[], None]:
        def plant() -> None:
            memory = self._memory
            if memory is None:
                return  # no driver: nothing can be planted, so nothing will be seen
            try:
                with self._context.push():
                    memory.plant(kind)
            except _vendor.DriverError as error:
                raise PipelineError(f"a canary could not be planted: {error}", where=kind.value) from error

        return plant


def visible_kinds(rules: tuple[Rule, ...], mode: Mode) -> tuple[ViolationKind, ...]:
    """The kinds that a mode sees whole: live, only those that no busy function can break."""
    if mode is Mode.AUDIT:
        return KINDS
    busy = {rule.kind for rule in rules if not rule.is_rare}
    return tuple(kind for kind in KINDS if kind not in busy)


class _CanaryMemory:
    """Memory made before watching begins, so that each canary makes one call and no other.

    Raises DriverError when memory is short, and then holds nothing.
    """

    def __init__(self, driver: _vendor.Driver) -> None:
        self._driver = driver
        self._pinned: list[int] = []
        self._source = 0
        self._target, self._target_address = _vendor.host_buffer(_ROW_BYTES * _ROWS)
        self._spare: list[int] = [driver.allocate(_ROW_BYTES * _ROWS)]
        try:
            self._source = driver.allocate(_ROW_BYTES * _ROWS)
        except _vendor.DriverError:
            self.close()
            raise
        self._actions: dict[ViolationKind, Callable[[], None]] = {
            ViolationKind.DEVICE_ALLOCATION: self._allocate,
            ViolationKind.ASYNC_ALLOCATION: self._allocate_async,
            ViolationKind.DEVICE_FREE: self._free,
            ViolationKind.PINNED_ALLOCATION: self._allocate_pinned,
            ViolationKind.HOST_COPY_2D: self._copy_2d,
            ViolationKind.HOST_COPY: self._copy,
            ViolationKind.DEVICE_SYNCHRONISE: driver.synchronise_context,
        }

    def plant(self, kind: ViolationKind) -> None:
        self._actions[kind]()

    def _allocate(self) -> None:
        self._spare.append(self._driver.allocate(GUARDED_BYTES))

    def _allocate_async(self) -> None:
        # On the null stream: nothing is in flight on it, and the block is given back like any other.
        self._spare.append(self._driver.allocate_async(GUARDED_BYTES, 0))

    def _free(self) -> None:
        if not self._spare:
            raise _vendor.DriverError("no canary memory is left to free")
        self._driver.free(self._spare.pop(0))

    def _allocate_pinned(self) -> None:
        self._pinned.append(self._driver.allocate_pinned(GUARDED_BYTES))

    def _copy(self) -> None:
        self._driver.copy_to_host(self._target_address, self._source, _ROW_BYTES * _ROWS)

    def _copy_2d(self) -> None:
        self._driver.copy_2d_to_host(self._target_address, self._source, _ROW_BYTES, _ROWS)

    def close(self) -> None:
        while self._spare:
            self._driver.free(self._spare.pop())
        while self._pinned:
            self._driver.free_pinned(self._pinned.pop())
        source, self._source = self._source, 0
        if source:
            self._driver.free(source)

"""The guard: proves that its instruments see, then watches the active phase and acts by policy."""

from __future__ import annotations

import enum
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from zhcedge.core.errors import LedgerViolationError
from zhcedge.core.message_ids import MessageId, tagged
from zhcedge.core.ports import Canary, Instrument
from zhcedge.core.types import ViolationKind

log = logging.getLogger(__name__)


class GuardPolicy(str, enum.Enum):
    """What a violation in the active phase leads to."""

    COUNT = "count"  # in the field: count, log once a kind, publish
    FAIL = "fail"  # in tests: the run stops at the next frame with LedgerViolationError
    ABORT = "abort"  # while hunting one: the process ends with a core dump


@dataclass(frozen=True)
class Proof:
    """What planting the canaries showed.

    Attributes:
        planted, seen: canaries planted, and those that changed exactly their own count by exactly one.
        blind: kinds that the run claims and that no instrument was seen to see.
    """

    planted: int
    seen: int
    blind: frozenset[ViolationKind]


class Guard:
    """Watches the frame path through instruments.

    Args:
        instruments: started here, stopped by `stop`.
        claims: the kinds that this run promises not to do.
        policy: what `check` does about a violation.
        check_interval: launches between two looks of the collector; 1 unless only the count at the end matters.

    `prove` and `seal` belong to the thread that owns the run, in warm-up; `check` to the collector thread; `rewarm` to
    any thread.
    """

    def __init__(
        self,
        instruments: Sequence[Instrument],
        claims: frozenset[ViolationKind],
        policy: GuardPolicy,
        check_interval: int = 1,
    ) -> None:
        self._instruments = tuple(instruments)
        self.check_interval = check_interval
        self.claims, self._policy = claims, policy
        self.proof = Proof(0, 0, claims)
        self._base: dict[ViolationKind, int] | None = None
        self._final: dict[ViolationKind, int] | None = None
        self._rewarm_base: dict[ViolationKind, int] = {}
        self._final_rewarm: dict[ViolationKind, int] = {}
        self._rewarm_reasons: Counter[str] = Counter()
        self._open_rewarms = threading.local()
        self._lock = threading.Lock()
        self._logged: set[ViolationKind] = set()
        self.noted: dict[ViolationKind, int] = {}  # violations as of the last check; replaced, so any thread may look
        for instrument in self._instruments:
            instrument.start()

    @property
    def instruments(self) -> tuple[Instrument, ...]:
        return self._instruments

    def watch_thread(self) -> None:
        """To be called once by each thread of the frame path."""
        for instrument in self._instruments:
            instrument.watch_thread()

    def prove(self, canaries: Iterable[Canary] | None = None) -> Proof:
        """Plant one of each violation and see whether exactly it is counted. Before the seal's `base` is taken."""
        planted = seen = 0
        visible: set[ViolationKind] = set()
        for canary in canaries if canaries is not None else self._canaries():
            before = self._counts()
            canary.plant()
            after = self._counts()
            changed = {kind: after[kind] - before[kind] for kind in after if after[kind] != before[kind]}
            planted += 1
            if changed == {canary.kind: 1}:
                seen += 1
                visible.add(canary.kind)
            else:
                log.warning("canary %r was seen as %s", canary.kind.value, changed or "nothing")
        self.proof = Proof(planted, seen, self.claims - visible)
        return self.proof

    def _canaries(self) -> list[Canary]:
        return [canary for instrument in self._instruments for canary in instrument.canaries()]

    def seal(self) -> None:
        """From now on every change of a count is a violation."""
        self._base, self._rewarm_base = self._counts(), self._rewarm_counts()
        with self._lock:
            self._rewarm_reasons.clear()

    @contextmanager
    def rewarm(self, reason: str) -> Iterator[None]:
        """A re-warm lease: until the block ends, what the calling thread does is booked apart and is no violation.

        Other threads' violations count as ever, with one exception: the audit's watch over Python objects can't tell
        threads apart. Leases may be nested; the outermost one's reason is kept. Keep them short.
        """
        if getattr(self._open_rewarms, "is_open", False):
            yield
            return
        before = self._rewarm_counts()
        self._open_rewarms.is_open = True
        try:
            with ExitStack() as stack:
                for instrument in self._instruments:
                    stack.enter_context(instrument.rewarm())
                yield
        finally:
            self._open_rewarms.is_open = False
            if self._rewarm_counts() != before:
                self._note_rewarm(reason)

    def _note_rewarm(self, reason: str) -> None:
        with self._lock:
            self._rewarm_reasons[reason] += 1
            is_first = self._rewarm_reasons[reason] == 1
        if is_first:
            log.info("the active phase's promise was lifted for a moment: %s", reason)

    def rewarms(self) -> dict[str, int]:
        """Leases since the seal by their reason, those that something was booked to. Any thread."""
        with self._lock:
            return dict(self._rewarm_reasons)

    def rewarm_totals(self) -> dict[ViolationKind, int]:
        """What was booked to re-warm leases since the seal, kinds that happened only; empty before the seal."""
        if self._base is None:
            return {}
        counts = self._rewarm_counts() if self._final is None else self._final_rewarm
        changes = {kind: count - self._rewarm_base.get(kind, 0) for kind, count in counts.items()}
        return {kind: change for kind, change in changes.items() if change}

    def violations(self) -> dict[ViolationKind, int]:
        """Violations since the seal, of every kind that some instrument watches; empty before the seal."""
        if self._base is None:
            return {}
        counts = self._counts() if self._final is None else self._final
        return {kind: count - self._base.get(kind, 0) for kind, count in counts.items()}

    def check(self) -> dict[ViolationKind, int]:
        """Count, log and act by policy. Raises LedgerViolationError under FAIL."""
        violations = self.noted = self.violations()
        for kind, count in violations.items():
            if count and kind not in self._logged:
                self._logged.add(kind)
                fields = tagged(MessageId.LEDGER_VIOLATION, violation=kind.value)
                log.error("ledger violation in the active phase: %s", kind.value, extra=fields)
        if any(violations.values()):
            self._act(violations)
        return violations

    def _act(self, violations: dict[ViolationKind, int]) -> None:
        if self._policy is GuardPolicy.ABORT:
            os.abort()
        if self._policy is GuardPolicy.FAIL:
            found = ", ".join(f"{count} {kind.value}" for kind, count in violations.items() if count)
            raise LedgerViolationError(f"the active phase broke the ledger's promise: {found}", where="frame path")

    def _counts(self) -> dict[ViolationKind, int]:
        totals: dict[ViolationKind, int] = {}
        for instrument in self._instruments:
            for kind, count in instrument.counts().items():
                totals[kind] = totals.get(kind, 0) + count
        return totals

    def _rewarm_counts(self) -> dict[ViolationKind, int]:
        totals: Counter[ViolationKind] = Counter()
        for instrument in self._instruments:
            totals.update(instrument.rewarm_counts())
        return dict(totals)

    def stop(self) -> None:
        """Freeze the counts and stop the instruments. May be called twice."""
        if self._final is None:
            self._final_rewarm = self._rewarm_counts()
            self._final = self._counts()
            for instrument in self._instruments:
                instrument.stop()

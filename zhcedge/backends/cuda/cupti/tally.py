"""Turns calls seen by the callback into counts: by kind, and by thread, phase and function."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from zhcedge.backends.cuda.cupti.table import Reader, Rule
from zhcedge.core.types import GUARDED_BYTES, ViolationKind


@dataclass(frozen=True)
class Call:
    """One call as the callback noted it.

    Attributes:
        number: callback id of the function.
        thread: `threading.get_ident` of the caller.
        phase: the word set by `enter_phase` at that time.
        host_address: where a copy wrote to host memory; 0 for anything else.
        size_bytes: of a copy whose arguments are read; 0 otherwise.
        is_rewarm: the caller held a re-warm lease.
    """

    number: int
    thread: int
    phase: str
    host_address: int
    size_bytes: int
    is_rewarm: bool = False


@dataclass(frozen=True)
class CallRow:
    """Calls of one function by one thread in one phase.

    Attributes:
        thread: the thread's name, or "unnamed N" for threads of a library.
        kind: what it violates; None where the calls were seen and allowed.
        calls, size_bytes: totals.
    """

    thread: str
    phase: str
    function: str
    kind: ViolationKind | None
    calls: int
    size_bytes: int


class BitstreamBuffers:
    """Host buffers that compressed bitstreams are copied into: the ledger's stated exception. Any thread."""

    def __init__(self) -> None:
        self._ranges: dict[int, int] = {}
        self._lock = threading.Lock()

    def add(self, address: int, size_bytes: int) -> None:
        """Declare a buffer. Copies that stay wholly inside it are bitstream, not pixels."""
        with self._lock:
            self._ranges[address] = size_bytes

    def remove(self, address: int) -> None:
        with self._lock:
            self._ranges.pop(address, None)

    def holds(self, address: int, size_bytes: int) -> bool:
        with self._lock:
            return any(at <= address and address + size_bytes <= at + size for at, size in self._ranges.items())


BITSTREAM_BUFFERS = BitstreamBuffers()
"""Of this process: an encoder declares its output buffer here, the instrument reads it."""


class Tally:
    """Collects calls and adds them up when asked.

    `note` is called on any thread, also a library's, inside a driver call: it only appends. Everything else is
    called by whoever reads the counts.
    """

    def __init__(self, rules: dict[int, Rule], names: dict[int, str], thread_name: Callable[[int], str]) -> None:
        self._rules, self._names, self._thread_name = rules, names, thread_name
        self._waiting: deque[Call] = deque()
        self._lock = threading.Lock()
        self._totals: Counter[ViolationKind] = Counter()
        self._rewarm: Counter[ViolationKind] = Counter()
        self._rows: dict[tuple[str, str, str, ViolationKind | None], tuple[int, int]] = {}

    def note(self, call: Call) -> None:
        self._waiting.append(call)  # atomic: no lock inside a driver call

    def totals(self) -> dict[ViolationKind, int]:
        """Violations so far, by kind, without those under re-warm leases."""
        with self._lock:
            self._drain()
            return dict(self._totals)

    def rewarm_totals(self) -> dict[ViolationKind, int]:
        """What would have been violations but for a re-warm lease of the calling thread."""
        with self._lock:
            self._drain()
            return dict(self._rewarm)

    def rows(self) -> tuple[CallRow, ...]:
        """Everything seen so far, violations or not."""
        with self._lock:
            self._drain()
            return tuple(CallRow(*key, calls, size) for key, (calls, size) in sorted(self._rows.items(), key=str))

    def _drain(self) -> None:
        while self._waiting:
            call = self._waiting.popleft()
            kind = violation(self._rules[call.number], call)
            if kind is not None:
                (self._rewarm if call.is_rewarm else self._totals)[kind] += 1
            phase = "re-warm" if call.is_rewarm else call.phase
            key = (self._thread_name(call.thread), phase, self._names[call.number], kind)
            calls, size = self._rows.get(key, (0, 0))
            self._rows[key] = (calls + 1, size + call.size_bytes)


def violation(rule: Rule, call: Call) -> ViolationKind | None:
    """What a call violates under its rule.

    A linear copy to the host counts from GUARDED_BYTES on (results and parameters are smaller). A pitched one counts
    at any size: only pictures are copied that way. Neither counts into a declared bitstream buffer.
    """
    if rule.kind is None or rule.reader is Reader.NONE:
        return rule.kind
    if not call.host_address or BITSTREAM_BUFFERS.holds(call.host_address, call.size_bytes):
        return None
    if rule.kind is ViolationKind.HOST_COPY and call.size_bytes < GUARDED_BYTES:
        return None
    return rule.kind

"""The one recorder behind all views of time: spans of named work on named tracks, kept in shared memory.

The demo's summary, `bench`, `audit` and `--trace` read the same spans. A span costs one struct.pack_into; nothing
grows. The memory may be a mapping that another process reads, also after the writer was killed.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from zhcedge.core.files import write_whole
from zhcedge.core.ports import NO_RANGES, Ranges

SPAN_DTYPE = np.dtype(
    [
        ("name", "<u2"),
        ("track", "<u2"),
        ("channel", "<u4"),
        ("sequence", "<i8"),
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
    ]
)
_SPAN = struct.Struct("<HHIqqq")
_COUNT = struct.Struct("<Q")
_SPAN_BYTES = _SPAN.size
_pack_span, _pack_count = _SPAN.pack_into, _COUNT.pack_into  # looked up once: several spans a frame
_TABLE_ENTRIES, _ENTRY_BYTES = 64, 32
_TABLE_BYTES = _TABLE_ENTRIES * _ENTRY_BYTES
_HEADER_BYTES = 64 + 2 * _TABLE_BYTES

Spans = npt.NDArray[np.void]


class Recorder:
    """Spans of one process, in a ring of `capacity` rows; the newest overwrite the oldest.

    Args:
        memory: zeroed or earlier recorder memory of `Recorder.size(capacity)` bytes.
        capacity: rows.

    Attributes:
        ranges: told by the frame path's threads what they begin and end, for a profiler beside us; set at
            initialisation, before the threads start.

    `span` may be called by any thread. Names and tracks are registered at initialisation.
    """

    def __init__(self, memory: memoryview, capacity: int) -> None:
        self.ranges: Ranges = NO_RANGES
        self._memory, self._capacity = memory, capacity
        self._next = itertools.count()
        self._names = _Table(memory[64 : 64 + _TABLE_BYTES])
        self._tracks = _Table(memory[64 + _TABLE_BYTES : _HEADER_BYTES])

    @staticmethod
    def size(capacity: int) -> int:
        """Bytes of memory that `capacity` spans need."""
        return _HEADER_BYTES + capacity * SPAN_DTYPE.itemsize

    def name(self, text: str) -> int:
        """The number of a span name, registered if new."""
        return self._names.number(text)

    def track(self, text: str) -> int:
        """The number of a track (a thread or lane whose spans do not overlap), registered if new."""
        return self._tracks.number(text)

    def span(self, name: int, track: int, channel: int, sequence: int, start_ns: int, end_ns: int) -> None:
        """Record that `name` ran on `track` for a frame, monotonic nanoseconds."""
        index = next(self._next)  # atomic under the interpreter lock: threads never share a row
        offset = _HEADER_BYTES + (index % self._capacity) * _SPAN_BYTES
        _pack_span(self._memory, offset, name, track, channel, sequence, start_ns, end_ns)
        _pack_count(self._memory, 0, index + 1)

    def clear(self) -> None:
        """Forget all spans: what they describe has begun again. The writing process only."""
        self._next = itertools.count()
        _COUNT.pack_into(self._memory, 0, 0)

    @property
    def count(self) -> int:
        """Spans recorded since the start, overwritten ones included."""
        count: int = _COUNT.unpack_from(self._memory, 0)[0]
        return count

    def spans(self, since: int = 0) -> Spans:
        """A copy of the spans from number `since` on that are still there, oldest first; SPAN_DTYPE."""
        total = self.count
        first = max(since, total - self._capacity)
        rows = np.frombuffer(self._memory, SPAN_DTYPE, self._capacity, _HEADER_BYTES)
        return rows[np.arange(first, total) % self._capacity]

    def names(self) -> list[str]:
        return self._names.texts()

    def tracks(self) -> list[str]:
        return self._tracks.texts()

    def select(self, name: str, since: int = 0) -> Spans:
        """The spans called `name`; an empty array when there are none."""
        spans = self.spans(since)
        names = self.names()
        return spans[spans["name"] == names.index(name)] if name in names else spans[:0]


class _Table:
    """Up to 64 short texts in shared memory; a text's number is its position."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._numbers = {text: number for number, text in enumerate(self.texts())}

    def number(self, text: str) -> int:
        if text not in self._numbers:
            number = min(len(self._numbers), _TABLE_ENTRIES - 1)  # a full table folds into its last entry
            raw = text.encode()[: _ENTRY_BYTES - 1].decode(errors="ignore").encode()
            self._memory[number * _ENTRY_BYTES : number * _ENTRY_BYTES + len(raw)] = raw
            self._numbers[text] = number
        return self._numbers[text]

    def texts(self) -> list[str]:
        entries = (bytes(self._memory[i * _ENTRY_BYTES : (i + 1) * _ENTRY_BYTES]) for i in range(_TABLE_ENTRIES))
        return [entry.rstrip(b"\0").decode() for entry in entries if entry[0]]


def frame_latencies_ms(
    starts: Recorder, ends: Recorder, *, start: str = "read", end: str = "collect"
) -> npt.NDArray[np.float64]:
    """Milliseconds from the end of a frame's `start` span to the end of its `end` span, for frames that have both."""
    first = {(int(s["channel"]), int(s["sequence"])): int(s["end_ns"]) for s in starts.select(start)}
    pairs = (((int(s["channel"]), int(s["sequence"])), int(s["end_ns"])) for s in ends.select(end))
    return np.array([(at - first[key]) / 1e6 for key, at in pairs if key in first], np.float64)


def percentile(values: npt.NDArray[np.float64], percent: float) -> float:
    """A percentile, 0 for no values."""
    return float(np.percentile(values, percent)) if len(values) else 0.0


def write_trace(path: Path, recorders: Sequence[tuple[str, Recorder]]) -> None:
    """Write Chrome trace JSON (opens in Perfetto and chrome://tracing) of several processes.

    Format: "Trace Event Format", complete ("X") events in microseconds. Raises OutputError.
    """
    events: list[dict[str, object]] = []
    for number, (process, recorder) in enumerate(recorders, 1):
        events.append({"ph": "M", "pid": number, "name": "process_name", "args": {"name": process}})
        events.extend(_trace_events(number, recorder))
    write_whole(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode(), "the trace")


def _trace_events(pid: int, recorder: Recorder) -> Iterable[dict[str, object]]:
    names = recorder.names()
    for number, track in enumerate(recorder.tracks()):
        yield {"ph": "M", "pid": pid, "tid": number, "name": "thread_name", "args": {"name": track}}
    for span in recorder.spans():
        yield {
            "ph": "X",
            "pid": pid,
            "tid": int(span["track"]),
            "name": names[int(span["name"])],
            "ts": int(span["start_ns"]) / 1e3,
            "dur": int(span["end_ns"] - span["start_ns"]) / 1e3,
            "args": {"channel": int(span["channel"]), "frame": int(span["sequence"])},
        }

"""The recorder: spans come back in order, the newest survive, the trace is what a viewer reads."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.core.errors import OutputError
from zhcedge.pipeline.recorder import Recorder, frame_latencies_ms, percentile, write_trace


def make_recorder(capacity: int = 16) -> Recorder:
    return Recorder(memoryview(bytearray(Recorder.size(capacity))), capacity)


@given(st.integers(0, 50))
def test_the_newest_spans_survive_in_order(count: int) -> None:
    recorder = make_recorder()
    name, track = recorder.name("work"), recorder.track("thread")
    for number in range(count):
        recorder.span(name, track, 0, number, number, number + 1)
    assert recorder.count == count
    assert recorder.spans()["sequence"].tolist() == list(range(max(0, count - 16), count))


def test_threads_never_share_a_row() -> None:
    recorder = make_recorder(4000)
    name, track = recorder.name("work"), recorder.track("thread")

    def work(first: int) -> None:
        for number in range(first, first + 1000):
            recorder.span(name, track, 0, number, 0, 1)

    threads = [threading.Thread(target=work, args=(1000 * index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(recorder.spans()["sequence"].tolist()) == list(range(4000))


def test_another_process_reads_names_and_spans_from_the_memory_alone() -> None:
    memory = bytearray(Recorder.size(8))
    writer = Recorder(memoryview(memory), 8)
    writer.span(writer.name("read"), writer.track("reader"), 3, 7, 10, 20)
    reader = Recorder(memoryview(memory), 8)
    assert reader.names() == ["read"]
    assert reader.select("read")["sequence"].tolist() == [7]
    assert len(reader.select("no such name")) == 0


def test_latency_joins_the_spans_of_the_same_frame() -> None:
    starts, ends = make_recorder(), make_recorder()
    read, collect = starts.name("read"), ends.name("collect")
    starts.span(read, starts.track("a"), 0, 1, 0, 1_000_000)
    starts.span(read, starts.track("a"), 0, 2, 0, 2_000_000)
    ends.span(collect, ends.track("b"), 0, 1, 0, 4_000_000)
    ends.span(collect, ends.track("b"), 0, 99, 0, 4_000_000)
    assert frame_latencies_ms(starts, ends).tolist() == [3.0]
    assert percentile(frame_latencies_ms(starts, ends, end="missing"), 50) == 0.0


def test_the_trace_holds_every_span_in_microseconds_on_its_track(tmp_path: Path) -> None:
    recorder = make_recorder()
    recorder.span(recorder.name("engine"), recorder.track("lane 0"), 1, 5, 2_000, 7_000)
    write_trace(tmp_path / "trace.json", [("frame", recorder)])
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    (span,) = [event for event in events if event["ph"] == "X"]
    assert (span["name"], span["ts"], span["dur"], span["args"]) == ("engine", 2.0, 5.0, {"channel": 1, "frame": 5})
    assert {"lane 0", "frame"} == {event["args"]["name"] for event in events if event["ph"] == "M"}


def test_a_trace_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="can't be written"):
        write_trace(tmp_path / "missing" / "trace.json", [])

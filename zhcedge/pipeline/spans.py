"""The frame path's own spans: their names and tracks, looked up once, and what each of them means."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from zhcedge.core.ports import StageTime
from zhcedge.core.types import FrameInfo
from zhcedge.pipeline.recorder import Recorder


class Spans:
    """Records what the threads of a pass do. `read` and `ingest` belong to the readers, the rest to the collector.

    - read: from asking the source until it handed the frame over; ingest: from then until the copy is enqueued.
    - a stage by its own name, where the device times stages; else run: the launch, since its lane's last one ended.
    - collect: from the launch's end until the frame's results are in the ring.

    Args:
        lanes: indices of the lanes in use.
    """

    def __init__(self, recorder: Recorder, lanes: Collection[int]) -> None:
        self._recorder = recorder
        self._read, self._ingest = recorder.name("read"), recorder.name("ingest")
        self._collect, self._run = recorder.name("collect"), recorder.name("run")
        self._readers: dict[int, int] = {}
        self._lanes = {index: recorder.track(f"lane {index}") for index in sorted(lanes)}
        self._collector = recorder.track("collector")
        self._ended_ns: dict[int, int] = {}

    def add(self, channel: int, name: str) -> None:
        """A channel, before its first frame. Any thread."""
        self._readers[channel] = self._recorder.track(f"reader {name}")

    def read(self, info: FrameInfo, started_ns: int) -> None:
        channel = info.channel
        self._recorder.span(self._read, self._readers[channel], channel, info.sequence, started_ns, info.read_time_ns)

    def ingest(self, info: FrameInfo, done_ns: int) -> None:
        channel = info.channel
        self._recorder.span(self._ingest, self._readers[channel], channel, info.sequence, info.read_time_ns, done_ns)

    def stages(self, lane: int, info: FrameInfo, times: Sequence[StageTime], started_ns: int, done_ns: int) -> None:
        """A launch has ended; `info` is of its first frame."""
        track, recorder = self._lanes[lane], self._recorder
        if not times:
            started_ns = max(started_ns, self._ended_ns.get(lane, 0))
            self._ended_ns[lane] = done_ns
            recorder.span(self._run, track, info.channel, info.sequence, started_ns, done_ns)
        for time in times:
            name = recorder.name(time.name)
            recorder.span(name, track, info.channel, info.sequence, time.start_ns, time.end_ns)

    def collect(self, info: FrameInfo, start_ns: int, end_ns: int) -> None:
        self._recorder.span(self._collect, self._collector, info.channel, info.sequence, start_ns, end_ns)

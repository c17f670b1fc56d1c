"""One pipeline that is kept ready and measured in blocks, for tools/bench/gpu. A script with a JSON line protocol.

python worker.py CONFIG.json: the configuration as "config", and the switches of Settings. Commands on standard input:

- {"op": "block", "channels": K, "seconds": S, "rate": FPS}: run the first K channels; rate 0 is as fast as they go,
  otherwise frames of all channels together come evenly spaced. The counts are taken between two moments inside the
  block, so that its start and end are left out.
- {"op": "block", "channels": K, "frames": N}: the same for N frames in all.
- {"op": "decode", "channels": K, "seconds": S}: read and give back, nothing else.
- {"op": "ledger"}: the account of all blocks.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from zhcedge.app.bench_parts import _resident_mib
from zhcedge.app.wiring import RunContext, build_plan
from zhcedge.backends.cuda.cupti.instrument import CuptiInstrument
from zhcedge.config.schema import Config
from zhcedge.core.lifecycle import Lifecycle
from zhcedge.core.ports import EndOfStream, Idle, Lane, Source
from zhcedge.core.requests import EngineRequest
from zhcedge.core.types import ModelFacts
from zhcedge.pipeline.plan import Plan
from zhcedge.pipeline.recorder import Spans
from zhcedge.pipeline.segment import Segment
from zhcedge.service.clock import SystemClock
from zhcedge.service.log import set_up_logging

_SETTLE_S = 0.5


@dataclass(frozen=True)
class Settings:
    """What differs from the profile.

    Attributes:
        has_null_engine: the engine does nothing.
        is_watched: False detaches the ledger's instruments after the warm-up, to see what they cost.
        is_audit: every instrument, and stages timed.
    """

    config: dict[str, Any]
    has_null_engine: bool = False
    is_watched: bool = True
    is_audit: bool = False


@dataclass
class NullEngine:
    """Does nothing, so that all the rest can be measured."""

    facts: ModelFacts
    description: str = "nothing"
    name: str = "engine"
    batches: set[int] = field(default_factory=set)

    def bind(self, lane: Lane[object]) -> NullEngine:
        return self

    def enqueue(self, batch: int) -> None:
        self.batches.add(batch)

    def close(self) -> None:
        """Nothing to close."""


class Paced:
    """A source whose frames are asked for at even intervals."""

    def __init__(self, source: Source[object], first_s: float, interval_s: float) -> None:
        self._source, self._next_s, self._interval_s = source, first_s, interval_s

    def read(self, timeout_s: float) -> object:
        wait_s = self._next_s - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        self._next_s += self._interval_s
        return self._source.read(timeout_s)


def main() -> None:
    settings = Settings(**json.loads(Path(sys.argv[1]).read_text()))
    set_up_logging("WARNING")
    config = Config.model_validate(settings.config)
    segment = Segment()

    def null_engine(request: EngineRequest, device: object) -> NullEngine:
        return NullEngine(request.facts)

    context = RunContext(
        segment,
        SystemClock(),
        Lifecycle(),
        is_audit=settings.is_audit,
        engine=null_engine if settings.has_null_engine else None,
    )
    started_s = time.monotonic()
    with build_plan(config, context) as plan:
        built_s = time.monotonic()
        plan.warm_up()
        worker = Worker(plan, segment)
        if not settings.is_watched:
            plan._guard.stop()
        gc.collect()
        gc.freeze()
        gc.disable()
        answer(
            ready_s=time.monotonic() - started_s,
            build_s=built_s - started_s,
            engine=plan._engine.description,
            batches=plan._engine.facts.batch_sizes,
        )
        for line in sys.stdin:
            command = json.loads(line)
            operation: Callable[..., dict[str, object]] = getattr(worker, command.pop("op"))
            try:
                answer(**operation(**command))
            except Exception as error:  # noqa: BLE001  the coordinator decides what a failed block means
                answer(error=f"{type(error).__name__}: {error}")


def answer(**values: object) -> None:
    print(json.dumps(values), flush=True)


class Worker:
    def __init__(self, plan: Plan[object], segment: Segment) -> None:
        self._plan, self._segment = plan, segment
        self._frames = 0
        self._ledger: dict[str, object] = {}
        for instrument in plan._guard.instruments:
            if isinstance(instrument, CuptiInstrument):
                instrument.enter_phase("active")

    def block(
        self, channels: int, seconds: float = 0.0, rate: float = 0.0, frames: int = 0, settle: float = _SETTLE_S
    ) -> dict[str, object]:
        plan = self._plan
        chosen = plan.channels[:channels]
        if rate:
            for channel in chosen:  # from the clip's start, so that it need not be opened again meanwhile
                channel.source.rewind()
        sources = [channel.source for channel in chosen]
        for index, channel in enumerate(chosen):
            channel.frames = 0
            if rate:
                first_s = time.monotonic() + 0.05 + index / rate
                channel.source = Paced(channel.source, first_s, channels / rate)  # type: ignore[assignment]
        work = plan.make_pass(
            chosen, frame_limit=-(-frames // channels), ring=self._segment.ring, heartbeat=lambda count: None
        )
        since = self._segment.frame_recorder.count
        thread = threading.Thread(target=work.run, name="pass")
        thread.start()
        try:
            if frames:
                first, last = Moment.now(work.frames), None
                while thread.is_alive():
                    moment = Moment.now(work.frames)
                    last = moment if moment.cpu_s else last
                    thread.join(0.05)
                thread.join()
                last = last or Moment.now(work.frames)
            else:
                time.sleep(settle)
                since = self._segment.frame_recorder.count
                first = Moment.now(work.frames)
                time.sleep(seconds)
                last = Moment.now(work.frames)
        finally:
            until = self._segment.frame_recorder.count
            work.stop()
            thread.join()
            # Now, before this process makes large arrays of its own out of the spans.
            self._ledger = plan.ledger(self._frames + work.frames).as_dict()
            for channel, source in zip(chosen, sources, strict=True):
                channel.source = source
        self._frames += work.frames
        return {**first.until(last), "total_frames": work.frames, **self._spans(since, until)}

    def _spans(self, since: int, until: int) -> dict[str, object]:
        recorder = self._segment.frame_recorder
        late = recorder.count - until
        spans, names = recorder.spans(since), recorder.names()
        spans = spans[: len(spans) - late]
        durations = (spans["end_ns"] - spans["start_ns"]) / 1e3
        medians = {
            name: float(np.median(durations[spans["name"] == number]))
            for number, name in enumerate(names)
            if bool((spans["name"] == number).any())
        }
        return {"spans_us": medians, "latency_ms": _latencies_ms(spans, names), **_rate(spans, names)}

    def decode(self, channels: int, seconds: float) -> dict[str, object]:
        """Sessions alone, a thread each."""
        counts = [0] * channels
        is_over = threading.Event()

        def read(index: int, source: Source[object]) -> None:
            while not is_over.is_set():
                item = source.read(0.2)
                if isinstance(item, EndOfStream):
                    return
                if not isinstance(item, Idle):
                    item.release()
                    counts[index] += 1

        threads = [
            threading.Thread(target=read, args=(index, channel.source), name=f"reader {index}")
            for index, channel in enumerate(self._plan.channels[:channels])
        ]
        for thread in threads:
            thread.start()
        time.sleep(_SETTLE_S)
        first = Moment.now(sum(counts))
        time.sleep(seconds)
        last = Moment.now(sum(counts))
        is_over.set()
        for thread in threads:
            thread.join()
        return first.until(last)

    def ledger(self) -> dict[str, object]:
        rows = []
        for instrument in self._plan._guard.instruments:
            if isinstance(instrument, CuptiInstrument):
                rows = [vars(row) | {"kind": row.kind and row.kind.value} for row in instrument.rows()]
        counts = [int(slot.results["count"][0]) for channel in self._plan.channels for slot in channel.pool.slots]
        graphs = [str(program.facts) for program in self._plan._device._programs]  # type: ignore[attr-defined]
        return {
            "ledger": self._ledger,
            "calls": [row for row in rows if row["phase"] == "active"],
            "boxes": float(np.mean(counts)),
            "graphs": graphs,
        }

    def memory(self) -> dict[str, object]:
        free, total = self._plan._device.context.memory_bytes()  # type: ignore[attr-defined]
        return {"gpu_used_bytes": total - free, "rss_mib": _resident_mib()}


def _rate(spans: Spans, names: list[str]) -> dict[str, object]:
    """Frames a second from the end of the first launch to the end of the last one, and frames a launch.

    Counting frames in a fixed time would be off by up to a batch at either end.
    """
    ends_ns = np.sort(spans["start_ns"][spans["name"] == names.index("collect")])
    if not len(ends_ns) or ends_ns[0] == ends_ns[-1]:
        return {}
    counted = np.count_nonzero(ends_ns > ends_ns[0])
    batch = len(ends_ns) / len(np.unique(ends_ns))
    return {"fps": 1e9 * counted / float(ends_ns[-1] - ends_ns[0]), "frames_per_launch": batch}


def _latencies_ms(spans: Spans, names: list[str]) -> list[float]:
    """From a frame's read to its results in the ring: the 50th, 90th and 99th percentile; empty without frames."""
    read, collect = (spans[spans["name"] == names.index(name)] for name in ("read", "collect"))
    begun = {(int(span["channel"]), int(span["sequence"])): int(span["end_ns"]) for span in read}
    ended = (((int(span["channel"]), int(span["sequence"])), int(span["end_ns"])) for span in collect)
    latencies = [(at - begun[key]) / 1e6 for key, at in ended if key in begun]
    return [float(np.percentile(latencies, percent)) for percent in (50, 90, 99)] if latencies else []


@dataclass(frozen=True)
class Moment:
    """Frames and CPU seconds at one moment: of the process, and of threads by what they do."""

    at_s: float
    frames: int
    process_s: float
    cpu_s: dict[str, float]

    @classmethod
    def now(cls, frames: int) -> Moment:
        cpu_s: dict[str, float] = {}
        for thread in threading.enumerate():
            role = thread.name.partition(" ")[0]
            if role in ("reader", "runner", "collector", "sink") and thread.ident is not None:
                try:
                    used_s = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
                except OSError:  # it has just ended
                    continue
                cpu_s[role] = cpu_s.get(role, 0.0) + used_s
        return cls(time.monotonic(), frames, time.process_time(), cpu_s)

    def until(self, last: Moment) -> dict[str, object]:
        seconds, frames = last.at_s - self.at_s, last.frames - self.frames
        shares = {role: (used_s - self.cpu_s.get(role, 0.0)) for role, used_s in last.cpu_s.items()}
        per_frame_ms = {role: 1e3 * used_s / max(frames, 1) for role, used_s in shares.items()}
        return {
            "seconds": seconds,
            "frames": frames,
            "fps": frames / seconds,
            "cpu_ms_per_frame": {**per_frame_ms, "process": 1e3 * (last.process_s - self.process_s) / max(frames, 1)},
        }


if __name__ == "__main__":
    main()

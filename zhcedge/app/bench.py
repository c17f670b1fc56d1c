"""`zhc-edge bench`: the pipeline against its engine alone, as ratios within one run.

Blocks of both kinds are interleaved A B B A, so that a machine that drifts drifts for both. The engine runs in a
process of its own that imports nothing of ours (engine_only.py). Figures are medians or means over blocks with 95 %
intervals; absolute numbers are of this machine and this moment.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from zhcedge import __version__
from zhcedge.app.bench_latency import publish_latency
from zhcedge.app.bench_parts import detect_ms, rss_slope
from zhcedge.app.bench_statistics import Interval, interval
from zhcedge.app.wiring import RunContext, build_plan
from zhcedge.config.schema import Config
from zhcedge.core.errors import BackendUnavailableError, PipelineError
from zhcedge.core.files import check_folder, write_whole
from zhcedge.core.lifecycle import Lifecycle
from zhcedge.models.bundle import Bundle, load_bundle
from zhcedge.pipeline.plan import RunReport
from zhcedge.pipeline.recorder import Recorder
from zhcedge.pipeline.segment import Segment
from zhcedge.service.clock import SystemClock
from zhcedge.service.log import set_up_logging

# A script, never imported: it runs in a process of its own.
_PACED_FRAMES, _PACE_MS = 100, 100.0  # the bundled clip has 10 frames a second
_ENGINE_ONLY = Path(__file__).with_name("engine_only.py")


@dataclass(frozen=True)
class _Answer:
    """What the engine-only process says of one command."""

    seconds: float
    frames: int
    times_ms: list[float]

    @property
    def fps(self) -> float:
        return self.frames / self.seconds


@dataclass(frozen=True)
class BenchSettings:
    """What is measured and for how long.

    Attributes:
        groups: A B B A groups, two blocks of each kind in each.
        block_frames: frames of a block.
        rss_frames: frames of the memory run, 0 to leave it out.
        has_latency: run the daemon against a broker as well.
    """

    clip: str = "clip:walkers"
    profile: str = "cpu"
    groups: int = 3
    block_frames: int = 200
    rss_frames: int = 0
    has_latency: bool = True


@dataclass
class BenchResult:
    """Everything that one run of the benchmark measured; `as_dict` is what --json writes."""

    version: str
    machine: str
    cores: int
    engine: str
    engine_lanes: int
    engine_fps: Interval
    engine_p50_ms: float
    pipeline_fps: dict[str, Interval]
    ratio: dict[str, Interval]
    stages_ms: dict[str, float]
    detect_8400_ms: float
    verdict: str
    rss_mib_per_10k_frames: Interval | None = None
    publish_latency_ms: dict[str, float] | None = None
    engine_paced_p50_ms: float | None = None
    publish_to_engine: float | None = None
    samples: dict[str, list[float]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def bench(settings: BenchSettings, progress: Callable[[str], None], output: Path | None = None) -> BenchResult:
    """Run the benchmark; minutes, using every core. `progress` gets one line for each step.

    Args:
        output: file for the result as JSON. Raises OutputError, before the minutes where it can be seen then.
    """
    if output is not None:
        check_folder(output, "the result")
    result = _measure(settings, progress)
    if output is not None:
        write_whole(output, json.dumps(result.as_dict(), indent=2).encode() + b"\n", "the result")
    return result


def _measure(settings: BenchSettings, progress: Callable[[str], None]) -> BenchResult:
    set_up_logging("WARNING")
    bundle = load_bundle(_config(settings, has_sink=False).model.bundle)
    runs = _PipelineRuns(settings, bundle, progress)
    with _EngineAlone(bundle) as engine:
        lanes = engine.best_lanes(settings.block_frames // 2)
        progress(f"engine alone is fastest with {lanes} lane{'s' if lanes > 1 else ''}")
        engine_fps, latencies = _abba(settings, engine, lanes, runs)
        latency, paced_ms = _latency(settings, engine, progress) if settings.has_latency else (None, 0.0)
    ratios = {
        kind: [pipeline / alone for pipeline, alone in zip(fps, engine_fps, strict=True)]
        for kind, fps in runs.fps.items()
    }
    result = BenchResult(
        version=__version__,
        machine=f"{platform.machine()} {_processor()}",
        cores=os.cpu_count() or 1,
        engine=f"onnxruntime {engine.version}",
        engine_lanes=lanes,
        engine_fps=interval(engine_fps),
        engine_p50_ms=float(np.median(latencies)),
        pipeline_fps={kind: interval(values) for kind, values in runs.fps.items()},
        ratio={kind: interval(values) for kind, values in ratios.items()},
        stages_ms=runs.stages_ms,
        detect_8400_ms=detect_ms(),
        verdict=runs.verdict,
        samples={"engine_fps": engine_fps, "pipeline_fps": runs.fps["none"], "pipeline_mp4_fps": runs.fps["mp4"]},
    )
    if latency is not None:
        result.publish_latency_ms, result.engine_paced_p50_ms = latency, paced_ms
        result.publish_to_engine = latency["published_p50"] / paced_ms
    if settings.rss_frames:
        progress(f"memory: {settings.rss_frames} frames")
        endless = _config(settings, has_sink=False, is_looped=True)
        result.rss_mib_per_10k_frames = rss_slope(endless, settings.rss_frames)
    return result


def _abba(
    settings: BenchSettings, engine: _EngineAlone, lanes: int, runs: _PipelineRuns
) -> tuple[list[float], list[float]]:
    """Interleave engine and pipeline blocks. Returns the engine's frames per second by block, and call times."""
    fps: list[float] = []
    times_ms: list[float] = []

    def engine_block() -> None:
        answer = engine.run(settings.block_frames, lanes)
        fps.append(answer.fps)
        single = answer if lanes == 1 else engine.run(settings.block_frames // 4, 1)
        times_ms.extend(single.times_ms)

    for _ in range(settings.groups):
        engine_block()
        runs.block()
        runs.block()
        engine_block()
    return fps, times_ms


def _latency(
    settings: BenchSettings, engine: _EngineAlone, progress: Callable[[str], None]
) -> tuple[dict[str, float], float]:
    """Latency of the daemon at the clip's own pace, and the p50 of engine calls at the same pace, before and after.

    The same pace, because a processor that sleeps between frames runs the same model slower than one that never does.
    """
    progress("latency: the daemon at the clip's own pace, a broker, a subscriber")
    before = engine.run(_PACED_FRAMES, 1, _PACE_MS).times_ms
    latency = publish_latency(settings.clip, settings.profile)
    after = engine.run(_PACED_FRAMES, 1, _PACE_MS).times_ms
    return latency, float(np.median(before + after))


class _PipelineRuns:
    """Pipeline blocks, without sink and with an MP4 sink, and what they showed."""

    def __init__(self, settings: BenchSettings, bundle: Bundle, progress: Callable[[str], None]) -> None:
        self._settings, self._bundle, self._progress = settings, bundle, progress
        self.fps: dict[str, list[float]] = {"none": [], "mp4": []}
        self.stages_ms: dict[str, float] = {}
        self.verdict = ""

    def block(self) -> None:
        for kind in ("none", "mp4"):
            report, recorder = self._run(has_sink=kind == "mp4")
            self.fps[kind].append(report.fps)
            self.verdict = report.ledger.verdict.value
            if kind == "mp4":
                self.stages_ms = _stage_medians(recorder)
        self._progress(f"pipeline {self.fps['none'][-1]:.1f} fps, with MP4 sink {self.fps['mp4'][-1]:.1f} fps")

    def _run(self, *, has_sink: bool) -> tuple[RunReport, Recorder]:
        with tempfile.TemporaryDirectory(prefix="zhc-edge-bench-") as folder:
            config = _config(self._settings, has_sink=has_sink, folder=folder, is_looped=True)
            segment = Segment()
            context = RunContext(segment, SystemClock(), Lifecycle())
            with build_plan(config, context, self._bundle) as plan:
                report = plan.warm_up().process(self._settings.block_frames)
        return report, segment.frame_recorder


def _config(settings: BenchSettings, *, has_sink: bool, folder: str = ".", is_looped: bool = False) -> Config:
    sinks = [{"kind": "mp4", "path": f"{folder}/bench.mp4"}] if has_sink else []
    channel = {"source": {"uri": settings.clip, "loop": is_looped}, "sinks": sinks}
    return Config.model_validate({"profile": settings.profile, "channels": {"bench": channel}})


def _stage_medians(recorder: Recorder) -> dict[str, float]:
    spans = recorder.spans()
    durations = spans["end_ns"] - spans["start_ns"]
    return {
        name: float(np.median(durations[spans["name"] == number])) / 1e6
        for number, name in enumerate(recorder.names())
        if bool((spans["name"] == number).any())
    }


class _EngineAlone:
    """The child process of engine_only.py. A context manager; `run` waits for the answer."""

    def __init__(self, bundle: Bundle) -> None:
        threads = str(os.cpu_count() or 1)
        command = [sys.executable, "-I", str(_ENGINE_ONLY), str(bundle.model_path), threads]
        environ = {**os.environ, "ORT_DISABLE_TELEMETRY": "1"}  # as our own engine does
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)
        hello = json.loads(self._line())
        if hello["ours"]:
            raise PipelineError(f"the engine-only process imported {hello['ours'][0]}", where="bench")
        self.version: str = hello["version"]

    def __enter__(self) -> _EngineAlone:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def best_lanes(self, frames: int) -> int:
        """The number of concurrent callers, 1 or 2, with the higher rate after a warm-up."""
        self.run(20, 2)
        rates = {lanes: self.run(frames, lanes).fps for lanes in (1, 2)}
        return max(rates, key=lambda lanes: rates[lanes])

    def run(self, frames: int, lanes: int, interval_ms: float = 0.0) -> _Answer:
        stdin = self._process.stdin
        if stdin is None:
            raise PipelineError("the engine-only process has no input", where="bench")
        stdin.write(json.dumps({"frames": frames, "lanes": lanes, "interval_ms": interval_ms}) + "\n")
        stdin.flush()
        return _Answer(**json.loads(self._line()))

    def _line(self) -> str:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise BackendUnavailableError(
                "the engine-only process ended", where="bench", fix="pip install 'zhcedge[cpu]'"
            )
        return line


def _processor() -> str:
    """The processor's name, on Linux; empty where it is not told."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")

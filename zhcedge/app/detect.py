"""`zhc-edge detect`: images, folders, videos and streams through the daemon's own pipeline, in this process."""

from __future__ import annotations

import contextlib
import gc
import json
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TextIO

from zhcedge.app.detect_inputs import CHANNEL, Given, Job, batches, given_input, jobs_of, shown_input
from zhcedge.app.detect_outputs import Outputs
from zhcedge.app.foreground import raised_not_logged
from zhcedge.app.progress import Progress
from zhcedge.app.wiring import RunContext, build_plan, label_indices
from zhcedge.config.load import load_text
from zhcedge.config.problems import KeyPath
from zhcedge.config.schema import Config
from zhcedge.core.detections import frame_line
from zhcedge.core.errors import (
    BackendUnavailableError,
    ConfigError,
    MediaError,
    OutputError,
    SourceMissingError,
    UsageError,
    ZhcEdgeError,
)
from zhcedge.core.lifecycle import Lifecycle
from zhcedge.core.ports import FrameSlot
from zhcedge.media.line_file import LineFile
from zhcedge.models.bundle import Bundle, load_bundle
from zhcedge.pipeline.plan import Plan, RunReport
from zhcedge.pipeline.segment import Segment
from zhcedge.profiles import PROFILES, profile
from zhcedge.service.clock import SystemClock
from zhcedge.service.log import set_up_logging

Complain = Callable[[str], None]

_OPTIONS: Mapping[KeyPath, str] = {
    ("model", "bundle"): "--model",
    ("model", "score_threshold"): "--score",
    ("model", "labels"): "--classes",
    ("profile",): "--profile",
    ("pipeline", "batch"): "--batch",
}
"""Where a user wrote what becomes a value of the configuration."""

_ANY_INPUT = "clip:walkers"
"""Stands for the inputs where the configuration as such is looked at."""


@dataclass(frozen=True)
class DetectSettings:
    """What to detect in, and where the results go.

    Attributes:
        inputs: paths and addresses, as written; at least one.
        values: the configuration, as nested keys; of channels only the source's address is added.
        json: file for the detections; None for none, or for those on standard output.
        json_to_stdout: write them there.
        video: annotated video: a file that ends in .mp4, .m4v or .mov, else a folder.
        pictures: folder for annotated pictures.
        is_half: insist on a model of half precision.
        frames: to detect in of each input, 0 for all there are.
        overrides, environ: as for every command; the channel is called "input".
    """

    inputs: tuple[str, ...]
    values: Mapping[str, object] = field(default_factory=dict)
    json: Path | None = None
    json_to_stdout: bool = False
    video: Path | None = None
    pictures: Path | None = None
    is_half: bool = False
    frames: int = 0
    overrides: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)


def counted(number: int, what: str) -> str:
    """1 frame, 2 frames"""
    return f"{number} {what}{'' if number == 1 else 's'}"


@dataclass
class InputResult:
    """What was found in one input: frames, seconds that they took, objects by label."""

    input: str
    frames: int = 0
    seconds: float = 0.0
    found: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        rate = f", {self.frames / self.seconds:.1f} frames a second" if self.seconds else ""
        kinds = ", ".join(f"{label} {count}" for label, count in self.found.most_common(8))
        more = f", {len(self.found) - 8} other kinds" if len(self.found) > 8 else ""
        objects = counted(self.found.total(), "object") if self.found else "nothing found"
        return f"{self.input}: {counted(self.frames, 'frame')}, {objects}{f' ({kinds}{more})' if kinds else ''}{rate}"


def detect(
    settings: DetectSettings, out: TextIO, progress: Progress, complain: Complain, tell: Callable[[InputResult], None]
) -> int:
    """Run every input, one after the other; returns the exit code: 0, or that of the first input that failed. Blocks.

    Args:
        out: where `json_to_stdout` writes.
        complain: told of every failure and oddity, one line each, as it happens.
        tell: told of every input that came to its end.

    A failed input does not keep the others from being run, and where none could be, the JSON file stays as it was.
    Pictures that follow each other are run together, those of one size at a time.

    Raises what concerns all of them: UsageError (before anything is written), ConfigError, ModelError,
    BackendUnavailableError, OutputError of the JSON file. Ctrl-C finishes what is written, then raises
    KeyboardInterrupt.
    """
    set_up_logging("WARNING")
    with raised_not_logged():
        return _Detection(settings, out, progress, complain, tell).run()


def _plain(text: str) -> str:
    """A message without the name of the channel in front, which the user never wrote."""
    while text.startswith(f"{CHANNEL}: "):
        text = text.removeprefix(f"{CHANNEL}: ")
    return text


class _Stopped(Exception):
    """Standard output or the JSON file can't be written any more, or Ctrl-C was pressed."""


class _Detection:
    def __init__(
        self,
        settings: DetectSettings,
        out: TextIO,
        progress: Progress,
        complain: Complain,
        tell: Callable[[InputResult], None],
    ) -> None:
        self._settings, self._out, self._progress = settings, out, progress
        self._complain, self._tell = complain, tell
        self._exit_code = 0
        self._was_interrupted = False
        self._fatal: Exception | None = None  # what ends the run before its last input
        self._lines: LineFile | None = None
        config = self._configured(_ANY_INPUT)
        self._inputs = [self._input(written) for written in settings.inputs]
        given = [one for one in self._inputs if isinstance(one, Given)]
        self._outputs = Outputs(settings.json, settings.video, settings.pictures, given)
        self._bundle: Bundle = load_bundle(config.model.bundle)
        self._check(config)

    def _check(self, config: Config) -> None:
        """See that the wishes can be granted, before minutes are spent. Raises UsageError, ConfigError."""
        settings, facts = self._settings, self._bundle.facts
        if settings.frames < 0:
            raise UsageError(f"{settings.frames} frames can't be read", where="--frames", fix="write 0 for all")
        label_indices(config.model.labels or (), facts.labels, "--classes")
        if settings.is_half and "float16" not in (facts.input_dtype, facts.output_dtype):
            raise UsageError(
                f"model {facts.name} is of full precision, and no engine here halves it by itself",
                where="--fp16",
                fix="export the model with half=True and bring it in with `zhc-edge model import`",
            )
        chosen = profile(config.profile)
        for kind in ("mp4",) * bool(settings.video) + ("jpeg",) * bool(settings.pictures):
            chosen.sink(kind)

    def _input(self, written: str) -> Given | ZhcEdgeError:
        """An input, or why it can't be one."""
        try:
            return given_input(written, self._configured)
        except (ConfigError, SourceMissingError) as error:
            return error

    def run(self) -> int:
        try:
            if self._settings.json is not None:
                self._lines = LineFile(self._settings.json)
            with contextlib.suppress(_Stopped):
                for batch in batches(self._inputs):
                    if isinstance(batch, ZhcEdgeError):
                        self._failed(batch)
                    else:
                        self._run_batch(batch)
            if self._fatal is not None:
                raise self._fatal
        except BaseException:
            if self._lines is not None:
                self._lines.abandon()
            raise
        finally:
            self._progress.clear()
        self._finish_lines()
        if self._was_interrupted:
            raise KeyboardInterrupt
        return self._exit_code

    def _finish_lines(self) -> None:
        if self._lines is None:
            return
        if self._lines.lines_written:
            self._lines.finish()
        else:  # nothing was read: an older list is worth more
            self._lines.abandon()

    # -- inputs that are run together --------------------------------------------------------------------------
    def _run_batch(self, batch: Sequence[Given]) -> None:
        results = {given: InputResult(given.shown) for given in batch}
        try:
            for job in jobs_of(batch, self._settings.frames):
                if isinstance(job, ZhcEdgeError):
                    self._failed(job)
                else:
                    self._try_job(job, results)
        finally:
            for result in results.values():
                if result.frames and self._fatal is None:
                    self._progress.clear()
                    self._tell(result)

    def _try_job(self, job: Job, results: Mapping[Given, InputResult]) -> None:
        try:
            self._run_job(job, results)
        except BackendUnavailableError:
            raise  # it will be missing for the next input too
        except ZhcEdgeError as error:
            self._failed(error)
        # The parts of a plan refer to each other in rings and hold the memory of its pictures: it must not wait until
        # Python has made enough small objects to look for such rings.
        gc.collect()

    def _configured(self, written: str) -> Config:
        """The configuration of a run over one input. Raises ConfigError."""
        values = {**self._settings.values, "channels": {CHANNEL: {"source": {"uri": written}}}}
        settings, origins = self._settings, {**_OPTIONS, ("channels", CHANNEL): shown_input(written)}
        text = json.dumps(values)
        return load_text(
            text, "detect", settings.overrides, settings.environ, profiles=PROFILES, origins=origins
        ).config

    def _run_job(self, job: Job, results: Mapping[Given, InputResult]) -> None:
        seen: set[int] = set()
        failure: list[Exception] = []
        labels = self._bundle.facts.labels
        frames = dict.fromkeys(job.given, 0)
        context = RunContext(
            Segment(),
            SystemClock(),
            Lifecycle(),
            images=tuple(picture.path for picture in job.pictures),
            picture_name=self._outputs.picture_name(job),
            is_patient=False,
        )
        self._progress.begin(job.shown, job.total)
        with build_plan(self._with_sinks(job), context, self._bundle) as plan, self._interruptible(plan):

            def take(slot: FrameSlot[object]) -> None:
                if failure:
                    return
                try:
                    self._write(job, slot)
                except (OutputError, OSError) as error:  # OSError: whoever read standard output has gone
                    failure.append(error)
                    plan.stop()
                given = job.given_of(slot.info.sequence)
                found = slot.results[0]["detections"]["label"][: int(slot.results[0]["count"])]
                results[given].found.update(labels[index] for index in found.tolist())
                results[given].frames += 1
                frames[given] += 1
                if job.pictures:
                    seen.add(slot.info.sequence % len(job.pictures))
                self._progress.advance()

            report = plan.warm_up().process(job.frames, take)
        if failure:
            self._fatal = failure[0]
            raise _Stopped
        for given, count in frames.items():
            results[given].seconds += report.seconds * count / max(report.frames, 1)
        self._mention(job, seen, report)
        if self._was_interrupted:
            raise _Stopped

    def _mention(self, job: Job, seen: set[int], report: RunReport) -> None:
        """Tell of pictures that could not be read, which count as failures, and of what was odd otherwise."""
        is_missing = any(index not in seen for index in range(len(job.pictures)))
        if is_missing and not self._was_interrupted and not job.frames:
            self._exit_code = self._exit_code or MediaError.exit_code
        texts = list(dict.fromkeys(report.warnings))
        if report.dropped:
            texts.append(f"{job.shown}: {counted(report.dropped, 'frame')} came too fast for the detector, dropped")
        if report.sink_dropped:
            texts.append(f"{job.shown}: {counted(report.sink_dropped, 'frame')} came too fast to be written, missing")
        for text in texts:
            self._progress.clear()
            self._complain(_plain(text))

    def _write(self, job: Job, slot: FrameSlot[object]) -> None:
        if self._lines is None and not self._settings.json_to_stdout:
            return
        info, image = slot.info, slot.surface.format
        source, frame, time_s = job.source_of(info.sequence)
        if frame < 0:
            frame, time_s = info.sequence, info.media_time_s
        size = (image.width_px, image.height_px)
        line = frame_line(source, frame, time_s, size, slot.results, self._bundle.facts.labels)
        if self._lines is not None:
            self._lines.write(line)
        else:
            self._out.write(line + "\n")

    def _failed(self, error: ZhcEdgeError) -> None:
        self._exit_code = self._exit_code or error.exit_code
        self._progress.clear()
        self._complain(_plain(str(error)))

    def _with_sinks(self, job: Job) -> Config:
        channel = job.config.channels[CHANNEL]
        channel = channel.model_copy(update={"sinks": (*channel.sinks, *self._outputs.sinks(job))})
        return job.config.model_copy(update={"channels": {CHANNEL: channel}})

    # -- Ctrl-C ------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def _interruptible(self, plan: Plan[object]) -> Iterator[None]:
        """Ctrl-C stops the plan, which then finishes its outputs. In a thread other than the main one: nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            self._was_interrupted = True
            plan.stop()

        previous = signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)

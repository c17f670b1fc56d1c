"""Use case `replay`: the rules of a channel over a recording, faster than real time and by the recording's clock.

The recording goes through the same pipeline and event path as a camera's pictures in the daemon, in one process. The
picture's annotated video is drawn in a second step, on the pictures that the pipeline's own sink has written: so
privacy masks are in it, and it works on every profile.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from zhcedge.analytics.settings import wanted_labels
from zhcedge.analytics.tracker import TrackUpdate
from zhcedge.app.event_path import EventPath
from zhcedge.app.foreground import raised_not_logged, stopped_by_interrupt
from zhcedge.app.moments import local_text
from zhcedge.app.progress import Progress
from zhcedge.app.replay_inputs import NOBODY, Recording, ReplaySettings, check_outputs, recording_of
from zhcedge.app.replay_tables import EventTable, ReplayedEvent
from zhcedge.app.wiring import RunContext, build_plan, label_indices
from zhcedge.config.channel import SinkConfig
from zhcedge.config.schema import Config
from zhcedge.core.events import Event
from zhcedge.core.lifecycle import Lifecycle
from zhcedge.core.ports import FrameSlot
from zhcedge.media.probe import frame_count
from zhcedge.media.redrawing import draw_one, redraw
from zhcedge.media.rule_drawing import RuleArtist, ShownTrack
from zhcedge.models.bundle import load_bundle
from zhcedge.pipeline.segment import Segment
from zhcedge.service.clock import SystemClock
from zhcedge.service.log import set_up_logging
from zhcedge.store.history_batch import Batch, Tally, TotalKey

Complain = Callable[[str], None]


@dataclass(frozen=True)
class ReplayReport:
    """What the rules said.

    Attributes:
        recording: what was played, and by which clock.
        frames: that came through.
        recorded_s, seconds: their time in the recording, and how long it took.
        events: in order of their end.
        totals: as the history has them, by hour.
    """

    recording: Recording
    frames: int
    recorded_s: float
    seconds: float
    events: tuple[ReplayedEvent, ...]
    totals: dict[TotalKey, Tally]

    def lines(self) -> list[str]:
        """What was played, for people."""
        recording = self.recording
        rate = f", {self.recorded_s / self.seconds:.1f} times real time" if self.seconds else ""
        return [
            f"{recording.shown}: {self.frames} frames, {self.recorded_s:.1f} s{rate}",
            f"its clock began at {local_text(recording.start_ns)}, which is {recording.start_from}",
        ]


def replay(settings: ReplaySettings, progress: Progress, complain: Complain) -> ReplayReport:
    """Play the recording to its end. Blocks.

    Args:
        complain: told of every oddity, one line each, as it happens.

    Raises UsageError, ConfigError, SourceMissingError, MediaError, ModelError, BackendUnavailableError, OutputError,
    PipelineError, KeyboardInterrupt; then an output is whole or not there.
    """
    set_up_logging("WARNING")
    recording = recording_of(settings)
    check_outputs(settings, recording)
    if recording.start_from == NOBODY:
        complain("neither --start nor the file says when the recording began: its clock begins now")
    with ExitStack() as stack:
        stack.enter_context(raised_not_logged())
        stack.callback(progress.clear)
        pictures = _video_folder(settings, stack)
        table = stack.enter_context(EventTable(settings.table)) if settings.table is not None else None
        run = _Run(recording, pictures, settings.frames)
        report = run.play(progress, complain)
        for event in report.events:
            if table is not None:
                table.write(event)
        if pictures is not None:
            run.draw(pictures, settings, progress)
        if table is not None:
            table.finish()
        return report


def _video_folder(settings: ReplaySettings, stack: ExitStack) -> Path | None:
    """The file that the pipeline's sink shall write beside the output, for as long as the command runs."""
    target = settings.out or settings.zones
    if target is None:
        return None
    folder = tempfile.TemporaryDirectory(prefix=".zhc-edge-replay-", dir=target.absolute().parent)
    return Path(stack.enter_context(folder)) / "pictures.mp4"


@dataclass
class _Run:
    """One recording on its way through pipeline and rules.

    Attributes:
        pictures: video that the pipeline shall write; None for none.
        limit: frames to read, 0 for all.
    """

    recording: Recording
    pictures: Path | None
    limit: int
    _batch: Batch = field(default_factory=Batch)
    _loitered: dict[str, dict[str, None]] = field(default_factory=dict)  # zones by event, in order
    _ended: list[ReplayedEvent] = field(default_factory=list)
    _size_px: tuple[int, int] = (0, 0)
    _media_s: float = 0.0
    _sequence: int = 0  # of the record that is worked on
    _frames: list[int] = field(default_factory=list)  # sequence numbers, in order of the video's pictures
    _tracks: dict[int, tuple[ShownTrack, ...]] = field(default_factory=dict)  # by sequence number

    def play(self, progress: Progress, complain: Complain) -> ReplayReport:
        recording, bundle = self.recording, load_bundle(self.recording.config.model.bundle)
        for key, labels in wanted_labels(recording.config):
            label_indices(labels, bundle.facts.labels, ".".join(key))
        segment, clock = Segment(), SystemClock()
        path = EventPath(recording.config, bundle.facts, segment.control_recorder, clock, self._take)
        if self.pictures is not None:
            path.on_tracks = self._note_tracks
        context = RunContext(segment, clock, Lifecycle(), is_patient=False)
        total = frame_count(recording.path)
        progress.begin(recording.shown, min(total, self.limit) or total)
        started_s = time.monotonic()
        with build_plan(self._with_sink(), context, bundle) as plan, stopped_by_interrupt(plan.stop):

            def note(slot: FrameSlot[object]) -> None:
                # The frame before this one has got its record by now; so the ring never fills up.
                self._work_off(segment, path)
                self._frames.append(slot.info.sequence)
                progress.advance()

            report = plan.warm_up().process(self.limit, note)
        self._work_off(segment, path)
        for text in dict.fromkeys(report.warnings):
            progress.clear()
            complain(text.removeprefix(f"{recording.channel}: "))
        return ReplayReport(
            recording,
            report.frames,
            self._media_s,
            time.monotonic() - started_s,
            tuple(self._ended),
            self._batch.totals,
        )

    def draw(self, pictures: Path, settings: ReplaySettings, progress: Progress) -> None:
        """Draw what was asked for on the pictures that the pipeline has written."""
        artist = RuleArtist(self.recording.config.channels[self.recording.channel], self._size_px)
        tracks = self._tracks_by_picture()

        def shown(number: int) -> tuple[ShownTrack, ...]:
            return tracks[number] if number < len(tracks) else ()

        if settings.out is not None:
            progress.begin("drawing", len(self._frames))
            redraw(pictures, artist, shown, settings.out, progress.advance)
        if settings.zones is not None:
            draw_one(pictures, artist, shown, len(self._frames) // 2, settings.zones)

    def _with_sink(self) -> Config:
        recording = self.recording
        if self.pictures is None:
            return recording.config
        # Unchecked: a configuration's paths are text, while a folder may have any name.
        sink = SinkConfig.model_construct(kind="mp4", path=self.pictures)
        channel = recording.config.channels[recording.channel].model_copy(update={"sinks": (sink,)})
        return recording.config.model_copy(update={"channels": {recording.channel: channel}})

    def _work_off(self, segment: Segment, path: EventPath) -> None:
        for record in segment.ring.drain():
            media_ns = max(round(record.info.media_time_s * 1e9), 0)
            info = record.info._replace(
                capture_time_ns=self.recording.start_ns + media_ns, read_time_ns=media_ns, clock_synced=True
            )
            self._media_s, self._size_px = media_ns / 1e9, (record.width_px, record.height_px)
            self._sequence = info.sequence
            path.handle(replace(record, info=info))

    def _note_tracks(self, update: TrackUpdate) -> None:
        shown = tuple(ShownTrack(track.id, track.box, track.is_stationary) for track in update.seen)
        self._tracks[self._sequence] = shown

    def _tracks_by_picture(self) -> list[tuple[ShownTrack, ...]]:
        """A picture that was not detected in shows the tracks of the one before it."""
        tracks: list[tuple[ShownTrack, ...]] = []
        for sequence in self._frames:
            tracks.append(self._tracks.get(sequence, tracks[-1] if tracks else ()))
        return tracks

    def _take(self, events: Sequence[Event]) -> None:
        for event in events:
            self._batch.note(event, "")
            loitered = self._loitered.setdefault(event.after.id, {})
            loitered.update(dict.fromkeys(event.after.loitering))
            if event.end_reason is not None:
                past = self._batch.rows.pop(("", event.after.id))
                del self._loitered[event.after.id]
                self._ended.append(ReplayedEvent(past, tuple(loitered), self.recording.start_ns))

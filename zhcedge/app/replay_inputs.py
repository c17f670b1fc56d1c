"""What `zhc-edge replay` is given: a recording, the channel whose rules it is played to, and where results go."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zhcedge.app.channels import clip_path
from zhcedge.app.check import load_configuration
from zhcedge.app.moments import moment_ns
from zhcedge.config.channel import ChannelConfig, ClipsConfig, SourceConfig
from zhcedge.config.schema import Config
from zhcedge.core.errors import SourceMissingError, UsageError
from zhcedge.core.files import check_folder
from zhcedge.core.printing import utf8_text
from zhcedge.media.recording_time import recorded_at_ns
from zhcedge.service.clock import SystemClock

_VIDEOS = (".mp4", ".m4v", ".mov")
_TABLES = (".csv", ".jsonl")
_PICTURES = (".png",)
NOBODY = "now"


@dataclass(frozen=True)
class ReplaySettings:
    """What was asked for, as written.

    Attributes:
        clip: path of a recording, or clip:NAME.
        config: the daemon's configuration.
        channel: whose rules; empty where there is one only.
        start: when the recording began, see moments.moment_ns; empty for what the file says.
        out: annotated video. table: of events, CSV or JSON Lines. zones: picture with zones and lines.
        frames: to read, 0 for all.
        overrides, environ: as for every command.
    """

    clip: str
    config: Path
    channel: str = ""
    start: str = ""
    out: Path | None = None
    table: Path | None = None
    zones: Path | None = None
    frames: int = 0
    overrides: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Recording:
    """A recording, ready to be played.

    Attributes:
        shown: for people.
        path: of the file.
        config: of the run: one channel, which plays the file and writes nothing.
        channel: its name.
        start_ns: wall clock of the first picture.
        start_from: who says so, for people; NOBODY where it is the present time for want of a better one.
    """

    shown: str
    path: Path
    config: Config
    channel: str
    start_ns: int
    start_from: str


def recording_of(settings: ReplaySettings) -> Recording:
    """Look at what was asked for, before anything is run.

    Raises ConfigError, UsageError, and SourceMissingError for a recording that is not there.
    """
    if settings.frames < 0:
        raise UsageError(f"{settings.frames} frames can't be read", where="--frames", fix="write 0 for all")
    loaded = load_configuration(settings.config, settings.overrides, settings.environ).config
    name = _channel_name(settings.channel, loaded)
    channel = loaded.channels[name]
    source = _source(settings.clip, channel.source)
    path = clip_path(source.clip) if source.clip is not None else Path(source.uri)
    channel = channel.model_copy(update={"source": source, "sinks": (), "clips": ClipsConfig()})
    config = loaded.model_copy(update={"channels": {name: channel}, "events": _events(loaded, channel)})
    now_ns = SystemClock().wall_ns()
    found_ns = moment_ns(settings.start, now_ns, "--start") if settings.start else recorded_at_ns(path)
    start_from = "what --start says" if settings.start else "what the file says" if found_ns is not None else NOBODY
    return Recording(utf8_text(settings.clip), path, config, name, now_ns if found_ns is None else found_ns, start_from)


def check_outputs(settings: ReplaySettings, recording: Recording) -> None:
    """See that the outputs could be written, apart from each other and from the recording.

    Raises UsageError or OutputError.
    """
    taken = {os.path.realpath(recording.path): "the recording", os.path.realpath(settings.config): "the configuration"}
    for option, path, suffixes in (
        ("--out", settings.out, _VIDEOS),
        ("--table", settings.table, _TABLES),
        ("--zones", settings.zones, _PICTURES),
    ):
        if path is None:
            continue
        if path.suffix.lower() not in suffixes:
            fix = f"name a file that ends in {' or '.join(suffixes)}"
            raise UsageError(f"can't be written as {path.suffix or 'a file without a suffix'}", where=option, fix=fix)
        first = taken.setdefault(os.path.realpath(path), option)
        if first != option:
            raise UsageError(f"would overwrite what is also {first}", where=option, fix="write to another place")
        check_folder(path, f"the output of {option}")


def _channel_name(wanted: str, config: Config) -> str:
    names = tuple(config.channels)
    if not wanted and len(names) == 1:
        return names[0]
    if wanted not in names:
        what = f"there is no channel {wanted!r}" if wanted else "there are several channels"
        raise UsageError(what, where="--channel", fix=f"name one of {', '.join(names)}")
    return wanted


def _source(written: str, source: SourceConfig) -> SourceConfig:
    """The channel's source with a file in place of the camera; what is left of it is the rate of frames to keep."""
    uri = written
    if os.path.lexists(written):
        uri = str(Path(written).absolute())  # unchecked: a configuration takes no name that is no text
    found = SourceConfig.model_construct(uri=uri, fps=source.fps)
    if found.kind == "file":
        if found.clip is None and not os.path.lexists(uri):
            raise SourceMissingError("no such file", where=utf8_text(written), fix="check the path")
        return found
    raise UsageError("is no recording", where=utf8_text(written), fix="name a video file, or clip:walkers")


def _events(config: Config, channel: ChannelConfig) -> object:
    """Without zones of other channels, which are not there in this run."""
    required = tuple(name for name in config.events.required_zones if name in channel.zones)
    return config.events.model_copy(update={"required_zones": required})

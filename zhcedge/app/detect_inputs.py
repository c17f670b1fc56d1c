"""What `zhc-edge detect` was given: inputs, and the jobs that they make, a job being what one plan can run."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from zhcedge.app.channels import clip_path
from zhcedge.config.channel import SourceConfig
from zhcedge.config.schema import Config
from zhcedge.core.addresses import without_password
from zhcedge.core.errors import MediaError, SourceMissingError, ZhcEdgeError
from zhcedge.core.printing import utf8_text
from zhcedge.media.probe import frame_count

CHANNEL = "input"
"""Name of the one channel that every job has."""


@dataclass(frozen=True, eq=False)
class Given:
    """One input.

    Attributes:
        shown: what the user wrote, without a password; "source" of its results.
        config: of a run over it alone.
    """

    shown: str
    config: Config

    @property
    def source(self) -> SourceConfig:
        return self.config.channels[CHANNEL].source

    @property
    def is_pictures(self) -> bool:
        return self.source.kind == "image"

    @property
    def path(self) -> Path | None:
        """The file or folder that it is; None for a stream, a camera or a pattern. Raises SourceMissingError."""
        source = self.source
        if source.clip is not None:
            return clip_path(source.clip)
        return Path(source.uri) if source.is_path else None


@dataclass(frozen=True)
class Picture:
    """One picture, and the input that it belongs to."""

    path: Path
    given: Given


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes:
        config: of the run.
        shown: what it is, for people.
        given: the inputs that it serves.
        pictures: of one size; empty for everything else.
        total: frames that it will have, 0 if nobody knows.
        frames: to read, 0 for all.
    """

    config: Config
    shown: str
    given: tuple[Given, ...]
    pictures: tuple[Picture, ...] = ()
    total: int = 0
    frames: int = 0

    @property
    def stem(self) -> str:
        """What its output files are called: the stem of its path, or its address without what a name can't hold."""
        name = self.shown if "://" in self.shown else Path(self.shown).stem
        return re.sub(r"[^\w.-]+", "-", name.rpartition("://")[2]).strip("-.")[:100] or "input"

    def given_of(self, sequence: int) -> Given:
        """The input that a frame belongs to."""
        return self.pictures[sequence % len(self.pictures)].given if self.pictures else self.given[0]

    def source_of(self, sequence: int) -> tuple[str, int, float]:
        """Name, number and time of a frame for its results. The number is -1 where the frame's own facts count.

        A picture is a source of its own, with one frame at time 0.
        """
        if not self.pictures:
            return self.shown, -1, -1.0
        return str(self.pictures[sequence % len(self.pictures)].path), 0, 0.0


def shown_input(written: str) -> str:
    """An input for people and results: without a password, and as text that can be encoded. A file's name stays."""
    return utf8_text(written if os.path.lexists(written) else without_password(written))


def given_input(written: str, configured: Callable[[str], Config]) -> Given:
    """An input with the configuration of a run over it.

    Args:
        configured: makes it for an address. Raises ConfigError.

    Raises ConfigError, and SourceMissingError for a file that is not there.
    """
    shown = shown_input(written)
    missing = SourceMissingError("no such file or folder", where=shown, fix="check the path")
    if utf8_text(written) == written:
        given = Given(shown, configured(written))
    elif os.path.lexists(written):
        # A configuration is text, and takes no such name: it is put in behind its back.
        given = Given(shown, _with_source(configured(f"./{shown}"), uri=str(Path(written).absolute())))
    else:
        raise missing
    if given.path is not None and not os.path.lexists(given.path):
        raise missing
    return given


def batches(inputs: Sequence[Given | ZhcEdgeError]) -> Iterator[tuple[Given, ...] | ZhcEdgeError]:
    """The inputs in order, those together that can be run together: pictures that follow each other."""
    for are_pictures, group in itertools.groupby(inputs, _can_be_joined):
        if are_pictures:
            yield tuple(one for one in group if isinstance(one, Given))
        else:
            for one in group:
                yield (one,) if isinstance(one, Given) else one


def _can_be_joined(one: Given | ZhcEdgeError) -> bool:
    return isinstance(one, Given) and one.is_pictures and not one.source.loop


def jobs_of(batch: Sequence[Given], frames: int) -> Iterator[Job | ZhcEdgeError]:
    """The jobs that inputs of one batch make, and an error for each input or picture that can't be part of one.

    Pictures are sorted by size, whatever input they come from: a plan's slots have one size.

    Args:
        frames: to read of each input, 0 for all.
    """
    if batch[0].is_pictures:
        yield from _picture_jobs(batch, frames)
        return
    (given,) = batch
    try:
        total = _frames(given)
    except SourceMissingError as error:
        yield error
    else:
        yield Job(given.config, given.shown, (given,), total=min(total, frames) or total, frames=frames)


def _picture_jobs(batch: Sequence[Given], frames: int) -> Iterator[Job | ZhcEdgeError]:
    from zhcedge.media.images import image_size  # Pillow is loaded for pictures only

    by_size: dict[tuple[int, int], list[Picture]] = {}
    for given in batch:
        count = 0
        try:
            paths = _paths(given)
        except (SourceMissingError, MediaError) as error:
            yield error
            continue
        for path in paths:
            if frames and count == frames:
                break
            try:
                by_size.setdefault(image_size(path, str(path)), []).append(Picture(path, given))
                count += 1
            except (SourceMissingError, MediaError) as error:
                yield error
    for pictures in by_size.values():
        owners = tuple(dict.fromkeys(picture.given for picture in pictures))
        shown = owners[0].shown if len(owners) == 1 else f"{len(pictures)} pictures"
        is_looped = owners[0].source.loop
        yield Job(
            _of_pictures(owners[0].config, shown),
            shown,
            owners,
            tuple(pictures),
            0 if is_looped else len(pictures),
            frames if is_looped else 0,
        )


def _paths(given: Given) -> tuple[Path, ...]:
    """The pictures of an input, from its start on. Raises SourceMissingError or MediaError."""
    from zhcedge.backends.cpu.image_source import DEFAULT_FPS
    from zhcedge.media.images import list_images

    source = given.source
    paths = list_images(Path(source.uri), given.shown)
    first = int(source.start_s * (source.fps or DEFAULT_FPS))
    if first >= len(paths):
        raise MediaError("it is over before the start that was asked for", where=given.shown, fix="lower start_s")
    return paths[first:]


def _of_pictures(config: Config, shown: str) -> Config:
    """For a source that is handed its pictures: `shown` is its name in messages, and its start lies behind it."""
    return _with_source(config, uri=shown, start_s=0.0)


def _with_source(config: Config, **changes: object) -> Config:
    channel = config.channels[CHANNEL]
    source = channel.source.model_copy(update=changes)
    return config.model_copy(update={"channels": {CHANNEL: channel.model_copy(update={"source": source})}})


def _frames(given: Given) -> int:
    source, path = given.source, given.path
    if source.kind != "file" or path is None or source.loop or source.fps or source.start_s:
        return 0
    return frame_count(path)

"""Where `zhc-edge detect` writes: no two outputs to one place, and none over an input."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from zhcedge.app.detect_inputs import CHANNEL, Given, Job
from zhcedge.config.channel import SinkConfig
from zhcedge.core.errors import MediaError, SourceMissingError, UsageError
from zhcedge.core.files import check_folder

_VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov")
"""Names that the MP4 format goes by."""

_Identity = tuple[int, int]


class Outputs:
    """The outputs of one command.

    Args:
        json, video, pictures: as written; None for none.
        given: the inputs; only looked at, not opened.

    Raises UsageError for outputs that can't be, OutputError for a file that can't be written; nothing is written then.
    """

    def __init__(self, json: Path | None, video: Path | None, pictures: Path | None, given: Sequence[Given]) -> None:
        self._video, self._pictures = video, pictures
        self._is_video_file = video is not None and not video.is_dir() and bool(video.suffix)
        self._names: set[str] = set()  # of outputs, so that none overwrites another
        if video is not None:
            self._check_video(video, given)
        if json is not None:
            check_folder(json, "the list of detections")
        _check_apart(self._targets(json, given), given)

    def sinks(self, job: Job) -> tuple[SinkConfig, ...]:
        """What is written of a job, beside what its configuration says."""
        sinks = list[SinkConfig]()
        if self._video is not None:
            path = self._video if self._is_video_file else self._video / self._unique(job.stem, ".mp4")
            sinks.append(_sink("mp4", path))
        if self._pictures is not None:
            sinks.append(_sink("jpeg", self._pictures))
        return tuple(sinks)

    def picture_name(self, job: Job) -> Callable[[int], str]:
        """The file name of an annotated picture by its frame's sequence number."""
        if job.pictures:
            names = [self._unique(picture.path.stem, ".jpg") for picture in job.pictures]
            return lambda number: names[number % len(names)]
        stem = self._unique(job.stem, "")
        return lambda number: f"{stem}-{number:08}.jpg"

    def _unique(self, stem: str, suffix: str) -> str:
        """A file name that no other output of this run has."""
        name, number = stem + suffix, 1
        while name in self._names:
            number += 1
            name = f"{stem}-{number}{suffix}"
        self._names.add(name)
        return name

    def _check_video(self, video: Path, given: Sequence[Given]) -> None:
        for one in given:
            if one.is_pictures:
                fix = "give them to a command without --video" if self._pictures else "write them with --images"
                raise UsageError("pictures don't make a video", where=one.shown, fix=fix)
        if self._is_video_file and video.suffix.lower() not in _VIDEO_SUFFIXES:
            raise UsageError(
                f"a video can't be written as {video.suffix}",
                where="--video",
                fix=f"name a folder or a file that ends in {' or '.join(_VIDEO_SUFFIXES)}",
            )
        if self._is_video_file and len(given) > 1:
            raise UsageError("several inputs don't fit into one video", where="--video", fix="name a folder")

    def _targets(self, json: Path | None, given: Sequence[Given]) -> Iterator[_Target]:
        if json is not None:
            yield _Target("--json", json)
        if self._video is not None:
            yield _Target("--video", self._video, "" if self._is_video_file else ".mp4")
        if self._pictures is not None:
            yield _Target("--images", self._pictures, ".jpg")
        for one in given[:1]:  # the configuration of all of them is the same but for the input
            for index, sink in enumerate(one.config.channels[CHANNEL].sinks):
                if sink.path is not None:
                    suffix = ".jpg" if sink.kind == "jpeg" else ""
                    yield _Target(f"channels.{CHANNEL}.sinks.{index}", one.config.output_dir / sink.path, suffix)


@dataclass(frozen=True)
class _Target:
    """One output.

    Attributes:
        where: the option that names it.
        suffix: of the files that are written into a folder; empty for a file.
    """

    where: str
    path: Path
    suffix: str = ""

    def files(self) -> Iterator[Path]:
        """What it may replace or add to: itself, and in a folder what is called as its files are."""
        yield self.path
        if self.suffix and self.path.is_dir():
            with contextlib.suppress(OSError):  # one that can't be listed can't be written to either, or is empty
                yield from (entry for entry in self.path.iterdir() if entry.suffix.lower() == self.suffix)


def _sink(kind: Literal["mp4", "jpeg"], path: Path) -> SinkConfig:
    """Unchecked: a configuration's paths are text, while a folder on the command line may have any name."""
    return SinkConfig.model_construct(kind=kind, path=path.absolute())


def _check_apart(targets: Iterator[_Target], given: Sequence[Given]) -> None:
    """Raise UsageError where an output is an input, by whatever name or link, or another output."""
    inputs, taken = _identities(given), dict[str, str]()
    for target in targets:
        for path in target.files():
            identity = _identity(path)
            if identity in inputs:
                what = (
                    "would overwrite the input" if path == target.path else "would write into the folder of the input"
                )
                raise UsageError(f"{what} {inputs[identity]}", where=target.where, fix="write to another place")
        first = taken.setdefault(os.path.realpath(target.path), target.where)
        if first != target.where:
            raise UsageError(f"writes to the same place as {first}", where=target.where, fix="write to another one")


def _identities(given: Sequence[Given]) -> dict[_Identity | None, str]:
    """What is read, files in folders and the folders themselves, by name."""
    found: dict[_Identity | None, str] = {}
    for one in given:
        for path in _paths(one):
            if (identity := _identity(path)) is not None:
                found.setdefault(identity, one.shown if path == one.path else str(path))
    return found


def _paths(one: Given) -> Sequence[Path]:
    from zhcedge.media.images import list_images  # Pillow is loaded for pictures only

    try:
        if one.path is None:
            return ()
        return (one.path, *list_images(one.path, one.shown)) if one.is_pictures else (one.path,)
    except (SourceMissingError, MediaError):  # said when its turn comes; what is not there can't be overwritten
        return ()


def _identity(path: Path) -> _Identity | None:
    try:
        status = path.stat()
    except (OSError, ValueError):  # ValueError: a NUL byte in the name
        return None
    return status.st_dev, status.st_ino

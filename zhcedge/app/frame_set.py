"""Chosen frames of a video, or pictures of a folder, one after the other in a slot of the cpu device."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from zhcedge.backends.registry import DEVICES, source_factory
from zhcedge.core.errors import MediaError, PipelineError
from zhcedge.core.ports import Device, EndOfStream, FrameSlot, Idle, Lease, Source
from zhcedge.core.requests import DeviceSettings, SourceRequest
from zhcedge.core.types import ImageFormat, PixelFormat, Surface
from zhcedge.media.probe import frame_count
from zhcedge.profiles import profile
from zhcedge.service.clock import SystemClock

Complain = Callable[[str], None]

_PATIENCE_S = 300.0
_READ_S = 1.0


@dataclass(frozen=True)
class Frame:
    """One frame.

    Attributes:
        number: its place in the set, as long as the set was whole.
        name: for people.
        slot: with the picture in it; overwritten when the next one is asked for.
    """

    number: int
    name: str
    slot: FrameSlot[object]

    @property
    def digest(self) -> str:
        """sha256 of the decoded picture: its size, then its NV12 planes without padding."""
        return surface_digest(self.slot.surface)


@dataclass(frozen=True)
class _Run:
    """What one source gives: a video, or pictures of one size. `numbers` grow; they count from the set's beginning."""

    path: Path
    pictures: tuple[Path, ...]
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class FrameSet:
    """Frames that can be gone through more than once, always in the same order."""

    runs: tuple[_Run, ...]

    def __len__(self) -> int:
        """How many there are; a video's header may promise more than it has."""
        return sum(len(run.numbers) for run in self.runs)

    def only(self, keep: Callable[[int], bool]) -> FrameSet:
        """Those whose number is kept."""
        runs = []
        for run in self.runs:
            offsets = [offset for offset, number in enumerate(run.numbers) if keep(number)]
            if offsets:
                pictures = tuple(run.pictures[offset] for offset in offsets) if run.pictures else ()
                runs.append(_Run(run.path, pictures, tuple(run.numbers[offset] for offset in offsets)))
        return FrameSet(tuple(runs))

    def spread(self, count: int, phase: float = 0.5) -> FrameSet:
        """At most so many of them, evenly spread; 0 for all.

        Args:
            phase: 0 <= phase < 1, how far into its share of the set each one lies. With another phase the same count
                gives other frames, where the set has enough of them.
        """
        total = len(self)
        if not count or count >= total:
            return self
        numbers = sorted(number for run in self.runs for number in run.numbers)
        wanted = {numbers[int((index + phase) * total / count)] for index in range(count)}
        return self.only(wanted.__contains__)

    def frames(self, device: Device[object], complain: Complain = lambda line: None) -> Iterator[Frame]:
        """Go through the frames, in memory of a cpu device.

        Args:
            complain: told of what was odd, such as a picture that can't be read and is left out.

        Raises SourceMissingError or MediaError for what can't be read at all.
        """
        for run in self.runs:
            yield from _frames(run, device, complain)


def frames_of_video(path: Path) -> FrameSet:
    """Every frame of a video. One whose header says no length is gone through once.

    Raises BackendUnavailableError without PyAV; a file that is none is found when it is read.
    """
    return FrameSet((_Run(path, (), tuple(range(frame_count(path) or _counted(path)))),))


def frames_of_pictures(paths: tuple[Path, ...]) -> FrameSet:
    """Pictures, those of one size together. Raises SourceMissingError or MediaError for one that is none."""
    from zhcedge.media.images import image_groups

    numbers = {path: number for number, path in enumerate(paths)}
    return FrameSet(
        tuple(
            _Run(group[0].parent, tuple(group), tuple(numbers[path] for path in group))
            for _, group in image_groups(paths)
        )
    )


def surface_digest(surface: Surface[object]) -> str:
    """sha256 of an NV12 surface in host memory: its size, then its planes without padding."""
    from zhcedge.backends.cpu.arena import CpuBuffer

    digest = hashlib.sha256(f"{surface.format.width_px}x{surface.format.height_px}".encode())
    for plane in cast("Surface[CpuBuffer]", surface).planes:
        for row in plane.buffer[: plane.rows, : plane.width_bytes]:
            digest.update(row.data)
    return digest.hexdigest()


def _counted(path: Path) -> int:
    """Frames of a video, by decoding it."""
    device = DEVICES.get("cpu")(DeviceSettings())
    try:
        return sum(1 for _ in _leases(_Run(path, (), ()), device, lambda line: None))
    finally:
        device.close()


def _source(run: _Run, device: Device[object]) -> Source[object]:
    kind = profile("cpu").sources["image" if run.pictures else "file"]
    request = SourceRequest(
        0, "frames", str(run.path), is_realtime=False, is_looped=False, clock=SystemClock(), paths=run.pictures
    )
    return source_factory(kind)(request, device)


def _leases(
    run: _Run, device: Device[object], complain: Complain
) -> Generator[tuple[ImageFormat, Lease[object]], None, None]:
    """Every frame, with the format that all have; released when the next is asked for."""
    source = _source(run, device)
    try:
        image = source.open().format
        deadline = time.monotonic() + _PATIENCE_S
        while not isinstance(lease := source.read(_READ_S), EndOfStream):
            if not isinstance(lease, Idle):
                yield image, lease
                lease.release()
                deadline = time.monotonic() + _PATIENCE_S
            elif time.monotonic() > deadline:
                raise MediaError(f"gives no frame for {_PATIENCE_S:.0f} s", where=str(run.path))
        for warning in source.warnings:
            complain(warning)
    finally:
        source.close()


def _frames(run: _Run, device: Device[object], complain: Complain) -> Iterator[Frame]:
    # Pictures are all wanted; of a video those with these numbers.
    wanted = dict(enumerate(run.numbers)) if run.pictures else {number: number for number in run.numbers}
    last, owner = max(wanted), f"frames of {run.path}"
    slot: FrameSlot[object] | None = None
    leases = _leases(run, device, complain)
    try:
        for given, lease in leases:
            if slot is None:
                image = replace(given, pixel_format=PixelFormat.NV12)
                slot = FrameSlot(0, 0, device.arena.surface(image, owner), device.arena.results(owner))
                device.admit(slot)
            sequence = lease.info.sequence
            if sequence in wanted:
                if not device.ingest(lease.surface, slot, lease.ready).wait(_PATIENCE_S):
                    raise PipelineError(f"a frame is not copied after {_PATIENCE_S:.0f} s", where=str(run.path))
                name = str(run.pictures[sequence]) if run.pictures else f"{run.path} frame {sequence}"
                yield Frame(wanted[sequence], name, slot)
            if sequence >= last and not run.pictures:
                return
    finally:
        leases.close()
        device.arena.release(owner)

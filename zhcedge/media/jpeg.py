"""JPEG pictures from slots in host memory, and a folder full of them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from zhcedge.core.errors import OutputError, PhaseError
from zhcedge.core.ports import FrameSlot
from zhcedge.core.requests import SinkRequest, numbered_picture
from zhcedge.core.types import B, ColorMatrix, ImageFormat, Surface
from zhcedge.media._vendor import av, require_av
from zhcedge.media.host_frame import HostFrame, Pixels
from zhcedge.media.mux import output_error
from zhcedge.media.sink_thread import GiveBack, ThreadedSink

if TYPE_CHECKING:
    from av.filter.context import FilterContext
    from av.filter.graph import Graph
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame

_QSCALE_OF_TABLE = 17.0
"""FFmpeg's quantiser scale at which its table (MPEG-1 intra, 27 on average, scale / 8) is as coarse as JPEG's own
(ITU-T T.81, annex K, luminance: 58 on average), which quality 50 means."""


_NUMBERED = re.compile(r"(\d{8,18})\.jpg", re.ASCII)
_LEFT_BEHIND = re.compile(r"\..*\.jpg\.part", re.DOTALL)


class PictureEncoder(Protocol[B]):
    """Makes a JPEG of a surface. The sink's thread."""

    def encode(self, surface: Surface[B]) -> memoryview:
        """The picture, valid until the next call. Raises OutputError or PipelineError."""
        ...


class JpegEncoder:
    """Encodes NV12 surfaces of one format in host memory. Owned by one thread.

    JPEG is BT.601 of full range (JFIF 1.02); the conversion's buffers are libavfilter's own, used again and again.
    Raises OutputError when FFmpeg can't.
    """

    def __init__(self, format: ImageFormat, quality: int, where: str) -> None:
        require_av()
        self._where = where
        self._picture = HostFrame(format, is_even=False)
        self._count = 0
        try:
            self._graph = _to_full_range(format)
            self._codec = _open_codec(format, quality)
        except (ValueError, av.error.FFmpegError) as error:
            raise OutputError(f"no JPEG of {format.width_px}x{format.height_px}: {error}", where=where) from error

    def encode(self, surface: Surface[Pixels]) -> memoryview:
        """The JPEG of a surface, valid until the next call. Raises OutputError."""
        self._picture.fill(surface, self._where)
        _, entry, exit_ = self._graph
        try:
            self._picture.frame.pts = self._count
            entry.push(self._picture.frame)
            (packet,) = self._codec.encode(cast("VideoFrame", exit_.pull()))
        except (ValueError, av.error.FFmpegError) as error:
            raise OutputError(f"no JPEG of a frame: {error}", where=self._where) from error
        self._count += 1
        return memoryview(packet)


class PictureFolder:
    """A folder that gets one file a picture, each whole or not there at all. Owned by one thread after `open`.

    What a killed process left of a picture is removed by the next one that opens the folder; a lock keeps it from what
    another process is writing there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_ours = False
        self.bytes_written = 0
        self.pictures_written = 0
        self.next_number = 0
        """After `open`: one more than the highest number that names a picture, 0 without any."""

    def open(self) -> None:
        """Make the folder where it is missing. Raises OutputError and then leaves nothing behind."""
        try:
            self._is_ours = not self._path.exists()
            self._path.mkdir(parents=True, exist_ok=True)
            if not os.access(self._path, os.W_OK | os.X_OK) or not stat.S_ISDIR(self._path.stat().st_mode):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            self._look_around()
        except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
            raise output_error(error, self._path) from error

    def _look_around(self) -> None:
        for entry in self._path.iterdir():
            if numbered := _NUMBERED.fullmatch(entry.name):
                self.next_number = max(self.next_number, int(numbered[1]) + 1)
            elif _LEFT_BEHIND.fullmatch(entry.name):
                with contextlib.suppress(OSError):  # another process is writing it, or has just done so
                    _remove_if_abandoned(entry)

    def write(self, name: str, picture: memoryview) -> None:
        """Add a file, replacing an older one of that name. Raises OutputError."""
        temporary = self._path / f".{name}.part"
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                written = 0
                while written < len(picture):
                    written += os.write(descriptor, picture[written:])
                temporary.replace(self._path / name)
            finally:
                os.close(descriptor)
        except OSError as error:
            with contextlib.suppress(OSError):  # the folder itself may have gone
                temporary.unlink(missing_ok=True)
            raise output_error(error, self._path / name) from error
        self.bytes_written += len(picture)
        self.pictures_written += 1

    def close(self) -> None:
        """Remove the folder again where it was made here and holds nothing."""
        if self._is_ours:
            with contextlib.suppress(OSError):
                self._path.rmdir()


def _remove_if_abandoned(path: Path) -> None:
    """Raises OSError when it can't be removed, BlockingIOError when somebody is writing it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    finally:
        os.close(descriptor)


class FolderSink(ThreadedSink[B]):
    """The half of a picture sink that every encoder shares: thread, bounded queue, folder, failures, counting.

    `open` and `close` belong to one thread, `submit` to the collector. A sink adds `open`, which ends with `_start`,
    and its hops. A slot is given back once it is encoded. Pictures that are whole stay, however the run ends.

    Pictures are called what `request.picture_name` says, replacing older ones of the same name. Without it they are
    numbered, 00000000.jpg and so on: by their frame's sequence number, counted on from the highest number that is in
    the folder, so that a restarted run overwrites nothing.
    """

    def __init__(self, request: SinkRequest) -> None:
        super().__init__(request, str(request.path))
        self._picture_name = request.picture_name
        self._name: Callable[[int], str] = numbered_picture
        self._folder = PictureFolder(request.path)
        self._encoder: PictureEncoder[B] | None = None

    @property
    def frames_written(self) -> int:
        """Pictures written so far."""
        return self._folder.pictures_written

    @property
    def _average_bytes(self) -> int:
        """Compressed bytes a picture so far."""
        return self._folder.bytes_written // max(self._folder.pictures_written, 1)

    def _start(self, encoder: PictureEncoder[B]) -> None:
        """Make the folder and start the thread. Raises OutputError."""
        self._folder.open()
        self._name = self._picture_name or _numbered_from(self._folder.next_number)
        self._encoder = encoder
        self._thread.start()

    def close(self, complete: bool) -> None:
        """Write what waits, or leave it out. Raises OutputError when one could not be written. Nothing twice."""
        if not self._thread.is_running:
            return
        self._thread.stop(complete)
        self._folder.close()
        if complete:
            self._thread.raise_failure()

    def _write(self, slot: FrameSlot[B], give_back: GiveBack[B]) -> None:
        number = slot.info.sequence
        try:
            if self._encoder is None:
                raise PhaseError("the sink is closed", where=self._where)
            picture = self._encoder.encode(slot.surface)
        finally:
            give_back(slot)
        self._folder.write(self._name(number), picture)


def _numbered_from(first: int) -> Callable[[int], str]:
    return lambda sequence: numbered_picture(first + sequence)


def _qscale(quality: int) -> float:
    """FFmpeg's quantiser scale for a JPEG quality, by the scaling that libjpeg defines (jcparam.c)."""
    percent = 5000 / quality if quality < 50 else 200 - 2 * quality
    return min(max(_QSCALE_OF_TABLE * percent / 100, 1.0), 31.0)


def _open_codec(format: ImageFormat, quality: int) -> VideoCodecContext:
    codec = av.CodecContext.create("mjpeg", "w")
    codec.width, codec.height, codec.pix_fmt = format.width_px, format.height_px, "yuvj420p"
    codec.time_base = Fraction(1)
    codec.thread_count = 1  # the other cores belong to inference
    codec.color_range = 2
    scale = _qscale(quality)
    # A fixed scale: both bounds of the rate control. Fractions are lost, as everywhere in MPEG-style quantisers.
    codec.options = {"qmin": str(max(round(scale), 1)), "qmax": str(max(round(scale), 1)), "huffman": "default"}
    codec.open()
    return codec


def _to_full_range(format: ImageFormat) -> tuple[Graph, FilterContext, FilterContext]:
    graph = av.filter.Graph()
    graph.threads = 1
    space = "bt709" if format.matrix is ColorMatrix.BT709 else "smpte170m"
    value_range = "pc" if format.is_full_range else "tv"
    size = f"{format.width_px}x{format.height_px}"
    entry = graph.add(
        "buffer",
        f"video_size={size}:pix_fmt=nv12:time_base=1/1:pixel_aspect=1/1:colorspace={space}:range={value_range}",
    )
    scale = graph.add("scale", "flags=bilinear:out_color_matrix=bt601:out_range=pc")
    pixels = graph.add("format", "yuvj420p")
    exit_ = graph.add("buffersink")
    for first, second in ((entry, scale), (scale, pixels), (pixels, exit_)):
        first.link_to(second)
    graph.configure()
    return graph, entry, exit_

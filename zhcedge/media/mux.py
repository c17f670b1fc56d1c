"""Writes one MP4 file with H.264 video, whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from zhcedge.core.errors import OutputError
from zhcedge.core.types import ColorMatrix, ImageFormat
from zhcedge.media._vendor import av, require_av
from zhcedge.media.host_frame import HostFrame, even

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

TICKS_PER_S = 90_000
_TIME_BASE = Fraction(1, TICKS_PER_S)
_KEYFRAME_INTERVAL_S = 2

_ENCODER_OPTIONS = {"preset": "ultrafast", "tune": "zerolatency", "crf": "23"}
"""Measured on walkers.mp4, one thread, CPU a frame: ultrafast 2.7 ms (42 dB at least), superfast 4.4, veryfast 6.8:
cores are scarcer than bytes beside inference. Zero latency: no picture is held back inside x264."""

_H273 = {ColorMatrix.BT601: 6, ColorMatrix.BT709: 1}  # matrix, primaries and transfer share these numbers


class PendingFile:
    """A file under a temporary name beside its final one, which it gets only when it is whole.

    The temporary name is fixed (".NAME.part"), so that what a killed process left is overwritten by the next run
    instead of filling the disk; a lock keeps two writers apart. The constructor makes missing folders. Raises
    OutputError and then leaves no file behind.
    """

    def __init__(self, path: Path) -> None:
        self._final = path
        self._descriptor = -1
        try:
            self._final = Path(os.path.realpath(path))  # through links, so that a link stays a link
            if self._final.exists() and not stat.S_ISREG(self._final.stat().st_mode):
                raise OutputError("is not a regular file", where=str(path), fix="choose another output name")
            self._final.parent.mkdir(parents=True, exist_ok=True)
            self.temporary = self._final.with_name(f".{self._final.name}.part")
            self._descriptor = os.open(self.temporary, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._descriptor, 0)
        except BlockingIOError as error:
            os.close(self._descriptor)
            raise OutputError(
                "another writer has this output open", where=str(path), fix="give each sink its own path"
            ) from error
        except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
            if self._descriptor >= 0:
                os.close(self._descriptor)
            raise output_error(error, path) from error

    def commit(self) -> None:
        """Put the bytes on the disk and give the file its name, replacing an older one. Raises OutputError."""
        try:
            os.fsync(self._descriptor)
            self.temporary.replace(self._final)
        except OSError as error:
            self.discard()
            raise output_error(error, self._final) from error
        self._release()

    def discard(self) -> None:
        """Remove the temporary file."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):  # the folder itself may have gone
                self.temporary.unlink()
        self._release()

    def _release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Mp4Writer:
    """Encodes pictures that are put into its one reusable frame, `picture`. Owned by one thread.

    4:2:0 H.264 needs even sizes, so an odd one is padded.

    The constructor opens the file and the encoder. Raises OutputError and then leaves nothing behind.
    """

    def __init__(self, path: Path, format: ImageFormat, fps: float) -> None:
        require_av()
        self._path = path
        self._last_ticks: int | None = None
        self._bytes_written = 0
        self.picture = HostFrame(format, is_even=True)
        self._file = PendingFile(path)
        try:
            self._container, self._stream = _open_encoder(self._file.temporary, format, fps)
        except (OSError, ValueError, av.error.FFmpegError) as error:  # ValueError: PyAV was built without x264
            self._file.discard()
            raise output_error(error, path) from error
        except BaseException:
            self._file.discard()
            raise

    @property
    def bytes_written(self) -> int:
        """Compressed bytes so far."""
        return self._bytes_written

    def write(self, media_time_s: float) -> None:
        """Encode the frame's present content, shown from `media_time_s` on. Raises OutputError.

        A time that does not grow is moved to just after the one before: MP4 can't say otherwise.
        """
        ticks = round(media_time_s * TICKS_PER_S)
        if self._last_ticks is not None:
            ticks = max(ticks, self._last_ticks + 1)
        self._last_ticks = ticks
        frame = self.picture.frame
        frame.pts, frame.time_base = ticks, _TIME_BASE
        self._encode(frame)

    def finish(self) -> None:
        """Flush, close and give the file its final name. Raises OutputError, with nothing left behind."""
        try:
            self._encode(None)
            self._container.close()
        except (OSError, OutputError, av.error.FFmpegError) as error:
            self.abandon()
            raise (error if isinstance(error, OutputError) else output_error(error, self._path)) from error
        self._file.commit()

    def abandon(self) -> None:
        """Close and remove the file. Never raises for a full or vanished disk."""
        with contextlib.suppress(OSError, av.error.FFmpegError):  # the trailer of a file that goes anyway
            self._container.close()
        self._file.discard()

    def _encode(self, frame: VideoFrame | None) -> None:
        try:
            for packet in self._stream.encode(frame):
                self._bytes_written += packet.size
                self._container.mux(packet)
        except (OSError, av.error.FFmpegError) as error:
            raise output_error(error, self._path) from error


def output_error(error: Exception, path: Path) -> OutputError:
    """Translate what the system or FFmpeg said about an output."""
    permission = "choose a folder that this user may write to"
    obstacle = "choose another path, a file stands where a folder is needed"
    fixes = {
        errno.EACCES: permission,
        errno.EPERM: permission,
        errno.EROFS: permission,
        errno.EEXIST: obstacle,
        errno.ENOTDIR: obstacle,
    }
    number = getattr(error, "errno", None)
    text = getattr(error, "strerror", None) or str(error)
    return OutputError(
        f"can't be written: {text}",
        where=str(path),
        fix=fixes.get(number or 0, "check the disk's free space and state, or choose another path"),
    )


def _open_encoder(path: Path, format: ImageFormat, fps: float) -> tuple[OutputContainer, VideoStream]:
    rate = Fraction(fps or 25.0).limit_denominator(1001)
    container = av.open(str(path), "w", format="mp4")
    try:
        stream = container.add_stream("libx264", rate=rate, options=dict(_ENCODER_OPTIONS))
        stream.width = even(format.width_px)
        stream.height = even(format.height_px)
        stream.pix_fmt = "nv12"
        context = stream.codec_context
        context.time_base = _TIME_BASE
        context.thread_count = 1  # the other cores belong to inference
        context.gop_size = max(round(_KEYFRAME_INTERVAL_S * rate), 1)
        context.colorspace = context.color_primaries = context.color_trc = _H273[format.matrix]
        context.color_range = 2 if format.is_full_range else 1
        context.open()
        container.start_encoding()
    except BaseException:
        with contextlib.suppress(OSError, av.error.FFmpegError):
            container.close()
        raise
    return container, stream

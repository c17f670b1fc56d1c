"""Writes pictures that are compressed already (Motion JPEG) into one MP4 file, whole or not at all."""

from __future__ import annotations

import contextlib
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from zhcedge.core.errors import OutputError
from zhcedge.media._vendor import av, require_av
from zhcedge.media.mux import TICKS_PER_S, PendingFile, output_error

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video.stream import VideoStream

_TIME_BASE = Fraction(1, TICKS_PER_S)


class MjpegWriter:
    """Muxes JPEG pictures. Owned by one thread.

    The constructor opens the file. Raises OutputError and then leaves nothing behind.
    """

    def __init__(self, path: Path, width_px: int, height_px: int, fps: float) -> None:
        require_av()
        self._path = path
        self._last_ticks = -1
        self._bytes_written = 0
        self._file = PendingFile(path)
        try:
            self._container, self._stream = _open(self._file.temporary, width_px, height_px, fps)
        except (OSError, ValueError, av.error.FFmpegError) as error:
            self._file.discard()
            raise output_error(error, path) from error
        except BaseException:
            self._file.discard()
            raise

    @property
    def bytes_written(self) -> int:
        """Compressed bytes so far."""
        return self._bytes_written

    def write(self, picture: memoryview, media_time_s: float) -> None:
        """Append one JPEG, shown from `media_time_s` on; its bytes are copied. Raises OutputError.

        A time that does not grow is moved to just after the one before: MP4 can't say otherwise.
        """
        packet = av.Packet(picture)  # type: ignore[arg-type]  # takes any buffer; bytes would copy once more
        self._last_ticks = max(round(media_time_s * TICKS_PER_S), self._last_ticks + 1)
        packet.pts = packet.dts = self._last_ticks
        packet.time_base, packet.stream, packet.is_keyframe = _TIME_BASE, self._stream, True
        try:
            self._container.mux(packet)
        except (OSError, av.error.FFmpegError) as error:
            raise output_error(error, self._path) from error
        self._bytes_written += len(picture)

    def finish(self) -> None:
        """Close and give the file its final name. Raises OutputError, with nothing left behind."""
        try:
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


def _open(path: Path, width_px: int, height_px: int, fps: float) -> tuple[OutputContainer, VideoStream]:
    container = av.open(str(path), "w", format="mp4")
    try:
        # The stream's own encoder only describes the stream: pictures come compressed.
        stream = container.add_stream("mjpeg", rate=Fraction(fps or 25.0).limit_denominator(1001))
        stream.width, stream.height, stream.pix_fmt = width_px, height_px, "yuvj420p"
        stream.codec_context.color_range = 2
        stream.codec_context.time_base = _TIME_BASE
        container.start_encoding()
    except BaseException:
        with contextlib.suppress(OSError, av.error.FFmpegError):
            container.close()
        raise
    return container, stream

"""Writes pictures that are compressed already into one MP4 file, whole or not at all."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from zhcedge.core.errors import OutputError
from zhcedge.core.types import ColorMatrix, ImageFormat
from zhcedge.media._vendor import av, require_av
from zhcedge.media.mux import TICKS_PER_S, PendingFile, output_error

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.packet import Packet
    from av.stream import Stream
    from av.video.stream import VideoStream

_TIME_BASE = Fraction(1, TICKS_PER_S)
_H273 = {ColorMatrix.BT601: 6, ColorMatrix.BT709: 1}  # matrix, primaries and transfer share these numbers


class PacketWriter:
    """Muxes compressed pictures. Owned by one thread. Subclasses say what the stream is.

    The constructor opens the file. Raises OutputError and then leaves nothing behind.

    Args:
        fps: nominal, 0 if unknown; the last picture is shown that long.
    """

    def __init__(self, path: Path, fps: float) -> None:
        require_av()
        self._path = path
        self._fps = Fraction(fps or 25.0).limit_denominator(1001)
        self._last_ticks = -1
        self._bytes_written = 0
        self._stream: VideoStream | None = None
        self._file = PendingFile(path)
        try:
            self._container: OutputContainer = av.open(str(self._file.temporary), "w", format="mp4")
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

    def write(self, picture: memoryview | bytes, media_time_s: float, is_keyframe: bool = True) -> None:
        """Append one picture, shown from `media_time_s` on; its bytes are copied. Raises OutputError.

        Pictures come in the order in which they are shown. A time that does not grow is moved to just after the one
        before: MP4 can't say otherwise.
        """
        packet = av.Packet(picture)  # type: ignore[arg-type]  # takes any buffer; bytes would copy once more
        self._last_ticks = max(round(media_time_s * TICKS_PER_S), self._last_ticks + 1)
        packet.pts = packet.dts = self._last_ticks
        packet.duration = round(TICKS_PER_S / self._fps)
        packet.time_base, packet.is_keyframe = _TIME_BASE, is_keyframe
        try:
            if self._stream is None:
                self._stream, packet = self._begin(packet)
            packet.stream = self._stream
            self._container.mux(packet)
        except (OSError, ValueError, av.error.FFmpegError) as error:
            raise output_error(error, self._path) from error
        self._bytes_written += len(picture)

    def _begin(self, first: Packet[Stream]) -> tuple[VideoStream, Packet[Stream]]:
        """The stream that starts with `first`, and the packet to write in its place."""
        raise NotImplementedError

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


class MjpegWriter(PacketWriter):
    """Motion JPEG: every picture stands alone. See PacketWriter."""

    def __init__(self, path: Path, width_px: int, height_px: int, fps: float) -> None:
        super().__init__(path, fps)
        try:
            self._stream = self._open_stream(width_px, height_px)
        except (OSError, ValueError, av.error.FFmpegError) as error:
            self.abandon()
            raise output_error(error, path) from error
        except BaseException:
            self.abandon()
            raise

    def _open_stream(self, width_px: int, height_px: int) -> VideoStream:
        # The stream's own encoder only describes the stream: pictures come compressed.
        stream = self._container.add_stream("mjpeg", rate=self._fps)
        stream.width, stream.height, stream.pix_fmt = width_px, height_px, "yuvj420p"
        stream.codec_context.color_range = 2
        stream.codec_context.time_base = _TIME_BASE
        self._container.start_encoding()
        return stream


class AnnexBWriter(PacketWriter):
    """H.264 or H.265 with start codes (ITU-T H.264 and H.265, annex B), as hardware encoders give it.

    The first picture must be a key frame with its parameter sets in front: they describe the stream. Pictures must
    come without reordering. The file says how the samples are to be read (matrix, range), whatever the encoder wrote.

    Args:
        codec: "h264" or "hevc".
        format: of the pictures that were encoded.
    """

    def __init__(self, path: Path, codec: str, format: ImageFormat, fps: float) -> None:
        super().__init__(path, fps)
        number, is_full = _H273[format.matrix], int(format.is_full_range)
        self._codec = codec
        self._filter = (
            f"{codec}_metadata=video_full_range_flag={is_full}:colour_primaries={number}"
            f":transfer_characteristics={number}:matrix_coefficients={number}"
        )

    def _begin(self, first: Packet[Stream]) -> tuple[VideoStream, Packet[Stream]]:
        with _stream_of(bytes(first), self._codec) as stream:
            # Only here: later key frames need no parameter sets, the file's header has them.
            marked = av.BitStreamFilterContext(self._filter, stream).filter(first)[0]
        with _stream_of(bytes(marked), self._codec) as stream:
            ours: VideoStream = self._container.add_stream_from_template(stream)
        ours.time_base = _TIME_BASE
        return ours, marked


@contextlib.contextmanager
def _stream_of(key_frame: bytes, codec: str) -> Iterator[VideoStream]:
    """What libavformat reads off a key frame with its parameter sets. Raises an FFmpegError or ValueError."""
    with av.open(io.BytesIO(key_frame), format=codec) as container:
        stream: VideoStream = container.streams.video[0]
        if not stream.width:
            raise ValueError("the encoder's first picture is no key frame with its parameter sets")
        yield stream

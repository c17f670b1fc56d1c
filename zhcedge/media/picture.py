"""Pictures as JPEG: one frame of a video file, or pixels."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from zhcedge.core.errors import MediaError, OutputError
from zhcedge.core.files import write_whole
from zhcedge.media._vendor import av, require_av

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

_TICK = Fraction(1, 25)  # the encoder wants one, a picture has none


def write_middle_frame(video: Path, picture: Path) -> None:
    """Write the frame in the middle of `video` to `picture`, JPEG. Host memory; any thread.

    Raises BackendUnavailableError without PyAV, MediaError when the video can't be read, OutputError when the
    picture can't be written.
    """
    require_av()
    try:
        data = _middle_frame_jpeg(video)
    except (av.error.FFmpegError, OSError) as error:
        raise MediaError(f"no picture can be taken: {error}", where=str(video)) from error
    write_whole(picture, data, "the picture")


def _middle_frame_jpeg(video: Path) -> bytes:
    with av.open(str(video)) as container:
        stream = container.streams.video[0]
        wanted = stream.frames // 2
        frame = next(frame for number, frame in enumerate(container.decode(stream)) if number == wanted)
        return _jpeg(frame, stream.time_base or _TICK)


def write_pixels(pixels: npt.NDArray[np.uint8], picture: Path) -> None:
    """Write RGB `pixels`, [height, width, 3], to `picture`, JPEG. Host memory; any thread.

    Raises BackendUnavailableError without PyAV, OutputError when the picture can't be written.
    """
    require_av()
    try:
        frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
        # JFIF: BT.601, full range.
        data = _jpeg(frame.reformat(format="yuvj420p", dst_colorspace="ITU601", dst_color_range="JPEG"), _TICK)
    except av.error.FFmpegError as error:
        raise OutputError(f"the picture can't be encoded: {error}", where=str(picture)) from error
    write_whole(picture, data, "the picture")


def _jpeg(frame: VideoFrame, time_base: Fraction) -> bytes:
    encoder = av.CodecContext.create("mjpeg", "w")
    encoder.width, encoder.height, encoder.pix_fmt = frame.width, frame.height, "yuvj420p"
    encoder.time_base = time_base
    encoder.options = {"qscale": "3"}
    packets = [*encoder.encode(frame.reformat(format="yuvj420p")), *encoder.encode(None)]
    return b"".join(bytes(packet) for packet in packets)

"""One frame of a video file as a JPEG."""

from __future__ import annotations

from pathlib import Path

from zhcedge.core.errors import MediaError
from zhcedge.core.files import write_whole
from zhcedge.media._vendor import av, require_av


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
    encoder = av.CodecContext.create("mjpeg", "w")
    encoder.width, encoder.height, encoder.pix_fmt = frame.width, frame.height, "yuvj420p"
    encoder.time_base = stream.time_base
    encoder.options = {"qscale": "3"}
    packets = [*encoder.encode(frame.reformat(format="yuvj420p")), *encoder.encode(None)]
    return b"".join(bytes(packet) for packet in packets)

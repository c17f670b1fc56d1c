"""Draws rules and tracks into every picture of a video, which is decoded and encoded again. For tools."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from zhcedge.core.errors import MediaError
from zhcedge.core.files import write_whole
from zhcedge.core.types import ColorMatrix, ImageFormat
from zhcedge.media._vendor import av, require_av
from zhcedge.media.convert import decoded_form, lent_format
from zhcedge.media.mux import Mp4Writer
from zhcedge.media.rule_drawing import RuleArtist, ShownTrack

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

TracksOf = Callable[[int], Sequence[ShownTrack]]
"""The tracks in a picture by its number, from 0."""

_SPACES = {ColorMatrix.BT601: "ITU601", ColorMatrix.BT709: "ITU709"}


def redraw(
    source: Path, artist: RuleArtist, tracks_of: TracksOf, target: Path, advance: Callable[[], None] = lambda: None
) -> int:
    """Write `source` with the rules and tracks in it to `target`, MP4. Returns the number of pictures.

    Args:
        advance: called after every picture.

    Raises MediaError when the video can't be read, OutputError when the other can't be written; then nothing of it
    is left.
    """
    require_av()
    writer: Mp4Writer | None = None
    count = 0
    try:
        for frame, fps in _frames(source):
            form = lent_format(decoded_form(frame))
            writer = writer or Mp4Writer(target, form, fps)
            _put(writer, artist.draw(_picture(frame, form), tracks_of(count)), form)
            writer.write(frame.time if frame.time is not None else count / (fps or 25.0))
            count += 1
            advance()
        if writer is None:
            raise MediaError("there is no picture in it", where=str(source))
    except BaseException:
        if writer is not None:
            writer.abandon()
        raise
    writer.finish()
    return count


def draw_one(source: Path, artist: RuleArtist, tracks_of: TracksOf, number: int, picture: Path) -> None:
    """Write the picture with this number, or the last one before it, with rules and tracks in it, as PNG.

    Raises MediaError when the video can't be read, OutputError when the picture can't be written.
    """
    require_av()
    found: VideoFrame | None = None
    index = -1
    for index, (frame, _) in enumerate(_frames(source)):
        found = frame
        if index == number:
            break
    if found is None:
        raise MediaError("there is no picture in it", where=str(source))
    form = lent_format(decoded_form(found))
    data = io.BytesIO()
    artist.draw(_picture(found, form), tracks_of(index)).save(data, "PNG")
    write_whole(picture, data.getvalue(), "the picture")


def _frames(source: Path) -> Iterator[tuple[VideoFrame, float]]:
    """Every picture, and the rate that the header says, 0 for an unknown one."""
    try:
        with av.open(str(source)) as container:
            stream = container.streams.video[0]
            fps = float(stream.average_rate or 0)
            for frame in container.decode(stream):
                yield frame, fps
    except (av.error.FFmpegError, OSError, IndexError) as error:
        raise MediaError(f"no pictures can be read: {error}", where=str(source)) from error


def _picture(frame: VideoFrame, form: ImageFormat) -> Image.Image:
    return Image.fromarray(frame.reformat(format="rgb24", src_colorspace=_SPACES[form.matrix]).to_ndarray())


def _put(writer: Mp4Writer, picture: Image.Image, form: ImageFormat) -> None:
    frame = av.VideoFrame.from_ndarray(np.asarray(picture), format="rgb24")
    frame = frame.reformat(format="nv12", dst_colorspace=_SPACES[form.matrix])
    for target, plane in zip((writer.picture.luma, writer.picture.chroma), frame.planes, strict=True):
        rows = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)
        np.copyto(target, rows[: target.shape[0], : target.shape[1]])
    writer.picture.pad()

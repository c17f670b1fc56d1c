"""What a muxer must know of a compressed stream, kept beyond the connection that it came by."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from zhcedge.media._vendor import av, require_av

if TYPE_CHECKING:
    from fractions import Fraction

    from av.container import OutputContainer
    from av.video.stream import VideoStream


class StreamForm:
    """A stream's codec parameters. Made by the thread that owns the stream, used by any one thread afterwards.

    Attributes:
        codec: FFmpeg's name.
        time_base: seconds per tick.
        obstacle: why MP4 can't take the stream, empty when it can.
    """

    def __init__(self, stream: VideoStream) -> None:
        require_av()
        context = stream.codec_context
        self.codec = context.codec.canonical_name
        self.time_base: Fraction | None = stream.time_base
        self.obstacle = ""
        # A stream of an output that is never written: the only object of PyAV that holds codec parameters and belongs
        # to nobody else. A header in memory would not do: it would turn start codes into what MP4 has instead.
        self._holder: OutputContainer = av.open(io.BytesIO(), "w", format="mp4")
        self._template: VideoStream | None = None
        try:
            self._template = self._holder.add_stream_from_template(stream, opaque=True)
        except (ValueError, av.error.FFmpegError):
            is_raw = self.codec == "rawvideo"
            self.obstacle = "the camera sends raw pictures" if is_raw else f"MP4 takes no {self.codec}"

    def add_to(self, container: OutputContainer) -> VideoStream:
        """A new stream of this form. Raises ValueError where there is an obstacle, or an FFmpegError."""
        if self._template is None:
            raise ValueError(self.obstacle)
        stream: VideoStream = container.add_stream_from_template(self._template, opaque=True)
        if self.time_base is not None:
            stream.time_base = self.time_base
        return stream

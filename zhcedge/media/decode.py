"""Decoding on the CPU by libavcodec."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zhcedge.core.errors import MediaError
from zhcedge.core.geometry import MAX_PICTURE_PX
from zhcedge.media._vendor import av

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream


_DECODERS = {"av1": "libdav1d"}
"""Where libavcodec's own decoder of that name needs hardware."""


def decode_alone(codec: str, packet: Packet[VideoStream]) -> VideoFrame | None:
    """The picture of one packet that stands for itself: a key frame with its parameter sets inside.

    `codec` is FFmpeg's name of the format. None where it does not decode. A decoder is made for it and dropped: some
    milliseconds.
    """
    try:
        context = av.CodecContext.create(_DECODERS.get(codec, codec), "r")
        if not isinstance(context, av.VideoCodecContext):
            return None
        return next(iter(context.decode(packet) or context.decode(None)), None)
    except av.error.FFmpegError:
        return None


class VideoDecoder:
    """Decodes the packets of one pass. Owned by one thread.

    One thread: on walkers.mp4 it takes 1.4 ms of CPU a frame against 1.8 with frame threads on two cores, gives
    each frame out at once instead of holding some back, and leaves the other cores to inference.
    """

    def __init__(self, stream: VideoStream, where: str) -> None:
        self._context = stream.codec_context
        self._corrupt_packets = 0
        _check_size(self._context.width, self._context.height, where)
        if self._context.is_open:  # of an earlier pass of the same demuxer
            self._context.flush_buffers()
            return
        self._context.options = {"max_pixels": str(MAX_PICTURE_PX)}  # also for a size that the stream changes to
        try:
            self._context.thread_type = av.codec.context.ThreadType.NONE
            self._context.thread_count = 1
            self._context.open(strict=False)
        except (av.error.FFmpegError, RuntimeError) as error:  # RuntimeError: no decoder of that name
            raise MediaError(
                f"no decoder for {self._context.name}: {error}", where=where, fix="convert the file to MP4 with H.264"
            ) from error

    @property
    def corrupt_packets(self) -> int:
        """Packets that could not be decoded and were skipped."""
        return self._corrupt_packets

    def decode(self, packet: Packet[VideoStream] | None) -> list[VideoFrame]:
        """Frames that come out of a packet, in presentation order; None flushes. Corrupt packets give none."""
        try:
            return self._context.decode(packet)
        except av.error.FFmpegError:
            # Bitstream errors are a camera's daily life: counted here, and given up in Playback when none is good.
            self._corrupt_packets += packet is not None
            return []


def _check_size(width_px: int, height_px: int, where: str) -> None:
    """Before anything is allocated for pictures of that size."""
    if width_px * height_px > MAX_PICTURE_PX:
        raise MediaError(
            f"declares pictures of {width_px}x{height_px}, more than is taken ({MAX_PICTURE_PX // 2**20} Mi pixels)",
            where=where,
            fix="make them smaller",
        )

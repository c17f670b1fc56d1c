"""A frame of FFmpeg's own in host memory that slots are copied into before they are encoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from zhcedge.core.errors import OutputError
from zhcedge.core.types import ImageFormat, PixelFormat, Surface
from zhcedge.media._vendor import av

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

Pixels = npt.NDArray[np.uint8]


class HostFrame:
    """One reusable NV12 frame. Owned by the thread that encodes it.

    `luma` uint8 [height, width] and `chroma` uint8 [ceil(height/2), 2 * ceil(width/2)] are writable views of `frame`.

    Args:
        is_even: make an odd size even; `fill` then repeats the last column or row, so nothing of the picture is lost.
    """

    def __init__(self, format: ImageFormat, is_even: bool) -> None:
        self._width_px, self._height_px = format.width_px, format.height_px
        padded = (even(format.width_px), even(format.height_px)) if is_even else (format.width_px, format.height_px)
        self.frame: VideoFrame = av.VideoFrame(*padded, "nv12")
        self._planes = tuple(_writable(self.frame, index) for index in range(2))
        self.luma = self._planes[0][: format.height_px, : format.width_px]
        self.chroma = self._planes[1][: (format.height_px + 1) // 2, : 2 * ((format.width_px + 1) // 2)]
        self._pads = is_even

    def fill(self, surface: Surface[Pixels], where: str) -> None:
        """Copy a surface in host memory. Raises OutputError for one of another format."""
        shapes = tuple((plane.rows, plane.width_bytes) for plane in surface.planes)
        if surface.format.pixel_format is not PixelFormat.NV12 or shapes != (self.luma.shape, self.chroma.shape):
            raise OutputError(f"a slot of {surface.format} does not fit the opened source", where=where)
        for target, plane in zip((self.luma, self.chroma), surface.planes, strict=True):
            np.copyto(target, plane.buffer[:, : plane.width_bytes])
        self.pad()

    def pad(self) -> None:
        """Repeat the edge of an odd size; for whoever writes into the views himself."""
        luma = self._planes[0]
        if self._pads and self._width_px % 2:
            luma[:, self._width_px] = luma[:, self._width_px - 1]
        if self._pads and self._height_px % 2:
            luma[self._height_px] = luma[self._height_px - 1]


def even(size_px: int) -> int:
    """The size itself, or the next even one: what 4:2:0 encoders take."""
    return size_px + size_px % 2


def pixel_bytes(format: ImageFormat) -> int:
    """Bytes of an NV12 picture without padding."""
    chroma = 2 * ((format.width_px + 1) // 2) * ((format.height_px + 1) // 2)
    return format.width_px * format.height_px + chroma


def _writable(frame: VideoFrame, index: int) -> Pixels:
    plane = frame.planes[index]
    rows = (frame.height + 1) // 2 if index else frame.height
    return np.frombuffer(memoryview(plane), np.uint8, count=plane.line_size * rows).reshape(rows, plane.line_size)

"""Small video files for tests, made on the spot: every frame tells its number by its brightness."""

from __future__ import annotations

import contextlib
import itertools
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

from zhcedge.core.types import PixelFormat, Plane, Surface
from zhcedge.media.packets import KeptPacket, PacketRing

Bytes = npt.NDArray[np.uint8]


def brightness(index: int) -> int:
    """Luma of frame `index`: distinct for 19 frames in a row, far enough apart to survive compression."""
    return 40 + 10 * (index % 19)


def numbered_frame(width: int, height: int, index: int) -> Bytes:
    """RGB picture, grey on the left and black on its rightmost third, so that sides can be told apart."""
    picture = np.full((height, width, 3), brightness(index), np.uint8)
    picture[:, width - width // 3 :] = 0
    return picture


def make_clip(
    path: Path,
    count: int = 12,
    width: int = 64,
    height: int = 48,
    *,
    pixel_format: str = "yuv420p",
    codec: str = "libx264",
    container: str | None = None,
    fps: int = 10,
    matrix: int = 2,
    color_range: int = 0,
    gop: int = 4,
) -> Path:
    """Write a clip. `matrix` and `color_range` are H.273 / AVColorRange numbers, 2 and 0 meaning undeclared."""
    with av.open(str(path), "w", format=container) as output:
        options = {"crf": "4", "preset": "ultrafast"} if codec == "libx264" else {}
        stream = output.add_stream(codec, rate=fps, options=options)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, pixel_format
        stream.codec_context.gop_size = gop
        stream.codec_context.colorspace = matrix
        stream.codec_context.color_range = color_range
        for index in range(count):
            rgb = av.VideoFrame.from_ndarray(numbered_frame(width, height, index), "rgb24")
            frame = rgb.reformat(format=pixel_format, dst_color_range=color_range or 1)
            frame.colorspace, frame.color_range = matrix, color_range
            frame.pts, frame.time_base = index, Fraction(1, fps)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return path


def cut_clip(source: Path, path: Path, count: int) -> Path:
    """The first `count` packets of a video, as they are: real pictures in a file that plays quickly."""
    with av.open(str(source)) as whole, av.open(str(path), "w") as output:
        stream = output.add_stream_from_template(whole.streams.video[0])
        for packet in itertools.islice(whole.demux(whole.streams.video[0]), count):
            packet.stream = stream
            output.mux(packet)
    return path


def make_sound(path: Path) -> Path:
    """A file with sound and no picture."""
    with av.open(str(path), "w") as output:
        stream = output.add_stream("aac", rate=48000)
        assert isinstance(stream, av.AudioStream)
        for index in range(10):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            frame.sample_rate, frame.pts = 48000, index * 1024
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return path


def mark_as_rotated(path: Path, clockwise_deg: int) -> Path:
    """Set the display matrix of an MP4's first track (ISO/IEC 14496-12, 8.3.2), as a phone does."""
    cosine, sine = {90: (0, 1), 180: (-1, 0), 270: (0, -1)}[clockwise_deg]
    rows = [[cosine, sine, 0], [-sine, cosine, 0], [0, 0, 0x4000]]
    matrix = b"".join(int(value * 0x10000).to_bytes(4, "big", signed=True) for row in rows for value in row)
    data = bytearray(path.read_bytes())
    start = data.index(b"tkhd") + 4 + 4 + 32 + 4  # type, version and flags, times to duration and reserved, volume
    assert data[start : start + 4] == (0x10000).to_bytes(4, "big")
    data[start : start + 36] = matrix
    path.write_bytes(data)
    return path


def held_packets(ring: PacketRing) -> list[tuple[KeptPacket, bytes]]:
    """Every packet that the ring holds, oldest first, with its bytes."""
    found = []
    for number in range(ring.next_number):
        with contextlib.suppress(LookupError):
            if (kept := ring.read(number, bytes)) is not None:
                found.append(kept)
    return found


def luma(surface: Surface[Bytes]) -> Bytes:
    """The visible part of the Y plane, [height, width]; a view."""
    plane = surface.planes[0]
    return plane.buffer[: plane.rows, : plane.width_bytes]


def chroma(surface: Surface[Bytes]) -> tuple[Bytes, Bytes]:
    """The U and V planes of an I420 or NV12 surface, [ceil(h/2), ceil(w/2)]; views."""

    def visible(plane: Plane[Bytes]) -> Bytes:
        return plane.buffer[: plane.rows, : plane.width_bytes]

    if surface.format.pixel_format is PixelFormat.NV12:
        both = visible(surface.planes[1])
        return both[:, 0::2], both[:, 1::2]
    return visible(surface.planes[1]), visible(surface.planes[2])

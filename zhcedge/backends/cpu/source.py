"""Video files decoded on the CPU. The decoder's own planes are lent, without a copy."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from zhcedge.core.errors import MediaError, PhaseError
from zhcedge.core.ports import EndOfStream, Fence, Idle, SourceFacts, SourceRequest
from zhcedge.core.types import (
    Agent,
    FrameInfo,
    Hop,
    ImageFormat,
    MemoryDomain,
    Payload,
    PixelFormat,
    Plane,
    Provenance,
    Surface,
)
from zhcedge.media.convert import Converter, DecodedForm, decoded_form, lent_format, matrix_note
from zhcedge.media.decode import VideoDecoder
from zhcedge.media.demux import StreamFacts
from zhcedge.media.packets import PacketRing
from zhcedge.media.playback import Playback

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

Pixels = npt.NDArray[np.uint8]


class FrameLease:
    """A decoded frame on loan: read-only views of the decoder's planes in host memory.

    The planes stay as they are until `release`; the views themselves keep the memory alive even beyond it, so
    that a fence that is still open never sees freed memory.
    """

    __slots__ = ("_info", "_surface")

    def __init__(self, surface: Surface[Pixels], info: FrameInfo) -> None:
        self._surface: Surface[Pixels] | None = surface
        self._info = info

    @property
    def surface(self) -> Surface[Pixels]:
        """Raises PhaseError once released."""
        if self._surface is None:
            raise PhaseError("the frame was given back already", where=f"frame {self._info.sequence}")
        return self._surface

    @property
    def info(self) -> FrameInfo:
        return self._info

    @property
    def ready(self) -> Fence | None:
        """None: a picture is lent once it is decoded."""
        return None

    def release(self, after: Fence | None = None) -> None:
        """Give the planes back to the decoder's pool, once nobody holds a view of them. Any thread."""
        self._surface = None


class PyAvSource:
    """Plays a file. Implements core.ports.Source over host memory; see there for threads and phases.

    - I420 and NV12 pictures are lent as decoded; any other format, a picture marked as rotated (turned upright
      in quarter turns), or a change of size within the file (scaled to the opened size) costs one conversion,
      declared in the facts' hops or, where it begins later, as a warning.
    - Corrupt packets are skipped and counted. A truncated file plays to where it ends, with a warning.
    - Realtime: `read` waits until the frame is due; behind by more than a second it goes on from there.
    """

    def __init__(self, request: SourceRequest, device: object) -> None:
        self._playback = Playback(request)
        self._is_live = request.is_realtime
        self._ready: deque[VideoFrame] = deque()
        self._next: tuple[VideoFrame, float] | None = None
        self._decoder: VideoDecoder | None = None
        self._converter: Converter | None = None
        self._first_form: DecodedForm | None = None
        self._corrupt_before = 0
        self._has_ended = False

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was odd about the stream so far, for the log and the summary."""
        return self._playback.warnings

    @property
    def corrupt_packets(self) -> int:
        """Packets skipped since `open`."""
        return self._corrupt_before + (self._decoder.corrupt_packets if self._decoder else 0)

    @property
    def packets(self) -> PacketRing:
        """The newest compressed packets, for recording without decoding."""
        return self._playback.ring

    def open(self) -> SourceFacts:
        """Open the file and decode its first frame. Raises SourceMissingError or MediaError; holds nothing then."""
        try:
            stream = self._playback.open()
            self._start_pass()
            frame = self._decode_next()
            if frame is None:
                raise MediaError("not one picture could be decoded", where=self._playback.where, fix="try another file")
            form = decoded_form(frame)
            self._first_form = form
            self._converter = Converter(lent_format(form), self._playback.where)
            if note := matrix_note(frame):
                self._playback.warn(note)
            self._ready.appendleft(frame)
            decoded_bytes = sum(plane.buffer_size for plane in frame.planes)
            return self._facts(stream, form, decoded_bytes, self._converter)
        except BaseException:
            self.close()
            raise

    def read(self, timeout_s: float) -> FrameLease | Idle | EndOfStream:
        """The next frame; Idle when it is not due within `timeout_s`. Raises MediaError."""
        if self._next is None:
            frame = self._decode_next()
            if frame is None:
                return EndOfStream()
            self._next = frame, self._playback.media_time_s(frame.pts)
        frame, media_time_s = self._next
        wait_s = self._playback.wait_s(media_time_s)
        if wait_s > 0:
            time.sleep(min(wait_s, timeout_s))
            if wait_s > timeout_s:
                return Idle()
        self._next = None
        surface = self._lend(frame)
        return FrameLease(surface, self._playback.stamp(media_time_s))

    def rewind(self) -> None:
        """Start again at the first frame, sequence 0 and media time 0."""
        self._playback.rewind()
        self._start_pass()
        self._has_ended = False

    def close(self) -> None:
        """Close the file and let go of all frames that are not lent."""
        self._ready.clear()
        self._next = None
        self._decoder = None
        self._playback.close()
        self._has_ended = True

    def _start_pass(self) -> None:
        self._corrupt_before = self.corrupt_packets
        self._ready.clear()
        self._next = None
        self._decoder = VideoDecoder(self._playback.stream, self._playback.where)
        self._has_ended = False

    def _decode_next(self) -> VideoFrame | None:
        """The next frame in presentation order, over the joints of a loop; None at the end."""
        while not self._ready:
            if self._has_ended or self._decoder is None:
                return None
            packet = self._playback.next_packet()
            self._ready.extend(self._decoder.decode(packet))
            if packet is None and not self._ready:  # the flush, too, has given its last frame
                self._end_pass()
        return self._ready.popleft()

    def _end_pass(self) -> None:
        if self._playback.start_next_pass():
            self._start_pass()
        else:
            self._has_ended = True

    def _lend(self, frame: VideoFrame) -> Surface[Pixels]:
        if self._converter is None:
            raise PhaseError("the source is not open", where=self._playback.where)
        form = decoded_form(frame)
        if form != self._first_form:
            self._playback.warn(f"the picture changes to {form} and is converted to the opened format")
        return surface_of(self._converter.convert(frame, form), self._converter.target)

    def _facts(self, stream: StreamFacts, form: DecodedForm, decoded_bytes: int, converter: Converter) -> SourceFacts:
        lent = converter.target
        hops = [
            Hop(
                "bitstream in",
                Agent.CPU,
                MemoryDomain.STORAGE,
                MemoryDomain.HOST,
                Payload.BITSTREAM,
                stream.bytes_per_frame,
                Provenance.DERIVED,
                "file size over frames",
            ),
            _pixel_hop("decode", decoded_bytes, "libavcodec writes each picture once, into its pool"),
        ]
        if converter.needs(form):
            reason = f"{form} to {lent.pixel_format.value} by libswscale, into libavfilter's pool"
            hops.append(_pixel_hop("convert", lent.width_px * lent.height_px + _chroma_bytes(lent), reason))
        name = self._playback.where
        return SourceFacts(
            format=lent,
            domain=MemoryDomain.HOST,
            fps=stream.fps,
            is_live=self._is_live,
            has_packets=True,
            hops=tuple(hops),
            description=f"{name}: {stream.codec} {form}, {stream.fps:.3g} fps, decoded on the CPU",
        )


def surface_of(frame: VideoFrame, format: ImageFormat) -> Surface[Pixels]:
    """Read-only numpy views of a frame's planes, shape [rows, pitch_bytes] each; nothing is copied.

    `format` must describe the frame: I420 or NV12 in host memory, rows from top to bottom.
    """
    chroma_columns = (format.width_px + 1) // 2
    chroma_bytes = 2 * chroma_columns if format.pixel_format is PixelFormat.NV12 else chroma_columns
    planes = []
    for index, plane in enumerate(frame.planes):
        pitch = plane.line_size
        rows = (format.height_px + 1) // 2 if index else format.height_px
        view = np.frombuffer(memoryview(plane), np.uint8, count=pitch * rows).reshape(rows, pitch)
        view.flags.writeable = False  # the decoder still predicts from these pixels
        planes.append(Plane(view, chroma_bytes if index else format.width_px, rows, pitch))
    return Surface(tuple(planes), format, MemoryDomain.HOST)


def _chroma_bytes(format: ImageFormat) -> int:
    """Bytes of both chroma planes of an 8-bit 4:2:0 picture."""
    return 2 * ((format.width_px + 1) // 2) * ((format.height_px + 1) // 2)


def _pixel_hop(name: str, size_bytes: int, reason: str) -> Hop:
    return Hop(
        name,
        Agent.CPU,
        MemoryDomain.HOST,
        MemoryDomain.HOST,
        Payload.PIXELS,
        size_bytes,
        Provenance.DERIVED,
        reason,
    )

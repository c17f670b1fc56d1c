"""Video files and live streams decoded on the CPU. The decoder's own planes are lent, without a copy."""

from __future__ import annotations

import time
import zlib
from collections import deque
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from zhcedge.core.errors import MediaError, PhaseError
from zhcedge.core.lending import SurfaceLease
from zhcedge.core.ports import EndOfStream, Idle, SourceFacts, SourceStatus
from zhcedge.core.requests import SourceRequest
from zhcedge.core.types import (
    Agent,
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
from zhcedge.media.feed import open_feed

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

Pixels = npt.NDArray[np.uint8]

_SIGNATURE_BYTES = 2048
"""Samples of a picture that tell whether it changes: a camera's noise is everywhere."""


class PyAvSource:
    """Plays a file or a live stream. Implements core.ports.Source over host memory; see there for threads and phases.

    - I420 and NV12 pictures are lent as decoded; any other format, a picture marked as rotated (turned upright
      in quarter turns), or a change of size within the file (scaled to the opened size) costs one conversion,
      declared in the facts' hops or, where it begins later, as a warning.
    - A lent surface stays as it is until its release; the views themselves keep the memory alive even beyond that, so
      that work which is still in flight then never sees freed memory.
    - Corrupt packets are skipped and counted. A truncated file plays to where it ends, with a warning.
    - Realtime: `read` waits until the frame is due; behind by more than a second it goes on from there.
    - A lost stream gives Idle until it is back, and goes on in the opened format.
    """

    def __init__(self, request: SourceRequest, device: object) -> None:
        self._feed = open_feed(request)
        self._open_timeout_s = request.options.connect_timeout_s
        self._ready: deque[VideoFrame] = deque()
        self._next: tuple[VideoFrame, float] | None = None
        self._decoder: VideoDecoder | None = None
        self._converter: Converter | None = None
        self._first_form: DecodedForm | None = None
        self._corrupt_before = 0
        self._has_ended = False
        self._is_between_passes = False

    @property
    def status(self) -> SourceStatus:
        return self._feed.status

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was odd about the stream so far, for the log and the summary."""
        return self._feed.warnings

    @property
    def corrupt_packets(self) -> int:
        """Packets skipped since `open`."""
        return self._corrupt_before + (self._decoder.corrupt_packets if self._decoder else 0)

    def open(self) -> SourceFacts:
        """Open file or stream and decode its first frame.

        Raises SourceMissingError or MediaError and then holds nothing.
        """
        try:
            stream = self._feed.open()
            self._start_pass()
            frame = self._decode_next(self._open_timeout_s)
            if isinstance(frame, Idle | EndOfStream):
                raise MediaError("not one picture could be decoded", where=self._feed.where, fix="try another input")
            form = decoded_form(frame)
            self._first_form = form
            self._converter = Converter(lent_format(form), self._feed.where)
            if note := matrix_note(frame):
                self._feed.warn(note)
            self._ready.appendleft(frame)
            decoded_bytes = sum(plane.buffer_size for plane in frame.planes)
            return self._facts(stream, form, decoded_bytes, self._converter)
        except BaseException:
            self.close()
            raise

    def read(self, timeout_s: float) -> SurfaceLease[Pixels] | Idle | EndOfStream:
        """The next frame; Idle when it is not due, or has not come, within `timeout_s`. Raises MediaError."""
        if self._next is None:
            wanted = self._next_wanted(timeout_s)
            if isinstance(wanted, Idle | EndOfStream):
                return wanted
            self._next = wanted
        frame, media_time_s = self._next
        wait_s = self._feed.wait_s(media_time_s)
        if wait_s > 0:
            time.sleep(min(wait_s, timeout_s))
            if wait_s > timeout_s:
                return Idle()
        self._next = None
        surface = self._lend(frame)
        return SurfaceLease(surface, self._feed.stamp(media_time_s))

    def rewind(self) -> None:
        """Start again at the first frame, sequence 0 and media time 0; a stream goes on and only counts anew."""
        self._feed.rewind()
        if self._feed.can_rewind:
            self._start_pass()

    def close(self) -> None:
        """Close the file and let go of all frames that are not lent."""
        self._ready.clear()
        self._next = None
        self._decoder = None
        self._feed.close()
        self._has_ended = True

    def _start_pass(self) -> None:
        self._corrupt_before = self.corrupt_packets
        self._ready.clear()
        self._next = None
        self._decoder = VideoDecoder(self._feed.stream, self._feed.where)
        self._has_ended = self._is_between_passes = False

    def _next_wanted(self, timeout_s: float) -> tuple[VideoFrame, float] | Idle | EndOfStream:
        """The next frame that the request asks for, and its time."""
        feed = self._feed
        deadline_s = time.monotonic() + timeout_s
        while True:
            frame = self._decode_next(deadline_s - time.monotonic())
            if isinstance(frame, Idle | EndOfStream):
                return frame
            if feed.watches_pictures:
                feed.saw_picture(_signature(frame))
            media_time_s = feed.admit(frame.pts)
            if media_time_s is not None:
                return frame, media_time_s
            if feed.is_live and time.monotonic() > deadline_s:
                return Idle()

    def _decode_next(self, timeout_s: float) -> VideoFrame | Idle | EndOfStream:
        """The next frame in presentation order, over the joints of a loop and the gaps of a stream."""
        feed = self._feed
        deadline_s = time.monotonic() + timeout_s
        while not self._ready:
            if self._has_ended or self._decoder is None:
                return EndOfStream()
            if not feed.wait_packet(max(deadline_s - time.monotonic(), 0.0)):
                return Idle()
            if self._is_between_passes:
                self._begin_next_pass()
                continue
            packet = feed.next_packet()
            self._ready.extend(self._decoder.decode(packet))
            if packet is None:
                self._is_between_passes = True
        return self._ready.popleft()

    def _begin_next_pass(self) -> None:
        if self._feed.start_next_pass():
            self._start_pass()
        else:
            self._has_ended = True

    def _lend(self, frame: VideoFrame) -> Surface[Pixels]:
        if self._converter is None:
            raise PhaseError("the source is not open", where=self._feed.where)
        form = decoded_form(frame)
        if form != self._first_form:
            self._feed.warn(f"the picture changes to {form} and is converted to the opened format")
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
                "bytes over frames",
            ),
            _pixel_hop("decode", decoded_bytes, "libavcodec writes each picture once, into its pool"),
        ]
        if converter.needs(form):
            reason = f"{form} to {lent.pixel_format.value} by libswscale, into libavfilter's pool"
            hops.append(_pixel_hop("convert", lent.width_px * lent.height_px + _chroma_bytes(lent), reason))
        name = self._feed.where
        return SourceFacts(
            format=lent,
            domain=MemoryDomain.HOST,
            fps=stream.fps,
            is_live=self._feed.is_live,
            has_packets=stream.codec != "rawvideo",
            hops=tuple(hops),
            description=f"{name}: {stream.codec} {form}, {stream.fps:.3g} fps, decoded on the CPU",
        )


def _signature(frame: VideoFrame) -> int:
    """A checksum of some luma samples; equal for equal pictures."""
    samples = memoryview(frame.planes[0])
    step = max(len(samples) // _SIGNATURE_BYTES, 1) | 1  # odd, so that the samples are not all of one column
    return zlib.crc32(samples[::step].tobytes())


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

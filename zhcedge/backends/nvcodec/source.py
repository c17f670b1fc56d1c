"""Video files and live streams decoded by NVDEC. The decoder's own surfaces in device memory are lent."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace

from zhcedge.backends.nvcodec._vendor import VERSION, NvdecLibrary
from zhcedge.backends.nvcodec.gpu import context_of
from zhcedge.backends.nvcodec.library import Picture
from zhcedge.backends.nvcodec.pictures import hops_of, shape_of, surface_at
from zhcedge.backends.nvcodec.session import DEFAULT_MAX_HEIGHT_PX, DEFAULT_MAX_WIDTH_PX, Session, bit_depth
from zhcedge.core.errors import MediaError, PhaseError, PipelineError
from zhcedge.core.lending import SurfaceLease
from zhcedge.core.ports import EndOfStream, Fence, Idle, SourceFacts, SourceStatus
from zhcedge.core.requests import SourceRequest
from zhcedge.core.types import ImageFormat, MemoryDomain, PixelFormat, Surface
from zhcedge.media.annexb import AccessUnit, AnnexB
from zhcedge.media.convert import DecodedForm, decoded_form, lent_format, matrix_note
from zhcedge.media.decode import VideoDecoder
from zhcedge.media.demux import StreamFacts
from zhcedge.media.feed import VideoPacket, open_feed

_PRIMING_PACKETS = 48
"""More than any stream holds back (16 pictures of reordering and the parser's 4), so that the flush is the worst
burst and the decoder's pool has its final size before the seal."""

_BRIEF_PRIMING_PACKETS = 8
_MAX_SURFACES = 64
_PACKETS_AT_ONCE = 8

_RELEASE_TIMEOUT_S = 10.0
"""Work on a lent surface takes a millisecond; after this long the GPU is taken for hung."""


class NvCodecSource:
    """Plays a file or a live stream. Implements core.ports.Source over device memory; see there for threads and phases.

    - NV12 for 8 bits, P010 for 10. One device-to-device copy inside PyNvVideoCodec, declared in the hops.
    - One frame is lent at a time: `read` raises PhaseError while the last one is still out. NVDEC may give several
      pictures at once; they are lent one after the other and no packet goes in meanwhile.
    - The surface is complete once the lease's `ready` is done, an event on the decoder's own stream.
    - `open` decodes the first packets and flushes, so that the decoder's pool has its final size; `rewind` and loops
      keep the session. A change of resolution is scaled by NVDEC to the opened size. The decoder's pool is made anew
      then, and beyond `max_size_px` the session too, under re-warm leases of the request.
    - The first picture is decoded once more on the CPU during `open`, to read matrix, range and rotation from it.
    - A lost stream gives Idle until it is back, and goes on in the opened format; with another codec it is broken for
      good. A frozen picture is told by the sizes of its key frames, because the pixels are out of reach.
    - NVDEC conceals corrupt packets instead of reporting them: none are counted here.

    Args:
        device: the cuda device, whose context everything here runs in.
        max_size_px: coded width and height up to which the resolution may change without a new session.
    """

    def __init__(
        self,
        request: SourceRequest,
        device: object,
        max_size_px: tuple[int, int] = (DEFAULT_MAX_WIDTH_PX, DEFAULT_MAX_HEIGHT_PX),
    ) -> None:
        self._context = context_of(device)
        self._playback = open_feed(request, watches_packets=True)
        self._open_timeout_s = request.options.connect_timeout_s
        self._is_low_latency = False
        self._codec = ""
        self._probed: deque[VideoPacket] = deque()
        self._is_between_passes = False
        self._rewarm = request.rewarm
        self._max_size_px = max_size_px
        self._stream = self._context.create_stream()
        self._decoded = self._context.create_fence(f"{self._playback.where}: decoder")  # all pictures of the last call
        self._session: Session | None = None
        self._unpacker: AnnexB | None = None
        self._units: deque[AccessUnit] = deque()
        self._has_pass_ended = False
        self._format: ImageFormat | None = None
        self._ready: deque[Picture] = deque()
        self._next: tuple[Picture, float] | None = None
        self._surfaces: dict[int, Surface[int]] = {}  # by address of the luma
        self._is_lent = False
        self._busy: list[Fence] = []
        self._has_ended = False

    @property
    def status(self) -> SourceStatus:
        return self._playback.status

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was odd about the stream so far, for the log and the summary."""
        return self._playback.warnings

    # -- opening ---------------------------------------------------------------------------------------------
    def open(self) -> SourceFacts:
        """Open, probe and prime.

        Raises SourceMissingError, MediaError or BackendUnavailableError, and then holds nothing.
        """
        self._context.attach()
        try:
            stream = self._playback.open()
            form, is_reordered = self._probe()
            self._codec = stream.codec
            self._is_low_latency = self._playback.is_live and not is_reordered
            library = NvdecLibrary()
            self._session = Session(
                library,
                self._context,
                self._stream.handle,
                stream.codec,
                form,
                self._playback.where,
                self._max_size_px,
                is_low_latency=self._is_low_latency,
                rewarm=self._rewarm,
            )
            self._format = self._prime(
                self._session, form, bit_depth(form, stream.codec, library.codecs(), self._playback.where)
            )
            self.rewind()
            return self._facts(stream, self._format)
        except BaseException:
            self.close()
            raise

    def _probe(self) -> tuple[DecodedForm, bool]:
        """What the first picture is, and whether pictures come in another order than their packets."""
        decoder = VideoDecoder(self._playback.stream, self._playback.where)
        while True:
            self._await_packet()
            packet = self._playback.next_packet()
            if packet is not None and not self._playback.can_rewind:
                self._probed.append(packet)
            for frame in decoder.decode(packet):
                if note := matrix_note(frame):
                    self._playback.warn(note)
                return decoded_form(frame), bool(self._playback.stream.codec_context.has_b_frames)
            if packet is None:
                raise self._no_picture()

    def _await_packet(self) -> None:
        if not self._probed and not self._playback.wait_packet(self._open_timeout_s):
            raise self._no_picture()

    def _prime(self, session: Session, form: DecodedForm, depth: int) -> ImageFormat:
        """Fill the decoder and flush it: its pool grows to the worst burst, here and not later."""
        if self._playback.can_rewind:
            self._playback.open()  # again: the probe's decoder, on the CPU, goes with its pictures
        self._start_pass()
        shape: tuple[int, ...] = ()
        # Nothing is held back at low latency, so there is no burst; and a camera sends one packet at a time.
        is_brief = self._is_low_latency and not self._playback.can_rewind
        for _ in range(_BRIEF_PRIMING_PACKETS if is_brief else _PRIMING_PACKETS):
            self._await_packet()
            has_more = self._feed(session)
            shape = shape or (self._ready[0].shape if self._ready else ())
            self._ready.clear()
            if not has_more:
                break
        if not is_brief:
            shape = shape or next((frame.shape for frame in session.flush()), ())
            self._playback.skip_to_keyframe()
        if not shape:
            raise self._no_picture()
        pixel_format = PixelFormat.P010 if depth > 8 else PixelFormat.NV12
        format = replace(lent_format(form), pixel_format=pixel_format)
        if shape != shape_of(format):
            raise MediaError(
                f"NVDEC gives {shape} where {shape_of(format)} is expected",
                where=self._playback.where,
                fix="report this",
            )
        return format

    def _no_picture(self) -> MediaError:
        return MediaError("not one picture could be decoded", where=self._playback.where, fix="try another file")

    # -- reading ---------------------------------------------------------------------------------------------
    def read(self, timeout_s: float) -> SurfaceLease[int] | Idle | EndOfStream:
        """The next frame; Idle when it is not due, or has not come, within `timeout_s`.

        Raises MediaError, PhaseError while the last frame is still lent, PipelineError when the GPU fails.
        """
        if self._is_lent:
            raise PhaseError("the last frame was not given back", where=self._playback.where)
        if self._next is None:
            wanted = self._next_wanted(timeout_s)
            if isinstance(wanted, (Idle, EndOfStream)):
                return wanted
            self._next = wanted
        frame, media_time_s = self._next
        wait_s = self._playback.wait_s(media_time_s)
        if wait_s > 0:
            time.sleep(min(wait_s, timeout_s))
            if wait_s > timeout_s:
                return Idle()
        self._next = None
        surface = self._lend(frame)
        self._is_lent = True
        return SurfaceLease(surface, self._playback.stamp(media_time_s), self._take_back, self._decoded)

    def _take_back(self, after: Fence | None) -> None:
        """A lease was released: remember what the next decode must wait for."""
        if after is not None:
            self._busy.append(after)
        self._is_lent = False

    def _next_wanted(self, timeout_s: float) -> tuple[Picture, float] | Idle | EndOfStream:
        """The next picture that the request asks for, and its time."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            picture = self._decode_next(deadline_s)
            if isinstance(picture, (Idle, EndOfStream)):
                return picture
            media_time_s = self._playback.admit(picture.ticks)
            if media_time_s is not None:
                return picture, media_time_s
            if self._playback.is_live and time.monotonic() > deadline_s:
                return Idle()

    def _decode_next(self, deadline_s: float) -> Picture | Idle | EndOfStream:
        """The next picture in presentation order, over the joints of a loop and the gaps of a stream."""
        while not self._ready:
            if self._has_ended or self._session is None:
                return EndOfStream()
            if not self._units and not self._playback.wait_packet(max(deadline_s - time.monotonic(), 0.0)):
                return Idle()
            if self._is_between_passes:
                self._begin_next_pass()
                continue
            self._is_between_passes = not self._feed(self._session)
            if self._ready:
                self._decoded.record(self._stream)
        return self._ready.popleft()

    def _feed(self, session: Session) -> bool:
        """One packet into the decoder, its pictures into `_ready`; False when the pass had none left: flushed."""
        unit = session.take_held() or self._next_unit()
        self._wait_for_readers()
        if unit is None:
            self._ready.extend(session.flush())
            return False
        self._ready.extend(session.decode(unit))
        return True

    def _next_unit(self) -> AccessUnit | None:
        """The next unit of this pass; None at its end. A file is read several packets at a time: each costs half then,
        because code and data are still in the caches."""
        while not self._units and not self._has_pass_ended:
            for count in range(1 if self._playback.is_live else _PACKETS_AT_ONCE):
                if count and not self._playback.wait_packet(0.0):
                    break
                packet = self._probed.popleft() if self._probed else self._playback.next_packet()
                if packet is None:
                    self._has_pass_ended = True
                    break
                unit = self._unpacker.convert(packet) if self._unpacker is not None else None
                if unit is not None:
                    self._units.append(unit)
        return self._units.popleft() if self._units else None

    def _begin_next_pass(self) -> None:
        if not self._playback.start_next_pass():
            self._has_ended = True
            return
        codec = self._playback.stream.codec_context.codec.canonical_name
        if codec != self._codec:
            raise MediaError(
                f"the stream came back as {codec} instead of {self._codec}",
                where=self._playback.where,
                fix="restart the channel",
            )
        self._start_pass()

    def _start_pass(self) -> None:
        self._unpacker = AnnexB(self._playback.stream, self._playback.where)
        self._units.clear()
        self._has_pass_ended = self._is_between_passes = False

    def _wait_for_readers(self) -> None:
        """Let the decoder's stream wait for all work on the surfaces that the next call overwrites."""
        for fence in self._busy:
            if isinstance(fence, type(self._decoded)):  # of our context: the GPU waits, this thread does not
                self._stream.wait_for(fence)
            elif not fence.wait(_RELEASE_TIMEOUT_S):
                raise PipelineError("work on a lent frame does not end", where=self._playback.where)
        self._busy.clear()

    def _lend(self, frame: Picture) -> Surface[int]:
        format = self._format
        if format is None:
            raise PhaseError("the source is not open", where=self._playback.where)
        address = frame.address
        surface = self._surfaces.get(address)
        if surface is None:
            # Few: the decoder's pool. It is made anew when the resolution changes, and then the old ones go.
            if len(self._surfaces) >= _MAX_SURFACES:
                self._surfaces.clear()
            surface = self._surfaces[address] = surface_at(frame.plane_addresses, format)
        return surface

    # -- life ------------------------------------------------------------------------------------------------
    def rewind(self) -> None:
        """Start again at the first frame, sequence 0 and media time 0; a stream goes on and only counts anew.

        The session and its memory stay.
        """
        if self._session is None:
            raise PhaseError("the source is not open", where=self._playback.where)
        if not self._playback.can_rewind:
            self._playback.rewind()
            return
        self._wait_for_readers()
        self._ready.clear()
        self._next = None
        self._session.flush()
        self._playback.rewind()
        self._start_pass()
        self._has_ended = False

    def close(self) -> None:
        """Close file and session, once the work on the last lent surface is done."""
        for fence in self._busy:
            fence.wait(_RELEASE_TIMEOUT_S)
        self._busy.clear()
        self._ready.clear()
        self._units.clear()
        self._probed.clear()
        self._surfaces.clear()
        self._next = None
        self._session = None
        self._is_lent = False
        self._playback.close()
        self._has_ended = True

    def _facts(self, stream: StreamFacts, format: ImageFormat) -> SourceFacts:
        size = f"{format.width_px}x{format.height_px} {format.pixel_format.value}"
        return SourceFacts(
            format=format,
            domain=MemoryDomain.DEVICE,
            fps=stream.fps,
            is_live=self._playback.is_live,
            has_packets=True,
            hops=hops_of(stream.bytes_per_frame, format, VERSION),
            description=f"{self._playback.where}: {stream.codec} {size}, {stream.fps:.3g} fps, decoded by NVDEC",
        )

"""Video files decoded by NVDEC. The decoder's own surfaces in device memory are lent."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace

from zhcedge.backends.nvcodec._vendor import VERSION, RawFrame
from zhcedge.backends.nvcodec.gpu import context_of
from zhcedge.backends.nvcodec.session import DEFAULT_MAX_HEIGHT_PX, DEFAULT_MAX_WIDTH_PX, Session, bit_depth
from zhcedge.core.errors import MediaError, PhaseError, PipelineError
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
from zhcedge.media.annexb import AccessUnit, AnnexB
from zhcedge.media.convert import DecodedForm, decoded_form, lent_format, matrix_note
from zhcedge.media.decode import VideoDecoder
from zhcedge.media.demux import StreamFacts
from zhcedge.media.packets import PacketRing
from zhcedge.media.playback import Playback

_PRIMING_PACKETS = 48
"""More than any stream holds back (16 pictures of reordering and the parser's 4), so that the flush is the worst
burst and the decoder's pool has its final size before the seal."""

_MAX_SURFACES = 64
_PACKETS_AT_ONCE = 8

_RELEASE_TIMEOUT_S = 10.0
"""Work on a lent surface takes a millisecond; after this long the GPU is taken for hung."""


class SurfaceLease:
    """A decoder's surface on loan: device addresses, to be released before the next `read`.

    It is complete once `ready` is done: the GPU can wait for it, so that nobody waits here.
    """

    __slots__ = ("_info", "_source", "_surface")

    def __init__(self, source: NvCodecSource, surface: Surface[int], info: FrameInfo) -> None:
        self._source = source
        self._surface: Surface[int] | None = surface
        self._info = info

    @property
    def surface(self) -> Surface[int]:
        """Raises PhaseError once released."""
        if self._surface is None:
            raise PhaseError("the frame was given back already", where=f"frame {self._info.sequence}")
        return self._surface

    @property
    def info(self) -> FrameInfo:
        return self._info

    @property
    def ready(self) -> Fence | None:
        return self._source.decoded

    def release(self, after: Fence | None = None) -> None:
        """Give the surface back; the decoder overwrites it only once `after` is done. Twice is fine."""
        if self._surface is not None:
            self._surface = None
            self._source.take_back(after)


class NvCodecSource:
    """Plays a file. Implements core.ports.Source over device memory; see there for threads and phases.

    - NV12 for 8 bits, P010 for 10. One device-to-device copy inside PyNvVideoCodec, declared in the hops.
    - One frame is lent at a time: `read` raises PhaseError while the last one is still out. NVDEC may give several
      pictures at once; they are lent one after the other and no packet goes in meanwhile.
    - The surface is complete once the lease's `ready` is done, an event on the decoder's own stream.
    - `open` decodes the first packets and flushes, so that the decoder's pool has its final size; `rewind` and loops
      keep the session. A change of resolution within `max_size_px` is scaled by NVDEC to the opened size; the
      decoder's pool is made anew then, which the ledger counts.
    - The first picture is decoded once more on the CPU during `open`, to read matrix, range and rotation from it.
    - NVDEC conceals corrupt packets instead of reporting them: none are counted here.

    Args:
        device: the cuda device, whose context everything here runs in.
        max_size_px: coded width and height up to which the resolution may change.
    """

    def __init__(
        self,
        request: SourceRequest,
        device: object,
        max_size_px: tuple[int, int] = (DEFAULT_MAX_WIDTH_PX, DEFAULT_MAX_HEIGHT_PX),
    ) -> None:
        self._context = context_of(device)
        self._playback = Playback(request)
        self._is_live = request.is_realtime
        self._max_size_px = max_size_px
        self._stream = self._context.create_stream()
        self._decoded = self._context.create_fence(f"{self._playback.where}: decoder")
        self._session: Session | None = None
        self._unpacker: AnnexB | None = None
        self._units: deque[AccessUnit] = deque()
        self._has_pass_ended = False
        self._format: ImageFormat | None = None
        self._ready: deque[RawFrame] = deque()
        self._next: tuple[RawFrame, float] | None = None
        self._surfaces: dict[tuple[int, int], Surface[int]] = {}
        self._is_lent = False
        self._busy: list[Fence] = []
        self._has_ended = False

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was odd about the stream so far, for the log and the summary."""
        return self._playback.warnings

    @property
    def packets(self) -> PacketRing:
        """The newest compressed packets, for recording without decoding."""
        return self._playback.ring

    @property
    def decoded(self) -> Fence:
        """Stands for all pictures of the decoder's last call."""
        return self._decoded

    # -- opening ---------------------------------------------------------------------------------------------
    def open(self) -> SourceFacts:
        """Open, probe and prime.

        Raises SourceMissingError, MediaError or BackendUnavailableError, and then holds nothing.
        """
        self._context.attach()
        try:
            stream = self._playback.open()
            form, is_reordered = self._probe()
            self._session = Session(
                self._context,
                self._stream.handle,
                stream.codec,
                form,
                self._playback.where,
                self._max_size_px,
                is_low_latency=self._is_live and not is_reordered,
            )
            self._format = self._prime(self._session, form, bit_depth(form, stream.codec, self._playback.where))
            self.rewind()
            return self._facts(stream, self._format)
        except BaseException:
            self.close()
            raise

    def _probe(self) -> tuple[DecodedForm, bool]:
        """What the first picture is, and whether pictures come in another order than their packets."""
        decoder = VideoDecoder(self._playback.stream, self._playback.where)
        packet = self._playback.next_packet()
        while True:
            for frame in decoder.decode(packet):
                if note := matrix_note(frame):
                    self._playback.warn(note)
                return decoded_form(frame), bool(self._playback.stream.codec_context.has_b_frames)
            if packet is None:
                raise self._no_picture()
            packet = self._playback.next_packet()

    def _prime(self, session: Session, form: DecodedForm, depth: int) -> ImageFormat:
        """Fill the decoder and flush it: its pool grows to the worst burst, here and not later."""
        self._playback.rewind()
        self._start_pass()
        shape: tuple[int, ...] = ()
        for _ in range(_PRIMING_PACKETS):
            has_more = self._feed(session)
            shape = shape or (self._ready[0].shape if self._ready else ())
            self._ready.clear()
            if not has_more:
                break
        shape = shape or next((frame.shape for frame in session.flush()), ())
        if not shape:
            raise self._no_picture()
        pixel_format = PixelFormat.P010 if depth > 8 else PixelFormat.NV12
        format = replace(lent_format(form), pixel_format=pixel_format)
        if shape != _shape(format):
            raise MediaError(
                f"NVDEC gives {shape} where {_shape(format)} is expected", where=self._playback.where, fix="report this"
            )
        return format

    def _no_picture(self) -> MediaError:
        return MediaError("not one picture could be decoded", where=self._playback.where, fix="try another file")

    # -- reading ---------------------------------------------------------------------------------------------
    def read(self, timeout_s: float) -> SurfaceLease | Idle | EndOfStream:
        """The next frame; Idle when it is not due within `timeout_s`.

        Raises MediaError, PhaseError while the last frame is still lent, PipelineError when the GPU fails.
        """
        if self._is_lent:
            raise PhaseError("the last frame was not given back", where=self._playback.where)
        if self._next is None:
            frame = self._decode_next()
            if frame is None:
                return EndOfStream()
            self._next = frame, self._playback.media_time_s(frame.ticks)
        frame, media_time_s = self._next
        wait_s = self._playback.wait_s(media_time_s)
        if wait_s > 0:
            time.sleep(min(wait_s, timeout_s))
            if wait_s > timeout_s:
                return Idle()
        self._next = None
        surface = self._lend(frame)
        self._is_lent = True
        return SurfaceLease(self, surface, self._playback.stamp(media_time_s))

    def take_back(self, after: Fence | None) -> None:
        """A lease was released: remember what the next decode must wait for."""
        if after is not None:
            self._busy.append(after)
        self._is_lent = False

    def _decode_next(self) -> RawFrame | None:
        """The next picture in presentation order, over the joints of a loop; None at the end."""
        while not self._ready:
            if self._has_ended or self._session is None:
                return None
            is_end = not self._feed(self._session)
            if self._ready:
                self._decoded.record(self._stream)
            elif is_end:  # the flush, too, has given its last picture
                self._end_pass()
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
            for _ in range(1 if self._is_live else _PACKETS_AT_ONCE):
                packet = self._playback.next_packet()
                if packet is None:
                    self._has_pass_ended = True
                    break
                unit = self._unpacker.convert(packet) if self._unpacker is not None else None
                if unit is not None:
                    self._units.append(unit)
        return self._units.popleft() if self._units else None

    def _end_pass(self) -> None:
        if self._playback.start_next_pass():
            self._start_pass()
        else:
            self._has_ended = True

    def _start_pass(self) -> None:
        self._unpacker = AnnexB(self._playback.stream, self._playback.where)
        self._units.clear()
        self._has_pass_ended = False

    def _wait_for_readers(self) -> None:
        """Let the decoder's stream wait for all work on the surfaces that the next call overwrites."""
        for fence in self._busy:
            if isinstance(fence, type(self._decoded)):  # of our context: the GPU waits, this thread does not
                self._stream.wait_for(fence)
            elif not fence.wait(_RELEASE_TIMEOUT_S):
                raise PipelineError("work on a lent frame does not end", where=self._playback.where)
        self._busy.clear()

    def _lend(self, frame: RawFrame) -> Surface[int]:
        format = self._format
        if format is None:
            raise PhaseError("the source is not open", where=self._playback.where)
        addresses = frame.plane_addresses
        surface = self._surfaces.get(addresses)
        if surface is None:
            # Few: the decoder's pool. It is made anew when the resolution changes, and then the old ones go.
            if len(self._surfaces) >= _MAX_SURFACES:
                self._surfaces.clear()
            surface = self._surfaces[addresses] = _surface(addresses, format)
        return surface

    # -- life ------------------------------------------------------------------------------------------------
    def rewind(self) -> None:
        """Start again at the first frame, sequence 0 and media time 0. The session and its memory stay."""
        if self._session is None:
            raise PhaseError("the source is not open", where=self._playback.where)
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
            is_live=self._is_live,
            has_packets=True,
            hops=_hops(stream.bytes_per_frame, format),
            description=f"{self._playback.where}: {stream.codec} {size}, {stream.fps:.3g} fps, decoded by NVDEC",
        )


def _surface(addresses: tuple[int, int], format: ImageFormat) -> Surface[int]:
    width_bytes, pitch_bytes, chroma_bytes = _row_bytes(format)
    planes = (
        Plane(addresses[0], width_bytes, format.height_px, pitch_bytes),
        Plane(addresses[1], chroma_bytes, (format.height_px + 1) // 2, pitch_bytes),
    )
    return Surface(planes, format, MemoryDomain.DEVICE)


def _row_bytes(format: ImageFormat) -> tuple[int, int, int]:
    """(luma bytes, pitch, chroma bytes) of a row. The decoder's rows are tight, an odd width rounded up to even."""
    sample_bytes = 2 if format.pixel_format is PixelFormat.P010 else 1
    even_px = format.width_px + format.width_px % 2
    return format.width_px * sample_bytes, even_px * sample_bytes, even_px * sample_bytes


def _shape(format: ImageFormat) -> tuple[int, int]:
    """Shape that PyNvVideoCodec gives to a picture: rows of both planes, columns."""
    return format.height_px + (format.height_px + 1) // 2, format.width_px + format.width_px % 2


def _hops(packet_bytes: int, format: ImageFormat) -> tuple[Hop, ...]:
    rows, columns = _shape(format)
    picture_bytes = rows * columns * (2 if format.pixel_format is PixelFormat.P010 else 1)
    host, device = MemoryDomain.HOST, MemoryDomain.DEVICE
    bitstream, pixels = Payload.BITSTREAM, Payload.PIXELS
    derived, declared = Provenance.DERIVED, Provenance.DECLARED
    library = f"PyNvVideoCodec {VERSION}"
    return (
        Hop(
            "bitstream in", Agent.CPU, MemoryDomain.STORAGE, host, bitstream, packet_bytes, derived, "size over frames"
        ),
        Hop("bitstream to start codes", Agent.CPU, host, host, bitstream, packet_bytes, derived, "Annex B for NVDEC"),
        Hop("bitstream to NVDEC", Agent.NVDEC, host, device, bitstream, packet_bytes, derived, "cuvidDecodePicture"),
        Hop(
            "decode",
            Agent.NVDEC,
            device,
            device,
            pixels,
            picture_bytes,
            derived,
            "into NVDEC's own block-linear surface",
        ),
        Hop(
            "decoder's pool",
            Agent.COPY_ENGINE,
            device,
            device,
            pixels,
            picture_bytes,
            declared,
            f"{library} copies out of the mapped surface (cuMemcpy2DAsync of NvDecoder::HandlePictureDisplay)",
        ),
    )

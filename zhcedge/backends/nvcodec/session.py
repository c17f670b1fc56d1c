"""One NVDEC session: capabilities, packets in, pictures out, errors in our words."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar

from zhcedge.backends.nvcodec.gpu import GpuContext
from zhcedge.backends.nvcodec.library import Decoder, DecoderLibrary, Picture
from zhcedge.core.errors import BackendUnavailableError, MediaError, PipelineError, ZhcEdgeError
from zhcedge.core.leases import Rewarm, no_rewarm
from zhcedge.media.annexb import AccessUnit
from zhcedge.media.convert import DecodedForm, decoded_form
from zhcedge.media.decode import decode_alone

T = TypeVar("T")

DEFAULT_MAX_WIDTH_PX, DEFAULT_MAX_HEIGHT_PX = 1920, 1088
"""Coded size up to which a stream may grow without a new session, where it does not start larger."""

_BIT_DEPTHS = {"yuv420p": 8, "yuvj420p": 8, "nv12": 8, "yuv420p10le": 10, "p010le": 10}
_CONVERT = "convert the file to H.264 with 8-bit 4:2:0 pictures, or use the cpu profile"
_MACROBLOCK_PX = 16
_BEYOND_MAXIMUM = "width/height > maxwidth/maxheight"  # so PyNvVideoCodec says it
_OTHER_KIND = "Reconfigure Not supported"
_SETTLING_CALLS = 48
"""Calls after a change of format in which the decoder's pool still grows: more than any stream holds back."""


def bit_depth(form: DecodedForm, codec: str, codecs: Sequence[str], where: str) -> int:
    """8 or 10. Raises MediaError for what NVDEC does not decode here: codec, chroma or depth, rotated pictures."""
    if codec not in codecs:
        known = ", ".join(codecs)
        raise MediaError(f"{codec} is not decoded on the GPU, only {known}", where=where, fix=_CONVERT)
    if form.pixel_format not in _BIT_DEPTHS:
        raise MediaError(
            f"pictures of {form.pixel_format} are not decoded on the GPU, only 4:2:0 of 8 or 10 bits",
            where=where,
            fix=_CONVERT,
        )
    if form.turn_deg:
        raise MediaError(
            f"the pictures are marked to be turned by {form.turn_deg} degrees, which NVDEC can't do",
            where=where,
            fix="turn the camera's picture in its settings, convert the file, or use the cpu profile",
        )
    return _BIT_DEPTHS[form.pixel_format]


class Session:
    """Decodes the packets of one channel, over rewinds, loops and changes of resolution. Owned by the reader thread.

    Pictures always come in the size of `form`; NVDEC scales. A picture lives until the next call of `decode` or
    `flush`. Raises MediaError where this GPU can't decode the stream and BackendUnavailableError where it has no room
    for one more session.

    Args:
        stream_handle: a stream of its own, never the null stream.
        max_size_px: coded width and height up to which a stream may change without a new session. Beyond it a new and
            larger one is made, up to what the GPU can do.
        is_low_latency: see DecoderLibrary.create.
        rewarm: opens a re-warm lease. Held while a change of format makes memory anew: during the change, the next
            `_SETTLING_CALLS` calls and the flush after it, because the pool grows with its first bursts.
    """

    def __init__(
        self,
        library: DecoderLibrary,
        context: GpuContext,
        stream_handle: int,
        codec: str,
        form: DecodedForm,
        where: str,
        max_size_px: tuple[int, int] = (DEFAULT_MAX_WIDTH_PX, DEFAULT_MAX_HEIGHT_PX),
        is_low_latency: bool = False,
        rewarm: Rewarm = no_rewarm,
    ) -> None:
        self._library = library
        self._where = where
        self._codec = codec
        self._context, self._stream_handle, self._is_low_latency = context, stream_handle, is_low_latency
        self._rewarm = rewarm
        self._depth = bit_depth(form, codec, library.codecs(), where)
        width, height = _coded(form.width_px), _coded(form.height_px)
        self._max_size_px = max(width, max_size_px[0]), max(height, max_size_px[1])
        self._check_caps(width, height)
        self._has_input = False
        self._size_px = form.width_px + form.width_px % 2, form.height_px
        self._sequence = b""
        self._held: deque[AccessUnit] = deque()
        self._since_change: list[AccessUnit] = []  # while no picture has come out since a change of format
        self._is_change_open = False
        self._settling_calls, self._is_flush_settling = 0, False
        self._decoder = self._make_decoder()

    def _make_decoder(self) -> Decoder:
        return self._try(
            lambda: self._library.create(
                self._codec,
                self._context.index,
                self._context.handle,
                self._stream_handle,
                *self._max_size_px,
                self._is_low_latency,
            )
        )

    def _check_caps(self, width_px: int, height_px: int) -> None:
        """Whether this GPU decodes pictures of that coded size; brings the maximum down to what it can do."""
        caps = self._try(lambda: self._library.caps(self._context.index, self._codec, self._depth))
        if not caps.is_supported:
            raise MediaError(
                f"this GPU does not decode {self._codec} of {self._depth} bits", where=self._where, fix=_CONVERT
            )
        least, most = caps.least_px, caps.most_px
        macroblocks = width_px // _MACROBLOCK_PX * (height_px // _MACROBLOCK_PX)
        if width_px > most[0] or height_px > most[1] or macroblocks > caps.most_macroblocks:
            raise MediaError(
                f"{width_px}x{height_px} is larger than what this GPU decodes ({most[0]}x{most[1]}, "
                f"{caps.most_macroblocks} macroblocks)",
                where=self._where,
                fix="scale the video down",
            )
        if width_px < least[0] or height_px < least[1]:
            raise MediaError(
                f"{width_px}x{height_px} is smaller than the {least[0]}x{least[1]} that this GPU decodes",
                where=self._where,
                fix="use the cpu profile",
            )
        self._max_size_px = min(self._max_size_px[0], most[0]), min(self._max_size_px[1], most[1])

    def decode(self, unit: AccessUnit) -> Sequence[Picture]:
        """Pictures that come out, in presentation order; none or several.

        Where the stream changes its format at this unit, the pictures held back come first and the unit waits; where
        the new format needs a larger decoder, several units wait. Give them in again, from `take_held`, before any
        other.
        """
        if unit.sequence:
            if self._sequence and unit.sequence != self._sequence:
                if pictures := self._drain():  # NVDEC would drop them
                    self._held.appendleft(unit)
                    return pictures
                self._begin_change()
            self._sequence = unit.sequence
        self._has_input = True
        if self._settling_calls:
            self._settling_calls -= 1
            with self._lease():
                return self._settle(unit)
        try:
            return self._decoder.decode(unit.address, unit.size_bytes, unit.ticks)
        except self._library.errors as error:
            raise self._translate(str(error)) from error

    def _begin_change(self) -> None:
        """Before the first unit of another format. All earlier pictures were lent before: their memory goes now."""
        self._settling_calls, self._is_flush_settling = _SETTLING_CALLS, True
        self._since_change, self._is_change_open = [], True
        # Without this NVDEC scales whole macroblocks, padding included, and the picture comes out stretched.
        with self._lease():
            self._try(partial(self._decoder.keep_size, *self._size_px))

    def _settle(self, unit: AccessUnit) -> Sequence[Picture]:
        """Decode soon after a change. NVDEC says that it can't follow at that unit or at one of the next."""
        if self._is_change_open:
            self._since_change.append(unit)
        try:
            pictures = self._decoder.decode(unit.address, unit.size_bytes, unit.ticks)
        except self._library.errors as error:
            self._grow(error)
            self._held.extendleft(reversed(self._since_change))
            self._since_change = []
            self._settling_calls = _SETTLING_CALLS
            return ()
        if pictures and self._is_change_open:
            self._check_shape(pictures[0])
            self._since_change, self._is_change_open = [], False
        return pictures

    def _check_shape(self, picture: Picture) -> None:
        """Slots have the opened size: a picture of another one would be read beyond its end."""
        width, height = self._size_px
        expected = height + (height + 1) // 2, width
        if picture.shape != expected:
            raise MediaError(
                f"NVDEC gives {picture.shape} after a change of format, where {expected} is expected",
                where=self._where,
                fix="restart the channel",
            )

    def _grow(self, error: Exception) -> None:
        """A new decoder for the pictures since the change, which are larger than the maximum; nothing has come out yet.

        Raises what `error` means where that is not the trouble, MediaError where the GPU can't decode such pictures.
        """
        if _BEYOND_MAXIMUM not in str(error) or not self._since_change:
            raise self._translate(str(error)) from error
        # Decoded on the CPU once, because NVDEC says only that the picture is too large.
        frame = decode_alone(self._codec, self._since_change[0].owner)
        if frame is None:
            raise self._translate(str(error)) from error
        form = decoded_form(frame)
        if bit_depth(form, self._codec, self._library.codecs(), self._where) != self._depth:
            raise self._translate(_OTHER_KIND) from error
        size = _coded(form.width_px), _coded(form.height_px)
        larger = max(size[0], self._max_size_px[0]), max(size[1], self._max_size_px[1])
        if larger == self._max_size_px:  # it was made for this size, and still refuses
            raise self._translate(str(error)) from error
        self._max_size_px = larger
        self._check_caps(*size)
        self._decoder = self._make_decoder()
        self._try(partial(self._decoder.keep_size, *self._size_px))

    def take_held(self) -> AccessUnit | None:
        """The next unit that still waits to be decoded, if any."""
        return self._held.popleft() if self._held else None

    def flush(self) -> Sequence[Picture]:
        """The pictures held back at the end of a pass; none when nothing went in since the last flush.

        Units that wait are dropped.
        """
        self._held.clear()
        return self._drain()

    def _drain(self) -> Sequence[Picture]:
        if not self._has_input:
            return ()
        self._has_input = False
        if not self._is_flush_settling:
            return self._try(self._decoder.flush)
        self._is_flush_settling = False
        with self._lease():
            try:
                return self._decoder.flush()
            except self._library.errors as error:
                self._grow(error)  # the stream ends right after its change
                for unit in self._since_change:
                    self._try(partial(self._decoder.decode, unit.address, unit.size_bytes, unit.ticks))
                return self._try(self._decoder.flush)

    def _lease(self) -> AbstractContextManager[None]:
        return self._rewarm(f"{self._where}: the stream changes its format")

    def _try(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except self._library.errors as error:
            raise self._translate(str(error)) from error

    def _translate(self, text: str) -> ZhcEdgeError:
        most = "x".join(str(n) for n in self._max_size_px)
        if "OUT_OF_MEMORY" in text:
            return BackendUnavailableError(
                "the GPU has no room for another NVDEC session",
                where=self._where,
                fix="run fewer or smaller channels on this GPU, or end other programs that use it",
            )
        if _BEYOND_MAXIMUM in text:
            return MediaError(f"the picture grew beyond {most}", where=self._where, fix="restart the channel")
        if _OTHER_KIND in text:
            return MediaError("bit depth or chroma changed on the way", where=self._where, fix="restart the channel")
        if "not supported on this GPU" in text or "NOT_SUPPORTED" in text:
            return MediaError(f"this GPU does not decode {self._codec} of this kind", where=self._where, fix=_CONVERT)
        reason = next(iter(text.strip().splitlines()), "no reason given")
        return PipelineError(f"NVDEC failed: {reason}", where=self._where)


def _coded(size_px: int) -> int:
    """Size in whole macroblocks: what the session must hold."""
    return -(-size_px // _MACROBLOCK_PX) * _MACROBLOCK_PX

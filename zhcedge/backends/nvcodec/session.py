"""One NVDEC session: capabilities, packets in, pictures out, errors in our words."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from zhcedge.backends.nvcodec import _vendor
from zhcedge.backends.nvcodec._vendor import RawDecoder, RawFrame
from zhcedge.backends.nvcodec.gpu import GpuContext
from zhcedge.core.errors import BackendUnavailableError, MediaError, PipelineError, ZhcEdgeError
from zhcedge.media.annexb import AccessUnit
from zhcedge.media.convert import DecodedForm

T = TypeVar("T")

DEFAULT_MAX_WIDTH_PX, DEFAULT_MAX_HEIGHT_PX = 1920, 1088
"""Coded size up to which a stream may grow without a new session, where it does not start larger."""

_BIT_DEPTHS = {"yuv420p": 8, "yuvj420p": 8, "nv12": 8, "yuv420p10le": 10, "p010le": 10}
_CONVERT = "convert the file to H.264 with 8-bit 4:2:0 pictures, or use the cpu profile"
_MACROBLOCK_PX = 16


def bit_depth(form: DecodedForm, codec: str, where: str) -> int:
    """8 or 10. Raises MediaError for what NVDEC does not decode here: codec, chroma or depth, rotated pictures."""
    if codec not in _vendor.codecs():
        known = ", ".join(_vendor.codecs())
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
    """Decodes the packets of one channel, over rewinds and loops. Owned by the reader thread.

    A picture lives until the next call of `decode` or `flush`. Raises MediaError where this GPU can't decode the
    stream and BackendUnavailableError where it has no room for one more session.

    Args:
        stream_handle: a stream of its own, never the null stream.
        is_low_latency: see RawDecoder.
    """

    def __init__(
        self,
        context: GpuContext,
        stream_handle: int,
        codec: str,
        form: DecodedForm,
        where: str,
        max_size_px: tuple[int, int] = (DEFAULT_MAX_WIDTH_PX, DEFAULT_MAX_HEIGHT_PX),
        is_low_latency: bool = False,
    ) -> None:
        self._where = where
        self._codec = codec
        width, height = _coded(form.width_px), _coded(form.height_px)
        self._max_size_px = max(width, max_size_px[0]), max(height, max_size_px[1])
        self._check_caps(context.index, bit_depth(form, codec, where), width, height)
        self._has_input = False
        self._size_px = form.width_px + form.width_px % 2, form.height_px
        self._sequence = b""
        self._held: AccessUnit | None = None
        self._decoder = self._try(
            lambda: RawDecoder(codec, context.index, context.handle, stream_handle, *self._max_size_px, is_low_latency)
        )

    def _check_caps(self, gpu_index: int, depth: int, width_px: int, height_px: int) -> None:
        caps = self._try(lambda: _vendor.decoder_caps(gpu_index, self._codec, depth))
        if not caps.is_supported:
            raise MediaError(f"this GPU does not decode {self._codec} of {depth} bits", where=self._where, fix=_CONVERT)
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

    def decode(self, unit: AccessUnit) -> list[RawFrame]:
        """Pictures that come out, in presentation order; none or several.

        Where the stream changes its format at this unit, the pictures held back come first and the unit waits:
        give it in again, from `take_held`, before any other.
        """
        if unit.sequence and self._sequence and unit.sequence != self._sequence:
            if frames := self.flush():  # NVDEC would drop them
                self._held = unit
                return frames
            # Without this NVDEC scales whole macroblocks, padding included, and the picture comes out stretched. It
            # frees the decoder's pictures, which is why those of the flush were lent before.
            self._try(partial(self._decoder.keep_size, *self._size_px))
        self._sequence = unit.sequence or self._sequence
        self._has_input = True
        return self._try(partial(self._decoder.decode, unit.address, unit.size_bytes, unit.ticks))

    def take_held(self) -> AccessUnit | None:
        """The unit that still waits to be decoded, if any."""
        unit, self._held = self._held, None
        return unit

    def flush(self) -> list[RawFrame]:
        """The pictures held back at the end of a pass; none when nothing went in since the last flush."""
        if not self._has_input:
            self._held = None
            return []
        self._has_input, self._held = False, None
        return self._try(self._decoder.flush)

    def _try(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except _vendor.DECODER_ERRORS as error:
            raise self._translate(str(error)) from error

    def _translate(self, text: str) -> ZhcEdgeError:
        most = "x".join(str(n) for n in self._max_size_px)
        if "OUT_OF_MEMORY" in text:
            return BackendUnavailableError(
                "the GPU has no room for another NVDEC session",
                where=self._where,
                fix="run fewer or smaller channels on this GPU, or end other programs that use it",
            )
        if "width/height > maxwidth/maxheight" in text:
            return MediaError(f"the picture grew beyond {most}", where=self._where, fix="restart the channel")
        if "Reconfigure Not supported" in text:
            return MediaError("bit depth or chroma changed on the way", where=self._where, fix="restart the channel")
        if "not supported on this GPU" in text or "NOT_SUPPORTED" in text:
            return MediaError(f"this GPU does not decode {self._codec} of this kind", where=self._where, fix=_CONVERT)
        reason = next(iter(text.strip().splitlines()), "no reason given")
        return PipelineError(f"NVDEC failed: {reason}", where=self._where)


def _coded(size_px: int) -> int:
    """Size in whole macroblocks: what the session must hold."""
    return -(-size_px // _MACROBLOCK_PX) * _MACROBLOCK_PX

"""PyNvVideoCodec (MIT), the only module that imports it and the only place where its untyped values live.

Importing it needs the NVIDIA driver's video libraries (libnvcuvid, and libnvidia-encode even to decode); without
them, or without the package, this module raises BackendUnavailableError. Nothing here touches a GPU at import.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zhcedge.core.errors import BackendUnavailableError

INSTALL = "pip install 'zhcedge[rtx-cuda13]' (or [rtx-cuda12] for a driver older than 580)"

try:
    import PyNvVideoCodec as _nvc
except ImportError as error:
    raise BackendUnavailableError("PyNvVideoCodec is not installed", where="nvcodec", fix=INSTALL) from error
except RuntimeError as error:  # what its __init__ raises when the driver's libraries are missing or too old
    raise BackendUnavailableError(
        f"PyNvVideoCodec can't use this driver: {str(error).splitlines()[0]}",
        where="nvcodec",
        fix="install the driver's video libraries; in a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility,video",
    ) from error

VERSION: str = _nvc.__version__

DECODER_ERRORS: tuple[type[Exception], ...] = (_nvc.PyNvVCException, _nvc.PyNvVCExceptionUnsupported, RuntimeError)
"""What its calls raise; RuntimeError is pybind11's translation of a C++ exception that has no class of its own."""

_CODECS = {"h264": _nvc.cudaVideoCodec.H264, "hevc": _nvc.cudaVideoCodec.HEVC, "av1": _nvc.cudaVideoCodec.AV1}
_CHROMA_420 = getattr(_nvc.cudaVideoChromaFormat, "420")
_END_OF_PICTURE = int(_nvc.VideoPacketFlag.ENDOFPICTURE)
_END_OF_STREAM = int(_nvc.VideoPacketFlag.ENDOFSTREAM)
_NO_TIME = 1 << 62
"""Stands for "no timestamp": the parser hands every packet's value back, and 0 or -1 are real ones."""


def codecs() -> tuple[str, ...]:
    """FFmpeg's names of the codecs that are decoded here."""
    return tuple(_CODECS)


@dataclass(frozen=True)
class DecoderCaps:
    """What NVDEC of one GPU can do with 4:2:0 video of one codec and depth. Sizes are width and height in pixels."""

    is_supported: bool
    least_px: tuple[int, int]
    most_px: tuple[int, int]
    most_macroblocks: int


def decoder_caps(gpu_index: int, codec: str, bit_depth: int) -> DecoderCaps:
    """Ask the driver. Raises one of DECODER_ERRORS."""
    caps = _nvc.GetDecoderCaps(gpuid=gpu_index, codec=_CODECS[codec], chromaformat=_CHROMA_420, bitdepth=bit_depth)
    return DecoderCaps(
        bool(caps["supported"]),
        (caps["width_min"], caps["height_min"]),
        (caps["width_max"], caps["height_max"]),
        caps["mb_num_max"],
    )


class RawDecoder:
    """One NVDEC session that writes into device memory. Owned by one thread.

    Args:
        codec: one of `codecs()`.
        context, stream: handles. The stream must not be the null stream: the decoder waits for it on every picture,
            and waiting for the null stream would wait for everything.
        max_width_px, max_height_px: coded size up to which the session follows a change of resolution.
        is_low_latency: give a picture out as soon as its packet is in. For streams without reordering.
    """

    def __init__(
        self,
        codec: str,
        gpu_index: int,
        context: int,
        stream: int,
        max_width_px: int,
        max_height_px: int,
        is_low_latency: bool,
    ) -> None:
        latency = _nvc.DisplayDecodeLatencyType
        self._decoder: Any = _nvc.CreateDecoder(
            gpuid=gpu_index,
            codec=_CODECS[codec],
            cudacontext=context,
            cudastream=stream,
            usedevicememory=True,
            maxwidth=max_width_px,
            maxheight=max_height_px,
            latency=latency.LOW if is_low_latency else latency.NATIVE,
        )
        self._packet = _nvc.PacketData()
        self._flag = _END_OF_PICTURE if is_low_latency else 0

    def decode(self, address: int, size_bytes: int, ticks: int | None) -> list[RawFrame]:
        """Pictures, in presentation order, that come out when `size_bytes` at a host address go in.

        All pictures of earlier calls are overwritten.
        """
        packet = self._packet
        packet.bsl_data, packet.bsl, packet.pts = address, size_bytes, _NO_TIME if ticks is None else ticks
        packet.decode_flag = self._flag
        return [RawFrame(frame) for frame in self._decoder.Decode(packet)]

    def keep_size(self, width_px: int, height_px: int) -> None:
        """Before the first packet of another resolution: pictures go on coming in this size, scaled by NVDEC.

        Frees all pictures given out so far; the next ones are allocated anew.
        """
        self._decoder.setReconfigParams(width_px, height_px)

    def flush(self) -> list[RawFrame]:
        """The pictures held back; the session can go on with a key frame afterwards."""
        packet = self._packet
        packet.bsl_data, packet.bsl, packet.pts, packet.decode_flag = 0, 0, 0, _END_OF_STREAM
        return [RawFrame(frame) for frame in self._decoder.Decode(packet)]


class RawFrame:
    """One decoded picture in the decoder's own memory, valid until the decoder's next call."""

    __slots__ = ("_frame",)

    def __init__(self, frame: Any) -> None:
        self._frame = frame

    @property
    def ticks(self) -> int | None:
        """Timestamp of the packet that it came from."""
        ticks = int(self._frame.getPTS())
        return None if ticks == _NO_TIME else ticks

    @property
    def plane_addresses(self) -> tuple[int, int]:
        """Luma and interleaved chroma."""
        return int(self._frame.GetPtrToPlane(0)), int(self._frame.GetPtrToPlane(1))

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows of both planes together, then columns."""
        return tuple(int(n) for n in self._frame.shape)

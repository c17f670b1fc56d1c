"""PyNvVideoCodec (MIT), the only module that imports it and the only place where its untyped values live.

Importing it needs the NVIDIA driver's video libraries (libnvcuvid, and libnvidia-encode even to decode); without
them, or without the package, this module raises BackendUnavailableError. Nothing here touches a GPU at import.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zhcedge.backends.nvcodec.library import DecoderCaps
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
    """Implements library.Decoder; see DecoderLibrary.create for the arguments."""

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
        self._decode = self._decoder.Decode
        self._packet, self._end = _nvc.PacketData(), _nvc.PacketData()
        self._packet.decode_flag = _END_OF_PICTURE if is_low_latency else 0
        self._end.bsl_data = self._end.bsl = self._end.pts = 0
        self._end.decode_flag = _END_OF_STREAM

    def decode(self, address: int, size_bytes: int, ticks: int | None) -> list[RawFrame]:
        packet = self._packet
        packet.bsl_data, packet.bsl, packet.pts = address, size_bytes, _NO_TIME if ticks is None else ticks
        return [RawFrame(frame) for frame in self._decode(packet)]

    def keep_size(self, width_px: int, height_px: int) -> None:
        self._decoder.setReconfigParams(width_px, height_px)

    def flush(self) -> list[RawFrame]:
        return [RawFrame(frame) for frame in self._decode(self._end)]


class RawFrame:
    """Implements library.Picture."""

    __slots__ = ("_frame",)

    def __init__(self, frame: Any) -> None:
        self._frame = frame

    @property
    def ticks(self) -> int | None:
        ticks = int(self._frame.getPTS())
        return None if ticks == _NO_TIME else ticks

    @property
    def address(self) -> int:
        return int(self._frame.GetPtrToPlane(0))

    @property
    def plane_addresses(self) -> tuple[int, int]:
        return int(self._frame.GetPtrToPlane(0)), int(self._frame.GetPtrToPlane(1))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self._frame.shape)


class NvdecLibrary:
    """Implements library.DecoderLibrary."""

    errors = DECODER_ERRORS

    def codecs(self) -> tuple[str, ...]:
        return codecs()

    def caps(self, gpu_index: int, codec: str, bit_depth: int) -> DecoderCaps:
        return decoder_caps(gpu_index, codec, bit_depth)

    def create(
        self,
        codec: str,
        gpu_index: int,
        context: int,
        stream: int,
        max_width_px: int,
        max_height_px: int,
        is_low_latency: bool,
    ) -> RawDecoder:
        return RawDecoder(codec, gpu_index, context, stream, max_width_px, max_height_px, is_low_latency)


class NvencLibrary:
    """Implements encoder.EncoderLibrary. Not run on hardware yet."""

    errors = (*DECODER_ERRORS, ValueError, TypeError)
    """TypeError and ValueError too: what pybind11 and its option parser raise for arguments they don't know."""

    version = VERSION

    def create(
        self, width_px: int, height_px: int, gpu_index: int, context: int, stream: int, options: Mapping[str, str]
    ) -> Any:
        """A PyNvEncoder that takes NV12 from device memory. Raises one of `errors`."""
        return _nvc.CreateEncoder(
            width_px,
            height_px,
            "NV12",
            False,  # usecpuinputbuffer
            gpu_id=gpu_index,
            cudacontext=context,
            cudastream=stream,
            **options,
        )

    def parameters(self, timestamp: int) -> Any:
        """NV_ENC_PIC_PARAMS that carry a number through to the packet."""
        parameters = _nvc.NV_ENC_PIC_PARAMS()
        parameters.inputTimeStamp = timestamp
        return parameters

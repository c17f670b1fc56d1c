"""NV12 in device memory -> H.264 or H.265 by NVENC, through PyNvVideoCodec. Not run on hardware yet.

What is certain comes from the wheel of PyNvVideoCodec 2.2 (its Python files, samples and docstrings) and is built into
the simulator of the tests; the GPUs that this was developed on have no NVENC.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from zhcedge.backends.nvcodec.gpu import GpuContext
from zhcedge.core.errors import BackendUnavailableError, PipelineError
from zhcedge.core.types import ImageFormat, PixelFormat, Surface
from zhcedge.media.encoded_file import EncodedPicture

T = TypeVar("T")

CODECS = ("h264", "hevc")

_TIMEOUT_S = 10.0
_KEYFRAME_INTERVAL_S = 2
_BITS_PER_PIXEL = {"h264": 0.10, "hevc": 0.06}  # average; moving 1080p at 25 fps gets 5.2 Mbit/s of H.264
_LEAST_BITS_PER_S = 500_000
_MAX_SURFACES = 64  # slots of one channel (config: pipeline.slots); more only when slots are made anew
_IDR = 3  # NV_ENC_PIC_TYPE_IDR of nvEncodeAPI.h
_STATUS = re.compile(r"error (?:code\s*:?\s*)?(\d+)", re.IGNORECASE)
_NO_NVENC = (1, 2, 4)  # NVENCSTATUS: NO_ENCODE_DEVICE, UNSUPPORTED_DEVICE, INVALID_DEVICE
_NO_SESSION = (10, 21)  # OUT_OF_MEMORY, and INCOMPATIBLE_CLIENT_KEY where a driver allows a few sessions only


class Plane(Protocol):
    """One plane as PyNvVideoCodec takes it: https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html"""

    @property
    def __cuda_array_interface__(self) -> Mapping[str, object]: ...


class Picture(Protocol):
    """A frame as PyNvEncoder.Encode takes it: `cuda()` gives its planes."""

    def cuda(self) -> Sequence[Plane]: ...


class NativeEncoder(Protocol):
    """PyNvVideoCodec's PyNvEncoder, as far as it is used. Calls raise one of EncoderLibrary.errors.

    A packet is a dict: "data" (bytes), "timestamp" (of the picture's parameters), "picture_type" (NV_ENC_PIC_TYPE).
    """

    def Encode(self, frame: Picture, parameters: object, /) -> Sequence[Mapping[str, object]]: ...
    def EndEncode(self) -> Sequence[Mapping[str, object]]: ...


class EncoderLibrary(Protocol):
    """What makes encoders: PyNvVideoCodec through _vendor.py, or a simulator."""

    @property
    def errors(self) -> tuple[type[Exception], ...]: ...
    @property
    def version(self) -> str: ...
    def create(
        self, width_px: int, height_px: int, gpu_index: int, context: int, stream: int, options: Mapping[str, str]
    ) -> NativeEncoder:
        """A session that takes NV12 in device memory; `options` are CreateEncoder's optional arguments."""
        ...

    def parameters(self, timestamp: int) -> object:
        """NV_ENC_PIC_PARAMS of one picture."""
        ...


class _PlaneView:
    def __init__(self, address: int, shape: tuple[int, int, int], strides: tuple[int, int, int]) -> None:
        self.__cuda_array_interface__: Mapping[str, object] = {
            "shape": shape,
            "strides": strides,
            "data": (address, False),
            "typestr": "|u1",
            "version": 3,
        }


class _PictureView:
    """An NV12 surface in the form of PyNvVideoCodec's own samples (utils/Utils.py, AppFrame)."""

    def __init__(self, surface: Surface[int]) -> None:
        luma, chroma = surface.planes
        rows, columns = surface.format.height_px, surface.format.width_px
        self._planes = (
            _PlaneView(luma.buffer, (rows, columns, 1), (luma.pitch_bytes, 1, 1)),
            _PlaneView(chroma.buffer, (rows // 2, columns // 2, 2), (chroma.pitch_bytes, 2, 1)),
        )

    def cuda(self) -> Sequence[Plane]:
        return self._planes


class NvencEncoder:
    """Encodes NV12 surfaces of one format. Implements media.encoded_file.PictureEncoder.

    A session of this GPU's NVENC, without B pictures, so that pictures leave in the order in which they came. The
    surface is copied by NVENC's own code into a buffer of the session, on a stream of our own.

    Args:
        codec: one of CODECS.
        fps: nominal; sets bit rate and key frame distance (2 s).

    Raises BackendUnavailableError where this GPU can't encode such pictures or has no session left; nothing is open
    then.
    """

    def __init__(
        self, library: EncoderLibrary, context: GpuContext, format: ImageFormat, fps: float, codec: str, where: str
    ) -> None:
        self._library, self._context, self._format, self._where = library, context, format, where
        width, height = format.width_px, format.height_px
        if width % 2 or height % 2:
            raise BackendUnavailableError(f"NVENC takes even sizes only, not {width}x{height}", where=where)
        self._pictures: dict[int, _PictureView] = {}
        self._inside: deque[tuple[int, float]] = deque()  # number and media time of pictures on their way
        self._count = 0
        self._stream = context.create_stream()
        self._copied = context.create_fence(f"{where}: NVENC")
        options = encoder_options(format, fps, codec)
        context.attach()
        self._encoder: NativeEncoder | None = self._try(
            lambda: library.create(width, height, context.index, context.handle, self._stream.handle, options),
            self._unavailable,
        )

    def encode(self, surface: Surface[int], media_time_s: float) -> Sequence[EncodedPicture]:
        """Pictures that are done. Blocks until the surface is copied. Raises PipelineError."""
        encoder = self._open_encoder()
        if surface.format != self._format or surface.format.pixel_format is not PixelFormat.NV12:
            raise PipelineError(f"a surface of {surface.format} does not fit the encoder", where=self._where)
        self._context.attach()
        picture, parameters = self._picture(surface), self._library.parameters(self._count)
        self._inside.append((self._count, media_time_s))
        self._count += 1
        packets = self._try(lambda: encoder.Encode(picture, parameters), self._failed)
        self._copied.record(self._stream)
        if not self._copied.wait(_TIMEOUT_S):
            raise PipelineError("a picture is not taken in time", where=self._where)
        return self._done(packets)

    def finish(self) -> Sequence[EncodedPicture]:
        """What is still in the session; nothing can be encoded after it."""
        self._context.attach()
        return self._done(self._try(self._open_encoder().EndEncode, self._failed))

    def close(self) -> None:
        """End the session. Twice is fine."""
        self._encoder = None  # PyNvVideoCodec has no other way
        self._pictures.clear()

    def _open_encoder(self) -> NativeEncoder:
        if self._encoder is None:
            raise PipelineError("the encoder is closed", where=self._where)
        return self._encoder

    def _picture(self, surface: Surface[int]) -> _PictureView:
        luma, chroma = surface.planes
        picture = self._pictures.get(luma.buffer)
        if picture is None:
            # CopyToDeviceFrame takes one address and one pitch for both planes.
            if chroma.buffer != luma.buffer + luma.rows * luma.pitch_bytes or chroma.pitch_bytes != luma.pitch_bytes:
                raise PipelineError("the chroma plane does not follow the luma plane", where=self._where)
            if len(self._pictures) >= _MAX_SURFACES:
                self._pictures.clear()
            picture = self._pictures[luma.buffer] = _PictureView(surface)
        return picture

    def _done(self, packets: Sequence[Mapping[str, object]]) -> Sequence[EncodedPicture]:
        pictures = []
        for packet in packets:
            data, number = packet["data"], packet["timestamp"]
            if not isinstance(data, bytes) or not self._inside or self._inside[0][0] != number:
                raise PipelineError(f"NVENC gave picture {number} out of order", where=self._where)
            _, media_time_s = self._inside.popleft()
            pictures.append(EncodedPicture(data, media_time_s, packet["picture_type"] == _IDR))
        return pictures

    def _try(self, call: Callable[[], T], translate: Callable[[str], Exception]) -> T:
        try:
            return call()
        except self._library.errors as error:
            raise translate(next(iter(str(error).strip().splitlines()), "no reason given")) from error

    def _failed(self, text: str) -> PipelineError:
        return PipelineError(f"NVENC failed: {text}", where=self._where)

    def _unavailable(self, text: str) -> BackendUnavailableError:
        size = f"{self._format.width_px}x{self._format.height_px}"
        found = _STATUS.search(text)
        status = int(found.group(1)) if found else 0
        if status in _NO_NVENC:
            return BackendUnavailableError("this GPU has no NVENC", where=self._where)
        if status in _NO_SESSION:
            return BackendUnavailableError(
                "the GPU has no room for another NVENC session", where=self._where, fix="write fewer channels"
            )
        return BackendUnavailableError(f"NVENC does not encode {size}: {text}", where=self._where)


def encoder_options(format: ImageFormat, fps: float, codec: str) -> dict[str, str]:
    """Optional arguments of PyNvVideoCodec.CreateEncoder, all of them text as there.

    Low latency tuning has no B pictures, so outputs come in order. Said by that and not by "bf", whose meaning differs
    between NVIDIA's own texts: 1 is "IPP" in the programming guide, "one B picture" in a sample.
    """
    rate = max(1, round(fps))
    bits = max(round(_BITS_PER_PIXEL[codec] * format.width_px * format.height_px * fps), _LEAST_BITS_PER_S)
    return {
        "codec": codec,
        "preset": "P4",
        "tuning_info": "low_latency",
        "rc": "vbr",
        "bitrate": str(bits),
        "maxbitrate": str(2 * bits),
        "vbvbufsize": str(2 * bits),
        "fps": str(rate),
        "gop": str(_KEYFRAME_INTERVAL_S * rate),
        "idrperiod": str(_KEYFRAME_INTERVAL_S * rate),
    }

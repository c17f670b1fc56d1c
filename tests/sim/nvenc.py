"""A simulated NVENC: PyNvVideoCodec's encoder interface over host memory, with x264 or x265 behind it.

It is as strict as the real one where that is known: planes come from `cuda()` with __cuda_array_interface__ of version
3, the chroma plane follows the luma plane with the same pitch, options are text, outputs lag behind inputs.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import av
import numpy as np
import numpy.typing as npt

from zhcedge.backends.nvcodec.encoder import NativeEncoder, Picture
from zhcedge.core.types import ImageFormat, MemoryDomain, Plane, Surface

_KNOWN_OPTIONS = {
    *("codec", "preset", "tuning_info", "rc", "bitrate", "maxbitrate", "vbvbufsize", "fps", "gop", "idrperiod")
}
_IDR, _P = 3, 0


class NvencError(Exception):
    """Stands for PyNvVCException."""


@dataclass
class SimParameters:
    inputTimeStamp: int  # the name in NV_ENC_PIC_PARAMS


@dataclass
class SimLibrary:
    """Implements EncoderLibrary.

    Attributes:
        refusal: text of the error that every `create` raises; empty for none.
        lag: pictures that stay inside.
        fails_at: number of the picture whose Encode raises; -1 for none.
    """

    refusal: str = ""
    lag: int = 2
    fails_at: int = -1
    made: list[SimEncoder] = field(default_factory=list)
    errors: tuple[type[Exception], ...] = (NvencError,)
    version: str = "simulated"

    def create(
        self, width_px: int, height_px: int, gpu_index: int, context: int, stream: int, options: Mapping[str, str]
    ) -> NativeEncoder:
        if self.refusal:
            raise NvencError(self.refusal)
        if unknown := set(options) - _KNOWN_OPTIONS:
            raise NvencError(f"unknown options {unknown}")
        if not all(isinstance(value, str) for value in options.values()) or width_px % 2 or height_px % 2 or not stream:
            raise NvencError("invalid arguments")
        self.made.append(SimEncoder(self, width_px, height_px, options))
        return self.made[-1]

    def parameters(self, timestamp: int) -> SimParameters:
        return SimParameters(timestamp)


class SimEncoder:
    def __init__(self, library: SimLibrary, width: int, height: int, options: Mapping[str, str]) -> None:
        self._library, self._width, self._height = library, width, height
        name = {"h264": "libx264", "hevc": "libx265"}[options["codec"]]
        self._context = av.CodecContext.create(name, "w")
        self._context.width, self._context.height, self._context.pix_fmt = width, height, "yuv420p"
        self._context.time_base, self._context.gop_size = Fraction(1, 1000), int(options["gop"])
        self._context.options = {"preset": "ultrafast", "tune": "zerolatency", "bf": "0"}
        if name == "libx265":
            self._context.options["x265-params"] = "log-level=none"
        self._waiting: deque[Mapping[str, object]] = deque()
        self._count = 0
        self.is_ended = False

    def Encode(self, frame: Picture, parameters: object, /) -> Sequence[Mapping[str, object]]:
        assert isinstance(parameters, SimParameters)
        if self._count == self._library.fails_at:
            raise NvencError("m_nvenc.nvEncEncodePicture(m_hEncoder, &picParams) returned error 8 at line 1")
        self._count += 1
        self._submit(self._picture(frame), parameters.inputTimeStamp)
        return [self._waiting.popleft() for _ in range(len(self._waiting) - self._library.lag)]

    def EndEncode(self) -> Sequence[Mapping[str, object]]:
        self.is_ended = True
        rest = list(self._waiting)
        self._waiting.clear()
        return rest

    def _picture(self, frame: Picture) -> npt.NDArray[np.uint8]:
        luma, chroma = (plane.__cuda_array_interface__ for plane in frame.cuda())
        assert luma["version"] == chroma["version"] == 3
        assert luma["typestr"] == chroma["typestr"] == "|u1"
        assert luma["shape"] == (self._height, self._width, 1)
        assert chroma["shape"] == (self._height // 2, self._width // 2, 2)
        (address, _), (chroma_address, _) = luma["data"], chroma["data"]  # type: ignore[misc]
        (pitch, *_), (chroma_pitch, *_) = luma["strides"], chroma["strides"]  # type: ignore[misc]
        assert (chroma_address, chroma_pitch) == (address + self._height * pitch, pitch)
        rows = self._height * 3 // 2
        memory = (ctypes.c_uint8 * (rows * pitch)).from_address(address)
        return np.frombuffer(memory, np.uint8).reshape(rows, pitch)[:, : self._width].copy()

    def _submit(self, nv12: npt.NDArray[np.uint8], number: int) -> None:
        picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(nv12), format="nv12").reformat(format="yuv420p")
        picture.pts, picture.time_base = number, Fraction(1, 1000)
        for packet in self._context.encode(picture):
            kind = _IDR if packet.is_keyframe else _P
            self._waiting.append({"data": bytes(packet), "timestamp": packet.pts, "picture_type": kind})


# -- as much of a GPU as the sink asks for -----------------------------------------------------------------------
class SimFence:
    def record(self, stream: object) -> None:
        """Nothing is in flight here."""

    def is_done(self) -> bool:
        return True

    def wait(self, timeout_s: float) -> bool:
        return True


@dataclass
class SimStream:
    handle: int = 7

    def wait_for(self, fence: object) -> None:
        """Nothing is in flight here."""


@dataclass
class SimContext:
    index: int = 0
    handle: int = 1

    def attach(self) -> None:
        """Any thread may use host memory."""

    def create_stream(self) -> SimStream:
        return SimStream()

    def create_fence(self, where: str = "") -> SimFence:
        return SimFence()


@dataclass
class SimGpu:
    context: SimContext = field(default_factory=SimContext)


class SimPicture:
    """An NV12 surface of one brightness whose address is one of host memory; keeps that memory."""

    def __init__(self, format: ImageFormat, level: int, gap_rows: int = 0) -> None:
        width, rows = format.width_px, (format.height_px + 1) // 2
        pitch = -(-width // 256) * 256
        self._memory = np.full((format.height_px + gap_rows + rows, pitch), 99, np.uint8)
        self._memory[: format.height_px, :width] = level
        self._memory[format.height_px + gap_rows :, :width] = 128
        address = self._memory.ctypes.data
        chroma = address + (format.height_px + gap_rows) * pitch
        planes = (Plane(address, width, format.height_px, pitch), Plane(chroma, width, rows, pitch))
        self.surface: Surface[int] = Surface(planes, format, MemoryDomain.DEVICE)

"""The NVDEC session's rules, over a simulator that parses real bitstreams with libavcodec in NVDEC's place."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import av
import numpy as np
import pytest

from zhcedge.backends.nvcodec.gpu import GpuContext
from zhcedge.backends.nvcodec.library import DecoderCaps, Picture
from zhcedge.backends.nvcodec.session import _SETTLING_CALLS, Session, bit_depth
from zhcedge.core.errors import BackendUnavailableError, MediaError, PipelineError
from zhcedge.core.types import ColorMatrix
from zhcedge.media.annexb import AccessUnit, AnnexB
from zhcedge.media.convert import DecodedForm
from zhcedge.media.demux import Demuxer

CODECS = ("h264", "hevc", "av1")
SMALL, LARGE = (160, 96), (640, 368)


def encode(path: Path, size_px: tuple[int, int], frames: int, pixel_format: str = "yuv420p") -> bytes:
    """H.264 with start codes, brighter from frame to frame."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"bf": "2", "g": "100"})
        stream.width, stream.height = size_px
        stream.pix_fmt, stream.time_base = pixel_format, Fraction(1, 25)
        for index in range(frames):
            picture = np.full((size_px[1], size_px[0], 3), 2 * index, np.uint8)
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format=pixel_format)
            frame.pts = index
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path.read_bytes()


def units(path: Path, *parts: bytes) -> list[AccessUnit]:
    path.write_bytes(b"".join(parts))
    demuxer = Demuxer(str(path), "clip")
    unpacker, found = AnnexB(demuxer.stream, "clip"), []
    while (packet := demuxer.read()) is not None:
        unit = unpacker.convert(packet)
        assert unit is not None
        found.append(unit)
    demuxer.close()
    return found


@dataclass
class SimulatedPicture:
    size_px: tuple[int, int]
    ticks: int | None = None
    address: int = 4096
    plane_addresses: tuple[int, int] = (4096, 8192)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.size_px[1] * 3 // 2, self.size_px[0]


class SimulatedDecoder:
    """Scales to the kept size, drops held pictures at a change, and refuses what is larger than its maximum."""

    def __init__(self, library: SimulatedLibrary, max_px: tuple[int, int]) -> None:
        self._library, self.max_px = library, max_px
        self._context = cast(Any, av.CodecContext.create("h264", "r"))
        self._coded_px: tuple[int, int] | None = None
        self._kept_px: tuple[int, int] | None = None
        self.keeps = 0

    def keep_size(self, width_px: int, height_px: int) -> None:
        self._kept_px = width_px, height_px
        self.keeps += 1

    def decode(self, address: int, size_bytes: int, ticks: int | None) -> Sequence[Picture]:
        library = self._library
        library.calls.append(library.is_leased)
        frames = self._context.decode(av.Packet(ctypes.string_at(address, size_bytes)))
        self._check(frames)
        return [SimulatedPicture(self._kept_px or (frame.width, frame.height)) for frame in frames]

    def _check(self, frames: Sequence[av.VideoFrame]) -> None:
        for frame in frames:
            if frame.width > self.max_px[0] or frame.height > self.max_px[1]:
                raise RuntimeError("Reconfigure: width/height > maxwidth/maxheight")
            if frame.format.name == "yuv420p10le":
                raise RuntimeError("Reconfigure Not supported when bit depth changes")

    def flush(self) -> Sequence[Picture]:
        self._library.calls.append(self._library.is_leased)
        frames = self._context.decode(None)
        self._context.flush_buffers()
        self._check(frames)
        return [SimulatedPicture(self._kept_px or (frame.width, frame.height)) for frame in frames]


@dataclass
class SimulatedLibrary:
    most_px: tuple[int, int] = (4096, 4096)
    room: int = 8
    made: list[SimulatedDecoder] = field(default_factory=list)
    calls: list[bool] = field(default_factory=list)
    leases: list[str] = field(default_factory=list)
    is_leased: bool = False
    errors: tuple[type[Exception], ...] = (RuntimeError,)

    def codecs(self) -> tuple[str, ...]:
        return CODECS

    def caps(self, gpu_index: int, codec: str, bit_depth: int) -> DecoderCaps:
        return DecoderCaps(bit_depth == 8, (48, 48), self.most_px, 10**9)

    def create(
        self,
        codec: str,
        gpu_index: int,
        context: int,
        stream: int,
        max_width_px: int,
        max_height_px: int,
        is_low_latency: bool,
    ) -> SimulatedDecoder:
        if len(self.made) >= self.room:
            raise RuntimeError("cuvidCreateDecoder: CUDA_ERROR_OUT_OF_MEMORY")
        self.made.append(SimulatedDecoder(self, (max_width_px, max_height_px)))
        return self.made[-1]

    @contextmanager
    def rewarm(self, reason: str) -> Iterator[None]:
        self.leases.append(reason)
        self.is_leased = True
        try:
            yield
        finally:
            self.is_leased = False


def form_of(size_px: tuple[int, int], pixel_format: str = "yuv420p", turn_deg: int = 0) -> DecodedForm:
    return DecodedForm(*size_px, pixel_format, ColorMatrix.BT601, False, False, turn_deg)


def open_session(library: SimulatedLibrary, size_px: tuple[int, int], max_px: tuple[int, int]) -> Session:
    context = cast(GpuContext, SimpleNamespace(index=0, handle=1))
    return Session(library, context, 2, "h264", form_of(size_px), "front", max_px, rewarm=library.rewarm)


def play(session: Session, stream: Sequence[AccessUnit]) -> list[SimulatedPicture]:
    """As the source does it: a unit that waits goes first."""
    pictures: list[Picture] = []
    waiting = list(stream)
    while waiting:
        unit = session.take_held() or waiting.pop(0)
        pictures += session.decode(unit)
        while (held := session.take_held()) is not None:
            pictures += session.decode(held)
    pictures += session.flush()
    return cast(list[SimulatedPicture], pictures)


@pytest.fixture
def clips(tmp_path: Path) -> tuple[bytes, bytes]:
    return encode(tmp_path / "small.h264", SMALL, 10), encode(tmp_path / "large.h264", LARGE, 12)


def test_a_steady_stream_needs_no_lease(tmp_path: Path, clips: tuple[bytes, bytes]) -> None:
    library = SimulatedLibrary()
    session = open_session(library, SMALL, (1920, 1088))
    stream = units(tmp_path / "clip.h264", clips[0])
    for _ in range(3):
        assert len(play(session, stream)) == 10
    assert (len(library.made), library.leases, any(library.calls)) == (1, [], False)


def test_a_change_within_the_maximum_keeps_the_decoder_and_every_picture(
    tmp_path: Path, clips: tuple[bytes, bytes]
) -> None:
    library = SimulatedLibrary()
    session = open_session(library, SMALL, (1920, 1088))
    pictures = play(session, units(tmp_path / "clip.h264", *clips))
    assert [picture.size_px for picture in pictures] == [SMALL] * 22
    assert (len(library.made), library.made[0].keeps) == (1, 1)
    assert library.leases
    assert all("front" in reason for reason in library.leases)


def test_a_change_beyond_the_maximum_makes_a_larger_decoder_and_loses_no_picture(
    tmp_path: Path, clips: tuple[bytes, bytes]
) -> None:
    library = SimulatedLibrary()
    session = open_session(library, SMALL, (320, 192))
    stream = units(tmp_path / "clip.h264", *clips)
    assert [picture.size_px for picture in play(session, stream)] == [SMALL] * 22
    assert [decoder.max_px for decoder in library.made] == [(320, 192), LARGE]
    assert [picture.size_px for picture in play(session, stream)] == [SMALL] * 22
    assert len(library.made) == 2, "the larger one does for good"


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_a_stream_that_ends_right_after_it_grew_loses_no_picture(
    tmp_path: Path, clips: tuple[bytes, bytes], frames: int
) -> None:
    library = SimulatedLibrary()
    session = open_session(library, SMALL, (320, 192))
    tail = encode(tmp_path / "tail.h264", LARGE, frames)
    assert len(play(session, units(tmp_path / "clip.h264", clips[0], tail))) == 10 + frames
    assert len(library.made) == 2


def test_leases_cover_the_calls_that_may_make_memory_and_no_others(tmp_path: Path, clips: tuple[bytes, bytes]) -> None:
    library = SimulatedLibrary()
    session = open_session(library, SMALL, (320, 192))
    longer = encode(tmp_path / "longer.h264", LARGE, 90)
    play(session, units(tmp_path / "clip.h264", clips[0], longer))
    # 10 units, a flush; three until the first picture is too large; these again and more while the pool settles.
    rest = 90 - _SETTLING_CALLS
    assert library.calls == [False] * 11 + [True] * 3 + [True] * _SETTLING_CALLS + [False] * rest + [True]
    library.calls.clear()
    play(session, units(tmp_path / "clip.h264", longer))
    assert not any(library.calls)


def test_a_picture_that_was_not_scaled_is_never_lent(
    tmp_path: Path, clips: tuple[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimulatedDecoder, "keep_size", lambda decoder, width_px, height_px: None)
    session = open_session(SimulatedLibrary(), SMALL, (1920, 1088))
    with pytest.raises(MediaError, match=r"NVDEC gives \(552, 640\) after a change"):
        play(session, units(tmp_path / "clip.h264", *clips))


def test_what_the_gpu_can_not_decode_is_refused_clearly(tmp_path: Path, clips: tuple[bytes, bytes]) -> None:
    session = open_session(SimulatedLibrary(most_px=(480, 480)), SMALL, (320, 192))
    with pytest.raises(MediaError, match="640x368 is larger than what this GPU decodes"):
        play(session, units(tmp_path / "clip.h264", *clips))


def test_no_room_for_the_larger_decoder_is_said_so(tmp_path: Path, clips: tuple[bytes, bytes]) -> None:
    session = open_session(SimulatedLibrary(room=1), SMALL, (320, 192))
    with pytest.raises(BackendUnavailableError, match="no room for another NVDEC session"):
        play(session, units(tmp_path / "clip.h264", *clips))


@pytest.mark.parametrize("size_px", [SMALL, LARGE])
def test_a_change_of_the_bit_depth_is_refused_clearly(
    tmp_path: Path, clips: tuple[bytes, bytes], size_px: tuple[int, int]
) -> None:
    deep = encode(tmp_path / "deep.h264", size_px, 5, "yuv420p10le")
    session = open_session(SimulatedLibrary(), SMALL, (320, 192))
    with pytest.raises(MediaError, match="bit depth or chroma changed"):
        play(session, units(tmp_path / "clip.h264", clips[0], deep))


def test_a_change_to_another_chroma_is_refused_clearly(tmp_path: Path, clips: tuple[bytes, bytes]) -> None:
    other = encode(tmp_path / "other.h264", LARGE, 5, "yuv444p")
    session = open_session(SimulatedLibrary(), SMALL, (320, 192))
    with pytest.raises(MediaError, match="yuv444p"):
        play(session, units(tmp_path / "clip.h264", clips[0], other))


@pytest.mark.parametrize(
    ("codec", "pixel_format", "turn_deg", "words"),
    [
        ("vp9", "yuv420p", 0, "vp9 is not decoded on the GPU, only h264, hevc, av1"),
        ("mpeg4", "yuv420p", 0, "mpeg4 is not decoded"),
        ("h264", "yuv422p", 0, "yuv422p"),
        ("hevc", "yuv444p10le", 0, "yuv444p10le"),
        ("hevc", "yuv420p12le", 0, "only 4:2:0 of 8 or 10 bits"),
        ("h264", "yuv420p", 90, "turned by 90 degrees"),
    ],
)
def test_codec_chroma_and_rotation_are_checked_first(codec: str, pixel_format: str, turn_deg: int, words: str) -> None:
    with pytest.raises(MediaError, match=words):
        bit_depth(form_of(SMALL, pixel_format, turn_deg), codec, CODECS, "front")


def test_a_depth_that_this_gpu_lacks_is_said_so() -> None:
    context = cast(GpuContext, SimpleNamespace(index=0, handle=1))
    with pytest.raises(MediaError, match="does not decode h264 of 10 bits"):
        Session(SimulatedLibrary(), context, 2, "h264", form_of(SMALL, "yuv420p10le"), "front")


@pytest.mark.parametrize(("codec", "pixel_format"), [("hevc", "yuv420p10le"), ("av1", "p010le"), ("h264", "nv12")])
def test_eight_and_ten_bits_of_4_2_0_pass(codec: str, pixel_format: str) -> None:
    assert bit_depth(form_of(SMALL, pixel_format), codec, CODECS, "front") == (8 if pixel_format == "nv12" else 10)


def test_any_other_failure_is_a_pipeline_error_with_the_librarys_words(
    tmp_path: Path, clips: tuple[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = SimulatedLibrary()
    session = open_session(library, SMALL, (320, 192))

    def fail(address: int, size_bytes: int, ticks: int | None) -> Sequence[Picture]:
        raise RuntimeError("strange\nat line 3")

    monkeypatch.setattr(library.made[0], "decode", fail)
    with pytest.raises(PipelineError, match=r"NVDEC failed: strange$"):
        play(session, units(tmp_path / "clip.h264", clips[0]))

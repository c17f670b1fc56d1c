"""The NVENC sink over a simulated encoder: what is in the file, what it costs, and what happens where NVENC is not."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest

from tests.sim.nvenc import SimGpu, SimLibrary, SimPicture
from tests.sim.parts import SimSink
from zhcedge.backends.nvcodec.encoder import CODECS, encoder_options
from zhcedge.backends.nvcodec.sink import NvencSink
from zhcedge.core.errors import BackendUnavailableError, OutputError, PipelineError
from zhcedge.core.ports import FrameSlot, Sink, SourceFacts
from zhcedge.core.requests import SinkRequest
from zhcedge.core.types import (
    RESULT_DTYPE,
    Agent,
    ColorMatrix,
    FrameInfo,
    Hop,
    ImageFormat,
    MemoryDomain,
    Payload,
    PixelFormat,
    Provenance,
)
from zhcedge.pipeline.fallback import FallbackSink

FORMAT = ImageFormat(320, 180, matrix=ColorMatrix.BT709)


def facts(format: ImageFormat = FORMAT) -> SourceFacts:
    return SourceFacts(format, MemoryDomain.DEVICE, 25.0, False, False, (), "simulated")


def slot(index: int, format: ImageFormat = FORMAT, gap_rows: int = 0) -> FrameSlot[int]:
    picture = SimPicture(format, 40 + 4 * (index % 50), gap_rows)
    info = FrameInfo(0, index, 0, 0, media_time_s=index / 20)
    made = FrameSlot(index, 0, picture.surface, np.zeros(1, RESULT_DTYPE), info)
    KEPT.append(picture)  # a surface holds an address only
    return made


KEPT: list[SimPicture] = []


def feed(sink: Sink[int], frames: int, make: Callable[[int], FrameSlot[int]] = slot) -> list[int]:
    """Submit, waiting for room; the indices of the slots that came back."""
    back: list[int] = []
    for index in range(frames):
        frame = make(index)
        while not sink.submit(frame, lambda taken: back.append(taken.index)):
            pass
    return back


def sink_of(path: Path, library: SimLibrary, codec: str = "h264") -> NvencSink:
    return NvencSink(SinkRequest("gate", path), SimGpu(), codec, library)


def nothing_left(folder: Path) -> bool:
    return not list(folder.iterdir())


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("lag", [0, 3])
def test_every_picture_is_in_the_file_once_with_its_content_time_and_colours(
    tmp_path: Path, codec: str, lag: int
) -> None:
    library = SimLibrary(lag=lag)
    sink = sink_of(tmp_path / "out.mp4", library, codec)
    sink.open(facts())
    back = feed(sink, 30)
    sink.close(complete=True)
    sink.close(complete=True)
    assert back == list(range(30))
    assert (sink.frames_written, library.made[0].is_ended) == (30, True)
    with av.open(str(tmp_path / "out.mp4")) as container:
        stream = container.streams.video[0]
        frames = list(container.decode(stream))
        assert stream.codec_context.name == codec
        assert [float(frame.pts * stream.time_base) for frame in frames] == pytest.approx([i / 20 for i in range(30)])
    assert [int(frame.to_ndarray()[90, 160]) for frame in frames] == pytest.approx(
        [40 + 4 * i for i in range(30)], abs=5
    )
    assert {(frame.width, frame.height) for frame in frames} == {(320, 180)}
    assert (frames[0].colorspace, frames[0].color_range) == (1, 1)  # BT.709, limited: ITU-T H.273


def test_a_file_is_seekable_because_key_frames_are_marked(tmp_path: Path) -> None:
    sink = sink_of(tmp_path / "out.mp4", SimLibrary())
    sink.open(facts())
    feed(sink, 120)
    sink.close(complete=True)
    data = (tmp_path / "out.mp4").read_bytes()
    at = data.index(b"stss") + 8  # the sync sample table (ISO/IEC 14496-12): version and flags, then count, numbers
    count, *numbers = struct.unpack_from(">4I", data, at)
    assert (count, numbers) == (3, [1, 51, 101])  # every 2 s of 25 fps


def test_the_ledger_says_that_no_pixel_reaches_the_host(tmp_path: Path) -> None:
    sink = sink_of(tmp_path / "out.mp4", SimLibrary())
    assert sink.hops == ()
    sink.open(facts())
    feed(sink, 10)
    sink.close(complete=True)
    hops = {hop.name: hop for hop in sink.hops}
    assert {hop.payload for hop in hops.values() if hop.destination is not MemoryDomain.DEVICE} == {Payload.BITSTREAM}
    assert hops["h264 encode"].agent is Agent.NVENC
    assert hops["encoder's surface"].bytes_per_frame == 320 * 180 * 3 // 2
    assert hops["encoder's surface"].provenance is Provenance.DECLARED
    assert 0 < hops["bitstream out"].bytes_per_frame < 320 * 180


def test_a_source_of_ten_bits_is_written_from_its_slots_of_eight(tmp_path: Path) -> None:
    sink = sink_of(tmp_path / "out.mp4", SimLibrary())
    sink.open(facts(ImageFormat(320, 180, PixelFormat.P010, matrix=ColorMatrix.BT709)))
    feed(sink, 3)
    sink.close(complete=True)
    assert sink.frames_written == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m_nvenc.nvEncOpenEncodeSessionEx(&p, &e) returned error 1 at line 140", "no NVENC"),
        ("m_nvenc.nvEncOpenEncodeSessionEx(&p, &e) returned error 2 at line 140", "no NVENC"),
        ("m_nvenc.nvEncOpenEncodeSessionEx(&p, &e) returned error 10 at line 140", "no room"),
        ("Error code : 21", "no room"),
        ("something new\nwith a second line", "something new"),
    ],
)
def test_a_session_that_can_not_be_had_is_told_and_leaves_no_file(tmp_path: Path, text: str, message: str) -> None:
    sink = sink_of(tmp_path / "out.mp4", SimLibrary(refusal=text))
    with pytest.raises(BackendUnavailableError, match=message):
        sink.open(facts())
    sink.close(complete=True)
    assert nothing_left(tmp_path)


def test_odd_sizes_and_a_device_of_another_kind_are_for_another_sink(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailableError, match="even sizes"):
        sink_of(tmp_path / "out.mp4", SimLibrary()).open(facts(ImageFormat(321, 180)))
    with pytest.raises(BackendUnavailableError, match="cuda device"):
        NvencSink(SinkRequest("gate", tmp_path / "out.mp4"), object(), library=SimLibrary())
    assert nothing_left(tmp_path)


def test_an_output_that_can_not_be_made_closes_the_session_again(tmp_path: Path) -> None:
    library = SimLibrary()
    (tmp_path / "out.mp4").mkdir()
    sink = sink_of(tmp_path / "out.mp4", library)
    with pytest.raises(OutputError, match="not a regular file"):
        sink.open(facts())
    sink.close(complete=True)
    assert nothing_left(tmp_path / "out.mp4")


def test_a_failing_encoder_gives_every_slot_back_and_leaves_no_file(tmp_path: Path) -> None:
    sink = sink_of(tmp_path / "out.mp4", SimLibrary(fails_at=4))
    sink.open(facts())
    back: list[int] = []
    submitted = 0

    def feed_all() -> None:
        nonlocal submitted
        for index in range(200):
            while not sink.submit(slot(index), lambda taken: back.append(taken.index)):
                pass
            submitted += 1

    with pytest.raises(PipelineError, match="NVENC failed"):
        feed_all()
    with pytest.raises(PipelineError, match="NVENC failed"):
        sink.close(complete=True)
    assert back == list(range(submitted))
    assert nothing_left(tmp_path)


def test_an_aborted_sink_leaves_no_file_and_gives_every_slot_back(tmp_path: Path) -> None:
    sink = sink_of(tmp_path / "out.mp4", SimLibrary())
    sink.open(facts())
    back: list[int] = []
    taken = sum(sink.submit(slot(index), lambda one: back.append(one.index)) for index in range(5))
    sink.close(complete=False)
    assert len(back) == taken
    assert nothing_left(tmp_path)


def test_a_surface_that_the_copy_can_not_take_is_an_error_and_not_a_wrong_picture(tmp_path: Path) -> None:
    sink = sink_of(tmp_path / "out.mp4", SimLibrary())
    sink.open(facts())
    feed(sink, 1, lambda index: slot(index, gap_rows=2))
    with pytest.raises(PipelineError, match="does not follow"):
        sink.close(complete=True)
    assert nothing_left(tmp_path)


def test_the_options_are_text_and_follow_size_and_rate() -> None:
    small, large = (
        encoder_options(ImageFormat(320, 180), 25, "h264"),
        encoder_options(ImageFormat(3840, 2160), 30, "hevc"),
    )
    assert small["bitrate"] == "500000"
    assert int(large["bitrate"]) == round(0.06 * 3840 * 2160 * 30)
    assert (large["gop"], large["idrperiod"], large["fps"]) == ("60", "60", "30")
    assert all(isinstance(value, str) for value in large.values())


# -- the second choice ---------------------------------------------------------------------------------------------
def other_sink() -> SimSink:
    device = MemoryDomain.DEVICE
    hop = Hop("JPEG encode", Agent.GPU, device, device, Payload.PIXELS, 86_400, Provenance.DERIVED, "nvJPEG")
    out = Hop("bitstream out", Agent.CPU, device, device, Payload.BITSTREAM, 9_000, Provenance.DERIVED, "")
    return SimSink(hops=(hop, out))


def test_without_nvenc_the_second_sink_takes_over_and_log_and_ledger_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    library, other, hooks = SimLibrary(refusal="returned error 2"), other_sink(), []
    nvenc = lambda: sink_of(tmp_path / "out.mp4", library)  # noqa: E731
    sink = FallbackSink("gate: out.mp4", ("nvenc", nvenc), ("nvjpeg", lambda: other))  # type: ignore[arg-type,return-value]
    sink.watch_threads(lambda: hooks.append(1))
    with caplog.at_level(logging.WARNING):
        sink.open(facts())
    assert feed(sink, 3) == [0, 1, 2]
    sink.close(complete=True)
    assert (other.seen, other.closed) == ([0, 1, 2], [True])
    encode, out = sink.hops
    assert encode.reason == "nvJPEG; nvjpeg in place of nvenc: this GPU has no NVENC"
    assert out.reason == ""
    (line,) = caplog.messages
    assert "gate: out.mp4" in line
    assert "this GPU has no NVENC" in line


def test_with_nvenc_the_second_sink_is_never_made(tmp_path: Path) -> None:
    def refuse() -> Sink[int]:
        raise AssertionError("made")

    nvenc = lambda: sink_of(tmp_path / "out.mp4", SimLibrary())  # noqa: E731
    sink = FallbackSink("gate", ("nvenc", nvenc), ("nvjpeg", refuse))
    sink.open(facts())
    feed(sink, 3)
    sink.close(complete=True)
    assert {hop.agent for hop in sink.hops if hop.payload is Payload.PIXELS} == {Agent.COPY_ENGINE, Agent.NVENC}


def test_an_output_fault_is_no_reason_for_the_second_sink(tmp_path: Path) -> None:
    (tmp_path / "out.mp4").mkdir()
    other = other_sink()
    nvenc = lambda: sink_of(tmp_path / "out.mp4", SimLibrary())  # noqa: E731
    sink = FallbackSink("gate", ("nvenc", nvenc), ("nvjpeg", lambda: other))  # type: ignore[arg-type,return-value]
    with pytest.raises(OutputError):
        sink.open(facts())
    sink.close(complete=False)
    assert other.closed == []

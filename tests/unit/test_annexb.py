"""Packets for hardware decoders: start codes and parameter sets in the stream, pictures unchanged."""

from __future__ import annotations

import ctypes
from fractions import Fraction
from importlib.resources import files
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.media.annexb import AnnexB, sequence_header, sequence_set
from zhcedge.media.decode import decode_alone
from zhcedge.media.demux import Demuxer

CLIP = str(files("zhcedge") / "data" / "walkers.mp4")


def encode(path: Path, codec: str, frames: int = 12) -> str:
    """A small moving picture; `path` decides the container."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = 160, 96, "yuv420p"
        stream.time_base = Fraction(1, 25)
        for index in range(frames):
            picture = np.full((96, 160, 3), 16 * index % 256, np.uint8)
            picture[10:40, 5 * index : 5 * index + 40] = 255
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = index
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return str(path)


def units(uri: str) -> list[tuple[bytes, int | None]]:
    """Bytes and time of each packet after conversion."""
    demuxer = Demuxer(uri, uri)
    try:
        unpacker = AnnexB(demuxer.stream, uri)
        found = []
        while (packet := demuxer.read()) is not None:
            unit = unpacker.convert(packet)
            assert unit is not None
            found.append((ctypes.string_at(unit.address, unit.size_bytes), unit.ticks))
        return found
    finally:
        demuxer.close()


def pictures(uri: str) -> list[bytes]:
    with av.open(uri) as container:
        return [frame.to_ndarray().tobytes() for frame in container.decode(video=0)]


def decode_without_header(codec: str, packets: list[tuple[bytes, int | None]]) -> list[bytes]:
    """Decode by what the packets hold alone, as NVDEC's parser does."""
    context = av.CodecContext.create(codec, "r")
    frames = [frame for payload, _ in packets for frame in context.decode(av.Packet(payload))]
    return [frame.to_ndarray().tobytes() for frame in frames + context.decode(None)]


@pytest.mark.parametrize(
    ("codec", "encoder", "container"),
    [("h264", "libx264", "mp4"), ("h264", "libx264", "mkv"), ("hevc", "libx265", "mp4"), ("h264", "libx264", "ts")],
)
def test_pictures_are_the_same_without_the_containers_header(
    codec: str, encoder: str, container: str, tmp_path: Path
) -> None:
    uri = encode(tmp_path / f"clip.{container}", encoder)
    packets = units(uri)
    assert packets[0][0][:4] == b"\0\0\0\1"
    assert decode_without_header(codec, packets) == pictures(uri)


def test_every_packet_gives_one_unit_and_keeps_its_time() -> None:
    demuxer = Demuxer(CLIP, CLIP)
    times = []
    while (packet := demuxer.read()) is not None:
        times.append(packet.pts)
    demuxer.close()
    assert [ticks for _, ticks in units(CLIP)] == times


def test_av1_passes_through(tmp_path: Path) -> None:
    uri = encode(tmp_path / "clip.mp4", "libsvtav1", frames=3)
    demuxer = Demuxer(uri, uri)
    try:
        packet = demuxer.read()
        assert packet is not None
        unit = AnnexB(demuxer.stream, uri).convert(packet)
        assert unit is not None
        assert unit.owner is packet
    finally:
        demuxer.close()


def test_a_packet_without_whole_units_gives_none_and_the_next_one_goes_on() -> None:
    demuxer = Demuxer(CLIP, CLIP)
    try:
        first, second = demuxer.read(), demuxer.read()
        assert first is not None
        assert second is not None
        unpacker = AnnexB(demuxer.stream, CLIP)
        assert unpacker.convert(first)
        assert unpacker.convert(av.Packet(b"\xff\xff\xff\xff\x01")) is None
        assert unpacker.convert(second)
    finally:
        demuxer.close()


@pytest.mark.parametrize(("codec", "encoder"), [("h264", "libx264"), ("hevc", "libx265")])
def test_a_key_frame_tells_its_sequence_parameter_set_and_other_frames_none(
    codec: str, encoder: str, tmp_path: Path
) -> None:
    uri = encode(tmp_path / "clip.mp4", encoder)
    demuxer = Demuxer(uri, uri)
    try:
        unpacker, sequences = AnnexB(demuxer.stream, uri), []
        while (packet := demuxer.read()) is not None:
            is_keyframe = packet.is_keyframe
            unit = unpacker.convert(packet)
            assert unit is not None
            assert bool(unit.sequence) == is_keyframe
            sequences.append(unit.sequence)
        assert len(sequences[0]) > 8
        assert sequences[0] in demuxer.facts.extradata
    finally:
        demuxer.close()


def test_a_head_without_units_has_no_sequence() -> None:
    for head in (b"", b"\0\0\1", b"\0\0\1\0\0\1", b"\0" * 64, b"\xff" * 64):
        assert sequence_set(head, "h264") == sequence_set(head, "hevc") == b""


def test_an_av1_key_frame_tells_its_sequence_header(tmp_path: Path) -> None:
    uri = encode(tmp_path / "clip.mp4", "libsvtav1", frames=3)
    demuxer = Demuxer(uri, uri)
    try:
        unpacker, sequences = AnnexB(demuxer.stream, uri), []
        while (packet := demuxer.read()) is not None:
            unit = unpacker.convert(packet)
            assert unit is not None
            assert bool(unit.sequence) == packet.is_keyframe
            sequences.append(unit.sequence)
        # The container's copy may differ in flags further back; profile, level and size come first.
        assert sequences[0][:6] in demuxer.facts.extradata
    finally:
        demuxer.close()


@given(st.binary(max_size=64))
def test_any_bytes_are_searched_for_a_sequence_header_without_harm(head: bytes) -> None:
    assert sequence_header(head) in head


@pytest.mark.parametrize(("codec", "encoder"), [("h264", "libx264"), ("hevc", "libx265"), ("av1", "libsvtav1")])
def test_a_key_frames_unit_decodes_alone(codec: str, encoder: str, tmp_path: Path) -> None:
    uri = encode(tmp_path / "clip.mp4", encoder)
    demuxer = Demuxer(uri, uri)
    try:
        packet = demuxer.read()
        assert packet is not None
        unit = AnnexB(demuxer.stream, uri).convert(packet)
        assert unit is not None
        frame = decode_alone(codec, unit.owner)
        assert frame is not None
        assert (frame.width, frame.height) == (160, 96)
        assert decode_alone(codec, av.Packet(b"\0\0\0\1nothing")) is None
    finally:
        demuxer.close()

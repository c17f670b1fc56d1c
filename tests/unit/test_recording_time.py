"""When a recording began: by the name of a clip of ours, else by its header, else unknown."""

from __future__ import annotations

from pathlib import Path

import av
import pytest

from tests.contract.clips import make_clip
from zhcedge.media.recording_time import recorded_at_ns


def with_metadata(folder: Path, **metadata: str) -> Path:
    path = folder / "made.mp4"
    with av.open(str(make_clip(folder / "in.mp4"))) as source, av.open(str(path), "w") as target:
        target.metadata.update(metadata)
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    return path


def test_the_header_says_it(tmp_path: Path) -> None:
    path = with_metadata(tmp_path, creation_time="2024-05-06T07:08:09.000000Z")
    assert recorded_at_ns(path) == 1_714_979_289 * 10**9


def test_the_name_of_a_clip_of_ours_says_it_better(tmp_path: Path) -> None:
    path = with_metadata(tmp_path, creation_time="2024-05-06T07:08:09.000000Z")
    assert recorded_at_ns(path.rename(tmp_path / "20250131T101112.123456Z.mp4")) == 1_738_318_272_123_456_000


@pytest.mark.parametrize("kind", ["absent", "noise", "silent"])
def test_nobody_says_it(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "other.mp4"
    if kind == "noise":
        path.write_bytes(b"noise" * 1000)
    elif kind == "silent":
        path = with_metadata(tmp_path)
    assert recorded_at_ns(path) is None


@pytest.mark.parametrize("year", ["0001", "9999"])
def test_a_time_that_nothing_can_hold_is_none(tmp_path: Path, year: str) -> None:
    assert recorded_at_ns(with_metadata(tmp_path).rename(tmp_path / f"{year}0131T101112.123456Z.mp4")) is None

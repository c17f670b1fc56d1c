"""A recording that ends anywhere is cut behind its last whole fragment, and what is left decodes to its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.clip_scene import Scene, assert_decodes_to_its_end, make_video, payloads
from zhcedge.media.fragments import cut_to_whole, whole_part


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten seconds in fragments of one."""
    folder = tmp_path_factory.mktemp("fragments")
    with Scene(make_video(folder / "video.mp4", 10), folder / "clips", before_s=20.0) as scene:
        scene.play(99)
        scene.end("a", 80, 98)
        scene.play(50)
    return scene.clip().parts[0].path


def test_a_finished_clip_is_whole_and_knows_its_length(clip: Path) -> None:
    with clip.open("rb") as file:
        whole = whole_part(file)
    assert whole is not None
    assert (whole.end, whole.has_rest) == (clip.stat().st_size, False)
    assert whole.seconds == pytest.approx(10.0)
    assert whole.fragments >= 9
    before = clip.read_bytes()
    assert cut_to_whole(clip) == whole
    assert clip.read_bytes() == before


@given(data=st.data())
def test_wherever_it_ends_the_rest_decodes_to_its_end(clip: Path, data: st.DataObject) -> None:
    bytes_ = clip.read_bytes()
    length = data.draw(st.integers(0, len(bytes_)))
    path = clip.with_name("cut.mp4")
    path.write_bytes(bytes_[:length])
    whole = cut_to_whole(path)
    if whole is None:
        assert path.stat().st_size == length
        assert length < len(bytes_) / 3
        return
    count = assert_decodes_to_its_end(path)
    assert payloads(path) == payloads(clip)[:count]
    assert whole.seconds == pytest.approx(count / 10)
    assert length - path.stat().st_size < len(bytes_) / 3


@given(st.binary(max_size=200))
def test_what_is_no_mp4_has_no_whole_part(clip: Path, data: bytes) -> None:
    path = clip.with_name("noise.mp4")
    path.write_bytes(data)
    assert cut_to_whole(path) is None


@given(data=st.data())
def test_damaged_boxes_never_break_the_reader(clip: Path, data: st.DataObject) -> None:
    bytes_ = bytearray(clip.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        bytes_[data.draw(st.integers(0, len(bytes_) - 1))] = data.draw(st.integers(0, 255))
    path = clip.with_name("damaged.mp4")
    path.write_bytes(bytes_)
    whole = cut_to_whole(path)
    assert whole is None or whole.end <= len(bytes_)

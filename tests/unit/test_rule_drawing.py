"""What a technician sees: a zone is filled with its colour, a line's arrow points to where `in` goes."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from tests.contract.clips import make_clip
from zhcedge.config.channel import ChannelConfig
from zhcedge.core.errors import MediaError, OutputError
from zhcedge.media.redrawing import draw_one, redraw
from zhcedge.media.rule_drawing import COLOURS, RuleArtist, ShownTrack

SIZE = (320, 240)
GREY = 100


def channel(**rules: object) -> ChannelConfig:
    return ChannelConfig.model_validate({"source": {"uri": "clip:walkers"}, **rules})


def drawn(rules: ChannelConfig, *tracks: ShownTrack, size: tuple[int, int] = SIZE) -> npt.NDArray[np.int64]:
    """Red, green, blue of every pixel on a grey picture: [height, width, 3]."""
    picture = RuleArtist(rules, size).draw(Image.new("RGB", size, (GREY, GREY, GREY)), tracks)
    return np.asarray(picture).astype(np.int64)


def is_tinted(pixel: npt.NDArray[np.int64], colour: tuple[int, int, int]) -> bool:
    """Whether a grey pixel has gone towards a colour, in every part."""
    return bool((np.sign(pixel - GREY) == np.sign(np.array(colour) - GREY)).all())


ZONES = {
    "left": {"points": [[0.1, 0.2], [0.4, 0.2], [0.4, 0.8], [0.1, 0.8]]},
    "right": {"points": [[0.6, 0.2], [0.9, 0.2], [0.9, 0.8], [0.6, 0.8]]},
}


def test_a_zone_is_filled_with_its_colour_and_what_is_outside_stays() -> None:
    pixels = drawn(channel(zones=ZONES))
    assert is_tinted(pixels[120, 80], COLOURS[0])
    assert is_tinted(pixels[120, 240], COLOURS[1])
    for y, x in ((120, 160), (10, 80), (230, 80), (120, 10)):
        assert pixels[y, x].tolist() == [GREY] * 3


def test_where_zones_overlap_both_are_seen() -> None:
    over = {"a": ZONES["left"], "b": {"points": [[0.2, 0.2], [0.6, 0.2], [0.6, 0.8], [0.2, 0.8]]}}
    pixels = drawn(channel(zones=over))
    first, both, second = pixels[120, 48], pixels[120, 96], pixels[120, 160]
    assert is_tinted(first, COLOURS[0])
    assert is_tinted(second, COLOURS[1])
    assert len({tuple(pixel.tolist()) for pixel in (first, both, second)}) == 3


@pytest.mark.parametrize(("ends", "in_x"), [([[0.5, 0.0], [0.5, 1.0]], -1), ([[0.5, 1.0], [0.5, 0.0]], 1)])
def test_the_arrow_of_a_line_points_to_the_right_hand_of_who_walks_along_it(ends: list[list[float]], in_x: int) -> None:
    pixels = drawn(channel(lines={"gate": {"points": ends}}))
    half = (slice(110, 130), slice(0, 150)), (slice(110, 130), slice(170, 320))
    left, right = (int((pixels[part] != GREY).any(axis=2).sum()) for part in half)
    assert (left > 0, right > 0) == (in_x < 0, in_x > 0)


def test_a_track_is_framed_and_named() -> None:
    pixels = drawn(channel(), ShownTrack(7, (100.0, 50.0, 150.0, 120.0)))
    assert pixels[80, 100].tolist() == [255] * 3
    assert (pixels[122:140, 100:120] != GREY).any()
    assert pixels[80, 130].tolist() == [GREY] * 3


@pytest.mark.parametrize("size", [(16, 16), (33, 7), (4000, 30)])
def test_pictures_of_any_size_can_be_drawn_on(size: tuple[int, int]) -> None:
    rules = channel(zones=ZONES, lines={"gate": {"points": [[0.0, 0.0], [1.0, 1.0]]}})
    beyond = ShownTrack(123456, (-50.0, -50.0, 5000.0, 5000.0))
    assert drawn(rules, beyond, size=size).shape == (size[1], size[0], 3)


def test_a_redrawn_video_has_the_pictures_and_times_of_the_first(tmp_path: Path) -> None:
    source, target = make_clip(tmp_path / "in.mp4", 12, *SIZE), tmp_path / "out.mp4"
    artist = RuleArtist(channel(zones=ZONES), SIZE)
    assert redraw(source, artist, lambda number: (), target) == 12
    times = []
    for path in (source, target):
        with av.open(str(path)) as container:
            times.append([round(float(frame.time or 0), 3) for frame in container.decode(video=0)])
    assert times[0] == times[1]
    draw_one(source, artist, lambda number: (), 5, tmp_path / "one.png")
    with av.open(str(target)) as container:
        frames = [frame.to_ndarray(format="rgb24").astype(np.int64) for frame in container.decode(video=0)]
    picture = np.asarray(Image.open(tmp_path / "one.png")).astype(np.int64)
    assert np.abs(picture - frames[5]).mean() < 6  # but for the encoder


def test_what_cannot_be_read_or_written_leaves_nothing(tmp_path: Path) -> None:
    artist = RuleArtist(channel(), SIZE)
    source = make_clip(tmp_path / "in.mp4", 3, *SIZE)
    (tmp_path / "noise.mp4").write_bytes(b"noise" * 1000)
    with pytest.raises(MediaError, match=r"noise\.mp4"):
        redraw(tmp_path / "noise.mp4", artist, lambda number: (), tmp_path / "out.mp4")
    with pytest.raises(OutputError):
        draw_one(source, artist, lambda number: (), 0, tmp_path / "absent" / "one.png")
    with pytest.raises(ZeroDivisionError):
        redraw(source, artist, lambda number: () if number < 2 else 1 // 0, tmp_path / "out.mp4")  # type: ignore[arg-type,return-value]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.mp4", "noise.mp4"]

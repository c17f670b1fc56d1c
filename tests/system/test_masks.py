"""Privacy masks from the configuration to the file: what is hidden is black in every decoded picture."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
import pytest

from tests.contract.clips import cut_clip
from tests.system.test_run import CLIP, run, write_config
from zhcedge.pipeline.masks import rasterise

FRAMES = 12
POLYGONS = [[(0.1, 0.2), (0.45, 0.15), (0.4, 0.8)], [(0.75, 0.5), (1.0, 0.5), (1.0, 1.0), (0.75, 1.0)]]


def luma_of(path: Path) -> npt.NDArray[np.uint8]:
    """[frames, height, width]."""
    with av.open(str(path)) as container:
        pictures = [frame.to_ndarray(format="gray8") for frame in container.decode(video=0)]
    return np.stack(pictures)


def shrunk(mask: npt.NDArray[np.bool_], by: int) -> npt.NDArray[np.bool_]:
    """Without the pixels near the border, where an encoder's blocks mix both sides."""
    inside = mask
    for _ in range(by):
        padded = np.pad(inside, 1, mode="edge")
        inside = padded[1:-1, 1:-1] & padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return inside


@pytest.mark.slow
def test_what_is_masked_is_black_in_the_written_video_and_the_rest_is_the_picture(tmp_path: Path) -> None:
    clip = cut_clip(CLIP, tmp_path / "cut.mp4", FRAMES)
    channel = {
        "source": {"uri": str(clip)},
        "sinks": [{"kind": "mp4", "path": "out.mp4"}],
        "masks": [[list(point) for point in polygon] for polygon in POLYGONS],
    }
    # No score is above 1, so no box is drawn over a mask.
    config = write_config(
        tmp_path, channels={"gate": channel}, model={"score_threshold": 1.0}, output_dir=str(tmp_path)
    )
    result = run(config)
    assert result.returncode == 0, result.stderr

    written, source = luma_of(tmp_path / "out.mp4"), luma_of(clip)
    assert len(written) == len(source) == FRAMES
    height, width = source.shape[1:]
    hidden = rasterise(POLYGONS, width, height).astype(np.bool_).repeat(2, axis=0).repeat(2, axis=1)[:height, :width]
    # Decoders give grey on 0..255: black is 0, and an encoder may miss it by a little.
    assert written[:, shrunk(hidden, 8)].max() <= 12
    assert source[:, shrunk(hidden, 8)].max() > 100
    seen = shrunk(~hidden, 8)
    assert np.abs(written[:, seen].astype(int) - source[:, seen]).mean() < 4

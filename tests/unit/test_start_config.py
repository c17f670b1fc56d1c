"""A daemon starts with what is written, or with the last good configuration where that can't be run at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from zhcedge.app.last_good import LastGood
from zhcedge.app.reload import ConfigSource
from zhcedge.app.start_config import find_configuration
from zhcedge.config.load import load_text
from zhcedge.core.errors import ZhcEdgeError

GOOD = "device: good\nchannels: {gate: {source: {uri: 'pattern:boxes'}}}\n"


def source(folder: Path, text: str | None) -> ConfigSource:
    path = folder / "config.yaml"
    if text is not None:
        path.write_text(text)
    return ConfigSource(path, (), {"STATE_DIRECTORY": str(folder)})


@pytest.mark.parametrize(
    "text",
    [
        None,
        "channels: [",
        GOOD + "nonsense: 1\n",
        GOOD + "model: {bundle: not-there}\n",
        GOOD + "events: {labels: [unicorn]}\n",
        GOOD + "profile: abacus\n",
    ],
)
def test_what_can_not_be_run_gives_way_to_the_last_good_one_where_that_is_wanted(
    tmp_path: Path, text: str | None
) -> None:
    with pytest.raises(ZhcEdgeError):  # nothing to fall back on
        find_configuration(source(tmp_path, text), may_fall_back=True)
    kept = load_text(GOOD, "kept.yaml").config
    LastGood(tmp_path / "last-good.json").keep(kept)
    config, fault = find_configuration(source(tmp_path, text), may_fall_back=True)
    assert config == kept
    assert "last good" in fault


def test_what_is_right_is_taken_and_so_is_a_camera_that_is_not_there(tmp_path: Path) -> None:
    LastGood(tmp_path / "last-good.json").keep(load_text(GOOD, "kept.yaml").config)
    text = GOOD.replace("pattern:boxes", "v4l2:/dev/video77").replace("good", "other")
    config, fault = find_configuration(source(tmp_path, text), may_fall_back=True)
    assert (config.device, fault) == ("other", "")


def test_a_copy_that_means_nothing_is_none(tmp_path: Path) -> None:
    (tmp_path / "last-good.json").write_text("{}")
    with pytest.raises(ZhcEdgeError):
        find_configuration(source(tmp_path, "channels: ["), may_fall_back=True)

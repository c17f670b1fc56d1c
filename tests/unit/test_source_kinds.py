"""Which sort of source an address asks for, and that every profile has an implementation for each."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from zhcedge.backends.registry import SOURCE_WRAPPERS, SOURCES, source_factory
from zhcedge.config.channel import SourceConfig, SourceKind
from zhcedge.core.errors import UsageError
from zhcedge.profiles import PROFILES


@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        ("rtsp://camera/stream", "stream"),
        ("HTTPS://camera/picture.jpg", "stream"),
        ("v4l2:/dev/video0", "stream"),
        ("pattern:boxes?objects=3", "pattern"),
        ("clip:walkers", "file"),
        ("clips/door.mp4", "file"),
        ("door.gif", "file"),
        ("no suffix", "file"),
        ("door.JPG", "image"),
        ("a b/door.tiff", "image"),
        ("x" * 4000, "file"),
    ],
)
def test_the_kind_is_read_from_the_address(uri: str, kind: str) -> None:
    assert SourceConfig(uri=uri).kind == kind


def test_a_folder_holds_images_whatever_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "recordings.mp4"
    folder.mkdir()
    assert SourceConfig(uri=str(folder)).kind == "image"
    assert SourceConfig(uri=str(tmp_path / "missing")).kind == "file"


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES.keys())
def test_every_profile_plays_every_kind(profile: object) -> None:
    sources: dict[str, str] = profile.sources  # type: ignore[attr-defined]
    assert set(sources) == set(get_args(SourceKind))
    for name in sources.values():
        inner, _, wrapper = name.partition("|")
        assert inner in SOURCES.entries
        assert not wrapper or wrapper in SOURCE_WRAPPERS.entries


@pytest.mark.parametrize("name", ["nothing", "image|nothing", "|cuda-upload", ""])
def test_an_unknown_source_is_a_usage_error(name: str) -> None:
    with pytest.raises(UsageError):
        source_factory(name)

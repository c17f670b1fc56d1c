"""Profiles: what they name exists, and what they lack is refused in words."""

from __future__ import annotations

import importlib.util

import pytest

from zhcedge.backends.registry import DEVICES, ENGINES, JPEG_ENCODERS, SINKS
from zhcedge.core.errors import ConfigError, UsageError
from zhcedge.profiles import PROFILES, profile


@pytest.mark.parametrize("name", PROFILES)
def test_everything_that_a_profile_names_is_registered(name: str) -> None:
    chosen = PROFILES[name]
    assert chosen.device in DEVICES.entries
    assert chosen.engine in ENGINES.entries
    assert importlib.util.find_spec(JPEG_ENCODERS.entries[chosen.jpeg].partition(":")[0]) is not None
    for sink in (*chosen.sinks.values(), *chosen.fallbacks, *chosen.fallbacks.values()):
        assert sink in SINKS.entries
        assert importlib.util.find_spec(SINKS.entries[sink].partition(":")[0]) is not None


def test_a_kind_of_sink_that_a_profile_lacks_is_refused() -> None:
    assert PROFILES["cpu"].sink("rtsp") == "rtsp"
    with pytest.raises(ConfigError, match=r"profile rtx has no sink of kind rtsp; choose one of mp4, jpeg, jsonl, or"):
        PROFILES["rtx"].sink("rtsp")


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(UsageError, match="choose one of cpu, rtx"):
        profile("cpi")

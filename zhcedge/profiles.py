"""Profiles: a named set of backends."""

from __future__ import annotations

from dataclasses import dataclass

from zhcedge.core.errors import UsageError


@dataclass(frozen=True)
class Profile:
    """Names in the registries of backends/registry.py, and the sizes that suit them.

    Attributes:
        lanes: batches in flight where the configuration leaves the choice open.
        sinks: a configured sink kind -> an implementation.
    """

    name: str
    device: str
    engine: str
    source: str
    lanes: int
    sinks: dict[str, str]


PROFILES: dict[str, Profile] = {
    "cpu": Profile("cpu", device="cpu", engine="onnxruntime-cpu", source="pyav", lanes=2, sinks={"mp4": "mp4"}),
    "rtx": Profile("rtx", device="cuda", engine="onnxruntime-cuda", source="nvdec", lanes=2, sinks={"mp4": "nvjpeg"}),
}


def profile(name: str) -> Profile:
    """The profile called `name`. Raises UsageError for an unknown one."""
    if name not in PROFILES:
        raise UsageError(f"no profile is called {name!r}", fix=f"choose one of {', '.join(PROFILES)}")
    return PROFILES[name]

"""Profiles: a named set of backends."""

from __future__ import annotations

from dataclasses import dataclass, field

from zhcedge.core.errors import ConfigError, UsageError


@dataclass(frozen=True)
class Profile:
    """Names in the registries of backends/registry.py, and the sizes that suit them.

    Attributes:
        sources: a configured source kind -> an implementation (see registry.source_factory).
        lanes: batches in flight where the configuration leaves the choice open.
        most_batch: the largest batch that `batch: auto` tries.
        sinks: a configured sink kind -> an implementation.
        fallbacks: an implementation -> the one that takes its place where this machine lacks what it needs.
        jpeg: what encodes snapshots.
        meter: what measures the link between host and device in an audit; empty where there is none to measure.
    """

    name: str
    device: str
    engine: str
    sources: dict[str, str]
    lanes: int
    most_batch: int
    sinks: dict[str, str]
    jpeg: str
    fallbacks: dict[str, str] = field(default_factory=dict)
    meter: str = ""

    def sink(self, kind: str) -> str:
        """The implementation of a configured sink kind. Raises ConfigError where this profile has none."""
        if kind not in self.sinks:
            raise ConfigError(
                f"profile {self.name} has no sink of kind {kind}",
                where="sinks",
                fix=f"choose one of {', '.join(self.sinks)}, or another profile",
            )
        return self.sinks[kind]


PROFILES: dict[str, Profile] = {
    "cpu": Profile(
        "cpu",
        device="cpu",
        engine="onnxruntime-cpu",
        sources={"file": "pyav", "stream": "pyav", "image": "image", "pattern": "pattern"},
        lanes=2,
        most_batch=4,
        sinks={"mp4": "mp4", "jpeg": "jpeg", "jsonl": "jsonl", "rtsp": "rtsp"},
        jpeg="libav",
    ),
    "rtx": Profile(
        "rtx",
        device="cuda",
        engine="onnxruntime-cuda",
        sources={
            "file": "nvdec",
            "stream": "nvdec",
            "image": "image|cuda-upload",
            "pattern": "pattern|cuda-upload",
        },
        lanes=2,
        most_batch=16,
        sinks={"mp4": "nvenc", "jpeg": "nvjpeg-folder", "jsonl": "jsonl"},
        jpeg="nvjpeg",
        fallbacks={"nvenc": "nvjpeg"},
        meter="nvml",
    ),
}


def profile(name: str) -> Profile:
    """The profile called `name`. Raises UsageError for an unknown one."""
    if name not in PROFILES:
        raise UsageError(f"no profile is called {name!r}", fix=f"choose one of {', '.join(PROFILES)}")
    return PROFILES[name]

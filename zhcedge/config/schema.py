"""The configuration as frozen pydantic models: which keys exist and what they may hold.

The sections of a channel, of analytics, of delivery, of storage and of control have modules of their own (channel.py,
analytics.py, delivery.py, storage.py, control.py), and so has what values are (values.py).

Numbers carry their bounds and fields their descriptions here, and messages are written from them
(config/explain.py), so a message can't disagree with the check. Where bounds don't say it, a field's `allowed`
extra says in words what it takes. Values are what YAML says they are: the text "1883" is not a number here.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from zhcedge.config.analytics import EventsConfig, TrackerConfig
from zhcedge.config.channel import ChannelConfig
from zhcedge.config.control import ControlConfig
from zhcedge.config.delivery import MqttConfig, OutboxConfig
from zhcedge.config.storage import StorageConfig
from zhcedge.config.values import PROBLEM_TYPE, SLUG_WORDS, Flag, Fraction, Labels, Line, PathText, Section, Slug, Whole


class ModelConfig(Section):
    bundle: Line = Field(
        default="nanodet-g-416",
        description="name of a model bundle (zhc-edge model ls lists them), or a bundle's folder, with a slash in it",
    )
    score_threshold: Fraction | None = Field(
        default=None, description="lowest score of a detection; null takes the bundle's value"
    )
    nms_iou: Fraction | None = Field(
        default=None, description="overlap from which two boxes are one object; null takes the bundle's value"
    )
    labels: Labels | None = Field(default=None, description="labels to detect; null keeps all of the model's")

    @property
    def bundle_path(self) -> Path | None:
        """The bundle's folder, or None when `bundle` is the name of an embedded one."""
        return Path(self.bundle) if "/" in self.bundle or self.bundle.startswith("~") else None


class EngineConfig(Section):
    threads: Whole = Field(default=0, ge=0, le=256, description="host threads for inference; 0 is one per core")
    library: Literal["profile", "tensorrt", "tensorrt_rtx"] = Field(
        default="profile",
        description="what runs the model; profile is ONNX Runtime, the others run a plan that is built at the first "
        "start",
    )
    precision: Literal["auto", "int8", "fp16", "fp32"] = Field(
        default="auto", description="of a TensorRT plan; auto is int8 for a quantised bundle, else fp16"
    )
    fused: Flag = Field(
        default=False,
        description="whether ONNX Runtime compiles each convolution with its bias for this GPU: more frames a second, "
        "and a start that takes some seconds longer for each lane and batch size",
    )
    workspace_mib: Whole = Field(
        default=512, ge=16, le=65_536, description="scratch memory that a kernel of a TensorRT plan may use, in MiB"
    )


class PipelineConfig(Section):
    lanes: Whole = Field(default=0, ge=0, le=8, description="batches in flight; 0 leaves the choice to the profile")
    slots: Whole = Field(
        default=0, ge=0, le=64, description="frames in flight per channel; 0 sizes it from lanes and sinks"
    )
    batch: Annotated[int, Field(strict=True, ge=0, le=64)] | Literal["auto"] = Field(
        default=0,
        description="most frames in one batch; 0 takes one, or what the model is made for; auto measures in warm-up",
        json_schema_extra={"allowed": "a whole number from 0 to 64, or auto"},
    )
    max_wait_ms: Whole = Field(
        default=0, ge=0, le=10_000, description="longest time that a frame waits for its batch to fill"
    )
    max_latency_ms: Whole = Field(
        default=100, ge=1, le=60_000, description="what batch auto keeps a frame's time in the detector below"
    )
    guard: Literal["count", "fail", "abort"] = Field(
        default="count",
        description="what an allocation in the active phase does: count it, end the run, or abort the process",
    )
    nvtx: Flag = Field(
        default=False,
        description="whether to name the frame path's work for NVIDIA's profilers; needs the nvtx package",
    )
    warmup_frames: Whole = Field(
        default=12, ge=1, le=1000, description="frames that pass through everything before the seal"
    )


def host_slug() -> str:
    """This computer's host name, up to its first dot, made a slug; "zhc-edge" where nothing is left of it."""
    name = re.sub(r"[^a-z0-9]+", "-", socket.gethostname().partition(".")[0].lower())
    return name[:63].strip("-") or "zhc-edge"


class Config(Section):
    """The whole configuration. From `load`, every path in it is absolute."""

    device: Slug = Field(default_factory=host_slug, description="this device's name in topics; default: the host name")
    profile: str = Field(default="cpu", description="the set of backends that runs the frame path")
    model: ModelConfig = Field(default_factory=ModelConfig, description="the detector")
    engine: EngineConfig = Field(default_factory=EngineConfig, description="how the detector runs")
    pipeline: PipelineConfig = Field(default_factory=PipelineConfig, description="the frame path")
    channels: Mapping[Slug, ChannelConfig] = Field(
        min_length=1,
        max_length=64,
        description="camera feeds by name",
        json_schema_extra={"allowed": f"at least one channel, each under a name of {SLUG_WORDS}"},
    )
    output_dir: PathText = Field(
        default=Path(), description="where the sinks' relative paths start; default: the working directory"
    )
    tracker: TrackerConfig = Field(default_factory=TrackerConfig, description="how boxes become tracks")
    events: EventsConfig = Field(default_factory=EventsConfig, description="how tracks become events")
    mqtt: MqttConfig = Field(default_factory=MqttConfig, description="where events go")
    outbox: OutboxConfig = Field(default_factory=OutboxConfig, description="where messages wait for the broker")
    storage: StorageConfig = Field(default_factory=StorageConfig, description="where clips and snapshots are kept")
    control: ControlConfig = Field(
        default_factory=ControlConfig, description="how `zhc-edge status` reaches the daemon"
    )

    @field_validator("events")
    @classmethod
    def _check_required_zones(cls, events: EventsConfig, info: ValidationInfo) -> EventsConfig:
        channels: Mapping[str, ChannelConfig] | None = info.data.get("channels")
        known = {zone for channel in (channels or {}).values() for zone in channel.zones}
        unknown = [name for name in events.required_zones if name not in known]
        if channels is not None and unknown:
            text = "required_zones: no channel has a zone {name}"
            raise PydanticCustomError(PROBLEM_TYPE, text, {"name": unknown[0]})
        return events

    @field_validator("storage")
    @classmethod
    def _check_budget(cls, storage: StorageConfig, info: ValidationInfo) -> StorageConfig:
        outbox: OutboxConfig | None = info.data.get("outbox")
        if outbox is not None and storage.budget_mb is not None:
            total = storage.max_mb + storage.history_max_mb + storage.plans_max_mb + outbox.max_mb
            if total > storage.budget_mb:
                text = "budget_mb: max_mb, history_max_mb, plans_max_mb and outbox.max_mb are {total} together"
                raise PydanticCustomError(PROBLEM_TYPE, text, {"total": total})
        return storage

    @field_validator("profile")
    @classmethod
    def _check_profile(cls, name: str, info: ValidationInfo) -> str:
        # Profiles name backends, which this package doesn't know: whoever loads hands the names in.
        profiles: tuple[str, ...] = (info.context or {}).get("profiles", ())
        if profiles and name not in profiles:
            raise PydanticCustomError(PROBLEM_TYPE, "", {"allowed": ", ".join(profiles)})
        return name

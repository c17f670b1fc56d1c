"""The configuration as frozen pydantic models: the one place that says which keys exist and what they may hold.

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

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

PROBLEM_TYPE = "zhcedge"
"""Type of the validation errors that this module raises itself; their text tells the user what to do."""

SLUG_WORDS = "1 to 63 lower-case letters, digits and hyphens"
_SLUG_PATTERN = r"^[a-z0-9-]{1,63}$"
_CLIP_PATTERN = re.compile(r"clip:[a-z0-9-]{1,63}\Z")
_SCHEME_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_NOT_IN_PATHS = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")  # control characters, and halves of a UTF-16 pair

Whole = Annotated[int, Field(strict=True)]
Fraction = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]
Slug = Annotated[str, Field(pattern=_SLUG_PATTERN, json_schema_extra={"allowed": SLUG_WORDS})]
Line = Annotated[
    str,
    Field(
        pattern=r"^[^\x00-\x1f\x7f]+$",
        max_length=4096,
        json_schema_extra={"allowed": "one line of text, not empty"},
    ),
]


def _path_text(value: object) -> object:
    # pathlib would take "" for the current folder, and a NUL only fails much later, when the file is opened.
    # The folder of the configuration file, which comes in front later, may have a name that is no text at all.
    if isinstance(value, (str, Path)) and 0 < len(str(value)) <= 4096 and not _NOT_IN_PATHS.search(str(value)):
        return value
    raise PydanticCustomError(PROBLEM_TYPE, "")


PathText = Annotated[
    Path, BeforeValidator(_path_text), Field(json_schema_extra={"allowed": "the path of a file or folder"})
]
Labels = Annotated[
    tuple[Line, ...], Field(min_length=1, max_length=1000, json_schema_extra={"allowed": "a list of 1 to 1000 labels"})
]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _read_empty_section(cls, value: object) -> object:
        # YAML reads a section whose keys are all commented out as null; its author means the defaults.
        return {} if value is None else value


class ModelConfig(_Section):
    bundle: Line = Field(
        default="nanodet-g-416",
        description="name of an embedded model bundle, or the path of a bundle's folder (with a slash in it)",
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


class EngineConfig(_Section):
    threads: Whole = Field(default=0, ge=0, le=256, description="host threads for inference; 0 is one per core")


class PipelineConfig(_Section):
    lanes: Whole = Field(default=0, ge=0, le=8, description="batches in flight; 0 leaves the choice to the profile")
    slots: Whole = Field(
        default=0, ge=0, le=64, description="frames in flight per channel; 0 sizes it from lanes and sinks"
    )
    batch: Whole = Field(
        default=0, ge=0, le=64, description="most frames in one batch; 0 takes one, or what the model is made for"
    )
    guard: Literal["count", "fail", "abort"] = Field(
        default="count",
        description="what an allocation in the active phase does: count it, end the run, or abort the process",
    )
    warmup_frames: Whole = Field(
        default=12, ge=1, le=1000, description="frames that pass through everything before the seal"
    )


class SourceConfig(_Section):
    uri: Line = Field(
        description="clip:NAME for a bundled clip, else the path of a video file",
        json_schema_extra={"allowed": "clip:NAME or the path of a video file"},
    )
    realtime: Flag = Field(default=False, description="play a file at its own pace, as a camera would")
    loop: Flag = Field(default=False, description="start a file again at its end")

    @field_validator("uri")
    @classmethod
    def _check_uri(cls, uri: str) -> str:
        if _SCHEME_PATTERN.match(uri):
            raise PydanticCustomError(PROBLEM_TYPE, "this version reads files only, so record the stream to a file")
        if uri.startswith("clip:") and not _CLIP_PATTERN.match(uri):
            raise PydanticCustomError(PROBLEM_TYPE, "write ./ in front if a file is really called that")
        return uri

    @property
    def clip(self) -> str | None:
        """Name of the bundled clip, or None when `uri` is a path."""
        return self.uri.removeprefix("clip:") if self.uri.startswith("clip:") else None


class SinkConfig(_Section):
    kind: Literal["mp4"] = Field(description="what to write: mp4 is an annotated H.264 video file")
    path: PathText = Field(description="file to write, relative to output_dir")


class ChannelConfig(_Section):
    source: SourceConfig = Field(description="where the channel's frames come from")
    sinks: tuple[SinkConfig, ...] = Field(
        default=(), max_length=8, description="what is written", json_schema_extra={"allowed": "a list of sinks"}
    )


class TrackerConfig(_Section):
    min_iou: Annotated[Fraction, Field(gt=0)] = Field(
        default=0.25, description="overlap from which a box continues a track"
    )
    confirm_frames: Whole = Field(default=3, ge=1, le=100, description="frames in a row before a track is believed")
    max_lost_ms: Whole = Field(default=2000, ge=0, le=60_000, description="time unseen after which a track ends")
    max_lost_frames: Whole = Field(default=45, ge=0, le=10_000, description="frames unseen after which a track ends")


class EventsConfig(_Section):
    labels: Labels | None = Field(default=None, description="labels that make events; null is all of them")
    update_interval_ms: Whole = Field(
        default=1000, ge=100, le=3_600_000, description="least time between two updates of one event"
    )


class MqttConfig(_Section):
    enabled: Flag = Field(default=True, description="whether to publish at all")
    host: str = Field(
        default="127.0.0.1",
        pattern=r"^[A-Za-z0-9._:%-]{1,253}$",
        description="the broker's host name or address",
        json_schema_extra={"allowed": "a host name or an IP address"},
    )
    port: Whole = Field(default=1883, ge=1, le=65_535, description="the broker's TCP port")
    username: Line | None = Field(default=None, description="user name at the broker; null connects without one")
    password_file: PathText | None = Field(default=None, description="file whose first line is the password")
    topic_prefix: str = Field(
        default="zhcedge",
        max_length=128,
        pattern=r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$",
        description="first levels of every topic",
        json_schema_extra={"allowed": "topic levels of letters, digits and . _ -, with / between them"},
    )
    keepalive_s: Whole = Field(default=30, ge=5, le=3600, description="longest silence towards the broker")
    connect_timeout_s: Whole = Field(default=10, ge=1, le=300, description="longest wait for the broker's answer")
    outbox_limit: Whole = Field(default=10_000, ge=1, le=1_000_000, description="events kept while offline")

    @model_validator(mode="after")
    def _check_credentials(self) -> MqttConfig:
        # MQTT 3.1.1, 3.1.2.9: without a user name the password flag must be 0.
        if self.password_file is not None and self.username is None:
            raise PydanticCustomError(PROBLEM_TYPE, "password_file needs a username beside it")
        return self


def host_slug() -> str:
    """This computer's host name, up to its first dot, made a slug; "zhc-edge" where nothing is left of it."""
    name = re.sub(r"[^a-z0-9]+", "-", socket.gethostname().partition(".")[0].lower())
    return name[:63].strip("-") or "zhc-edge"


class Config(_Section):
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

    @field_validator("profile")
    @classmethod
    def _check_profile(cls, name: str, info: ValidationInfo) -> str:
        # Profiles name backends, which this package doesn't know: whoever loads hands the names in.
        profiles: tuple[str, ...] = (info.context or {}).get("profiles", ())
        if profiles and name not in profiles:
            raise PydanticCustomError(PROBLEM_TYPE, "", {"allowed": ", ".join(profiles)})
        return name

"""The configuration of one channel: where its frames come from, what is detected in them, what is written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from zhcedge.config.analytics import MAX_RULES, LineConfig, ZoneConfig
from zhcedge.config.snapshots import SnapshotsConfig
from zhcedge.config.values import (
    PROBLEM_TYPE,
    SLUG_WORDS,
    Flag,
    Fraction,
    Line,
    PathText,
    Polygon,
    Positive,
    Rectangle,
    Section,
    Slug,
    Whole,
)

_CLIP_PATTERN = re.compile(r"clip:[a-z0-9-]{1,63}\Z")
_SCHEME_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_NAMED_SOURCES = ("clip:", "pattern:", "v4l2:")
STREAM_SCHEMES = ("rtsp://", "rtsps://", "http://", "https://")
IMAGE_SUFFIXES = frozenset(
    {".avif", ".bmp", ".dib", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tga"}
    | {".tif", ".tiff", ".webp"}
)
"""File names that end so, in either case, are pictures. GIF is not among them: it plays as a video."""
SourceKind = Literal["file", "stream", "image", "pattern"]


class SourceConfig(Section):
    uri: Line = Field(
        description="rtsp://, rtsps://, http:// or https:// address, v4l2:/dev/videoN, pattern:NAME, clip:NAME, "
        "or the path of a video, an image or a folder of images",
        json_schema_extra={"allowed": "a stream's address, v4l2:/dev/videoN, pattern:NAME, clip:NAME or a path"},
    )
    realtime: Flag = Field(default=False, description="play a file at its own pace, as a camera would")
    loop: Flag = Field(default=False, description="start a file again at its end")
    fps: Positive | None = Field(
        default=None, le=1000, description="frames a second to keep of a stream; null keeps all of them"
    )
    start_s: Annotated[float, Field(strict=True, ge=0, le=1e6, allow_inf_nan=False)] = Field(
        default=0.0, description="where in a file to start, in seconds"
    )
    max_latency_ms: Whole | None = Field(
        default=None, ge=10, le=60_000, description="frames of a live source that are older are dropped; null keeps all"
    )
    transport: Literal["tcp", "udp"] = Field(default="tcp", description="how RTSP carries the video")
    username: Line | None = Field(default=None, description="user name at the camera, better here than in the address")
    password_file: PathText | None = Field(default=None, description="file whose first line is the camera's password")
    ca_file: PathText | None = Field(default=None, description="certificates that a TLS stream's server is checked by")
    verify_tls: Flag = Field(default=True, description="whether a TLS stream's server is checked at all")
    connect_timeout_s: Positive = Field(default=10.0, le=300, description="longest wait for a stream's first packet")
    read_timeout_s: Positive = Field(default=5.0, le=300, description="silence after which a stream counts as lost")
    freeze_timeout_s: Positive | None = Field(
        default=None, le=86_400, description="unchanging picture after which a stream counts as frozen; null never"
    )

    @field_validator("uri")
    @classmethod
    def _check_uri(cls, uri: str) -> str:
        scheme = _SCHEME_PATTERN.match(uri)
        if scheme and scheme.group().lower() not in STREAM_SCHEMES:
            raise PydanticCustomError(PROBLEM_TYPE, f"write one of {', '.join(STREAM_SCHEMES)} in front of the address")
        if uri.startswith("clip:") and not _CLIP_PATTERN.match(uri):
            raise PydanticCustomError(PROBLEM_TYPE, "write ./ in front if a file is really called that")
        return uri

    @model_validator(mode="after")
    def _check_credentials(self) -> SourceConfig:
        if self.password_file is not None and self.username is None:
            raise PydanticCustomError(PROBLEM_TYPE, "password_file needs a username beside it")
        return self

    @property
    def clip(self) -> str | None:
        """Name of the bundled clip, or None when `uri` is something else."""
        return self.uri.removeprefix("clip:") if self.uri.startswith("clip:") else None

    @property
    def is_path(self) -> bool:
        """Whether `uri` names a file or folder, and not a stream, a device, a pattern or a clip."""
        return not _SCHEME_PATTERN.match(self.uri) and not self.uri.startswith(_NAMED_SOURCES)

    @property
    def kind(self) -> SourceKind:
        """Which sort of source the address asks for. Only to tell a folder from a video the disk is looked at."""
        if self.uri.startswith("pattern:"):
            return "pattern"
        if self.clip is not None:
            return "file"
        if not self.is_path:
            return "stream"
        return "image" if Path(self.uri).suffix.lower() in IMAGE_SUFFIXES or _is_folder(self.uri) else "file"


def _is_folder(path: str) -> bool:
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):  # a name that no file can have
        return False


class SinkConfig(Section):
    kind: Literal["mp4", "jpeg", "jsonl", "rtsp"] = Field(
        description="what to write: mp4 is an annotated video file, jpeg a folder of annotated pictures, jsonl the "
        "detections as one JSON object a line, rtsp pushes annotated video to a server"
    )
    path: PathText | None = Field(default=None, description="file or folder to write, relative to output_dir")
    url: Line | None = Field(default=None, description="rtsp:// address to push to; only for kind rtsp")
    quality: Whole = Field(default=85, ge=1, le=100, description="JPEG quality")
    bitrate_kbps: Whole = Field(default=4000, ge=100, le=100_000, description="of pushed video")

    @model_validator(mode="after")
    def _check_target(self) -> SinkConfig:
        wanted, other = ("url", "path") if self.kind == "rtsp" else ("path", "url")
        if getattr(self, wanted) is None or getattr(self, other) is not None:
            raise PydanticCustomError(PROBLEM_TYPE, f"a sink of kind {self.kind} takes a {wanted} and no {other}")
        return self

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        if url is not None and not url.lower().startswith(("rtsp://", "rtsps://")):
            raise PydanticCustomError(PROBLEM_TYPE, "", {"allowed": "an rtsp:// or rtsps:// address"})
        return url


class TilesConfig(Section):
    columns: Whole = Field(default=1, ge=1, le=8, description="tiles beside each other")
    rows: Whole = Field(default=1, ge=1, le=8, description="tiles above each other")
    overlap: Annotated[Fraction, Field(le=0.5)] = Field(
        default=0.1, description="share of a tile that its neighbour covers too"
    )


class MotionConfig(Section):
    threshold: Annotated[Fraction, Field(gt=0)] = Field(
        default=0.01, description="share of the picture that must change before the detector is run"
    )
    max_skip_ms: Whole = Field(default=2000, ge=0, le=600_000, description="longest time without running the detector")


class ClipsConfig(Section):
    enabled: Flag = Field(default=False, description="record a clip of every event, from the camera's own stream")
    before_s: Annotated[float, Field(strict=True, ge=0, le=60, allow_inf_nan=False)] = Field(
        default=5.0, description="seconds before the event; the clip begins at the key frame before them"
    )
    after_s: Annotated[float, Field(strict=True, ge=0, le=600, allow_inf_nan=False)] = Field(
        default=5.0, description="seconds after the event"
    )
    max_s: Annotated[float, Field(strict=True, ge=1, le=3600, allow_inf_nan=False)] = Field(
        default=60.0, description="longest clip, in seconds; what an event lasts longer is not recorded"
    )
    buffer_mb: Whole = Field(
        default=16,
        ge=1,
        le=1024,
        description="memory for the stream's newest packets: before_s and a key frame's distance",
    )

    @model_validator(mode="after")
    def _check_lengths(self) -> ClipsConfig:
        if self.max_s <= self.before_s:
            raise PydanticCustomError(PROBLEM_TYPE, "max_s must be larger than before_s")
        return self


class PictureHealthConfig(Section):
    enabled: Flag = Field(default=False, description="tell when the camera does not see what it usually sees")
    hold_s: Annotated[float, Field(strict=True, ge=0, le=3600, allow_inf_nan=False)] = Field(
        default=5.0, description="seconds that a fault must last to be told, and be gone to be over"
    )
    dark_level: Annotated[float, Field(strict=True, ge=0, le=255, allow_inf_nan=False)] = Field(
        default=16.0, description="mean brightness, of 255, below which the picture is dark"
    )
    min_detail: Fraction = Field(
        default=0.4, description="share of the usual detail below which the picture is blurred, or covered"
    )
    min_likeness: Fraction = Field(
        default=0.5, description="likeness to the usual view below which it is another one: the camera was moved"
    )
    relearn_s: Annotated[float, Field(strict=True, ge=1, le=86_400, allow_inf_nan=False)] = Field(
        default=120.0, description="seconds after which another view becomes the usual one"
    )


class ChannelConfig(Section):
    source: SourceConfig = Field(description="where the channel's frames come from")
    sinks: tuple[SinkConfig, ...] = Field(
        default=(), max_length=8, description="what is written", json_schema_extra={"allowed": "a list of sinks"}
    )
    priority: Whole = Field(
        default=1, ge=1, le=100, description="share of the detector when there is too much to do, beside the others"
    )
    detect_interval: Whole = Field(
        default=1, ge=1, le=1000, description="run the detector on every so many frames; tracks go on between them"
    )
    motion: MotionConfig | None = Field(
        default=None, description="run the detector only while something moves; null runs it always"
    )
    crop: Rectangle | None = Field(
        default=None, description="part of the picture that is detected in: left, top, right, bottom from 0 to 1"
    )
    tiles: TilesConfig | None = Field(
        default=None, description="detect in tiles of the picture, for small objects; null takes it whole"
    )
    clips: ClipsConfig = Field(default_factory=ClipsConfig, description="recordings of events")
    snapshots: SnapshotsConfig = Field(default_factory=SnapshotsConfig, description="pictures of events")
    picture_health: PictureHealthConfig = Field(
        default_factory=PictureHealthConfig, description="whether the camera is covered, moved, dark, blurred or frozen"
    )
    masks: tuple[Polygon, ...] = Field(
        default=(),
        max_length=16,
        description="areas that are blacked out in everything that is written or sent: corners [x, y] from 0 to 1",
        json_schema_extra={"allowed": "a list of polygons, each a list of corners [x, y] with numbers from 0 to 1"},
    )
    zones: Mapping[Slug, ZoneConfig] = Field(
        default_factory=dict,
        max_length=MAX_RULES,
        description="areas by name: who is in them is told",
        json_schema_extra={"allowed": f"at most {MAX_RULES} zones, each under a name of {SLUG_WORDS}"},
    )
    lines: Mapping[Slug, LineConfig] = Field(
        default_factory=dict,
        max_length=MAX_RULES,
        description="lines by name: who crosses them, and which way, is told and counted",
        json_schema_extra={"allowed": f"at most {MAX_RULES} lines, each under a name of {SLUG_WORDS}"},
    )

    @model_validator(mode="after")
    def _check_clips(self) -> ChannelConfig:
        if self.clips.enabled and self.masks:
            what = "clips are the camera's own stream, in which nothing can be masked: leave out clips.enabled or masks"
            raise PydanticCustomError(PROBLEM_TYPE, what)
        return self

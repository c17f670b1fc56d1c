"""What factories are asked for, and the shape of each factory. `app` fills them in from the configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from zhcedge.core.leases import Rewarm, no_rewarm
from zhcedge.core.packets import PacketKeeper
from zhcedge.core.ports import NO_RANGES, Clock, Device, Engine, JpegEncoder, LinkMeter, Ranges, Sink, Source
from zhcedge.core.types import ModelFacts


@dataclass(frozen=True)
class DeviceSettings:
    """How to open a device.

    Attributes:
        index: which one of its kind.
        threads: that host work may use, 0 for as many as there are cores.
        is_audit: watch and time everything, also where that costs time.
        ranges: told which stage is enqueued.
    """

    index: int = 0
    threads: int = 0
    is_audit: bool = False
    ranges: Ranges = NO_RANGES


@dataclass(frozen=True)
class EngineRequest:
    """Which model to load.

    Attributes:
        model_path, facts: the verified file and what is known of it.
        threads: host threads for inference, 0 for one per core.
        is_fused: an engine that can compiles what belongs together for this GPU; it opens more slowly.
        plan: the model built for this GPU, for engines that run plans; verified, without its header.
        precision: of the plan, for people.
        runtime_cache: file where an engine keeps what it compiles at run time; None keeps nothing.
    """

    model_path: Path
    facts: ModelFacts
    threads: int = 0
    is_fused: bool = False
    plan: bytes = field(default=b"", repr=False)
    precision: str = ""
    runtime_cache: Path | None = None


@dataclass(frozen=True)
class SourceOptions:
    """What a source can be asked for; each kind takes what makes sense for it.

    Attributes:
        fps: frames a second to keep of the stream, evenly; None keeps all.
        start_s: where a file starts.
        max_latency_ms: a live source drops frames that are older when it hands them over; None keeps all.
        transport: "tcp" or "udp", of RTSP.
        username, password: at the camera. Never in a message.
        ca_file, verify_tls: how a TLS server is checked.
        connect_timeout_s, read_timeout_s: longest wait for the first packet, and for the next.
        freeze_timeout_s: a picture that stays the same for so long means a frozen camera; None never.
    """

    fps: float | None = None
    start_s: float = 0.0
    max_latency_ms: int | None = None
    transport: str = "tcp"
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    verify_tls: bool = True
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 5.0
    freeze_timeout_s: float | None = None


@dataclass(frozen=True)
class SourceRequest:
    """Which source to make.

    Attributes:
        channel, channel_name: index in the run and the name for messages.
        uri: file path or URL; never logged with its credentials.
        is_realtime: play a file at its own pace, dropping frames under overload, as a camera would.
        is_looped: start a file again at its end; presentation times keep growing.
        options: what else is asked of it.
        paths: images that make one source, in order; empty takes what `uri` names.
        rewarm: opens a re-warm lease; a source holds one while it makes memory anew in the active phase, because its
            stream changed its format.
        packets: keeps the compressed packets of a source that has some; None keeps none.
    """

    channel: int
    channel_name: str
    uri: str
    is_realtime: bool
    is_looped: bool
    clock: Clock
    options: SourceOptions = SourceOptions()
    paths: tuple[Path, ...] = ()
    rewarm: Rewarm = no_rewarm
    packets: PacketKeeper | None = None


def numbered_picture(sequence: int) -> str:
    """00000042.jpg"""
    return f"{sequence:08}.jpg"


@dataclass(frozen=True)
class SinkRequest:
    """Which sink to make.

    Attributes:
        channel_name: for messages.
        path: file or folder to write; says nothing where `url` is set.
        ranges: told of each encoded picture.
        url: where to push; never logged with its credentials.
        labels: the model's class names by index.
        quality: of JPEG pictures, 1..100.
        bitrate_kbps: of pushed video.
        picture_name: file name of the picture with a sequence number, for folders of pictures; None numbers them and
            goes on after the highest number that is there.
    """

    channel_name: str
    path: Path
    ranges: Ranges = NO_RANGES
    url: str = field(default="", repr=False)
    labels: tuple[str, ...] = ()
    quality: int = 85
    bitrate_kbps: int = 4000
    picture_name: Callable[[int], str] | None = None


RangesFactory = Callable[[], Ranges]
MeterFactory = Callable[[Device[object]], LinkMeter]
DeviceFactory = Callable[[DeviceSettings], Device[object]]
EngineFactory = Callable[[EngineRequest, Device[object]], Engine[object]]
SourceFactory = Callable[[SourceRequest, Device[object]], Source[object]]
SinkFactory = Callable[[SinkRequest, Device[object]], Sink[object]]
JpegFactory = Callable[[Device[object], int], JpegEncoder[object]]
"""The device, and the quality of the pictures, 1..100."""

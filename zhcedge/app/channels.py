"""From a channel's configuration to its parts: source, sinks, settings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from zhcedge.app.passwords import read_password
from zhcedge.backends.registry import SINKS, source_factory
from zhcedge.config.channel import ChannelConfig, SinkConfig, SourceConfig
from zhcedge.core.errors import ConfigError, MediaError, SourceMissingError
from zhcedge.core.leases import Rewarm
from zhcedge.core.packets import PacketKeeper
from zhcedge.core.ports import NO_RANGES, Clock, Device, Ranges, Sink, Source
from zhcedge.core.requests import SinkRequest, SourceOptions, SourceRequest
from zhcedge.media.address import CAMERA_PREFIX, with_credentials
from zhcedge.media.connection import check_camera
from zhcedge.pipeline.channel import ChannelParts, ChannelSettings
from zhcedge.pipeline.fallback import FallbackSink
from zhcedge.pipeline.gate import MotionSettings
from zhcedge.pipeline.tiles import WHOLE, Regions
from zhcedge.profiles import Profile


def keep_no_packets(name: str, channel: ChannelConfig) -> PacketKeeper | None:
    """Where nothing is recorded."""
    return None


@dataclass(frozen=True)
class ChannelFactory:
    """Makes the unopened parts of channels for one device.

    Attributes:
        labels: the model's class names by index.
        output_dir: where relative paths of sinks start.
        rewarm: opens a re-warm lease for a source.
        images: what every source reads, in order, instead of what its address names.
        picture_name: file name of the picture with a sequence number, in folders of pictures; None numbers them on.
        is_patient: wait for a stream that is not there at the start, instead of giving it up.
        keep_packets: gives what keeps the compressed packets of a channel, by name; None keeps none.
    """

    profile: Profile
    device: Device[object]
    labels: tuple[str, ...]
    output_dir: Path
    clock: Clock
    rewarm: Rewarm
    ranges: Ranges = NO_RANGES
    images: tuple[Path, ...] = ()
    picture_name: Callable[[int], str] | None = None
    is_patient: bool = True
    keep_packets: Callable[[str, ChannelConfig], PacketKeeper | None] = keep_no_packets

    def parts(self, index: int, name: str, channel: ChannelConfig) -> ChannelParts[object]:
        """Raises UsageError, ConfigError or BackendUnavailableError; a file that is missing is found at `open`."""
        return ChannelParts(
            name,
            self._source(index, name, channel),
            [(sink.kind, self._sink(name, sink)) for sink in channel.sinks],
            channel_settings(channel),
            channel.masks,
            is_patient=self.is_patient and channel.source.kind == "stream",
        )

    def _source(self, index: int, name: str, channel: ChannelConfig) -> Source[object]:
        source = channel.source
        options = source_options(source, f"channels.{name}.source.password_file")
        if source.kind == "stream":
            check_address(source.uri, options, f"channels.{name}.source.uri")
        request = SourceRequest(
            index,
            name,
            str(clip_path(source.clip)) if source.clip is not None else source.uri,
            source.realtime,
            source.loop,
            self.clock,
            options,
            self.images,
            self.rewarm,
            self.keep_packets(name, channel),
        )
        return source_factory(self.profile.sources["image" if self.images else source.kind])(request, self.device)

    def _sink(self, name: str, sink: SinkConfig) -> Sink[object]:
        request = SinkRequest(
            name,
            self.output_dir / sink.path if sink.path is not None else self.output_dir,
            self.ranges,
            sink.url or "",
            self.labels,
            sink.quality,
            sink.bitrate_kbps,
            self.picture_name,
        )
        chosen = self.profile.sink(sink.kind)
        other = self.profile.fallbacks.get(chosen)
        if other is None:
            return SINKS.get(chosen)(request, self.device)
        return FallbackSink(
            f"{name}: {request.path}",
            (chosen, lambda: SINKS.get(chosen)(request, self.device)),
            (other, lambda: SINKS.get(other)(request, self.device)),
        )


def channel_settings(channel: ChannelConfig) -> ChannelSettings:
    """How the pipeline shall work on the channel."""
    motion, tiles = channel.motion, channel.tiles
    return ChannelSettings(
        priority=channel.priority,
        detect_interval=channel.detect_interval,
        motion=MotionSettings(motion.threshold, motion.max_skip_ms) if motion is not None else None,
        watches_picture=channel.picture_health.enabled,
        regions=Regions(
            channel.crop or WHOLE,
            tiles.columns if tiles is not None else 1,
            tiles.rows if tiles is not None else 1,
            tiles.overlap if tiles is not None else 0.0,
        ),
    )


def source_options(source: SourceConfig, key: str) -> SourceOptions:
    """What is asked of a source. Raises ConfigError when the password file, named by `key`, can't be read."""
    return SourceOptions(
        fps=source.fps,
        start_s=source.start_s,
        max_latency_ms=source.max_latency_ms,
        transport=source.transport,
        username=source.username,
        password=read_password(source.password_file, key) if source.password_file is not None else None,
        ca_file=source.ca_file,
        verify_tls=source.verify_tls,
        connect_timeout_s=source.connect_timeout_s,
        read_timeout_s=source.read_timeout_s,
        freeze_timeout_s=source.freeze_timeout_s,
    )


def check_address(uri: str, options: SourceOptions, key: str) -> None:
    """Whether an address could be a stream's or a camera's at all: one that can't is no camera to wait for.

    Raises ConfigError naming `key`. Opens nothing.
    """
    if uri.startswith(CAMERA_PREFIX):
        if not uri.removeprefix(CAMERA_PREFIX).startswith("/"):
            raise ConfigError("names no device", where=key, fix="write v4l2:/dev/video0, see ls /dev/video*")
        with contextlib.suppress(SourceMissingError):  # it may be plugged in later
            try:
                check_camera(uri, key)
            except MediaError as error:
                raise ConfigError(error.what, where=key, fix=error.fix) from error
        return
    try:
        with_credentials(uri, options.username, options.password, key)
    except MediaError as error:
        raise ConfigError(error.what, where=key, fix=error.fix) from None


def check_source(source: SourceConfig) -> None:
    """Whether a file or folder that the source names is there. Raises SourceMissingError."""
    if source.clip is not None:
        clip_path(source.clip)
    elif source.kind in ("file", "image"):
        path = Path(source.uri)
        try:
            path.stat()
        except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
            raise SourceMissingError("there is no such file", where=str(path), fix="check the path") from error


def clip_path(name: str) -> Path:
    """A clip that comes with the package. Raises SourceMissingError."""
    path = Path(str(resources.files("zhcedge") / "data" / f"{name}.mp4"))
    if not path.is_file():
        clips = sorted(entry.stem for entry in path.parent.glob("*.mp4"))
        raise SourceMissingError("no such bundled clip", where=f"clip:{name}", fix=f"bundled: {', '.join(clips)}")
    return path
